//! Per-thread state of a queue: of submitters and background threads.
#![expect(unsafe_code, reason = "a thread finds its own state without the table")]

pub(super) mod counting;
mod membership;
mod waking;

use std::fmt::{self, Write};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use blkmq_sched::{ClientId, GroupId, Tally};

use crate::queue::Queue;
use crate::queue::accounting::{Counters, Gauge, MAX_RANGES, Sums};
use crate::queue::limits::flows::Flows;
use crate::queue::limits::pools::Latencies;
use crate::queue::tenants::service::{Served, Service};
use crate::queue::topology::ctx::SwCtx;
use crate::request::limits::MAX_THREADS;
use blkmq_sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use blkmq_sync::grace::Activity;
use blkmq_sync::ring::Ring;
use blkmq_sync::stack::SlotStack;
use blkmq_sync::wake::Wake;
use blkmq_sync::{place_anew, unless_explored};

/// The most reports of a thread that the scheduler has not taken yet: 8 KiB. Few in tests and where interleavings are
/// explored, so that rings fill up there.
pub(super) fn ring() -> usize {
    if cfg!(test) { 8 } else { unless_explored(256, 8) }
}

/// The shared state of one thread. Each field lies on cache lines of its own, and the whole on a page of its own:
/// processors prefetch lines up to the end of a page, and on a shared page would take lines from the thread that they
/// belong to. (With states side by side, two threads that bypass the scheduler lost a fifth of their rate.)
#[derive(Debug)]
#[repr(align(4096))]
pub(crate) struct ThreadState {
    /// Whether the thread is inside the queue now.
    pub(crate) activity: Activity,
    pub(crate) counters: Counters,
    /// The thread's part of the queue's statistics.
    pub(super) sums: Sums,
    pub(crate) latencies: Latencies,
    /// The thread's measurements for a limiter.
    pub(crate) flows: Flows,
    /// The thread's reports. Created when the queue first has a scheduler that wants them.
    reports: OnceLock<Box<Ring>>,
    /// The thread's part of the statistics of ranges of sectors, by index. Created when the queue first has ranges.
    ranges: OnceLock<Box<[Sums]>>,
    /// The completion ring: operations of this thread that other threads completed.
    pub(crate) completions: SlotStack,
    /// The bucket of the locking `staged`: requests that the thread published for the next thread that inserts.
    pub(crate) bucket: SlotStack,
    pub(crate) wake: Wake,
    pub(crate) ctx: SwCtx,
    /// The service that the thread's client got through it.
    pub(crate) service: Service,
    /// Whether a thread has this entry. Accessed under the control lock.
    taken: AtomicBool,
    is_background: AtomicBool,
    /// The id of the client that the thread serves, and of that client's group. Written by threads that change
    /// clients, under the lock of their table.
    client: AtomicU32,
    group: AtomicU32,
}

impl ThreadState {
    /// The state of a thread in its place.
    fn new() -> Box<Self> {
        let state = Box::new(Self {
            activity: Activity::default(),
            counters: Counters::new(),
            sums: Sums::new(),
            latencies: Latencies::new(),
            flows: Flows::new(),
            reports: OnceLock::new(),
            ranges: OnceLock::new(),
            completions: SlotStack::new("submitter.completions"),
            bucket: SlotStack::new("submitter.bucket"),
            wake: Wake::default(),
            ctx: SwCtx::new(),
            service: Service::new(),
            taken: AtomicBool::new(false),
            is_background: AtomicBool::new(false),
            client: AtomicU32::new(0),
            group: AtomicU32::new(0),
        });
        state.name_places();
        state
    }

    /// Names what lies on no line of its own, for rigs.
    fn name_places(&self) {
        self.wake.name_places();
        place_anew("thread.taken", &self.taken);
        place_anew("thread.is_background", &self.is_background);
        place_anew("thread.client", &self.client);
        place_anew("thread.group", &self.group);
    }

    /// The client that the thread serves; the default if it serves none.
    pub(super) fn client(&self) -> ClientId {
        ClientId(self.client.load(Ordering::Relaxed))
    }

    /// The group of the client that the thread serves, as of a moment ago.
    ///
    /// COST: a load of a line that is written when threads come, and clients move.
    #[inline]
    pub(crate) fn group(&self) -> GroupId {
        GroupId(self.group.load(Ordering::Relaxed))
    }

    /// Assigns the thread to a client in this group.
    pub(super) fn serve(&self, client: ClientId, group: GroupId) {
        self.group.store(group.0, Ordering::Relaxed);
        self.client.store(client.0, Ordering::Relaxed);
    }

    /// Ends the thread's service for its client. Returns the service that the client got.
    pub(in crate::queue) fn serve_nobody(&self) -> Served {
        self.serve(ClientId::default(), GroupId::ROOT);
        self.service.end()
    }

    /// Whether the thread drives the queue for other threads.
    pub(super) fn is_background(&self) -> bool {
        self.is_background.load(Ordering::Relaxed)
    }

    /// The thread's part of the statistics of the range at `place`.
    pub(super) fn range_sums(&self, place: usize) -> Option<&Sums> {
        Some(&self.ranges.get()?[place])
    }

