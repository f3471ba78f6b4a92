//! Nothing is lost and nothing is doubled. An operation that was taken is over exactly once, and the submitter that
//! submitted it gets it back, with a status that the results of its requests allow.

use std::collections::BTreeMap;

use blkmq_sched::{Op, RqId};
use blkmq_virtual::{RejectReason, Status};

use super::super::event::{Asked, Event, Stamp};
use super::super::text::Request;
use super::tracker::{Operation, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "lost";

/// Errors that occurred, as a set of bits.
#[derive(Debug, Clone, Copy, Default)]
struct Errors(u16);

impl Errors {
    const fn note(&mut self, status: Status) {
        if !status.is_ok() {
            self.0 |= 1 << status as u8;
        }
    }

    const fn has(self, status: Status) -> bool {
        self.0 & 1 << status as u8 != 0
    }
}

/// What happened to an operation that is not over.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    id: Option<RqId>,
    /// How many of its sectors the device is done with, and how many of these went well. Not counted for reads, which
    /// may overlap, and not for flushes.
    done: u64,
    good: u64,
    /// Errors of requests that may have been parts of this operation.
    errors: Errors,
    /// Errors of flushes of the device that may have been made for this operation.
    flush_errors: Errors,
}

impl Progress {
    /// Whether the operation may be over, judged by what the device did.
    const fn may_be_over(&self, operation: &Operation) -> bool {
        let Asked { flags, nr_sectors, .. } = operation.asked;
        // A flush before the data that fails ends the operation, and so does the lack of a tag if it must not wait.
        !operation.changes() || self.done == nr_sectors || flags.nowait || (flags.preflush && self.flush_errors.0 != 0)
    }

    /// Says what is wrong with ending with this status, if anything is.
    fn judge(&self, operation: &Operation, status: Status) -> Result<(), &'static str> {
        let Asked { flags, nr_sectors, .. } = operation.asked;
        if !self.may_be_over(operation) {
            return Err("the device is not done with all of its sectors");
        }
        match status {
            Status::Ok if operation.changes() && self.good < nr_sectors => Err("not all of its sectors went well"),
            Status::Ok => Ok(()),
            Status::Again if !flags.nowait => Err("it may wait"),
            Status::Again if operation.changes() && self.done == nr_sectors => Err("nothing of it had to wait"),
            Status::Again => Ok(()),
            _ if self.errors.has(status) || self.flush_errors.has(status) => Ok(()),
            _ => Err("no request of it ended so"),
        }
    }
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Lost {
    operations: BTreeMap<u64, Progress>,
}

fn fail(bio: u64, what: String) -> Verdict {
    Err(Violation::new(RULE, what).bio(bio))
}

