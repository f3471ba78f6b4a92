//! mq-deadline keeps its deadlines: once the oldest request of a direction has expired, few other requests are chosen
//! before it.
//!
//! The scheduler checks only at the beginning of a batch whether a request has expired, and a batch of the other
//! direction may come first. So the requests that pass an expired read are at most the rest of the running batch and
//! one batch of writes. The requests that pass an expired write are at most the rest of the running batch and
//! `writes_starved` batches of reads.
//!
//! The promise holds while only one class has anything outstanding. With several classes, a class that is tried in vain
//! begins a batch, and another class then continues that batch, as in Linux.
//!
//! No rule binds the times themselves. Threads read the clock before they take the scheduler, so an earlier time may
//! follow a later one, and also from one thread: a poll goes on with the time at which it began, behind a plug that it
//! has passed on with a later one. Schedulers do not rely on it: `mq_deadline_model` and `bfq_model` of blkmq-sched
//! step back in time.

use std::collections::VecDeque;

use blkmq_sched::{Class, InsertAt, RqId, Time};

use super::super::event::{Control, Event, Phase, Stamp};
use super::book::Book;
use super::table::Table;
use super::{Checker, Facts, Violation};

const RULE: &str = "deadlines";

const MS: u64 = 1_000_000;

/// A request that waits.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    rq: RqId,
    deadline: Time,
}

/// The requests of one class and one direction that wait, and how many other requests were chosen since the oldest of
/// them expired.
#[derive(Debug, Default)]
struct Fifo {
    list: VecDeque<Waiting>,
    passed: u64,
}

/// The knobs that decide how long a request may be passed.
#[derive(Debug, Clone, Copy)]
struct Knobs {
    /// The time until a request expires, in ns: of reads, and of writes.
    expire: [u64; 2],
    writes_starved: i64,
    fifo_batch: i64,
}

impl Knobs {
    const DEFAULT: Self = Self { expire: [500 * MS, 5000 * MS], writes_starved: 2, fifo_batch: 16 };

    fn with(mut self, name: &str, value: i64) -> Self {
        let ns = value.unsigned_abs().saturating_mul(MS);
        match name {
            "read_expire" => self.expire[0] = ns,
            "write_expire" => self.expire[1] = ns,
            "writes_starved" => self.writes_starved = value,
            "fifo_batch" => self.fifo_batch = value,
            _ => {}
        }
        self
    }

    /// How many choices may pass the oldest request of a direction after it has expired. `None`: any number.
    fn most_passed(&self, direction: usize) -> Option<u64> {
        let batch = self.fifo_batch.max(1).unsigned_abs();
        let batches = match direction {
            // With such a value writes always go first.
            0 if self.writes_starved < 1 => return None,
            0 => 2,
            _ => 1 + self.writes_starved.max(0).unsigned_abs(),
        };
        Some(batch.saturating_mul(batches))
    }
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// Whether mq-deadline is in place.
    is_watched: bool,
    knobs: Knobs,
    /// The values before a change of one of them that has begun and not ended. Until it ends, either value may hold.
    before: Option<Knobs>,
    /// By class and direction.
    fifos: [[Fifo; 2]; 3],
    /// The class and direction of a request that waits and is not at the head.
    places: Table<(usize, usize)>,
    operations: Book<(u16, Class)>,
    /// The number of outstanding operations of each class.
    nr_outstanding: [u64; 3],
}

impl Deadlines {
    pub(super) fn new(_: &Facts) -> Self {
        Self {
            is_watched: false,
            knobs: Knobs::DEFAULT,
            before: None,
            fifos: Default::default(),
            places: Table::new(),
            operations: Book::new(),
            nr_outstanding: [0; 3],
        }
    }

    fn submitted(&mut self, submitter: u16, bio: u64, class: Class) {
        if self.operations.begin(bio, (submitter, class)) {
            self.nr_outstanding[class.index()] += 1;
        }
    }

    fn end_of(&mut self, bio: u64) {
        if let Some((_, class)) = self.operations.end(bio) {
            self.nr_outstanding[class.index()] -= 1;
        }
    }

    /// Sets the number of requests that passed the oldest ones to zero.
    fn begin_anew(&mut self) {
        self.fifos.iter_mut().flatten().for_each(|fifo| fifo.passed = 0);
    }

    fn inserted(&mut self, rq: RqId, class: Class, is_read: bool, now: Time) {
        let direction = usize::from(!is_read);
        let deadline = now.after(self.knobs.expire[direction]);
        self.fifos[class.index()][direction].list.push_back(Waiting { rq, deadline });
        *self.places.entry(rq) = Some((rq, (class.index(), direction)));
    }

