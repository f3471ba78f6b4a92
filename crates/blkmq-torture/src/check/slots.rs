//! Slots are conserved. What a submitter has outstanding is what it submitted and did not reap, and is never more than
//! the submitter has slots for. An operation is refused for lack of a slot only when there is none. An id names one
//! operation for ever.

use std::collections::BTreeMap;

use blkmq_sched::RqId;
use blkmq_virtual::{RejectReason, Status};

use super::super::event::{Asked, Event, Stamp};
use super::super::text::Request;
use super::book::Book;
use super::parts::parts;
use super::table::{Table, generation, pool, slot};
use super::{Checker, Facts, Violation};

const RULE: &str = "slots";

#[derive(Debug)]
struct Operation {
    submitter: u16,
    /// The slots that the operation takes.
    nr_parts: u64,
    /// The queue has said that it took the operation.
    is_named: bool,
    /// No event tells when the operation is over.
    is_forgotten: bool,
}

/// A submitter that has joined.
#[derive(Debug, Default)]
struct Submitter {
    nr_slots: u64,
    /// The pool that the submitter's slots are in, once the pool is known.
    pool: Option<u16>,
    /// Operations that were submitted and not reaped, and their parts.
    operations: u64,
    parts: u64,
    /// Operations that the queue has said it took.
    named: u64,
    /// Another submitter has this submitter's pool now, so this submitter is about to tell that it left.
    is_leaving: bool,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Slots {
    facts: Facts,
    operations: Book<Operation>,
    submitters: BTreeMap<u16, Submitter>,
    /// The operation that took each slot last, and whether that operation is outstanding.
    names: Table<bool>,
}

impl Slots {
    pub(super) fn new(facts: &Facts) -> Self {
        let facts = facts.clone();
        Self { facts, operations: Book::new(), submitters: BTreeMap::new(), names: Table::new() }
    }

    fn joined(&mut self, number: u16, nr_slots: u16) -> Result<(), Violation> {
        let submitter = Submitter { nr_slots: nr_slots.into(), ..Submitter::default() };
        match self.submitters.insert(number, submitter) {
            None => Ok(()),
            Some(_) => Err(Violation::new(RULE, format!("submitter {number} joined twice"))),
        }
    }

    fn submitted(&mut self, number: u16, bio: u64, asked: &Asked, pieces: &[usize]) {
        let Ok(nr_parts) = parts(&self.facts.limits, asked, pieces) else { return };
        let Some(submitter) = self.submitters.get_mut(&number) else { return };
        submitter.operations += 1;
        submitter.parts += nr_parts;
        self.operations.begin(bio, Operation { submitter: number, nr_parts, is_named: false, is_forgotten: false });
    }

    fn end_of(&mut self, bio: u64) -> Option<u64> {
        let Operation { submitter, nr_parts, is_named, is_forgotten } = self.operations.end(bio)?;
        if let Some(submitter) = self.submitters.get_mut(&submitter) {
            submitter.operations -= u64::from(!is_forgotten);
            submitter.parts -= nr_parts;
            submitter.named -= u64::from(is_named);
        }
        Some(nr_parts)
    }

    /// The operation keeps its slots until it is over, and it is not told when that is.
    fn forgotten(&mut self, bio: u64) {
        let Some(operation) = self.operations.get_mut(bio).filter(|operation| !operation.is_forgotten) else { return };
        operation.is_forgotten = true;
        if let Some(submitter) = self.submitters.get_mut(&operation.submitter) {
            submitter.operations -= 1;
        }
    }

    fn rejected(&mut self, number: u16, bio: u64, reason: RejectReason) -> Result<(), Violation> {
        let Some(nr_parts) = self.end_of(bio) else { return Ok(()) };
        let Some(Submitter { nr_slots, parts, .. }) = self.submitters.get(&number) else { return Ok(()) };
        let what = match reason {
            RejectReason::Full if nr_parts > *nr_slots => "it can never be taken",
            // Operations in the same call that are still to be handed in count too.
            RejectReason::Full if parts + nr_parts <= *nr_slots => "there are slots for it",
            RejectReason::Bad(Status::TooLarge) if nr_parts <= *nr_slots => "it is not too large",
            _ => return Ok(()),
        };
        let what = format!(
            "operation {bio} of {nr_parts} parts was rejected as {reason:?}, but {what}: submitter {number} has {parts} of \
             {nr_slots} slots in use"
        );
        Err(Violation::new(RULE, what).bio(bio))
    }

    fn named(&mut self, number: u16, bio: u64, id: RqId) -> Result<(), Violation> {
        let Some(operation) = self.operations.get_mut(bio).filter(|operation| !operation.is_named) else {
            return Ok(());
        };
        operation.is_named = true;
        let nr_parts = operation.nr_parts;
        let Some(submitter) = self.submitters.get_mut(&number) else { return Ok(()) };
        submitter.named += 1;
        let Submitter { nr_slots, named, .. } = *submitter;
        if nr_parts > nr_slots || named > nr_slots {
            let what =
                format!("operation {bio} of {nr_parts} parts was taken as number {named}, with {nr_slots} slots");
            return Err(Violation::new(RULE, what).bio(bio));
        }
        self.own(number, bio, id, true, true)
    }

