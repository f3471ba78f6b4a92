//! The times of a completion match what happened. The operation was submitted during the submitter's call, was issued
//! when the device was told, and was completed then or later, but before it was reaped.
//!
//! The issue time of an operation may be earlier than its submission time. The thread that passes it on may have looked
//! at the clock before, and the times are those of the batches that the operation went with.

use std::collections::BTreeMap;

use blkmq_sched::{Op, RqId, Time};
use blkmq_virtual::Status;

use super::super::event::{Event, Stamp, Times};
use super::super::text::Millis;
use super::table::grown;
use super::tracker::{Operation, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "times";

/// What is known of an operation that is outstanding.
#[derive(Debug, Clone, Copy)]
struct Submission {
    /// The last time at which the submitter had nothing outstanding, and so nothing in its plug.
    since: Time,
    /// When the queue had taken the operation.
    taken: Option<Time>,
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct CompletionTimes {
    operations: BTreeMap<u64, Submission>,
    /// For each submitter: how many operations are outstanding, and since when any are.
    submitters: Vec<(u64, Time)>,
}

impl CompletionTimes {
    fn submitted(&mut self, now: Time, submitter: u16, bio: u64) {
        let (count, since) = grown(&mut self.submitters, submitter, || (0, now));
        if *count == 0 {
            *since = now;
        }
        *count += 1;
        self.operations.insert(bio, Submission { since: *since, taken: None });
    }
}

/// Says what is wrong with the times of an operation that became this request, if anything is.
fn judge(
    now: Time,
    Submission { since, taken }: Submission,
    operation: &Operation,
    rq: RqId,
    status: Status,
    times: Times,
    tracker: &Tracker,
) -> Option<String> {
    let Times { submitted, issued, completed } = times;
    let (until, asked) = (taken.unwrap_or(now), &operation.asked);
    if submitted < since || submitted > until {
        let (since, until) = (Millis(since.0), Millis(until.0));
        return Some(format!("submitted at {} ms, and that was from {since} to {until} ms", Millis(submitted.0)));
    }
    if completed > now || completed < issued {
        let (issued, now) = (Millis(issued.0), Millis(now.0));
        let completed = Millis(completed.0);
        return Some(format!("completed at {completed} ms, issued at {issued} ms, and it is {now} ms now"));
    }
    // If an operation was split, the part that completed last counts, and it is not known which part that is. Ranges
    // need not touch each other, so of several it is not known whether an operation is in them as a whole.
    let offer = tracker.offer(rq).filter(|offer| offer.is_taken && offer.now != issued);
    if let Some((offer, [(sector, _)])) = offer.map(|offer| (offer, &offer.ranges[..]))
        && *sector <= asked.sector
        && operation.end() <= sector + offer.nr_sectors()
    {
        let (said, was) = (Millis(issued.0), Millis(offer.now.0));
        return Some(format!("issued at {said} ms, and the device got it at {was} ms"));
    }
    let reached = status.is_ok() && asked.op != Op::Flush;
    (reached && issued == Time(0)).then(|| "never issued, and it is done".to_owned())
}

impl Checker for CompletionTimes {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Submitted { submitter, bio, .. } => self.submitted(at.time, submitter, bio),
            Event::Named { bio, .. } => {
                if let Some(operation) = self.operations.get_mut(&bio) {
                    operation.taken = Some(at.time);
                }
            }
            _ => {}
        }
        for bio in &tracker.ending {
            let (Some(known), Some(operation)) = (self.operations.remove(bio), tracker.operation(*bio)) else {
                continue;
            };
            if let Some((count, _)) = self.submitters.get_mut(usize::from(operation.submitter)) {
                *count -= 1;
            }
            let Event::Reaped { id, status, times, .. } = *event else { continue };
            if let Some(what) = judge(at.time, known, operation, id, status, times, tracker) {
                let what = format!("operation {bio} says that it was {what}");
                return Err(Violation::new(RULE, what).bio(*bio).request(id));
            }
        }
        Ok(())
    }
}
