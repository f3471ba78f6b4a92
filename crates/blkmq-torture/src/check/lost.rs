//! Nothing is lost and nothing is doubled. An operation that was taken is over exactly once, and the submitter that
//! submitted it gets it back, with a status that the results of its requests allow.

use std::collections::BTreeMap;

use blkmq_sched::{Op, RqId};
use blkmq_virtual::{RejectReason, Status};

use super::super::event::{Asked, Event, Stamp};
use super::super::text::Request;
use super::book::Book;
use super::offers::Offers;
use super::parts::parts;
use super::{Checker, Facts, Violation};

const RULE: &str = "lost";

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

    const fn any(self) -> bool {
        self.0 != 0
    }
}

/// An operation that is not over.
#[derive(Debug)]
struct Operation {
    submitter: u16,
    asked: Asked,
    /// The number of requests that the operation is cut into.
    nr_parts: u64,
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

impl Operation {
    /// Whether the requests of the operation can be found by its sectors.
    const fn is_counted(&self) -> bool {
        !matches!(self.asked.op, Op::Read | Op::Flush)
    }

    const fn end(&self) -> u64 {
        self.asked.sector + self.asked.nr_sectors
    }

    /// Whether the operation may be over, judged by what the device did.
    fn may_be_over(&self) -> bool {
        let Asked { flags, nr_sectors, .. } = self.asked;
        // A flush before the data that fails ends the operation, and so does the lack of a tag if it must not wait.
        !self.is_counted() || self.done == nr_sectors || flags.nowait || (flags.preflush && self.flush_errors.any())
    }

    /// What is wrong with ending with this status, if anything is.
    fn judge(&self, status: Status) -> Result<(), &'static str> {
        let Asked { flags, nr_sectors, .. } = self.asked;
        let is_counted = self.is_counted();
        if !self.may_be_over() {
            return Err("the device is not done with all of its sectors");
        }
        match status {
            Status::Ok if is_counted && self.good < nr_sectors => Err("not all of its sectors went well"),
            Status::Ok => Ok(()),
            Status::Again if !flags.nowait => Err("it may wait"),
            Status::Again if is_counted && self.done == nr_sectors => Err("nothing of it had to wait"),
            Status::Again => Ok(()),
            _ if self.errors.has(status) || self.flush_errors.has(status) => Ok(()),
            _ => Err("no request of it ended so"),
        }
    }
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Lost {
    facts: Facts,
    operations: Book<Operation>,
    /// The operations other than reads, by their first sector. No two of these that are outstanding overlap.
    places: BTreeMap<u64, u64>,
    offers: Offers,
}

impl Lost {
    pub(super) fn new(facts: &Facts) -> Self {
        let facts = facts.clone();
        Self { facts, operations: Book::new(), places: BTreeMap::new(), offers: Offers::new() }
    }

    fn submitted(&mut self, submitter: u16, bio: u64, asked: Asked, pieces: &[usize]) -> Result<(), Violation> {
        // An operation that can never be taken is not expected to be over.
        let Ok(nr_parts) = parts(&self.facts.limits, &asked, pieces) else { return Ok(()) };
        let operation = Operation {
            submitter,
            asked,
            nr_parts,
            id: None,
            done: 0,
            good: 0,
            errors: Errors::default(),
            flush_errors: Errors::default(),
        };
        if operation.is_counted() {
            self.places.insert(asked.sector, bio);
        }
        if self.operations.begin(bio, operation) {
            Ok(())
        } else {
            Err(Violation::new(RULE, format!("operation {bio} was submitted twice")).bio(bio))
        }
    }

    /// Removes an operation that ends in this way for this submitter.
    fn end_of(&mut self, submitter: u16, bio: u64, how: &str) -> Result<Operation, Violation> {
        let Some(operation) = self.operations.end(bio) else {
            let what = format!("submitter {submitter}: operation {bio} was {how}, and is over or was never taken");
            return Err(Violation::new(RULE, what).bio(bio));
        };
        if operation.is_counted() && self.places.get(&operation.asked.sector) == Some(&bio) {
            self.places.remove(&operation.asked.sector);
        }
        if operation.submitter == submitter {
            return Ok(operation);
        }
        let owner = operation.submitter;
        let what = format!("operation {bio} of submitter {owner} was {how} for submitter {submitter}");
        Err(Violation::new(RULE, what).bio(bio))
    }