    fn absorbed(&mut self, into: RqId, absorbed: RqId) {
        let Some(&(class, direction)) = self.places.get(absorbed) else { return };
        let fifo = &mut self.fifos[class][direction];
        let place = |rq: RqId, fifo: &Fifo| fifo.list.iter().position(|waiting| waiting.rq == rq);
        let (Some(guest), Some(host)) = (place(absorbed, fifo), place(into, fifo)) else { return };
        // The earlier of the two deadlines stays, in its place in the list.
        let earlier = fifo.list[guest].deadline < fifo.list[host].deadline;
        if earlier {
            fifo.list[guest].rq = into;
        }
        let gone = if earlier { host } else { guest };
        fifo.list.remove(gone);
        if gone == 0 || guest == 0 {
            fifo.passed = 0;
        }
    }

    fn chosen(&mut self, rq: RqId, now: Time) -> Result<(), Violation> {
        let Some(&(class, own)) = self.places.get(rq) else { return Ok(()) };
        let fifo = &mut self.fifos[class][own];
        let place = fifo.list.iter().position(|waiting| waiting.rq == rq);
        place.map(|place| fifo.list.remove(place));
        let is_alone = self.nr_outstanding.iter().enumerate().all(|(other, count)| other == class || *count == 0);
        if !is_alone || self.before.is_some() {
            self.begin_anew();
            return Ok(());
        }
        for (direction, fifo) in self.fifos[class].iter_mut().enumerate() {
            let Some(oldest) = fifo.list.front() else {
                fifo.passed = 0;
                continue;
            };
            // A CPU that looked at the clock earlier may begin a batch, and other CPUs may continue it.
            let is_passed = oldest.deadline <= now && !(direction == own && place == Some(0));
            fifo.passed = if is_passed { fifo.passed + 1 } else { 0 };
            if self.knobs.most_passed(direction).is_some_and(|most| fifo.passed > most) {
                let what = format!(
                    "{} requests passed the oldest one after it had expired at {} ns, with {:?}",
                    fifo.passed, oldest.deadline.0, self.knobs
                );
                return Err(Violation::new(RULE, what).request(oldest.rq).request(rq));
            }
        }
        Ok(())
    }

    fn changed(&mut self, name: &str, value: i64, phase: Phase) {
        let before = *self.before.get_or_insert(self.knobs);
        let after = before.with(name, value);
        match phase {
            // A request that comes in meanwhile has one of two deadlines. The later one is assumed.
            Phase::Begun => self.knobs.expire = [0, 1].map(|at| before.expire[at].max(after.expire[at])),
            Phase::Done => (self.knobs, self.before) = (after, None),
            Phase::Refused => (self.knobs, self.before) = (before, None),
        }
        self.begin_anew();
    }
}

