//! The times of a completion match what happened. The operation was submitted during the submitter's call, was issued
//! when the device was told, and was completed then or later, but before it was reaped.
//!
//! The issue time of an operation may be earlier than its submission time. The thread that passes it on may have looked
//! at the clock before, and the times are those of the batches that the operation went with.

use blkmq_sched::{Op, Time};
use blkmq_virtual::Status;

use super::super::event::{Action, Asked, Event, Stamp, Times};
use super::super::text::Millis;
use super::book::Book;
use super::table::{Table, grown};
use super::{Checker, Violation};

const RULE: &str = "times";

#[derive(Debug)]
struct Operation {
    submitter: u16,
    asked: Asked,
    /// The last time at which the submitter had nothing outstanding, and so nothing in its plug.
    since: Time,
    /// When the queue had taken the operation.
    taken: Option<Time>,
}

/// A request, as the device was last offered it.
#[derive(Debug, Clone, Copy)]
struct Offer {
    sector: u64,
    end: u64,
    now: Time,
    is_taken: bool,
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct CompletionTimes {
    operations: Book<Operation>,
    /// For each submitter: how many operations are outstanding, and since when any are.
    submitters: Vec<(u64, Time)>,
    offers: Table<Offer>,
}

impl CompletionTimes {
    pub(super) fn new() -> Self {
        Self::default()
    }

    fn submitted(&mut self, now: Time, submitter: u16, bio: u64, asked: Asked) {
        let (count, since) = grown(&mut self.submitters, submitter, || (0, now));
        if *count == 0 {
            *since = now;
        }
        *count += 1;
        self.operations.begin(bio, Operation { submitter, asked, since: *since, taken: None });
    }

    fn end_of(&mut self, bio: u64) -> Option<Operation> {
        let operation = self.operations.end(bio)?;
        if let Some((count, _)) = self.submitters.get_mut(usize::from(operation.submitter)) {
            *count -= 1;
        }
        Some(operation)
    }

