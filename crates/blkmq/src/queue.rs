//! The request queue: everything that the threads of one device share, and each thread's entry in it.
//!
//! Here is what `dispatcher`, `submit` and `control` work on. Each folder has a part of it: the hardware and software
//! queues ([`topology`]), the clients ([`tenants`]), what each thread keeps ([`threads`]), what is ordered together
//! ([`ordered`]), what bounds the requests with the device ([`limits`]), and the statistics ([`accounting`]).
//! [`settings`] has the knobs, [`builder`] makes a queue, and [`handle`] has what programs ask it. Nothing here moves a
//! request on.

mod accounting;
mod attached;
mod builder;
mod error;
mod experiments;
mod handle;
mod limits;
mod locking;
mod ordered;
mod scheduler_choice;
mod schedulers;
mod settings;
mod state;
mod tenants;
mod threads;
mod topology;
#[cfg(virtual_cpus)]
mod watch;

pub use accounting::{DiskStats, GateCounts, MAX_RANGES, QueueCounters, SectorRange, Wakeups};
pub use builder::Builder;
pub use error::{LimitsError, QueueError, RangeError, TenantError};
pub use experiments::{Accounting, Wait};
pub use locking::{Locking, Measures};
pub use ordered::limiter::LimiterInfo;
pub use scheduler_choice::SchedulerChoice;
pub use schedulers::scheduler_names;
pub use tenants::groups::MAX_GROUP_DEPTH;
pub use tenants::{ClientInfo, GroupInfo, Service, Tenants};
#[cfg(virtual_cpus)]
pub use watch::{HoldStep, HoldWatcher, LimiterStep, LimiterWatcher, watch_holds, watch_limiters};

pub(crate) use self::{
    accounting::{Count, WakeCause, check_ranges},
    limits::flows::FlowBatch,
    limits::pools::{TakenTokens, TokenBatch},
    ordered::backlog::ROUNDS,
    ordered::domain::Domain,
    ordered::hold::Hold,
    ordered::limiter::WBT_LAT_USEC,
    ordered::reports::{BypassReport, ReportBatch},
    schedulers::SCHEDULER_PREFIX,
    settings::{IO_TIMEOUT, NR_REQUESTS},
    tenants::service::Served,
    threads::counting::{EndBatch, StartBatch, mark_of_flush},
    threads::{OwnThreadState, ThreadState},
    topology::flush::{Steps, first_step},
    topology::hctx::HwCtx,
    topology::layout::{Layout, Mapping},
};

#[cfg(feature = "eventfd")]
use std::os::fd::BorrowedFd;
use std::sync::Weak;
use std::time::Duration;

use blkmq_sched::Time;

use self::accounting::{Account, Sums};
use self::attached::Attached;
use self::limits::pools::Pools;
use self::ordered::domains::Domains;
use self::ordered::limiter::LimiterLook;
use self::settings::Settings;
use self::state::Control;
use self::tenants::TenantTable;
use self::threads::ThreadTable;
use self::topology::hctx::HwCtxTable;
use crate::driver::{Driver, DueTimes, NextEvent, POLL_PERIOD, Topology};
use crate::request::Slots;
use crate::request::clock::Clock;
use crate::request::limits::Limits;
use blkmq_sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "eventfd")]
use blkmq_sync::event::EventFd;
use blkmq_sync::liveness::Liveness;
use blkmq_sync::ring::PendingEvents;
#[cfg(feature = "eventfd")]
use blkmq_sync::wake::Sleeper;
use blkmq_sync::{Arc, Line, Mutex, place_anew, unless_mutated};

/// Nanoseconds: how long to wait before the next try of what the driver refused or gave back.
const RETRY_NS: u64 = 3_000_000;

/// The entry for which a thread counts that has none of its own, as on the control path: the queue itself.
pub(crate) const CONTROL: u16 = 0;