    /// Called when it is known that an operation has this id. `begins`: the operation has just got the id. `is_named`:
    /// the queue told the id at that time.
    fn own(&mut self, number: u16, bio: u64, id: RqId, begins: bool, is_named: bool) -> Result<(), Violation> {
        let bad = |what: String| Err(Violation::new(RULE, what).bio(bio).request(id));
        if let Some(submitter) = self.submitters.get_mut(&number) {
            if u64::from(slot(id)) >= submitter.nr_slots {
                return bad(format!("operation {bio} is in slot {} of {}", slot(id), submitter.nr_slots));
            }
            let known = *submitter.pool.get_or_insert(pool(id));
            if known != pool(id) {
                return bad(format!("operation {bio} is in pool {}, and others of its submitter in {known}", pool(id)));
            }
            if submitter.is_leaving {
                return bad(format!("submitter {number} and another share pool {known}"));
            }
            let others = self.submitters.iter_mut().filter(|(other, _)| **other != number).map(|(_, other)| other);
            let before = others.filter(|other| other.pool == Some(known)).find(|other| !other.is_leaving);
            if let Some(before) = before {
                before.is_leaving = true;
                self.free(known);
            }
        }
        let entry = self.names.entry(id);
        match entry {
            Some((last, _)) if begins && generation(*last) >= generation(id) => bad(format!(
                "operation {bio} has an id that is not newer than {}, which was there before",
                Request(*last)
            )),
            Some((last, true)) if begins => bad(format!("operation {bio} is where {} is not over", Request(*last))),
            // If the id was not told, the operation may have been reaped, and its slot used again, before the task that
            // awaits it looks.
            Some((last, _)) if generation(*last) > generation(id) && !is_named => Ok(()),
            Some((last, _)) if generation(*last) > generation(id) => bad(format!(
                "operation {bio} is over by an id that is older than {}, which was there before",
                Request(*last)
            )),
            Some((last, is_outstanding)) if !begins && *last == id && !*is_outstanding => {
                bad(format!("operation {bio} is over by an id that was over before"))
            }
            _ => {
                *entry = Some((id, begins));
                Ok(())
            }
        }
    }

    fn outstanding(&self, number: u16, nr_outstanding: usize) -> Result<(), Violation> {
        let Some(&Submitter { nr_slots, operations, parts, .. }) = self.submitters.get(&number) else { return Ok(()) };
        // If an operation was cut, the parts that are over give their slots back before the operation is reaped.
        if (operations..=parts.min(nr_slots)).contains(&(nr_outstanding as u64)) {
            return Ok(());
        }
        let what = format!(
            "submitter {number} of {nr_slots} slots has {nr_outstanding} outstanding, and submitted {operations} operations \
             in {parts} parts that it did not reap"
        );
        Err(Violation::new(RULE, what))
    }

    fn left(&mut self, number: u16) {
        let theirs = self.operations.those(|operation| operation.submitter == number);
        theirs.into_iter().for_each(|bio| _ = self.end_of(bio));
        let submitter = self.submitters.remove(&number).filter(|submitter| !submitter.is_leaving);
        if let Some(pool) = submitter.and_then(|submitter| submitter.pool) {
            self.free(pool);
        }
    }

    /// Frees the slots of a pool for the next submitter. That submitter may come before the last one has told that it
    /// left.
    fn free(&mut self, pool: u16) {
        let slots = self.names.iter_mut().filter(|(id, _)| super::table::pool(*id) == pool);
        slots.for_each(|(_, is_outstanding)| *is_outstanding = false);
    }
}

impl Checker for Slots {
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Joined { submitter, nr_slots, .. } => return self.joined(submitter, nr_slots),
            Event::Left { submitter, .. } => self.left(submitter),
            Event::Submitted { submitter, bio, asked, pieces } => self.submitted(submitter, bio, &asked, pieces),
            Event::Rejected { submitter, bio, reason, .. } => return self.rejected(submitter, bio, reason),
            Event::Named { submitter, bio, id } => return self.named(submitter, bio, id),
            Event::Reaped { submitter, bio, id, .. } => {
                let is_named = self.operations.get(bio).is_some_and(|operation| operation.is_named);
                self.end_of(bio);
                return self.own(submitter, bio, id, false, is_named);
            }
            Event::HandedBack { bio, .. } => _ = self.end_of(bio),
            Event::Forgotten { bio, .. } => self.forgotten(bio),
            Event::Outstanding { submitter, nr_outstanding } => return self.outstanding(submitter, nr_outstanding),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Op;

    use super::super::testing::*;
    use super::*;

    const fn joined(submitter: u16) -> Event<'static> {
        Event::Joined { submitter, nr_slots: 3, tenant: 0 }
    }

    fn told() -> Told<Slots> {
        let mut told = Told::new(Slots::new(&FACTS));
        told.good(joined(1));
        told
    }