impl Lost {
    /// Ends an operation in this way for this submitter.
    fn end_of<'t>(
        &mut self,
        submitter: u16,
        bio: u64,
        how: &str,
        tracker: &'t Tracker,
    ) -> Result<(Progress, &'t Operation), Violation> {
        let progress = self.operations.remove(&bio).unwrap_or_default();
        let what = match tracker.operation(bio).filter(|operation| operation.is_valid()) {
            Some(operation) if operation.submitter == submitter => return Ok((progress, operation)),
            Some(Operation { submitter: owner, .. }) => {
                format!("operation {bio} of submitter {owner} was {how} for submitter {submitter}")
            }
            None => format!("submitter {submitter}: operation {bio} was {how}, and is over or was never taken"),
        };
        Err(Violation::new(RULE, what).bio(bio))
    }

    fn rejected(&mut self, submitter: u16, bio: u64, reason: RejectReason, tracker: &Tracker) -> Verdict {
        if tracker.operation(bio).is_none_or(|operation| !operation.is_valid()) {
            return Ok(());
        }
        let (progress, _) = self.end_of(submitter, bio, "rejected", tracker)?;
        if progress.id.is_some() || progress.done > 0 {
            fail(bio, format!("operation {bio} was rejected after it was taken"))
        } else if matches!(reason, RejectReason::Full | RejectReason::Bad(Status::TooLarge)) {
            Ok(())
        } else {
            fail(bio, format!("operation {bio} is a good one, and was rejected: {reason:?}"))
        }
    }

    fn named(&mut self, bio: u64, id: RqId, tracker: &Tracker) -> Verdict {
        let is_valid = tracker.operation(bio).is_some_and(Operation::is_valid);
        if is_valid && self.operations.entry(bio).or_default().id.replace(id).is_none() {
            return Ok(());
        }
        fail(bio, format!("operation {bio} was taken twice, or is a bad one"))
    }

    fn reaped(&mut self, submitter: u16, bio: u64, id: RqId, status: Status, tracker: &Tracker) -> Verdict {
        let (progress, operation) = self.end_of(submitter, bio, "reaped", tracker)?;
        let what = if let Some(taken) = progress.id.filter(|known| *known != id) {
            format!("operation {bio} was reaped as {} and taken as {}", Request(id), Request(taken))
        } else if let Err(what) = progress.judge(operation, status) {
            format!("operation {bio} ended as '{status}': {what}")
        } else {
            return Ok(());
        };
        Err(Violation::new(RULE, what).bio(bio).request(id))
    }

    fn handed_back(&mut self, submitter: u16, bio: u64, tracker: &Tracker) -> Verdict {
        let (Progress { done, .. }, operation) = self.end_of(submitter, bio, "handed back", tracker)?;
        // One part of an operation may be done when another part is handed back.
        let most = if operation.nr_parts > 1 { operation.asked.nr_sectors.saturating_sub(1) } else { 0 };
        if done <= most {
            return Ok(());
        }
        fail(bio, format!("operation {bio} was handed back undone, and {done} of its sectors are done"))
    }

    fn left(&mut self, submitter: u16, hands_back: bool, tracker: &Tracker) -> Verdict {
        for bio in &tracker.ending {
            let progress = self.operations.remove(bio).unwrap_or_default();
            let Some(operation) = tracker.operation(*bio).filter(|operation| operation.is_valid()) else { continue };
            if hands_back && !progress.may_be_over(operation) {
                let (done, nr_sectors) = (progress.done, operation.asked.nr_sectors);
                let what = format!(
                    "submitter {submitter} left with operation {bio} neither done nor handed back: {done} of {nr_sectors} \
                     sectors"
                );
                return fail(*bio, what);
            }
        }
        Ok(())
    }

    /// Called when the device ends a request. The parts of operations that the request stands for are over too.
    fn note_end(&mut self, tracker: &Tracker) -> Verdict {
        let Some((_, offer, status)) = tracker.ended() else { return Ok(()) };
        if offer.op == Op::Flush {
            for (bio, _) in tracker.operations().filter(|_| !status.is_ok()) {
                self.operations.entry(bio).or_default().flush_errors.note(status);
            }
            return Ok(());
        }
        for &(sector, nr_sectors) in &offer.ranges {
            let end = sector + u64::from(nr_sectors);
            if offer.op == Op::Read {
                let reads = tracker.operations().filter(|(_, read)| !status.is_ok() && read.asked.op == Op::Read);
                for (bio, _) in reads.filter(|(_, read)| read.asked.sector < end && sector < read.end()) {
                    self.operations.entry(bio).or_default().errors.note(status);
                }
                continue;
            }
            for (bio, operation) in tracker.owners(sector, nr_sectors) {
                if operation.asked.op != offer.op {
                    continue;
                }
                let overlap = operation.end().min(end) - operation.asked.sector.max(sector);
                let progress = self.operations.entry(bio).or_default();
                progress.done += overlap;
                progress.good += if status.is_ok() { overlap } else { 0 };
                progress.errors.note(status);
                if progress.done > operation.asked.nr_sectors {
                    return fail(bio, format!("operation {bio}: the device was done with a part of it twice"));
                }
            }
        }
        Ok(())
    }
}

impl Checker for Lost {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Named { bio, id, .. } => self.named(bio, id, tracker),
            Event::Rejected { submitter, bio, reason, .. } => self.rejected(submitter, bio, reason, tracker),
            Event::Reaped { submitter, bio, id, status, .. } => self.reaped(submitter, bio, id, status, tracker),
            Event::HandedBack { submitter, bio } => self.handed_back(submitter, bio, tracker),
            Event::Left { submitter, hands_back } => self.left(submitter, hands_back, tracker),
            Event::Acted { .. } => self.note_end(tracker),
            _ => Ok(()),
        }
    }

    fn end(&mut self, tracker: &Tracker) -> Verdict {
        let Some((bio, _)) = tracker.operations().next() else { return Ok(()) };
        let missing = tracker.operations().count();
        fail(bio, format!("{missing} operations are missing at the end, operation {bio} the first"))
    }
}
