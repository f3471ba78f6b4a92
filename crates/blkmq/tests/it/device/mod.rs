//! Devices that a test can look into, and random numbers from a seed.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod front;
pub(crate) mod shallow;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use blkmq::driver::{Batch, Done, Driver, NextEvent, Topology, spec};
use blkmq::{
    Bio, Buffer, Builder, Client, Clock, Completion, Flags, Limits, Notify, Op, RequestQueue, RqId, Status, Submitter,
    Time, VirtualClock,
};

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

/// The device of a good spec.
pub(crate) fn open(spec: &str) -> Arc<dyn Driver> {
    spec::open(spec).unwrap_or_else(|error| panic!("{spec}: {error}"))
}

/// A queue in front of `device` on virtual time, with what else the test sets.
pub(crate) fn virtual_queue(
    device: Arc<dyn Driver>,
    set: impl FnOnce(Builder) -> Builder,
) -> (RequestQueue, VirtualClock) {
    let clock = VirtualClock::new();
    let builder = RequestQueue::builder(device).clock(Clock::Virtual(clock.clone()));
    (set(builder).build().expect("the queue is good"), clock)
}

/// A submitter of a client that is called `test`.
pub(crate) fn join(q: &RequestQueue) -> Submitter {
    q.submitter(&Client::new("test")).expect("there is a place")
}

/// What tests do with a submitter.
pub(crate) trait Drive {
    /// Submits an operation and flushes the plug.
    fn submit_now(&mut self, bio: Bio);

    /// Waits for all that is outstanding, and reaps it.
    fn finish(&mut self) -> Vec<Completion>;
}

impl Drive for Submitter {
    fn submit_now(&mut self, bio: Bio) {
        self.submit(bio).expect("there is a slot");
        self.flush_plug();
    }

    fn finish(&mut self) -> Vec<Completion> {
        let mut done = Vec::new();
        while self.nr_outstanding() > 0 {
            self.wait(1, None);
            done.extend(std::iter::from_fn(|| self.reap()));
        }
        done
    }
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

    /// A device of 512 MiB with these hardware queues.
    pub(crate) fn with(topology: Topology) -> Arc<Self> {
        Self::new(Limits { capacity_sectors: 1 << 20, ..Limits::default() }, topology)
    }

    /// A device of 512 MiB with one hardware queue of so many tags.
    pub(crate) fn of_depth(depth: u16) -> Arc<Self> {
        Self::with(Topology { depth, ..ONE_QUEUE })
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

    /// Finishes all requests that the device holds.
    pub(crate) fn finish_all(&self, status: Status) {
        (0..self.nr_held()).for_each(|_| self.finish_oldest(status));
    }

    /// Finishes each request as it comes, without an error, until these submitters have nothing outstanding. Returns
    /// what they reaped.
    pub(crate) fn drain(&self, submitters: &mut [&mut Submitter]) -> Vec<Completion> {
        let mut done = Vec::new();
        while submitters.iter().any(|submitter| submitter.nr_outstanding() > 0) {
            self.finish_all(Status::Ok);
            submitters.iter_mut().for_each(|submitter| done.append(&mut reap(submitter)));
        }
        done
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
    /// From now on counts how often this submitter is told.
    pub(crate) fn set(submitter: &mut Submitter) -> Arc<Self> {
        let notified = Arc::new(Self::default());
        submitter.set_notify(Some(notified.clone()));
        notified
    }

    /// How often since the last call.
    pub(crate) fn since_last(&self) -> u32 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// Numbers that look random and follow from a seed (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A separate generator for a thread or a run: the numbers that one draws do not depend on the others.
    pub(crate) fn fork(&self, number: u64) -> Self {
        let mut child = Self(self.0 ^ number.wrapping_mul(0xd6e8_feb8_6659_fd93));
        child.next();
        child
    }

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
