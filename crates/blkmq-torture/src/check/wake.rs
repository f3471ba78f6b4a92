//! A submitter that sleeps until an operation is over is woken when one is. The checker looks whenever every CPU
//! sleeps. Everything in progress has come to its end then, so the thread that completed an operation has also woken
//! its submitter.

use blkmq_sched::Op;

use super::super::event::{Asked, Event, Stamp};
use super::book::Book;
use super::offers::{Offer, Offers};
use super::parts::parts;
use super::table::grown;
use super::{Checker, Facts, Violation};

const RULE: &str = "wake";

/// An operation that is outstanding.
#[derive(Debug)]
struct Operation {
    submitter: u16,
    op: Op,
    /// First sector, and the sector after the last.
    sectors: (usize, usize),
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
    facts: Facts,
    offers: Offers,
    operations: Book<Operation>,
    /// The newest operation on each sector, and how many operations are outstanding there. Of operations that overlap,
    /// several are outstanding only if all are reads.
    newest: Vec<u64>,
    nr_outstanding: Vec<u16>,
    submitters: Vec<Sleeper>,
}

impl Wake {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            facts: facts.clone(),
            offers: Offers::new(),
            operations: Book::new(),
            newest: vec![0; facts.limits.capacity_sectors as usize],
            nr_outstanding: vec![0; facts.limits.capacity_sectors as usize],
            submitters: Vec::new(),
        }
    }

    fn submitter(&mut self, submitter: u16) -> &mut Sleeper {
        grown(&mut self.submitters, submitter, Sleeper::default)
    }

    fn submitted(&mut self, submitter: u16, bio: u64, asked: &Asked, pieces: &[usize]) {
        if parts(&self.facts.limits, asked, pieces).is_err() || asked.op == Op::Flush {
            return;
        }
        let mut is_certain = !(self.facts.limits.write_cache && (asked.flags.preflush || asked.flags.fua));
        let sectors = (asked.sector as usize, (asked.sector + asked.nr_sectors) as usize);
        for place in sectors.0..sectors.1 {
            is_certain &= self.nr_outstanding[place] == 0;
            self.nr_outstanding[place] += 1;
            // What the device does for the new operation may look as if it was for the other one. Further operations
            // that overlap have been uncertain since the other one came.
            if let Some(other) = self.operations.get_mut(self.newest[place]).filter(|other| other.left > 0) {
                other.is_certain = false;
            }
            self.newest[place] = bio;
        }
        let left = asked.nr_sectors;
        self.operations.begin(bio, Operation { submitter, op: asked.op, sectors, left, is_certain });
    }

    /// Removes an operation from the tables.
    fn end_one(&mut self, bio: u64) -> Option<Operation> {
        let operation = self.operations.end(bio)?;
        let (first, end) = operation.sectors;
        self.nr_outstanding[first..end].iter_mut().for_each(|nr| *nr -= 1);
        Some(operation)
    }

    /// Called when the device and the queue are done with an operation.
    fn ended(&mut self, bio: u64) {
        let Some(Operation { submitter, left, is_certain, .. }) = self.end_one(bio) else { return };
        if is_certain && left == 0 {
            self.submitter(submitter).nr_over -= 1;
        }
    }

    /// Called when no submitter will reap this operation, although it goes on.
    fn forgotten(&mut self, bio: u64) {
        let Some(operation) = self.operations.get_mut(bio) else { return };
        let was_over = operation.is_certain && operation.left == 0;
        operation.is_certain = false;
        let submitter = operation.submitter;
        self.submitter(submitter).nr_over -= u32::from(was_over);
    }

    fn left(&mut self, submitter: u16) {
        let theirs = self.operations.those(|operation| operation.submitter == submitter);
        theirs.into_iter().for_each(|bio| _ = self.end_one(bio));
        *self.submitter(submitter) = Sleeper::default();
    }

    fn idle(&self) -> Result<(), Violation> {
        let Some(number) = self.submitters.iter().position(|submitter| submitter.sleeps && submitter.nr_over > 0)
        else {
            return Ok(());
        };
        let theirs = self.operations.iter().filter(|(_, operation)| usize::from(operation.submitter) == number);
        let over = theirs.filter(|(_, operation)| operation.is_certain && operation.left == 0).map(|(bio, _)| bio);
        let over: Vec<u64> = over.take(8).collect();
        let what =
            format!("every CPU sleeps, also submitter {number}, whose operations {over:?} are over and not reaped");
        Err(over.into_iter().fold(Violation::new(RULE, what), Violation::bio))
    }
}

/// Called when the device is done with a request. Subtracts the request's sectors from its operations.
fn done(offer: &Offer, newest: &[u64], operations: &mut Book<Operation>, mut over: impl FnMut(u16)) {
    for &(first, nr_sectors) in &offer.ranges {
        let sectors = newest.get(first as usize..(first + u64::from(nr_sectors)) as usize).unwrap_or(&[]);
        for of_one in sectors.chunk_by(|before, after| before == after) {
            let Some(operation) = operations.get_mut(of_one[0]).filter(|operation| operation.op == offer.op) else {
                continue;
            };
            let before = operation.left;
            operation.left = operation.left.saturating_sub(of_one.len() as u64);
            if operation.is_certain && before > 0 && operation.left == 0 {
                over(operation.submitter);
            }
        }
    }
}