    /// The thread's reports.
    #[inline]
    pub(super) fn reports(&self) -> Option<&Ring> {
        self.reports.get().map(|ring| &**ring)
    }

    /// Called under the control lock.
    pub(super) fn make_reports(&self) {
        let _ = self.reports.get_or_init(|| Box::new(Ring::new(ring())));
    }

    /// Called under the control lock.
    pub(super) fn make_range_sums(&self) {
        let _ = self.ranges.get_or_init(|| (0..MAX_RANGES).map(|_| Sums::new()).collect());
    }
}

/// The state of one thread, which the thread finds without the table.
///
/// # Invariants
/// `state` is in the table of `q`, which never moves it, and frees it with the queue.
#[derive(Debug)]
pub(crate) struct OwnThreadState {
    q: Arc<Queue>,
    state: NonNull<ThreadState>,
}

// SAFETY: `Arc<Queue>` is `Send`, and `state` stands for a shared reference to a `ThreadState`, which is `Sync`.
unsafe impl Send for OwnThreadState {}

impl OwnThreadState {
    /// The state of the thread with this number.
    pub(crate) fn new(q: Arc<Queue>, index: u16) -> Self {
        Self { state: NonNull::from(q.threads.get(index)), q }
    }

    /// The thread's state, in the table of `q`.
    ///
    /// COST: two loads and a compare. The table costs two loads and two compares more, and a thread asks some ten times
    /// a batch.
    ///
    /// # Panics
    /// If the thread has joined another queue.
    #[inline]
    pub(crate) fn get<'q>(&self, q: &'q Queue) -> &'q ThreadState {
        assert!(ptr::eq(q, &raw const *self.q), "a thread works with the queue that it has joined");
        // SAFETY: the invariant; `q` is the queue that has the state, and lives as long as the reference.
        unsafe { self.state.as_ref() }
    }
}

/// All threads. An entry is made once and used again by later threads. None is freed before the queue.
#[derive(Debug)]
pub(crate) struct ThreadTable {
    entries: Box<[OnceLock<Box<ThreadState>>]>,
    /// The numbers of entries in use are lower than this.
    high: AtomicUsize,
    /// How many background threads drive the queue.
    nr_background: AtomicU32,
}

impl ThreadTable {
    /// Entry 0 stands for the queue's own requests and is never taken by a thread.
    pub(super) fn new() -> Self {
        let entries: Box<[OnceLock<Box<ThreadState>>]> = (0..MAX_THREADS).map(|_| OnceLock::new()).collect();
        entries[0].get_or_init(ThreadState::new).taken.store(true, Ordering::Relaxed);
        Self { entries, high: AtomicUsize::new(1), nr_background: AtomicU32::new(0) }
    }

    /// Names what lies on no line of its own, for rigs. The queue has its place.
    pub(super) fn name_places(&self) {
        place_anew("queue.threads", &self.high);
        place_anew("queue.nr_background", &self.nr_background);
    }

    /// Takes an entry for a thread; returns `None` if there are none left. Called under the control lock.
    fn take_place(&self) -> Option<u16> {
        for (index, entry) in self.entries.iter().enumerate() {
            let thread = entry.get_or_init(ThreadState::new);
            // Relaxed: the control lock orders joining and leaving.
            if !thread.taken.swap(true, Ordering::Relaxed) {
                self.high.fetch_max(index + 1, Ordering::Relaxed);
                return u16::try_from(index).ok();
            }
        }
        None
    }

    /// The highest number that a thread has; 0 if no thread has one. Called under the control lock.
    pub(super) fn highest(&self) -> u16 {
        let is_taken = |thread: &ThreadState| thread.taken.load(Ordering::Relaxed);
        self.iter().filter(|(_, thread)| is_taken(thread)).map(|(index, _)| index).max().unwrap_or(0)
    }

    /// Gives an entry back. Called under the control lock, when the thread has nothing outstanding.
    fn free_place(&self, index: u16) {
        debug_assert!(index > 0, "the queue itself, number 0, does not leave");
        let was_taken = self.get(index).taken.swap(false, Ordering::Relaxed);
        debug_assert!(was_taken, "thread {index} leaves a place that a thread has");
    }

    #[inline]
    pub(crate) fn get(&self, index: u16) -> &ThreadState {
        self.entries[usize::from(index)].get().expect("a thread was made before its number was given out")
    }

