//! Devices that a test can look into, and random numbers from a seed.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod shallow;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use blkmq::driver::{Batch, Done, Driver, NextEvent, TimeoutAction, Topology, TopologyError};
use blkmq::{Bio, Buffer, Completion, Flags, Limits, Notify, Op, RqId, Status, Submitter, Time};

/// One hardware queue of 64 tags.
pub(crate) const ONE_QUEUE: Topology = Topology::new(1, 64);

/// The content of a sector: its number, again and again, so that misplaced data shows.
pub(crate) fn pattern(sector: u64, nr_sectors: u64) -> Vec<u8> {
    (sector..sector + nr_sectors).flat_map(|sector| sector.to_le_bytes().repeat(64)).collect()
}

/// A write of the pattern.
pub(crate) fn write(sector: u64, nr_sectors: u64) -> Bio {
    Bio::write(sector, Buffer::from(&pattern(sector, nr_sectors)[..]))
}

/// A read.
pub(crate) fn read(sector: u64, nr_sectors: u64) -> Bio {
    Bio::read(sector, Buffer::zeroed(nr_sectors as usize * 512))
}

/// The operations that are over for a submitter, without waiting.
pub(crate) fn reap(submitter: &mut Submitter) -> Vec<Completion> {
    submitter.poll();
    std::iter::from_fn(|| submitter.reap()).collect()
}

/// A request as the driver got it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) op: Op,
    pub(crate) sector: u64,
    pub(crate) nr_sectors: u32,
    pub(crate) flags: Flags,
    pub(crate) hctx: u16,
    pub(crate) ranges: Vec<(u64, u32)>,
    pub(crate) segments: Vec<usize>,
    /// Where its data begins in the kernel's pages, and its bytes, if the data is there.
    pub(crate) pages: Option<(usize, usize)>,
    /// What a write carries.
    pub(crate) data: Vec<u8>,
    id: RqId,
}

#[derive(Debug, Default)]
struct Kept {
    nr_polls: u32,
    nr_plans: u32,
    seen: Vec<Seen>,
    held: VecDeque<(u16, RqId)>,
    finished: Vec<(u16, RqId, Status)>,
}

/// A device that records what it gets, fills reads with the pattern, and finishes a request only when it is told to.
#[derive(Debug)]
pub(crate) struct Recorder {
    limits: Limits,
    topology: Topology,
    kept: Mutex<Kept>,
}

impl Recorder {
    pub(crate) fn new(limits: Limits, topology: Topology) -> Arc<Self> {
        Arc::new(Self { limits, topology, kept: Mutex::default() })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no test goes on after a panic in the device")
    }

    /// The requests that came since the last call.
    pub(crate) fn take_seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.kept().seen)
    }

    /// The operations that came since the last call.
    pub(crate) fn take_ops(&self) -> Vec<Op> {
        self.take_seen().iter().map(|seen| seen.op).collect()
    }

    /// How many requests wait to be finished.
    pub(crate) fn nr_held(&self) -> usize {
        self.kept().held.len()
    }

    /// How often the device was polled since the last call.
    pub(crate) fn take_polls(&self) -> u32 {
        std::mem::take(&mut self.kept().nr_polls)
    }

    /// How often a thread has planned for the device's events since the last call. A thread does so when it is about to
    /// sleep, behind its last look.
    pub(crate) fn take_plans(&self) -> u32 {
        std::mem::take(&mut self.kept().nr_plans)
    }

    /// Finishes the request that the device has had longest. The next poll finds it.
    pub(crate) fn finish_oldest(&self, status: Status) {
        let mut kept = self.kept();
        let (hctx, id) = kept.held.pop_front().expect("the device has a request");
        kept.finished.push((hctx, id, status));
    }

    /// Finishes this request.
    pub(crate) fn finish(&self, seen: &Seen, status: Status) {
        let mut kept = self.kept();
        let place = kept.held.iter().position(|held| held.1 == seen.id).expect("the device has the request");
        let (hctx, id) = kept.held.remove(place).expect("it was just found");
        kept.finished.push((hctx, id, status));
    }
}

impl Driver for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn topology(&self) -> Topology {
        self.topology
    }

    /// Requests are over when the test says so.
    fn next_event(&self, _hctx: u16) -> NextEvent {
        self.kept().nr_plans += 1;
        NextEvent::Never
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        let mut kept = self.kept();
        while let Some(mut rq) = batch.next_request() {
            let (op, sector, nr_sectors) = (rq.op(), rq.sector(), rq.nr_sectors());
            let expected = if op == Op::Read { pattern(sector, nr_sectors.into()) } else { Vec::new() };
            let pages = rq.pages().map(|pages| (pages.offset(), pages.len()));
            let (mut segments, mut data) = (Vec::new(), Vec::new());
            let mut at = 0;
            for mut segment in rq.segments() {
                segments.push(segment.len());
                match op {
                    Op::Read => segment.copy_from(0, &expected[at..at + segment.len()]),
                    _ => segment.append_to(&mut data),
                }
                at += segment.len();
            }
            let (flags, ranges) = (rq.flags(), rq.ranges().collect());
            let id = batch.start(rq);
            kept.seen.push(Seen { op, sector, nr_sectors, flags, hctx, ranges, segments, pages, data, id });
            kept.held.push_back((hctx, id));
        }
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, _now: Time) {
        let mut kept = self.kept();
        kept.nr_polls += 1;
        if std::thread::panicking() {
            // The test has failed. The test's submitters want their requests back before they go.
            let Kept { held, finished, .. } = &mut *kept;
            finished.extend(held.drain(..).map(|(hctx, id)| (hctx, id, Status::Gone)));
        }
        for (_, id, status) in kept.finished.extract_if(.., |finished| finished.0 == hctx) {
            done.complete(id, status).expect("each request finishes once");
        }
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "{:?}", self.kept())
    }
}

/// Counts how often a submitter's thread was told to look.
#[derive(Debug, Default)]
pub(crate) struct Notified(AtomicU32);

impl Notify for Notified {
    fn notify(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Notified {
    /// How often since the last call.
    pub(crate) fn since_last(&self) -> u32 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// The device `inner`, with other limits than it has.
#[derive(Debug)]
pub(crate) struct Claims {
    pub(crate) limits: Limits,
    pub(crate) inner: Arc<dyn Driver>,
}

impl Driver for Claims {
    fn name(&self) -> &'static str {
        "claims"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn topology(&self) -> Topology {
        self.inner.topology()
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        self.inner.set_topology(topology)
    }

    fn is_concurrent(&self) -> bool {
        self.inner.is_concurrent()
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        self.inner.queue_rqs(hctx, batch, now);
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        self.inner.poll(hctx, done, now);
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        self.inner.next_event(hctx)
    }

    fn timeout(&self, hctx: u16, id: RqId, now: Time) -> TimeoutAction {
        self.inner.timeout(hctx, id, now)
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.inner.show(out)
    }
}

/// Numbers that look random and follow from a seed (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// The seed that random tests begin with: of the environment's `BLKMQ_SEED`, or always the same.
pub(crate) fn first_seed() -> u64 {
    let seed = std::env::var("BLKMQ_SEED").map_or(1, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    println!("BLKMQ_SEED={seed}");
    seed
}