impl Checker for Wake {
    fn see(&mut self, _: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => self.submitted(submitter, bio, &asked, pieces),
            Event::Reaped { bio, .. } | Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => self.ended(bio),
            Event::Forgotten { bio, .. } => self.forgotten(bio),
            Event::Left { submitter, .. } => self.left(submitter),
            Event::Sleeps { submitter } => self.submitter(submitter).sleeps = true,
            Event::Wakes { submitter } => self.submitter(submitter).sleeps = false,
            Event::Offered { .. } | Event::Acted { .. } => {
                let Self { offers, operations, newest, submitters, .. } = self;
                if let Some((offer, _)) = offers.see(event) {
                    let mut over = |submitter| grown(submitters, submitter, Sleeper::default).nr_over += 1;
                    done(offer, newest, operations, &mut over);
                }
            }
            Event::Idle { .. } => return self.idle(),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Time;
    use blkmq_virtual::{Flags, Status};

    use super::super::super::event::{Action, DeviceState};
    use super::super::testing::*;
    use super::*;

    const IDLE: Event<'_> =
        Event::Idle { until: Some(Time(5)), device: DeviceState { held: 0, hung: 0, next_due: None } };
    const SLEEPS: Event<'_> = Event::Sleeps { submitter: 1 };
    const WAKES: Event<'_> = Event::Wakes { submitter: 1 };

    /// Operation 1 reads sectors 0 to 7.
    fn told() -> Told<Wake> {
        let mut told = Told::new(Wake::new(&FACTS));
        told.good(submitted(1, asked(Op::Read, 0, 8)));
        told
    }

    /// Tells that the device reads these sectors and the sectors behind them.
    fn done() -> Told<Wake> {
        let mut told = told();
        told.good(SLEEPS).good(offered(id(1, 0, 0), Op::Read, 0, 12, &[])).good(started(id(1, 0, 0))).good(IDLE);
        told.good(completed(id(1, 0, 0), Status::Medium));
        told
    }

    #[test]
    fn who_sleeps_is_woken_when_something_is_over() {
        done().bad(IDLE, "submitter 1, whose operations [1] are over");
        done().good(WAKES).good(IDLE).good(SLEEPS).bad(IDLE, "submitter 1");
    }

    #[test]
    fn what_is_reaped_or_left_wakes_nobody() {
        done().good(reaped(1, id(1, 0, 0), Status::Medium)).good(IDLE);
        done().good(Event::Forgotten { submitter: 1, bio: 1 }).good(IDLE);
        done().good(Event::Left { submitter: 1, hands_back: false }).good(IDLE);
        let mut later = done();
        later.good(Event::Left { submitter: 1, hands_back: false }).good(submitted(2, asked(Op::Write, 0, 8)));
        later.good(SLEEPS).good(IDLE);
    }

    #[test]
    fn an_operation_is_over_when_all_of_it_is() {
        let mut told = told();
        told.good(SLEEPS).good(offered(id(1, 0, 0), Op::Read, 0, 4, &[])).good(offered(
            id(1, 1, 0),
            Op::Read,
            4,
            4,
            &[],
        ));
        told.good(completed(id(1, 0, 0), Status::Ok)).good(IDLE);
        told.good(acted(id(1, 1, 0), Action::GivenBack)).good(IDLE);
        told.good(offered(id(1, 1, 0), Op::Read, 4, 4, &[])).good(acted(id(1, 1, 0), Action::GaveUp)).bad(IDLE, "[1]");
    }

    #[test]
    fn what_is_not_certain_is_not_judged() {
        let mut shared = told();
        shared.good(submitted(2, asked(Op::Read, 4, 8))).good(SLEEPS).good(offered(id(1, 0, 0), Op::Read, 0, 8, &[]));
        shared.good(completed(id(1, 0, 0), Status::Ok)).good(IDLE);
        // The same must hold when all operations that overlapped have come and gone.
        let mut covered = told();
        covered.good(submitted(2, asked(Op::Read, 0, 2))).good(reaped(2, id(1, 1, 0), Status::Ok));
        covered.good(submitted(3, asked(Op::Read, 0, 2))).good(SLEEPS).good(offered(id(1, 0, 0), Op::Read, 0, 8, &[]));
        covered.good(completed(id(1, 0, 0), Status::Ok)).good(IDLE);
        let mut flushed = Told::new(Wake::new(&FACTS));
        let asked = Asked { flags: Flags { preflush: true, ..Flags::NONE }, ..asked(Op::Write, 0, 8) };
        flushed.good(submitted(1, asked)).good(SLEEPS).good(offered(id(1, 0, 0), Op::Write, 0, 8, &[]));
        flushed.good(completed(id(1, 0, 0), Status::Ok)).good(IDLE);
    }
}