    const fn named(bio: u64, id: RqId) -> Event<'static> {
        Event::Named { submitter: 1, bio, id }
    }

    /// An operation with this many parts.
    fn of(bio: u64, nr_parts: u64) -> Event<'static> {
        submitted(bio, asked(Op::Read, 0, 16 * nr_parts))
    }

    const fn outstanding(nr_outstanding: usize) -> Event<'static> {
        Event::Outstanding { submitter: 1, nr_outstanding }
    }

    #[test]
    fn a_submitter_has_outstanding_what_it_did_not_reap() {
        let mut told = told();
        told.good(outstanding(0)).good(of(1, 1)).good(outstanding(1)).bad(outstanding(0), "and submitted 1");
        told.good(of(2, 2)).good(outstanding(3)).good(outstanding(2)).bad(outstanding(1), "in 3 parts");
        told.good(reaped(1, id(1, 0, 0), Status::Ok)).good(outstanding(2)).bad(outstanding(3), "in 2 parts");
        told.good(Event::HandedBack { submitter: 1, bio: 2 }).good(outstanding(0));
        told.good(of(8, 2)).good(Event::Forgotten { submitter: 1, bio: 8 }).good(outstanding(0)).good(outstanding(2));
        told.good(Event::HandedBack { submitter: 1, bio: 8 }).good(outstanding(0)).bad(outstanding(1), "submitted 0");
        told.good(of(13, 3)).good(of(14, 1)).bad(outstanding(4), "of 3 slots has 4");
    }

    #[test]
    fn an_operation_is_refused_only_for_want_of_slots() {
        let rejected = |bio, reason| Event::Rejected { submitter: 1, bio, asked: asked(Op::Read, 0, 16), reason };
        let (full, too_large) = (RejectReason::Full, RejectReason::Bad(Status::TooLarge));
        told().good(of(1, 2)).good(of(2, 2)).good(rejected(2, full));
        told().good(of(1, 2)).good(of(2, 1)).bad(rejected(2, full), "there are slots for it");
        told().good(of(1, 4)).good(rejected(1, too_large));
        told().good(of(1, 4)).bad(rejected(1, full), "never be taken");
        told().good(of(1, 3)).bad(rejected(1, too_large), "not too large");
        told().good(of(1, 4)).bad(named(1, id(1, 0, 0)), "of 4 parts was taken");
    }

    #[test]
    fn an_id_names_one_operation_for_ever() {
        let mut told = told();
        told.good(of(1, 1)).good(named(1, id(1, 0, 4))).good(of(2, 1)).bad(named(2, id(1, 0, 4)), "not newer than");
        told.good(of(3, 1)).bad(named(3, id(1, 0, 5)), "is not over");
        let mut told = self::told();
        told.good(of(1, 1)).good(named(1, id(1, 0, 4))).good(reaped(1, id(1, 0, 4), Status::Ok));
        told.good(of(2, 1)).bad(reaped(2, id(1, 0, 4), Status::Ok), "was over before");
        told.good(of(3, 1)).good(named(3, id(1, 0, 5))).good(of(4, 1)).bad(named(4, id(1, 3, 0)), "slot 3 of 3");
        told.good(of(5, 1)).good(reaped(5, id(1, 0, 3), Status::Ok));
        told.good(of(6, 1)).good(named(6, id(1, 1, 1))).bad(reaped(6, id(1, 0, 3), Status::Ok), "an id that is older");
    }

    #[test]
    fn each_submitter_has_a_pool_of_its_own() {
        let mut told = told();
        told.good(of(1, 1)).good(named(1, id(1, 0, 0))).good(of(2, 1)).bad(named(2, id(2, 0, 0)), "and others of its");
        told.good(joined(2)).bad(joined(2), "joined twice");
        let event = Event::Submitted { submitter: 2, bio: 3, asked: asked(Op::Flush, 0, 0), pieces: &[] };
        let theirs = |pool| Event::Named { submitter: 2, bio: 3, id: id(pool, 1, 0) };
        told.good(joined(3)).good(Event::Left { submitter: 2, hands_back: true }).good(joined(2)).good(event);
        // The first submitter may be about to tell that it left.
        told.good(theirs(1)).good(of(4, 1)).bad(named(4, id(1, 2, 0)), "submitter 1 and another share pool 1");
    }

    #[test]
    fn who_leaves_leaves_its_slots_to_others() {
        let mut told = told();
        told.good(of(1, 1)).good(named(1, id(1, 0, 0))).good(Event::Left { submitter: 1, hands_back: false });
        told.good(joined(1)).good(outstanding(0)).good(of(2, 1)).bad(named(2, id(1, 0, 0)), "not newer");
        told.good(of(3, 1)).good(named(3, id(1, 0, 1)));
        // The next submitter has the slots before the first one has told that it left.
        let event = Event::Submitted { submitter: 2, bio: 4, asked: asked(Op::Flush, 0, 0), pieces: &[] };
        told.good(joined(2)).good(event).good(Event::Named { submitter: 2, bio: 4, id: id(1, 0, 2) });
        told.good(Event::Left { submitter: 1, hands_back: false }).good(reaped(4, id(1, 0, 2), Status::Ok));
    }
}