/// What a submitter waits for: `nr_operations` of its own, wherever they are, all of them or any.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitTarget {
    pub(crate) thread: u16,
    pub(crate) nr_operations: usize,
    pub(crate) wants_all: bool,
}

/// A device with its software queues, hardware queues, tags and scheduler.
///
/// This is a handle: a clone costs what one of an `Arc` costs, and refers to the same queue. The queue lives as long as
/// any handle or [`Submitter`](crate::Submitter) of it. Each thread submits through a submitter of its own; every other
/// method may be called from any thread.
#[derive(Debug, Clone)]
pub struct RequestQueue(pub(crate) Arc<Queue>);

/// A handle that does not keep its queue alive: see [`RequestQueue::downgrade`].
#[derive(Debug, Clone)]
pub struct WeakRequestQueue(Weak<Queue>);

/// What the threads of one device share: software queues, hardware queues, tags and the scheduler. A [`RequestQueue`]
/// is a handle of it.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) live: Liveness,
    pub(crate) settings: Line<Settings>,
    pub(crate) domains: Domains,
    pools: Pools,
    /// Whose reports the scheduler has not been told of.
    pending_events: PendingEvents,
    pub(crate) hctxs: HwCtxTable,
    pub(crate) threads: ThreadTable,
    pub(crate) slots: Slots,
    /// The limits when the queue was built; the capacity may be larger now.
    limits: Limits,
    /// Sectors that the device is known to have. The number only grows, and changes under the control path's lock.
    capacity: AtomicU64,
    /// Dropped before the driver.
    _attached: Attached,
    driver: Arc<dyn Driver>,
    /// Whether the driver takes calls for one hardware queue from several threads at once.
    pub(crate) is_concurrent: bool,
    /// Whether each hardware queue belongs to one submitter.
    pub(crate) is_owned: bool,
    /// Whether the device has descriptors that say when it has completed something.
    has_descriptors: bool,
    clock: Clock,
    nr_slots: u16,
    account: Account,
    pub(crate) control: Control,
    /// Taken behind the lock of the control path, and before that of a scheduler.
    tenants: Mutex<TenantTable>,
    /// Nanoseconds: the time when the timeout scan is due.
    pub(crate) timeout_scan: Line<AtomicU64>,
    pub(crate) limiter_look: LimiterLook,
}

impl Queue {
    /// Names what threads share beside the lines that have a name, for rigs. The queue has its place.
    fn name_places(&self) {
        self.live.name_places();
        self.pools.name_places();
        self.hctxs.name_places();
        self.threads.name_places();
        self.account.ranges.name_places();
        place_anew("queue.capacity", &self.capacity);
        place_anew("queue.control", &self.control);
        place_anew("queue.tenants", &self.tenants);
    }