    fn judge(
        &self,
        now: Time,
        operation: &Operation,
        status: Status,
        times: Times,
        offer: Option<Offer>,
    ) -> Option<String> {
        let Operation { asked, since, taken, .. } = operation;
        let Times { submitted, issued, completed } = times;
        let until = taken.unwrap_or(now);
        if submitted < *since || submitted > until {
            let (since, until) = (Millis(since.0), Millis(until.0));
            return Some(format!("submitted at {} ms, and that was from {since} to {until} ms", Millis(submitted.0)));
        }
        if completed > now || completed < issued {
            let (issued, now) = (Millis(issued.0), Millis(now.0));
            let completed = Millis(completed.0);
            return Some(format!("completed at {completed} ms, issued at {issued} ms, and it is {now} ms now"));
        }
        // If an operation was cut, the part that completed last counts, and it is not known which part that is.
        let end = asked.sector.saturating_add(asked.nr_sectors);
        let is_whole = |offer: &Offer| offer.is_taken && offer.sector <= asked.sector && end <= offer.end;
        if let Some(offer) = offer.filter(is_whole).filter(|offer| offer.now != issued) {
            let (said, was) = (Millis(issued.0), Millis(offer.now.0));
            return Some(format!("issued at {said} ms, and the device got it at {was} ms"));
        }
        let reached = status.is_ok() && asked.op != Op::Flush;
        (reached && issued == Time(0)).then(|| "never issued, and it is done".to_owned())
    }
}

impl Checker for CompletionTimes {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Submitted { submitter, bio, asked, .. } => self.submitted(at.time, submitter, bio, asked),
            Event::Named { bio, .. } => {
                if let Some(operation) = self.operations.get_mut(bio) {
                    operation.taken = Some(at.time);
                }
            }
            Event::Reaped { bio, id, status, times, .. } => {
                let Some(operation) = self.end_of(bio) else { return Ok(()) };
                let offer = self.offers.get(id).copied();
                if let Some(what) = self.judge(at.time, &operation, status, times, offer) {
                    let what = format!("operation {bio} says that it was {what}");
                    return Err(Violation::new(RULE, what).bio(bio).request(id));
                }
            }
            Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => _ = self.end_of(bio),
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|operation| operation.submitter == submitter);
                theirs.into_iter().for_each(|bio| _ = self.end_of(bio));
            }
            Event::Offered { rq, sector, nr_sectors, ranges, now, .. } => {
                // Ranges need not touch each other. So if there are several, it is not known whether an operation is in
                // them as a whole.
                let nr_sectors = if ranges.len() > 1 { 0 } else { u64::from(nr_sectors) };
                let offer = Offer { sector, end: sector.saturating_add(nr_sectors), now, is_taken: false };
                *self.offers.entry(rq) = Some((rq, offer));
            }
            Event::Acted { rq, action: Action::Started { .. } | Action::FinishedAtOnce(_) } => {
                if let Some(offer) = self.offers.get_mut(rq) {
                    offer.is_taken = true;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::RqId;

    use super::super::testing::*;
    use super::*;

    const RQ: RqId = id(1, 0, 0);

    /// A read of 8 sectors that was submitted and taken at 10 ns, and was issued at 0 ns by a thread that had looked at
    /// the clock before. The time is now 50 ns.
    fn told() -> Told<CompletionTimes> {
        let mut told = Told::new(CompletionTimes::new());
        told.now = 10;
        told.good(submitted(1, asked(Op::Read, 0, 8))).good(Event::Named { submitter: 1, bio: 1, id: RQ });
        told.now = 50;
        told
    }

    fn over(status: Status, times: [u64; 3]) -> Event<'static> {
        let [submitted, issued, completed] = times.map(Time);
        let times = Times { submitted, issued, completed };
        Event::Reaped { submitter: 1, bio: 1, id: RQ, status, times, data: &[] }
    }

    #[test]
    fn the_times_are_in_order() {
        told().good(over(Status::Ok, [10, 20, 50]));
        told().bad(over(Status::Ok, [9, 20, 50]), "operation 1 says that it was submitted at 0.000009 ms");
        told().bad(over(Status::Ok, [11, 20, 50]), "from 0.000010 to 0.000010 ms");
        told().bad(over(Status::Ok, [10, 20, 51]), "completed at 0.000051 ms");
        told().bad(over(Status::Ok, [10, 20, 19]), "issued at 0.000020 ms");
        told().bad(over(Status::Ok, [10, 0, 50]), "never issued");
        told().good(over(Status::Again, [10, 0, 0]));
    }

    #[test]
    fn a_plug_that_holds_something_may_be_older() {
        let mut told = told();
        told.good(submitted(2, asked(Op::Read, 8, 8))).good(over(Status::Ok, [10, 20, 50]));
        let second = |submitted| Event::Reaped {
            submitter: 1,
            bio: 2,
            id: id(1, 1, 0),
            status: Status::Ok,
            times: Times { submitted: Time(submitted), issued: Time(20), completed: Time(50) },
            data: &[],
        };
        told.good(second(10)).good(submitted(3, asked(Op::Read, 8, 8)));
        let third = Event::Reaped {
            submitter: 1,
            bio: 3,
            id: id(1, 1, 1),
            status: Status::Ok,
            times: Times { submitted: Time(10), issued: Time(20), completed: Time(50) },
            data: &[],
        };
        told.bad(third, "submitted at");
    }

    #[test]
    fn what_was_issued_is_what_the_device_was_told() {
        let offers = |sectors| {
            let mut told = told();
            told.good(offered(RQ, Op::Read, 0, sectors, &[])).good(started(RQ));
            told
        };
        offers(8).bad(over(Status::Ok, [10, 20, 50]), "issued at 0.000020 ms, and the device got it at 0.000000 ms");
        offers(8).good(over(Status::Medium, [10, 0, 50]));
        // A part of the operation; and a request that the device gave back, but did not take.
        offers(7).good(over(Status::Ok, [10, 20, 50]));
        let mut told = told();
        told.good(offered(RQ, Op::Read, 0, 8, &[])).good(acted(RQ, Action::GivenBack));
        told.good(over(Status::Ok, [10, 20, 50]));
    }
}
