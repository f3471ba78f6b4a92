//! The request queue: everything that the threads of one device share.

use std::fmt;
use std::time::Duration;

use blkmq_sched::{MergeLevel, MergeLimits, Scheduler, Tally, Time};

use crate::account::Account;
use crate::client::Client;
use crate::clock::Clock;
use crate::control::Control;
use crate::driver::Driver;
use crate::hctx::HwCtxTable;
use crate::hold::{Held, Hold};
use crate::limits::Limits;
use crate::member::{MAX_MEMBERS, Member, Members};
use crate::request::Slots;
use crate::room::Room;
use crate::split::Whole;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use crate::sync::{Arc, Line, Mutex, kept};
use crate::word::Word;
use crate::{Stats, Submitter};

/// How long to wait before trying again what the driver refused or gave back, in ns.
const RETRY_NS: u64 = 3_000_000;

/// Why a queue could not be built or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueError {
    /// No scheduler has this name.
    UnknownScheduler(String),
    /// The queue, or its scheduler, has no knob of this name; the second part names those it has.
    UnknownKnob(String, String),
    /// A knob's value is not what it takes; the text says what it takes.
    BadValue(String),
    /// The device's description of itself makes no sense.
    BadDevice(String),
    /// Every place for a thread is taken.
    TooManySubmitters,
    /// The device cannot have that many hardware queues.
    BadTopology(String),
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownScheduler(name) => {
                write!(f, "unknown scheduler '{name}'; there are: {}", scheduler_names().join(", "))
            }
            Self::UnknownKnob(name, known) => write!(f, "unknown knob '{name}'; there are: {known}"),
            Self::BadValue(text) | Self::BadDevice(text) | Self::BadTopology(text) => f.write_str(text),
            Self::TooManySubmitters => write!(f, "a queue takes at most {} threads", MAX_MEMBERS - 1),
        }
    }
}

impl std::error::Error for QueueError {}

/// The names that [`Builder::scheduler`](crate::Builder::scheduler) and [`RequestQueue::set_scheduler`] take.
#[must_use]
pub fn scheduler_names() -> Vec<&'static str> {
    std::iter::once("none").chain(blkmq_sched::SCHEDULERS.iter().map(|known| known.name)).collect()
}

/// The scheduler that somebody asks for.
#[derive(Debug)]
pub(crate) enum Wanted {
    Named(String),
    Own(Box<dyn Scheduler>),
}

impl Wanted {
    /// Looks it up; `None` stands for `none`.
    pub(crate) fn find(self) -> Result<Option<Box<dyn Scheduler>>, QueueError> {
        match self {
            Self::Named(name) if name == "none" => Ok(None),
            Self::Named(name) => blkmq_sched::scheduler(&name).map(Some).ok_or(QueueError::UnknownScheduler(name)),
            Self::Own(scheduler) if scheduler.is_empty() => Ok(Some(scheduler)),
            Self::Own(scheduler) => {
                let (name, waiting) = (scheduler.name(), scheduler.len());
                Err(QueueError::BadValue(format!(
                    "a queue takes a scheduler in which nothing waits, not '{name}' with {waiting} requests"
                )))
            }
        }
    }
}

/// Knobs that the path of a request reads; on a line that is written only when one is set.
#[derive(Debug)]
pub(crate) struct Settings {
    has_scheduler: AtomicBool,
    pub(crate) nr_requests: AtomicU32,
    pub(crate) nomerges: AtomicU32,
    pub(crate) io_timeout_ms: AtomicU32,
    pub(crate) iostats: AtomicU32,
}

impl Settings {
    pub(crate) fn new(io_timeout_ms: u32) -> Self {
        Self {
            has_scheduler: AtomicBool::new(false),
            nr_requests: AtomicU32::new(0),
            nomerges: AtomicU32::new(0),
            io_timeout_ms: AtomicU32::new(io_timeout_ms),
            iostats: AtomicU32::new(1),
        }
    }

    pub(crate) fn has_scheduler(&self) -> bool {
        self.has_scheduler.load(Ordering::Relaxed)
    }

