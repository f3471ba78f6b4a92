//! A scheduler on a bench: short words for what the tests of its rules do.
#![allow(dead_code, reason = "each test file uses the words that it needs")]

use blkmq_sched::{
    Bfq, Class, ClientId, ClientSettings, Event, Feedback, GroupId, GroupSettings, Info, InsertAt, IoPriority, Merge,
    MergeLevel, MergeLimits, Op, Replay, Report, RqId, Scheduler, Setting, Ticket, Time, replay,
};

/// Nanoseconds in a millisecond.
pub(crate) const MS: u64 = 1_000_000;

/// Limits that stop no merge. A test changes the limit that it is about.
pub(crate) const ROOMY: MergeLimits = MergeLimits {
    max_sectors: 1024,
    max_segments: 128,
    boundary_sectors: 0,
    max_discard_sectors: 1024,
    max_discard_segments: 1,
    max_write_zeroes_sectors: 1024,
};

/// Limits that stop many merges of a few sectors.
pub(crate) const TIGHT: MergeLimits = MergeLimits {
    max_sectors: 16,
    max_segments: 6,
    boundary_sectors: 0,
    max_discard_sectors: 20,
    max_discard_segments: 3,
    max_write_zeroes_sectors: 12,
};

/// mq-deadline, with numbers for ids.
pub(crate) struct Bench {
    pub(crate) scheduler: Box<dyn Replay>,
    next_id: u64,
}

impl Bench {
    pub(crate) fn new(limits: MergeLimits) -> Self {
        let mut scheduler = replay("mq-deadline").expect("there is a scheduler of this name");
        scheduler.configure(Setting::MergeLimits(limits));
        Self { scheduler, next_id: 0 }
    }

    pub(crate) fn insert(&mut self, info: Info) -> u64 {
        self.insert_at(info, InsertAt::Sorted)
    }

    pub(crate) fn insert_at(&mut self, info: Info, at: InsertAt) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.scheduler.insert(RqId(id), &info, at, Time(0));
        id
    }

    pub(crate) fn dispatch_all(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.scheduler.dispatch(&mut (), Time(0))).map(|rq| rq.0).collect()
    }

    pub(crate) fn merge(&mut self, info: Info) -> Option<Merge> {
        self.scheduler.merge(&info)
    }

    pub(crate) fn show(&self) -> String {
        shown(&*self.scheduler)
    }

    pub(crate) fn shows(&self, text: &str) -> bool {
        self.show().contains(text)
    }
}

/// The text that a scheduler shows of itself.
pub(crate) fn shown(scheduler: &(impl Scheduler + ?Sized)) -> String {
    let mut text = String::new();
    scheduler.show(&mut text).expect("a text takes everything");
    text
}

/// An operation of eight sectors in class best-effort.
pub(crate) fn of(op: Op, sector: u64) -> Info {
    Info { sector, nr_sectors: 8, nr_segments: 1, op, sync: true, merge: MergeLevel::Full, ..Info::default() }
}

pub(crate) fn read(sector: u64) -> Info {
    of(Op::Read, sector)
}

pub(crate) fn write(sector: u64) -> Info {
    of(Op::Write, sector)
}

pub(crate) fn in_class(class: Class, sector: u64) -> Info {
    of_level(class, 4, read(sector))
}

pub(crate) fn real_time(sector: u64) -> Info {
    in_class(Class::RealTime, sector)
}

pub(crate) fn best_effort(sector: u64) -> Info {
    in_class(Class::BestEffort, sector)
}

pub(crate) fn idle(sector: u64) -> Info {
    in_class(Class::Idle, sector)
}

/// The first client that had this place.
pub(crate) fn client(place: usize) -> ClientId {
    ClientId::new(place, 1)
}

/// Eight sectors of a client, which merge with nothing. A thread waits for them if they are read.
pub(crate) fn lone(of: ClientId, sector: u64, op: Op) -> Info {
    Info { op, sync: op.is_read(), client: of, merge: MergeLevel::Never, ..read(sector) }
}

/// A request that has this ticket completed.
pub(crate) fn completed(ticket: Option<Ticket>, info: &Info, at: Time) -> Report {
    Report::of(Event::Completed(ticket), info, at)
}

/// The same request in another class and level.
pub(crate) fn of_level(class: Class, level: u8, info: Info) -> Info {
    Info { priority: IoPriority { class, level }, ..info }
}

/// `bfq` with clients 1 to `nr_clients`, without weight raising, so that shares are those of the weights.
pub(crate) fn steady_bfq(nr_clients: usize) -> Bfq {
    let mut bfq = Bfq::new();
    bfq.set_knob("low_latency", 0).expect("there is such a knob");
    bfq.reserve(1024);
    (1..=nr_clients).for_each(|of| bfq.join(client(of), &ClientSettings::default()));
    bfq
}

/// The group that has this place for the `times`th time, below the root.
pub(crate) fn join_group(bfq: &mut Bfq, place: usize, times: u32) -> GroupId {
    let group = GroupId::new(place, times);
    bfq.join_group(group, &GroupSettings { weight: 100, parent: GroupId::ROOT });
    group
}

pub(crate) fn in_group(group: GroupId) -> ClientSettings {
    ClientSettings { group, ..ClientSettings::default() }
}

/// A request is over, and its scheduler is told.
pub(crate) fn complete(bfq: &mut Bfq, ticket: Option<Ticket>, info: &Info, at: Time) {
    bfq.observe(Feedback::Events(&[completed(ticket, info, at)], at));
}
