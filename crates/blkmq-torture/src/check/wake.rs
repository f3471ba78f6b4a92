//! A submitter that sleeps until an operation is over is woken when one is. The checker looks whenever every CPU
//! sleeps. Everything in progress has come to its end then, so the thread that completed an operation has also woken
//! its submitter.

use blkmq_sched::Op;

use super::super::event::{Event, Stamp};
use super::book::Book;
use super::table::grown;
use super::tracker::{Tracker, sectors};
use super::{Checker, Facts, Verdict, Violation};

pub(super) const RULE: &str = "wake";

/// What the device has left of an operation that is outstanding.
#[derive(Debug, Clone, Copy)]
struct Remainder {
    /// Sectors that the device is not done with.
    left: u64,
    /// Whether `left` says when the operation is over. `left` does not for operations that the flush machine handles,
    /// for reads that overlap others, and for operations that no submitter reaps.
    is_certain: bool,
}

/// A submitter.
#[derive(Debug, Clone, Copy, Default)]
struct Sleeper {
    sleeps: bool,
    /// Operations of this submitter that are over and not reaped.
    nr_over: u32,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Wake {
    operations: Book<Remainder>,
    /// The newest operation on each sector, and how many operations are outstanding there. Of operations that overlap,
    /// several are outstanding only if all are reads.
    newest: Vec<u64>,
    nr_outstanding: Vec<u16>,
    submitters: Vec<Sleeper>,
}

impl Wake {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            operations: Book::new(),
            newest: vec![0; facts.limits.capacity_sectors as usize],
            nr_outstanding: vec![0; facts.limits.capacity_sectors as usize],
            submitters: Vec::new(),
        }
    }

    fn submitter(&mut self, submitter: u16) -> &mut Sleeper {
        grown(&mut self.submitters, submitter, Sleeper::default)
    }

    fn submitted(&mut self, bio: u64, tracker: &Tracker) {
        let Some(operation) = tracker.operation(bio).filter(|operation| operation.is_valid()) else { return };
        let asked = &operation.asked;
        if asked.op == Op::Flush {
            return;
        }
        let mut is_certain = !(tracker.limits.write_cache && (asked.flags.preflush || asked.flags.fua));
        for place in sectors(asked.sector, asked.nr_sectors) {
            is_certain &= self.nr_outstanding[place] == 0;
            self.nr_outstanding[place] += 1;
            // What the device does for the new operation may look as if it was for the other one. Further operations
            // that overlap have been uncertain since the other one came.
            if let Some(other) = self.operations.get_mut(self.newest[place]).filter(|other| other.left > 0) {
                other.is_certain = false;
            }
            self.newest[place] = bio;
        }
        self.operations.begin(bio, Remainder { left: asked.nr_sectors, is_certain });
    }

    /// Called when the device and the queue are done with an operation.
    fn ended(&mut self, bio: u64, tracker: &Tracker) {
        let (Some(Remainder { left, is_certain }), Some(operation)) =
            (self.operations.end(bio), tracker.operation(bio))
        else {
            return;
        };
        let sectors = sectors(operation.asked.sector, operation.asked.nr_sectors);
        self.nr_outstanding[sectors].iter_mut().for_each(|nr| *nr -= 1);
        if is_certain && left == 0 {
            self.submitter(operation.submitter).nr_over -= 1;
        }
    }

    /// Called when no submitter will reap this operation, although it goes on.
    fn forgotten(&mut self, submitter: u16, bio: u64) {
        let Some(operation) = self.operations.get_mut(bio) else { return };
        let was_over = std::mem::take(&mut operation.is_certain) && operation.left == 0;
        self.submitter(submitter).nr_over -= u32::from(was_over);
    }

    /// Called when the device is done with a request. Subtracts the request's sectors from its operations.
    fn done(&mut self, tracker: &Tracker) {
        let Some((_, offer, _)) = tracker.ended() else { return };
        for &(first, nr_sectors) in &offer.ranges {
            let newest = self.newest.get(sectors(first, nr_sectors.into())).unwrap_or(&[]);
            for of_one in newest.chunk_by(|before, after| before == after) {
                let Some(operation) = tracker.operation(of_one[0]).filter(|known| known.asked.op == offer.op) else {
                    continue;
                };
                let Some(remainder) = self.operations.get_mut(of_one[0]) else { continue };
                let before = remainder.left;
                remainder.left = before.saturating_sub(of_one.len() as u64);
                if remainder.is_certain && before > 0 && remainder.left == 0 {
                    grown(&mut self.submitters, operation.submitter, Sleeper::default).nr_over += 1;
                }
            }
        }
    }

    fn idle(&self, tracker: &Tracker) -> Verdict {
        let Some(number) = self.submitters.iter().position(|submitter| submitter.sleeps && submitter.nr_over > 0)
        else {
            return Ok(());
        };
        let is_theirs = |bio| tracker.operation(bio).is_some_and(|known| usize::from(known.submitter) == number);
        let over = self
            .operations
            .iter()
            .filter(|(bio, remainder)| remainder.is_certain && remainder.left == 0 && is_theirs(*bio));
        let over = over.map(|(bio, _)| bio);
        let over: Vec<u64> = over.take(8).collect();
        let what =
            format!("every CPU sleeps, also submitter {number}, whose operations {over:?} are over and not reaped");
        Err(over.into_iter().fold(Violation::new(RULE, what), Violation::bio))
    }
}

impl Checker for Wake {
    fn see(&mut self, _: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        tracker.ending.iter().for_each(|bio| self.ended(*bio, tracker));
        match *event {
            Event::Submitted { bio, .. } => self.submitted(bio, tracker),
            Event::Forgotten { submitter, bio } => self.forgotten(submitter, bio),
            Event::Left { submitter, .. } => *self.submitter(submitter) = Sleeper::default(),
            Event::Sleeps { submitter } => self.submitter(submitter).sleeps = true,
            Event::Wakes { submitter } => self.submitter(submitter).sleeps = false,
            Event::Acted { .. } => self.done(tracker),
            Event::Idle { .. } => return self.idle(tracker),
            _ => {}
        }
        Ok(())
    }
}
