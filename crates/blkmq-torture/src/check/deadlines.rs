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
use super::table::Table;
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "deadlines";

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

impl Default for Knobs {
    fn default() -> Self {
        Self { expire: [500 * MS, 5000 * MS], writes_starved: 2, fifo_batch: 16 }
    }
}

impl Knobs {
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
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    knobs: Knobs,
    /// The values before a change of one of them that has begun and not ended. Until it ends, either value may hold.
    before: Option<Knobs>,
    /// By class and direction.
    fifos: [[Fifo; 2]; 3],
    /// The class and direction of a request that waits and is not at the head.
    places: Table<(usize, usize)>,
}

impl Deadlines {
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

    fn chosen(&mut self, rq: RqId, now: Time, tracker: &Tracker) -> Verdict {
        let Some(&(class, own)) = self.places.get(rq) else { return Ok(()) };
        let fifo = &mut self.fifos[class][own];
        let place = fifo.list.iter().position(|waiting| waiting.rq == rq);
        place.map(|place| fifo.list.remove(place));
        let is_alone = tracker.nr_of_class.iter().enumerate().all(|(other, count)| other == class || *count == 0);
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
    fn see(&mut self, _: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Installed { .. } => (self.knobs, self.fifos) = Default::default(),
            Event::Inserted { rq, info, at: InsertAt::Sorted, now, .. } if tracker.scheduler == Some("mq-deadline") => {
                self.inserted(rq, info.priority.class, info.op.is_read(), now);
            }
            Event::Absorbed { into, absorbed } => self.absorbed(into, absorbed),
            Event::Chosen { rq, now } => return self.chosen(rq, now, tracker),
            Event::Changed { control: Control::Knob(name, value), phase } => self.changed(name, value, phase),
            _ => {}
        }
        Ok(())
    }
}