    fn rejected(&mut self, submitter: u16, bio: u64, reason: RejectReason) -> Result<(), Violation> {
        if self.operations.get(bio).is_none() {
            return Ok(());
        }
        let operation = self.end_of(submitter, bio, "rejected")?;
        let what = if operation.id.is_some() || operation.done > 0 {
            format!("operation {bio} was rejected after it was taken")
        } else if matches!(reason, RejectReason::Full | RejectReason::Bad(Status::TooLarge)) {
            return Ok(());
        } else {
            format!("operation {bio} is a good one, and was rejected: {reason:?}")
        };
        Err(Violation::new(RULE, what).bio(bio))
    }

    fn named(&mut self, bio: u64, id: RqId) -> Result<(), Violation> {
        match self.operations.get_mut(bio) {
            Some(operation) if operation.id.is_none() => {
                operation.id = Some(id);
                Ok(())
            }
            _ => Err(Violation::new(RULE, format!("operation {bio} was taken twice, or is a bad one")).bio(bio)),
        }
    }

    fn reaped(&mut self, submitter: u16, bio: u64, id: RqId, status: Status) -> Result<(), Violation> {
        let operation = self.end_of(submitter, bio, "reaped")?;
        let what = if operation.id.is_some_and(|known| known != id) {
            let taken = operation.id.map_or_else(String::new, |id| Request(id).to_string());
            format!("operation {bio} was reaped as {} and taken as {taken}", Request(id))
        } else if let Err(what) = operation.judge(status) {
            format!("operation {bio} ended as '{status}': {what}")
        } else {
            return Ok(());
        };
        Err(Violation::new(RULE, what).bio(bio).request(id))
    }

    fn handed_back(&mut self, submitter: u16, bio: u64) -> Result<(), Violation> {
        let operation = self.end_of(submitter, bio, "handed back")?;
        // One part of an operation may be done when another part is handed back.
        let most = if operation.nr_parts > 1 { operation.asked.nr_sectors.saturating_sub(1) } else { 0 };
        if operation.done <= most {
            return Ok(());
        }
        let what = format!("operation {bio} was handed back undone, and {} of its sectors are done", operation.done);
        Err(Violation::new(RULE, what).bio(bio))
    }

    fn left(&mut self, submitter: u16, hands_back: bool) -> Result<(), Violation> {
        let theirs = self.operations.those(|operation| operation.submitter == submitter);
        for bio in theirs {
            let operation = self.end_of(submitter, bio, "over")?;
            if hands_back && !operation.may_be_over() {
                let Operation { done, asked, .. } = operation;
                let what = format!(
                    "submitter {submitter} left with operation {bio} neither done nor handed back: {done} of {} sectors",
                    asked.nr_sectors
                );
                return Err(Violation::new(RULE, what).bio(bio));
            }
        }
        Ok(())
    }