    /// The clients that submitters serve, and the groups that they are in.
    pub(crate) fn tenants(&self) -> Tenants<'_> {
        Tenants::of(self)
    }

    /// What the device accepts, as far as the queue knows.
    pub(crate) fn limits(&self) -> Limits {
        // Relaxed: nothing else depends on the number. A thread that heard of the growth from the thread that found it
        // sees it here.
        Limits { capacity_sectors: self.capacity.load(Ordering::Relaxed), ..self.limits }
    }

    #[inline]
    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    #[inline]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    pub(crate) fn locking(&self) -> Locking {
        self.settings.locking()
    }

    /// The scheduler's name, or `none`.
    pub(crate) fn scheduler(&self) -> &'static str {
        self.domain(0).control().scheduler().map_or("none", |scheduler| scheduler.name())
    }

    /// Changes the number of hardware queues. Called when nothing is in flight.
    pub(crate) fn set_topology(&self, topology: Topology) -> Result<(), QueueError> {
        let is_marked = self.hctxs.iter().any(|(_, hctx)| hctx.has_marked_ctx());
        debug_assert!(!is_marked, "a software queue is marked as holding something on a drained queue");
        let (layout, nr_owners) = (Layout::of(&topology), self.threads.highest());
        if self.is_owned && layout.nr_owners() < nr_owners {
            return Err(QueueError::StillOwned(nr_owners));
        }
        self.driver.set_topology(topology)?;
        self.hctxs.set_layout(layout);
        self.domains.set_nr_hctxs(self, layout.len());
        Ok(())
    }

    /// Ends the time in which nothing was counted before the first request counts. Otherwise that time would be taken
    /// for busy time.
    pub(crate) fn set_iostats(&self, iostats: u32) {
        if !self.settings.has_iostats() {
            self.account.gauge.advance(self.clock.now(), || false);
        }
        self.settings.set_number("iostats", iostats);
    }

    /// Replaces the ranges. The queue is frozen, drained and quiesced, or no other thread has it yet. The caller holds
    /// the control lock.
    pub(crate) fn install_ranges(&self, new: Vec<SectorRange>) {
        debug_assert!(self.hctxs.is_idle(), "ranges change while nothing is in flight");
        let (now, account) = (self.clock.now(), &self.account);
        if !new.is_empty() {
            account.ranges.make_gauges(account.gauge.shared().accounting(), now);
            self.threads.iter().for_each(|(_, thread)| thread.make_range_sums());
        }
        account.ranges.replace(new, now, |place| self.threads.range_sums(place).for_each(Sums::reset));
    }

    /// The pools, if the scheduler takes tokens.
    #[inline]
    pub(crate) fn pools(&self) -> Option<&Pools> {
        if self.settings.has_tokens() { Some(&self.pools) } else { None }
    }

    /// The time at which a thread that drives these hardware queues must look again even if no other thread wakes it.
    /// The thread polled last at `looked`. `own`: what the thread waits for, if it waits for nothing else.
    ///
    /// # Liveness
    /// If all that the thread waits for is with the device at known times, the thread looks at the first of these (at
    /// the last if it wants all: see [`own_due`](Self::own_due)), and leaves the events of other submitters to these.
    /// If anything of it is elsewhere (in the plug, in the scheduler, part of another submitter's request, behind a
    /// flush), the thread needs what other submitters' events bring: tags, room, the end of a flush. These submitters
    /// may not poll for long. So the thread looks at each event of the hardware queues that it drives. A token may be
    /// out for a request of another hardware queue, which this thread does not drive: that one comes back when the
    /// submitter of that request polls or waits, as each submitter that has something outstanding must. The thread
    /// plans anew when a request of it is started, because the thread that starts it wakes it.
    pub(crate) fn next_event(
        &self,
        hctxs: impl Iterator<Item = u16> + Clone,
        own: Option<WaitTarget>,
        looked: Time,
        now: Time,
    ) -> Time {
        debug_assert!(looked <= now, "the thread has polled before it plans: {looked:?}, {now:?}");
        let scan = Time(self.timeout_scan.load(Ordering::Relaxed));
        // If the planned time had come when this thread polled, it is no reason to wake again. That poll asked the
        // scheduler as of a later time. A request that it let go and that still waits lacks a tag, and the thread that
        // brings a tag dispatches it.
        let policy = Time(self.planned());
        let mut earliest = if policy > looked { scan.min(policy) } else { scan };
        let due = own.and_then(|own| self.own_due(hctxs.clone(), own));
        earliest = due.map_or(earliest, |due| earliest.min(due));
        for index in hctxs {
            let hctx = self.hctxs.get(index);
            let refused = hctx.stalled.load(Ordering::Relaxed) || hctx.gave_back.load(Ordering::Relaxed);
            if refused || hctx.nr_dispatch() > 0 {
                earliest = earliest.min(now.after(RETRY_NS));
            }
            if due.is_some() {
                continue;
            }
            match self.driver.next_event(index) {
                NextEvent::At(event) => earliest = earliest.min(event),
                // A request that is started later wakes the threads that plan without it.
                NextEvent::Unknown if !self.has_descriptors && hctx.tags.weight() > 0 => {
                    earliest = earliest.min(now.after(POLL_PERIOD.as_nanos() as u64));
                }
                NextEvent::Unknown | NextEvent::Never => {}
            }
        }
        earliest
    }

    /// When the device completes the first of a submitter's operations, or the last if it wants all. `None` if any of
    /// them is not with the device on these hardware queues, or the device does not tell its time.
    ///
    /// # Liveness
    /// An operation of another submitter may be a part of a request of this submitter. The other submitter looks at
    /// each event of the hardware queues that it polls. If it polls others than this submitter, it depends on this
    /// submitter for that request. So this submitter waits for the last of its requests only where all poll the same.
    fn own_due(&self, hctxs: impl Iterator<Item = u16>, own: WaitTarget) -> Option<Time> {
        let mut due = DueTimes::new(&self.slots, own.thread);
        hctxs.for_each(|index| self.driver.due_times(index, &mut due));
        // A request of several operations counts once. Then something seems to be elsewhere, and the thread looks more
        // often than it would have to.
        let is_known = due.nr >= own.nr_operations || !unless_mutated("sleep.all_own");
        let until_last = own.wants_all && self.hctxs.layout().is_one_for_all();
        let time = if until_last { due.latest } else { due.earliest };
        time.filter(|_| is_known)
    }

    /// The descriptors that say when the device has completed something on these hardware queues.
    #[cfg(feature = "eventfd")]
    pub(crate) fn ready_fds(&self, hctxs: impl Iterator<Item = u16>) -> Vec<BorrowedFd<'_>> {
        hctxs.filter_map(|index| self.driver.ready_fd(index)).collect()
    }

    /// Lets a thread that polls these hardware queues sleep, as [`Sleepers::sleep`](blkmq_sync::wake::Sleepers::sleep)
    /// does. The device wakes the thread too when it has something on one of these hardware queues.
    pub(crate) fn sleep(
        &self,
        thread: &ThreadState,
        hctxs: impl Iterator<Item = u16> + Clone,
        ready: impl FnOnce() -> bool,
        timeout: impl FnOnce() -> Option<Duration>,
    ) {
        #[cfg(feature = "eventfd")]
        let sleeper = DeviceSleeper::new(self, thread, hctxs);
        #[cfg(not(feature = "eventfd"))]
        let (sleeper, _) = ((), hctxs);
        self.live.sleepers.sleep(&thread.wake, sleeper, ready, timeout);
    }
}