    /// Every entry that was ever in use, with its number.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &ThreadState)> + Clone {
        let high = self.high.load(Ordering::Relaxed);
        (0u16..).zip(&self.entries[..high]).filter_map(|(index, entry)| Some((index, &**entry.get()?)))
    }

    /// Marks the thread of an entry as a background thread, or clears the mark. Called under the control lock.
    pub(super) fn set_background(&self, index: u16, is_background: bool) {
        debug_assert!(index > 0, "the queue itself, number 0, is no thread");
        let flag = &self.get(index).is_background;
        if is_background {
            flag.store(true, Ordering::Relaxed);
            self.nr_background.fetch_add(1, Ordering::Relaxed);
        } else {
            self.nr_background.fetch_sub(1, Ordering::Relaxed);
            flag.store(false, Ordering::Relaxed);
        }
    }

    /// How many background threads drive the queue.
    pub(crate) fn nr_background(&self) -> u32 {
        self.nr_background.load(Ordering::Relaxed)
    }

    /// Calls `each` with those of [`iter`](Self::iter) whose number modulo 64 is that of a bit that is set, in the
    /// same order.
    ///
    /// COST: one step for each of them, and for each 64 numbers.
    #[inline]
    pub(super) fn each_named(&self, bits: u64, mut each: impl FnMut(u16, &ThreadState)) {
        let known = &self.entries[..self.high.load(Ordering::Relaxed)];
        for base in (0..known.len()).step_by(64) {
            let mut left = bits;
            while left != 0 {
                let index = base + left.trailing_zeros() as usize;
                left &= left - 1;
                if let Some(thread) = known.get(index).and_then(OnceLock::get) {
                    each(index as u16, thread);
                }
            }
        }
    }

    /// The completions that the scheduler is told of, since `base`.
    pub(super) fn tally(&self, base: &Tally) -> Tally {
        let mut tally = Tally::default();
        self.iter().for_each(|(_, thread)| thread.counters.add_tally(&mut tally));
        let sums = tally.completed.iter_mut().chain(&mut tally.bypassed);
        for (sum, base) in sums.zip(base.completed.iter().chain(&base.bypassed)) {
            *sum -= base;
        }
        tally
    }

    /// Completed requests other than reads that the scheduler of a queue with one domain had dispatched. Requests that
    /// bypass the scheduler are subtracted when they begin, so the sum wraps.
    pub(super) fn nr_limited(&self) -> u64 {
        self.iter().fold(0, |sum, (_, thread)| sum.wrapping_add(thread.counters.nr_limited()))
    }

    /// Requests in the queue, by the statistics, whose busy time `gauge` counts.
    pub(super) fn nr_queued(&self, gauge: &Gauge) -> u64 {
        let threads = self.iter().map(|(_, thread)| thread);
        let entered = threads.clone().map(|thread| thread.counters.nr_entered());
        gauge.in_flight(entered, threads.map(|thread| thread.sums.nr_gone()))
    }

    /// Requests of the range at `place` in the queue, whose busy time `gauge` counts.
    pub(super) fn nr_queued_in(&self, place: usize, gauge: &Gauge) -> u64 {
        let all = self.range_sums(place);
        gauge.in_flight(all.clone().map(Sums::nr_entered), all.map(Sums::nr_gone))
    }

    /// The statistics of the range at `place`, summed over all threads.
    pub(super) fn range_sums(&self, place: usize) -> impl Iterator<Item = &Sums> + Clone {
        self.iter().filter_map(move |(_, thread)| thread.range_sums(place))
    }

    /// Whether everything that entered has completed. Exact once no thread is inside and none can enter.
    pub(crate) fn is_drained(&self) -> bool {
        // Completions first: an operation that completes between the two sums can only make the queue look busier than
        // it is.
        let completed: u64 = self.iter().map(|(_, thread)| thread.counters.nr_completed()).sum();
        let entered: u64 = self.iter().map(|(_, thread)| thread.counters.nr_entered()).sum();
        entered == completed
    }

    /// For dumps.
    pub(crate) fn show(&self, out: &mut dyn Write) -> fmt::Result {
        for (index, thread) in self.iter() {
            let (active, rings) = (thread.activity.is_active(), !thread.completions.is_empty());
            let software = thread.ctx.lens();
            writeln!(out, "thread {index}: inside {active} software queues {software:?} completions waiting {rings}")?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(virtual_cpus)))]
mod tests {
    use super::*;
    use crate::RequestQueue;
    use crate::driver::spec;

    fn queue() -> RequestQueue {
        let device = spec::open("null,irqmode=0").expect("the spec is good");
        RequestQueue::builder(device).scheduler("none").build().expect("the device is good")
    }

    #[test]
    fn a_thread_finds_its_own_state() {
        let q = queue().0;
        let (index, _) = q.threads.join(&q, None).expect("there is a place");
        let own = OwnThreadState::new(Arc::clone(&q), index);
        assert!(ptr::eq(own.get(&q), q.threads.get(index)));
        q.threads.set_background(index, true);
        assert!(own.get(&q).is_background());
        q.threads.set_background(index, false);
        q.threads.leave(&q, index, None);
        let queue = Arc::downgrade(&q);
        drop(q);
        assert!(queue.upgrade().is_some(), "the queue lives as long as its thread may be asked for");
        drop(own);
        assert!(queue.upgrade().is_none());
    }

    #[test]
    #[should_panic(expected = "the queue that it has joined")]
    fn a_thread_is_not_found_in_another_queue() {
        let (q, other) = (queue().0, queue().0);
        let (index, _) = q.threads.join(&q, None).expect("there is a place");
        let _ = OwnThreadState::new(q, index).get(&other);
    }
}