    pub(crate) fn has_iostats(&self) -> bool {
        self.iostats.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn merge_level(&self) -> MergeLevel {
        match self.nomerges.load(Ordering::Relaxed) {
            0 => MergeLevel::Full,
            1 => MergeLevel::LastOnly,
            _ => MergeLevel::Never,
        }
    }

    pub(crate) fn timeout_ns(&self) -> u64 {
        u64::from(self.io_timeout_ms.load(Ordering::Relaxed)) * 1_000_000
    }
}

/// A device with its software queues, hardware queues, tags and scheduler.
///
/// Threads work with it through a [`Submitter`] each. Control operations take `&Arc<RequestQueue>` and may come from any
/// thread.
#[derive(Debug)]
pub struct RequestQueue {
    pub(crate) word: Word,
    pub(crate) settings: Line<Settings>,
    pub(crate) held: Line<Held>,
    pub(crate) hctxs: HwCtxTable,
    pub(crate) members: Members,
    pub(crate) slots: Slots,
    pub(crate) limits: Limits,
    /// What follows from them for most operations, worked out once.
    pub(crate) whole: Whole,
    /// The same for merging.
    pub(crate) merge_limits: MergeLimits,
    pub(crate) driver: Arc<dyn Driver>,
    /// The driver takes calls for one hardware queue from several threads at once.
    pub(crate) is_concurrent: bool,
    pub(crate) clock: Clock,
    pub(crate) nr_slots: u16,
    pub(crate) account: Account,
    pub(crate) control: Mutex<Control>,
    /// Who has bios in a plug for want of room is told here.
    pub(crate) room: Room,
    /// Threads that sleep or are about to.
    pub(crate) nr_sleepers: Line<AtomicU32>,
    /// When the timeout scan is due, and when the scheduler would let go what it holds back; nanoseconds.
    pub(crate) timeout_scan: Line<AtomicU64>,
    pub(crate) policy_wakeup: Line<AtomicU64>,
    /// Background threads that drive the queue.
    pub(crate) nr_background: AtomicU32,
    /// How often something was left to whoever polls next, wrapping.
    pub(crate) nr_left: AtomicU32,
}

impl RequestQueue {
    /// A new submitter for one thread, serving `client`.
    ///
    /// # Errors
    /// The queue has as many threads as it can.
    pub fn submitter(self: &Arc<Self>, client: &Client) -> Result<Submitter, QueueError> {
        Submitter::join(Arc::clone(self), client)
    }

