//! What the tests of the checkers share: a small device, and short ways to write events.

use blkmq_sched::{ClientId, Info, InsertAt, IoPriority, MergeLevel, Op, RqId, Time};
use blkmq_virtual::driver::Topology;
use blkmq_virtual::{DiskStats, Flags, Limits, Locking, QueueCounters, Status};

use super::super::event::{Action, Asked, Control, Counts, Event, Phase, Stamp, Times};
use super::{Checker, Facts, Violation};

pub(super) const FACTS: Facts = Facts {
    limits: Limits {
        capacity_sectors: 1024,
        missing_bytes: 0,
        logical_block_size: 512,
        physical_block_size: 512,
        max_sectors: 16,
        max_segments: 4,
        max_segment_size: 4096,
        boundary_sectors: 64,
        max_discard_sectors: 32,
        max_discard_segments: 2,
        max_write_zeroes_sectors: 32,
        write_cache: true,
        fua: false,
        no_flush: false,
        rotational: false,
        pages_align: 0,
        read_only: false,
    },
    topology: Topology::new(2, 4),
    io_timeout_ms: 100,
    locking: Locking::Single,
    nr_requests: Some(8),
    bypass: false,
    is_concurrent: false,
    nap_ns: 1_000_000,
};

/// The id of the request in a slot, in this pool.
pub(super) const fn id(pool: u64, slot: u64, generation: u64) -> RqId {
    RqId(generation << 32 | pool << 16 | slot)
}

/// A checker that is told events. The times of the events rise.
pub(super) struct Told<C> {
    pub(super) checker: C,
    pub(super) now: u64,
    pub(super) cpu: u16,
    step: u64,
}

impl<C: Checker> Told<C> {
    pub(super) const fn new(checker: C) -> Self {
        Self { checker, now: 0, cpu: 0, step: 0 }
    }

    pub(super) const fn stamp(&mut self) -> Stamp {
        self.step += 1;
        Stamp { step: self.step, time: Time(self.now), cpu: self.cpu }
    }

    pub(super) fn tell(&mut self, event: Event<'_>) -> Result<(), Violation> {
        let at = self.stamp();
        self.checker.see(at, &event)
    }

    /// Tells an event that breaks no promise.
    pub(super) fn good(&mut self, event: Event<'_>) -> &mut Self {
        let told = self.tell(event);
        assert!(told.is_ok(), "{event:?}: {told:?}");
        self
    }

    /// Tells an event that breaks a promise. The text of the violation must contain `says`.
    pub(super) fn bad(&mut self, event: Event<'_>, says: &str) -> &mut Self {
        let what = self.tell(event).expect_err("the checker reports it").what;
        assert!(what.contains(says), "{what}");
        self
    }

    pub(super) fn end(&mut self) -> Result<(), Violation> {
        let at = self.stamp();
        self.checker.end(at)
    }
}

pub(super) fn asked(op: Op, sector: u64, nr_sectors: u64) -> Asked {
    Asked { op, sector, nr_sectors, flags: Flags::NONE, priority: IoPriority::default(), group: 0 }
}

/// Submitter 1 submits an operation with one buffer.
pub(super) fn submitted(bio: u64, asked: Asked) -> Event<'static> {
    const PIECES: [[usize; 1]; 65] = {
        let mut pieces = [[0]; 65];
        let mut at = 0;
        while at < 65 {
            pieces[at] = [at * 512];
            at += 1;
        }
        pieces
    };
    let has_data = matches!(asked.op, Op::Read | Op::Write);
    let pieces: &[usize] = if has_data { &PIECES[asked.nr_sectors as usize] } else { &[] };
    Event::Submitted { submitter: 1, bio, asked, pieces }
}

pub(super) fn reaped(bio: u64, id: RqId, status: Status) -> Event<'static> {
    Event::Reaped { submitter: 1, bio, id, status, times: Times::default(), data: &[] }
}

/// A request is offered on hardware queue 0, with tag 0.
pub(super) fn offered(rq: RqId, op: Op, sector: u64, nr_sectors: u32, data: &[u64]) -> Event<'_> {
    let (flags, ranges, segments) = (Flags::NONE, &[][..], &[][..]);
    Event::Offered { rq, hctx: 0, tag: 0, op, flags, sector, nr_sectors, ranges, segments, data, now: Time(0) }
}

pub(super) const fn acted(rq: RqId, action: Action) -> Event<'static> {
    Event::Acted { rq, action }
}

pub(super) const fn started(rq: RqId) -> Event<'static> {
    acted(rq, Action::Started { due: Some(Time(0)) })
}

pub(super) const fn completed(rq: RqId, status: Status) -> Event<'static> {
    acted(rq, Action::Completed(status))
}

pub(super) const fn changed(control: Control, phase: Phase) -> Event<'static> {
    Event::Changed { control, phase }
}

pub(super) fn info(op: Op, sector: u64, nr_sectors: u32) -> Info {
    Info {
        sector,
        nr_sectors,
        nr_segments: 1,
        op,
        sync: op == Op::Read,
        priority: IoPriority::default(),
        client: ClientId(0),
        ctx: 0,
        merge: MergeLevel::Full,
        merge_key: 0,
    }
}

pub(super) fn inserted(rq: RqId, info: Info, now: u64) -> Event<'static> {
    Event::Inserted { value: 0, rq, info, at: InsertAt::Sorted, now: Time(now) }
}

pub(super) const fn chosen(rq: RqId, now: u64) -> Event<'static> {
    Event::Chosen { rq, now: Time(now) }
}

/// The counts of a queue that has counted nothing, with this many tags out.
pub(super) fn counts(in_flight: u32) -> Counts {
    Counts { stats: QueueCounters::default(), stat: DiskStats::default(), in_flight, inflight: [0; 2] }
}