    /// Called when the device ends a request. The parts of operations that the request stands for are over too.
    fn note_end(&mut self, event: &Event<'_>) -> Result<(), Violation> {
        let Some((offer, status)) = self.offers.see(event) else { return Ok(()) };
        if offer.op == Op::Flush {
            if !status.is_ok() {
                self.operations.iter_mut().for_each(|(_, operation)| operation.flush_errors.note(status));
            }
            return Ok(());
        }
        for &(sector, nr_sectors) in &offer.ranges {
            let end = sector + u64::from(nr_sectors);
            if offer.op == Op::Read {
                if !status.is_ok() {
                    let reads = self.operations.iter_mut().filter(|(_, operation)| operation.asked.op == Op::Read);
                    let touched = reads.filter(|(_, read)| read.asked.sector < end && sector < read.end());
                    touched.for_each(|(_, read)| read.errors.note(status));
                }
                continue;
            }
            let first = self.places.range(..=sector).next_back().map_or(sector, |(first, _)| *first);
            for (_, bio) in self.places.range(first..end) {
                let Some(operation) = self.operations.get_mut(*bio) else { continue };
                let overlap = operation.end().min(end).saturating_sub(operation.asked.sector.max(sector));
                if overlap == 0 || operation.asked.op != offer.op {
                    continue;
                }
                operation.done += overlap;
                operation.good += if status.is_ok() { overlap } else { 0 };
                operation.errors.note(status);
                if operation.done > operation.asked.nr_sectors {
                    let what = format!("operation {bio}: the device was done with a part of it twice");
                    return Err(Violation::new(RULE, what).bio(*bio));
                }
            }
        }
        Ok(())
    }
}

impl Checker for Lost {
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => self.submitted(submitter, bio, asked, pieces),
            Event::Named { bio, id, .. } => self.named(bio, id),
            Event::Rejected { submitter, bio, reason, .. } => self.rejected(submitter, bio, reason),
            Event::Reaped { submitter, bio, id, status, .. } => self.reaped(submitter, bio, id, status),
            Event::HandedBack { submitter, bio } => self.handed_back(submitter, bio),
            Event::Left { submitter, hands_back } => self.left(submitter, hands_back),
            Event::Offered { .. } | Event::Acted { .. } => self.note_end(event),
            _ => Ok(()),
        }
    }

    fn end(&mut self, _at: Stamp) -> Result<(), Violation> {
        let Some((bio, _)) = self.operations.iter().next() else { return Ok(()) };
        let what = format!("{} operations are missing at the end, operation {bio} the first", self.operations.len());
        Err(Violation::new(RULE, what).bio(bio))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::event::Action;
    use super::super::testing::*;
    use super::*;
    use blkmq_virtual::Flags;

    fn told() -> Told<Lost> {
        Told::new(Lost::new(&FACTS))
    }

    fn write(nr_sectors: u64) -> Asked {
        asked(Op::Write, 8, nr_sectors)
    }

    /// Tells that an operation is submitted, and that its requests are over.
    fn done(nr_sectors: u64, parts: &[(u64, u32, Status)]) -> Told<Lost> {
        let mut told = told();
        told.good(submitted(7, write(nr_sectors)));
        for (slot, &(sector, nr_sectors, status)) in (0..).zip(parts) {
            told.good(offered(id(1, slot, 0), Op::Write, sector, nr_sectors, &[]));
            told.good(started(id(1, slot, 0))).good(completed(id(1, slot, 0), status));
        }
        told
    }

    #[test]
    fn what_is_done_is_over_once() {
        let mut told = done(8, &[(8, 8, Status::Ok)]);
        told.good(Event::Named { submitter: 1, bio: 7, id: id(1, 0, 0) });
        assert!(told.end().is_err_and(|missing| missing.bios == [7]));
        told.good(reaped(7, id(1, 0, 0), Status::Ok));
        assert_eq!(told.end(), Ok(()));
        told.bad(reaped(7, id(1, 0, 0), Status::Ok), "is over or was never taken");
    }

    #[test]
    fn an_operation_has_one_number_one_id_and_one_submitter() {
        told().good(submitted(7, write(8))).bad(submitted(7, write(8)), "submitted twice");
        let named = |slot| Event::Named { submitter: 1, bio: 7, id: id(1, slot, 0) };
        done(8, &[(8, 8, Status::Ok)]).good(named(0)).bad(named(0), "taken twice");
        done(8, &[(8, 8, Status::Ok)]).good(named(3)).bad(reaped(7, id(1, 0, 0), Status::Ok), "and taken as");
        let event = Event::Reaped {
            submitter: 2,
            bio: 7,
            id: id(1, 0, 0),
            status: Status::Ok,
            times: Default::default(),
            data: &[],
        };
        done(8, &[(8, 8, Status::Ok)]).bad(event, "operation 7 of submitter 1 was reaped for submitter 2");
    }

    #[test]
    fn nothing_is_over_before_the_device_is_done_with_it() {
        let says = "not done with all of its sectors";
        told().good(submitted(7, write(8))).bad(reaped(7, id(1, 0, 0), Status::Ok), says);
        done(32, &[(8, 16, Status::Ok)]).bad(reaped(7, id(1, 0, 0), Status::Ok), says);
        done(32, &[(8, 16, Status::Ok), (24, 16, Status::Ok)]).good(reaped(7, id(1, 0, 0), Status::Ok));
        let mut told = done(32, &[(8, 16, Status::Ok)]);
        told.good(offered(id(1, 1, 0), Op::Write, 8, 16, &[]));
        told.good(completed(id(1, 1, 0), Status::Ok)).good(offered(id(1, 2, 0), Op::Write, 24, 16, &[]));
        told.bad(completed(id(1, 2, 0), Status::Ok), "twice");
    }

    #[test]
    fn a_status_is_that_of_a_request() {
        let failed = || done(8, &[(8, 8, Status::Medium)]);
        failed().good(reaped(7, id(1, 0, 0), Status::Medium));
        failed().bad(reaped(7, id(1, 0, 0), Status::Ok), "not all of its sectors went well");
        failed().bad(reaped(7, id(1, 0, 0), Status::IoError), "no request of it ended so");
        failed().bad(reaped(7, id(1, 0, 0), Status::Again), "it may wait");
        let mut told = told();
        told.good(submitted(7, write(8))).good(offered(id(1, 0, 0), Op::Write, 8, 8, &[])).good(started(id(1, 0, 0)));
        told.good(acted(id(1, 0, 0), Action::GaveUp)).good(reaped(7, id(1, 0, 0), Status::Timeout));
    }

    #[test]
    fn what_must_not_wait_may_end_undone() {
        let flags = Flags { nowait: true, ..Flags::NONE };
        let asked = Asked { flags, ..write(8) };
        told().good(submitted(7, asked)).good(reaped(7, id(1, 0, 0), Status::Again));
        let mut told = told();
        told.good(submitted(7, asked)).good(offered(id(1, 0, 0), Op::Write, 8, 8, &[]));
        told.good(completed(id(1, 0, 0), Status::Ok)).bad(reaped(7, id(1, 0, 0), Status::Again), "nothing of it");
    }

    #[test]
    fn a_flush_that_fails_ends_the_write_that_waits_for_it() {
        let asked = Asked { flags: Flags { preflush: true, ..Flags::NONE }, ..write(8) };
        let mut told = told();
        told.good(submitted(7, asked)).good(offered(id(0, 0, 0), Op::Flush, 0, 0, &[])).good(started(id(0, 0, 0)));
        told.good(completed(id(0, 0, 0), Status::IoError)).good(reaped(7, id(1, 0, 0), Status::IoError));
        told.good(submitted(8, asked)).bad(reaped(8, id(1, 0, 1), Status::IoError), "not done");
    }

    #[test]
    fn reads_that_overlap_share_the_errors() {
        let mut told = told();
        told.good(submitted(7, asked(Op::Read, 8, 8))).good(submitted(8, asked(Op::Read, 12, 8)));
        told.good(submitted(9, asked(Op::Read, 20, 8)));
        told.good(offered(id(1, 0, 0), Op::Read, 8, 8, &[])).good(completed(id(1, 0, 0), Status::Medium));
        told.good(reaped(7, id(1, 0, 0), Status::Medium)).good(reaped(8, id(1, 1, 0), Status::Medium));
        told.bad(reaped(9, id(1, 2, 0), Status::Medium), "no request of it ended so");
    }

    #[test]
    fn who_leaves_gets_back_what_was_not_done() {
        let left = |hands_back| Event::Left { submitter: 1, hands_back };
        let handed_back = Event::HandedBack { submitter: 1, bio: 7 };
        told().good(submitted(7, write(8))).good(handed_back).good(left(true));
        told().good(submitted(7, write(8))).good(left(false));
        told().good(submitted(7, write(8))).bad(left(true), "neither done nor handed back");
        done(8, &[(8, 8, Status::Ok)]).good(left(true));
        done(8, &[(8, 8, Status::Ok)]).bad(handed_back, "8 of its sectors are done");
        done(32, &[(8, 16, Status::Ok)]).good(handed_back).bad(handed_back, "is over");
    }

    #[test]
    fn only_what_was_not_taken_is_rejected() {
        let rejected = |reason| Event::Rejected { submitter: 1, bio: 7, asked: write(8), reason };
        told().good(submitted(7, write(8))).good(rejected(RejectReason::Full));
        let bad = RejectReason::Bad(Status::BeyondEnd);
        told().good(submitted(7, write(8))).bad(rejected(bad), "is a good one");
        let beyond = Asked { sector: 1023, ..write(8) };
        told().good(submitted(7, beyond)).good(rejected(bad));
        told().good(submitted(7, beyond)).bad(reaped(7, id(1, 0, 0), Status::Ok), "never taken");
        done(8, &[(8, 8, Status::Ok)]).bad(rejected(RejectReason::Full), "after it was taken");
    }
}