impl Checker for Deadlines {
    fn see(&mut self, _: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Submitted { submitter, bio, asked, .. } => self.submitted(submitter, bio, asked.priority.class),
            Event::Reaped { bio, .. } | Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => self.end_of(bio),
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|(owner, _)| *owner == submitter);
                theirs.into_iter().for_each(|bio| self.end_of(bio));
            }
            Event::Installed { scheduler } => {
                (self.is_watched, self.knobs) = (scheduler == Some("mq-deadline"), Knobs::DEFAULT);
                self.fifos = Default::default();
            }
            Event::Inserted { rq, info, at: InsertAt::Sorted, now, .. } if self.is_watched => {
                self.inserted(rq, info.priority.class, info.op.is_read(), now);
            }
            Event::Absorbed { into, absorbed } => self.absorbed(into, absorbed),
            Event::Chosen { rq, now } => return self.chosen(rq, now),
            Event::Changed { control: Control::Knob(name, value), phase } => self.changed(name, value, phase),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Op;
    use blkmq_virtual::{IoPriority, Status};

    use super::super::super::event::Asked;
    use super::super::testing::*;
    use super::*;

    /// mq-deadline with batches of two requests. Reads expire after 10 ms and writes after 20 ms.
    fn told() -> Told<Deadlines> {
        let mut told = Told::new(Deadlines::new(&FACTS));
        told.good(Event::Installed { scheduler: Some("mq-deadline") });
        for (name, value) in [("read_expire", 10), ("write_expire", 20), ("fifo_batch", 2)] {
            set(&mut told, name, value);
        }
        told
    }

    fn set(told: &mut Told<Deadlines>, name: &'static str, value: i64) {
        let knob = Control::Knob(name, value);
        told.good(changed(knob, Phase::Begun)).good(changed(knob, Phase::Done));
    }

    fn insert(told: &mut Told<Deadlines>, slot: u64, op: Op) {
        told.good(inserted(id(1, slot, 0), info(op, 8 * slot, 8), 0));
    }

    /// Tells that a request is inserted and chosen at once, at this many ms.
    fn pass(told: &mut Told<Deadlines>, slot: u64, ms: u64) -> Result<(), Violation> {
        insert(told, slot, Op::Write);
        told.tell(chosen(id(1, slot, 0), ms * MS))
    }

    /// How many writes pass an expired request before the checker reports it.
    fn passes(told: &mut Told<Deadlines>) -> u64 {
        (1..1000).take_while(|slot| pass(told, *slot, 30).is_ok()).count() as u64
    }

    #[test]
    fn an_expired_read_is_passed_by_two_batches_at_most() {
        let mut told = told();
        insert(&mut told, 0, Op::Read);
        // The request has not expired yet.
        assert!((2000..2020).all(|slot| pass(&mut told, slot, 9).is_ok()));
        assert_eq!(passes(&mut told), 4);
        let mut starved = self::told();
        set(&mut starved, "writes_starved", 0);
        insert(&mut starved, 0, Op::Read);
        assert_eq!(passes(&mut starved), 999);
    }

    #[test]
    fn an_expired_write_is_passed_by_the_batches_of_reads_too() {
        for (writes_starved, expected) in [(2, 6), (0, 2), (-3, 2), (5, 12)] {
            let mut told = told();
            set(&mut told, "writes_starved", writes_starved);
            insert(&mut told, 0, Op::Write);
            assert_eq!(passes(&mut told), expected);
        }
        let mut told = told();
        set(&mut told, "fifo_batch", 0);
        insert(&mut told, 0, Op::Write);
        assert_eq!(passes(&mut told), 3);
    }

    #[test]
    fn who_is_the_oldest_now_was_not_passed_before() {
        let mut told = told();
        insert(&mut told, 0, Op::Write);
        insert(&mut told, 2000, Op::Write);
        assert!((1..=6).all(|slot| pass(&mut told, slot, 30).is_ok()));
        told.good(chosen(id(1, 0, 0), 30 * MS));
        assert_eq!(passes(&mut told), 6);
        let mut told = self::told();
        insert(&mut told, 0, Op::Read);
        assert!((1..=4).all(|slot| pass(&mut told, slot, 30).is_ok()));
        told.good(chosen(id(1, 0, 0), 30 * MS));
        insert(&mut told, 2000, Op::Read);
        assert_eq!(passes(&mut told), 4);
    }

    #[test]
    fn a_request_that_joins_another_hands_on_its_deadline() {
        let absorbed = |into, absorbed| Event::Absorbed { into: id(1, into, 0), absorbed: id(1, absorbed, 0) };
        for (into, guest) in [(2000, 2001), (2001, 2000)] {
            let mut told = told();
            insert(&mut told, 2000, Op::Write);
            told.good(inserted(id(1, 2001, 0), info(Op::Write, 0, 8), 15 * MS)).good(absorbed(into, guest));
            assert_eq!(passes(&mut told), 6);
            told.good(chosen(id(1, into, 0), 30 * MS));
            assert_eq!(passes(&mut told), 999);
        }
    }

    #[test]
    fn with_two_classes_nothing_is_promised() {
        let mut told = told();
        let priority = IoPriority { class: Class::Idle, level: 0 };
        told.good(submitted(1, Asked { priority, ..asked(Op::Read, 0, 8) }));
        insert(&mut told, 0, Op::Read);
        assert_eq!(passes(&mut told), 999);
        told.good(reaped(1, id(1, 0, 0), Status::Ok));
        assert!((1001..=1004).all(|slot| pass(&mut told, slot, 30).is_ok()));
        assert!(pass(&mut told, 1005, 30).is_err());
    }

    #[test]
    fn while_a_knob_is_set_nothing_is_promised() {
        let knob = Control::Knob("read_expire", 40);
        let mut told = told();
        told.good(changed(knob, Phase::Begun));
        insert(&mut told, 0, Op::Read);
        assert_eq!(passes(&mut told), 999);
        told.good(changed(knob, Phase::Refused));
        assert!((1001..1020).all(|slot| pass(&mut told, slot, 39).is_ok()));
        assert!((1021..=1024).all(|slot| pass(&mut told, slot, 40).is_ok()));
        assert!(pass(&mut told, 1025, 40).is_err());
    }
}
