//! Slots are conserved. What a submitter has outstanding is what it submitted and did not reap, and is never more than
//! the submitter has slots for. An operation is refused for lack of a slot only when there is none. An id names one
//! operation forever.

use std::collections::{BTreeMap, BTreeSet};

use blkmq_sched::RqId;
use blkmq_virtual::{RejectReason, Status};

use super::super::event::{Event, Stamp};
use super::super::text::Request;
use super::table::{Table, generation, pool, slot};
use super::tracker::{Operation, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "slots";

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
#[derive(Debug, Default)]
pub(super) struct Slots {
    submitters: BTreeMap<u16, Submitter>,
    /// The operations of which the queue has said that it took them.
    named: BTreeSet<u64>,
    /// The operation that took each slot last, and whether that operation is outstanding.
    names: Table<bool>,
}

fn fail(bio: u64, what: String) -> Verdict {
    Err(Violation::new(RULE, what).bio(bio))
}

impl Slots {
    fn joined(&mut self, number: u16, nr_slots: u16) -> Verdict {
        let submitter = Submitter { nr_slots: nr_slots.into(), ..Submitter::default() };
        match self.submitters.insert(number, submitter) {
            None => Ok(()),
            Some(_) => Err(Violation::new(RULE, format!("submitter {number} joined twice"))),
        }
    }

    fn submitter_of(&mut self, bio: u64, tracker: &Tracker) -> Option<(&mut Submitter, u64)> {
        let &Operation { submitter, nr_parts, .. } = tracker.operation(bio).filter(|known| known.is_valid())?;
        Some((self.submitters.get_mut(&submitter)?, nr_parts))
    }

    fn end_of(&mut self, bio: u64, tracker: &Tracker) {
        let was_named = self.named.remove(&bio);
        let is_forgotten = tracker.operation(bio).is_some_and(|operation| operation.is_forgotten);
        if let Some((submitter, nr_parts)) = self.submitter_of(bio, tracker) {
            submitter.operations -= u64::from(!is_forgotten);
            submitter.parts -= nr_parts;
            submitter.named -= u64::from(was_named);
        }
    }

    fn rejected(&mut self, number: u16, bio: u64, reason: RejectReason, tracker: &Tracker) -> Verdict {
        let Some((&mut Submitter { nr_slots, parts, .. }, nr_parts)) = self.submitter_of(bio, tracker) else {
            return Ok(());
        };
        let what = match reason {
            RejectReason::Full if nr_parts > nr_slots => "it can never be taken",
            // Operations in the same call that are still to be handed in count too.
            RejectReason::Full if parts + nr_parts <= nr_slots => "there are slots for it",
            RejectReason::Bad(Status::TooLarge) if nr_parts <= nr_slots => "it is not too large",
            _ => return Ok(()),
        };
        let what = format!(
            "operation {bio} of {nr_parts} parts was rejected as {reason:?}, but {what}: submitter {number} has {parts} of \
             {nr_slots} slots in use"
        );
        fail(bio, what)
    }

    fn named(&mut self, number: u16, bio: u64, id: RqId, tracker: &Tracker) -> Verdict {
        let is_new = self.named.insert(bio);
        let Some((submitter, nr_parts)) = self.submitter_of(bio, tracker).filter(|_| is_new) else { return Ok(()) };
        submitter.named += 1;
        let Submitter { nr_slots, named, .. } = *submitter;
        if nr_parts > nr_slots || named > nr_slots {
            let what =
                format!("operation {bio} of {nr_parts} parts was taken as number {named}, with {nr_slots} slots");
            return fail(bio, what);
        }
        self.own(number, bio, id, true, true)
    }

    /// Called when it is known that an operation has this id. `begins`: the operation has just got the id. `is_named`:
    /// the queue told the id at that time.
    fn own(&mut self, number: u16, bio: u64, id: RqId, begins: bool, is_named: bool) -> Verdict {
        let fail = |what: String| Err(Violation::new(RULE, what).bio(bio).request(id));
        if let Some(submitter) = self.submitters.get_mut(&number) {
            if u64::from(slot(id)) >= submitter.nr_slots {
                return fail(format!("operation {bio} is in slot {} of {}", slot(id), submitter.nr_slots));
            }
            let known = *submitter.pool.get_or_insert(pool(id));
            if known != pool(id) {
                return fail(format!(
                    "operation {bio} is in pool {}, and others of its submitter in {known}",
                    pool(id)
                ));
            }
            if submitter.is_leaving {
                return fail(format!("submitter {number} and another share pool {known}"));
            }
            let others = self.submitters.iter_mut().filter(|(other, _)| **other != number).map(|(_, other)| other);
            let before = others.filter(|other| other.pool == Some(known)).find(|other| !other.is_leaving);
            if let Some(before) = before {
                before.is_leaving = true;
                self.free(known);
            }
        }
        let entry = self.names.entry(id);
        let what = match entry {
            Some((last, _)) if begins && generation(*last) >= generation(id) => {
                format!("has an id that is not newer than {}, which was there before", Request(*last))
            }
            Some((last, true)) if begins => format!("is where {} is not over", Request(*last)),
            // If the id was not told, the operation may have been reaped, and its slot used again, before the task that
            // awaits it looks.
            Some((last, _)) if generation(*last) > generation(id) && !is_named => return Ok(()),
            Some((last, _)) if generation(*last) > generation(id) => {
                format!("is over by an id that is older than {}, which was there before", Request(*last))
            }
            Some((last, false)) if !begins && *last == id => "is over by an id that was over before".to_owned(),
            _ => {
                *entry = Some((id, begins));
                return Ok(());
            }
        };
        fail(format!("operation {bio} {what}"))
    }

    fn outstanding(&self, number: u16, nr_outstanding: usize) -> Verdict {
        let Some(&Submitter { nr_slots, operations, parts, .. }) = self.submitters.get(&number) else { return Ok(()) };
        // If an operation was split, the parts that are over give their slots back before the operation is reaped.
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
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        let is_named = |bio| self.named.contains(bio);
        let was_named = tracker.ending.first().is_some_and(is_named);
        tracker.ending.iter().for_each(|bio| self.end_of(*bio, tracker));
        match *event {
            Event::Joined { submitter, nr_slots, .. } => return self.joined(submitter, nr_slots),
            Event::Left { submitter, .. } => self.left(submitter),
            Event::Submitted { bio, .. } => {
                if let Some((submitter, nr_parts)) = self.submitter_of(bio, tracker) {
                    submitter.operations += 1;
                    submitter.parts += nr_parts;
                }
            }
            Event::Rejected { submitter, bio, reason, .. } => return self.rejected(submitter, bio, reason, tracker),
            Event::Named { submitter, bio, id } => return self.named(submitter, bio, id, tracker),
            Event::Reaped { submitter, bio, id, .. } => return self.own(submitter, bio, id, false, was_named),
            // The operation keeps its slots until it is over, and no event says when that is.
            Event::Forgotten { bio, .. } => {
                if let Some((submitter, _)) = self.submitter_of(bio, tracker) {
                    submitter.operations -= 1;
                }
            }
            Event::Outstanding { submitter, nr_outstanding } => return self.outstanding(submitter, nr_outstanding),
            _ => {}
        }
        Ok(())
    }
}