    /// What the device accepts.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The device.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// The queue's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What was counted so far, summed over all threads. Sums taken while I/O runs may be off by what is in motion.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        for (_, member) in self.members.iter() {
            stats += member.counters.stats();
        }
        stats
    }

    /// Requests that the driver has, or is about to get: the tags that are out. Exact while no thread takes tags; else it
    /// may count some that are just being made free again.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.hctxs.iter().map(|(_, hctx)| hctx.tags.weight()).sum()
    }

    /// What the scheduler needs to know of completions, since it was installed.
    pub(crate) fn tally(&self, base: &Tally) -> Tally {
        let mut tally = Tally::default();
        for (_, member) in self.members.iter() {
            member.counters.add_tally(&mut tally);
        }
        for (sum, base) in tally.completed.iter_mut().zip(base.completed) {
            *sum -= base;
        }
        tally
    }

    /// Completed requests other than reads that a scheduler had dispatched.
    pub(crate) fn nr_limited_completed(&self) -> u64 {
        self.members.iter().map(|(_, member)| member.counters.nr_limited()).sum()
    }

    /// Puts a scheduler in place. Nothing is in flight, or nothing has begun.
    pub(crate) fn install(&self, scheduler: Option<Box<dyn Scheduler>>) {
        let mut hold = self.held.lock.lock();
        let nr_hctxs = u32::from(self.hctxs.layout().len());
        let depth = u32::from(self.hctxs.depth());
        let nr_requests = if scheduler.is_some() { 2 * depth.min(128) } else { depth };
        *hold = Hold {
            scheduler,
            queued: vec![0; nr_hctxs as usize],
            elsewhere: 0,
            limited: 0,
            base: self.tally(&Tally::default()),
            base_limited: self.nr_limited_completed(),
        };
        if let Some(scheduler) = &mut hold.scheduler {
            let limits = self.merge_limits;
            let forgotten = MergeLimits { max_sectors: u32::MAX, max_segments: u16::MAX, ..limits };
            scheduler.set_merge_limits(if kept("install.merge_limits") { limits } else { forgotten });
        }
        self.settings.has_scheduler.store(hold.scheduler.is_some(), Ordering::Relaxed);
        self.apply_nr_requests(&mut hold, nr_requests);
        self.held.note_waiting(&hold);
        self.policy_wakeup.store(u64::MAX, Ordering::Relaxed);
    }

    /// Sizes what depends on `nr_requests`. Nothing is in flight.
    pub(crate) fn apply_nr_requests(&self, hold: &mut Hold, nr_requests: u32) {
        let depth = u32::from(self.hctxs.depth());
        let tags = if hold.scheduler.is_some() { depth } else { nr_requests };
        for (_, hctx) in self.hctxs.iter() {
            if hctx.tags.depth() != tags {
                hctx.tags.resize(tags);
            }
        }
        if let Some(scheduler) = &mut hold.scheduler {
            scheduler.reserve(nr_requests as usize * usize::from(self.hctxs.layout().len()));
            scheduler.set_nr_requests(nr_requests);
        }
        self.settings.nr_requests.store(nr_requests, Ordering::Relaxed);
    }

    /// When a thread that drives these hardware queues must look again though nobody wakes it. It polled last at `looked`.
    pub(crate) fn next_event(&self, hctxs: impl Iterator<Item = u16>, looked: Time, now: Time) -> Time {
        let scan = Time(self.timeout_scan.load(Ordering::Relaxed));
        // A time that had passed at the poll is no reason to wake: it found the request free but no tag.
        let policy = Time(self.policy_wakeup.load(Ordering::Relaxed));
        let mut earliest = if policy > looked { scan.min(policy) } else { scan };
        for index in hctxs {
            let hctx = self.hctxs.get(index);
            let refused = hctx.stalled.load(Ordering::Relaxed) || hctx.gave_back.load(Ordering::Relaxed);
            if refused || hctx.nr_parked() > 0 {
                earliest = earliest.min(now.after(RETRY_NS));
            }
            if let Some(event) = self.driver.next_event(index) {
                earliest = earliest.min(event);
            }
        }
        earliest
    }

    /// Lets a thread sleep as [`Wake::sleep`](crate::wake::Wake::sleep) does, counted before its fence.
    pub(crate) fn sleep(
        &self,
        member: &Member,
        ready: impl FnOnce() -> bool,
        timeout: impl FnOnce() -> Option<Duration>,
    ) {
        self.nr_sleepers.fetch_add(1, Ordering::Relaxed);
        member.wake.sleep(ready, timeout);
        self.nr_sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes every thread that sleeps, so that it looks again. Called after what it should see was made visible.
    ///
    /// COST: a fence and a load while nobody sleeps.
    pub(crate) fn wake_sleepers(&self) {
        if self.anybody_sleeps() {
            for (_, member) in self.members.iter() {
                member.wake.rouse();
            }
        }
    }

    /// Something that waits may go on, and this thread does not see to it: those who sleep look again, and so do those who are
    /// about to sleep.
    pub(crate) fn leave_to_others(&self) {
        // Release: who reads the count before it looks sees what this thread did. The fence that follows pairs with the one
        // in `Wake::sleep`: either the sleeper is seen, or its last look sees the count.
        self.nr_left.fetch_add(1, Ordering::Release);
        self.wake_sleepers();
    }

    /// How often something was left to others, wrapping.
    pub(crate) fn nr_left(&self) -> u32 {
        // Acquire pairs with the Release of `leave_to_others`.
        self.nr_left.load(Ordering::Acquire)
    }

    /// Wakes those whose plug is held back for want of room. Called behind [`Word::completed_fence`] by who put tags back.
    pub(crate) fn room_came(&self) {
        if self.room.came() {
            self.wake_sleepers();
        }
    }

    /// Fences, and looks whether any thread sleeps or is about to.
    pub(crate) fn anybody_sleeps(&self) -> bool {
        // ORDERING: pairs with the fence in `Wake::sleep`, which stands behind the count of sleepers going up: either
        // the count is seen here, or the sleeper's last look sees what the caller did before.
        fence(Ordering::SeqCst);
        self.nr_sleepers.load(Ordering::Relaxed) > 0
    }
}