/// Where a thread sleeps: with the device, or on the descriptors of its hardware queues.
#[cfg(feature = "eventfd")]
struct DeviceSleeper<'q, H> {
    q: &'q Queue,
    hctxs: H,
    /// Empty if the thread may sleep with the device.
    fds: Vec<BorrowedFd<'q>>,
}

#[cfg(feature = "eventfd")]
impl<'q, H: Iterator<Item = u16> + Clone> DeviceSleeper<'q, H> {
    /// The descriptors are asked for now, because that waits for a thread that takes completions. No other thread
    /// takes completions of a hardware queue that is owned.
    fn new(q: &'q Queue, thread: &ThreadState, hctxs: H) -> Self {
        let asks = thread.wake.is_equipped() && !q.is_owned;
        let fds = if asks { q.ready_fds(hctxs.clone()) } else { Vec::new() };
        Self { q, hctxs, fds }
    }
}

#[cfg(feature = "eventfd")]
impl<H: Iterator<Item = u16> + Clone> Sleeper for DeviceSleeper<'_, H> {
    fn sleep(self, bell: &EventFd, timeout: Option<Duration>) {
        if !self.q.is_owned {
            return bell.wait_beside(&self.fds, timeout);
        }
        let mut hctxs = self.hctxs.clone();
        let slept = match (hctxs.next(), hctxs.next()) {
            (Some(hctx), None) => self.q.driver.sleep(hctx, bell, timeout),
            _ => false,
        };
        if !slept {
            bell.wait_beside(&self.q.ready_fds(self.hctxs), timeout);
        }
    }
}
