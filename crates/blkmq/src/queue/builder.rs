//! Building a queue in front of a device: a [`RequestQueue`] comes to be nowhere else.

use crate::driver::Driver;
use crate::queue::accounting::{Account, SectorRange, check_ranges};
use crate::queue::attached::Attached;
use crate::queue::experiments::{Accounting, Experiments, Wait};
use crate::queue::limits::pools::Pools;
use crate::queue::ordered::domains::Domains;
use crate::queue::ordered::limiter::{LimiterLook, WBT_LAT_USEC};
use crate::queue::scheduler_choice::SchedulerChoice;
use crate::queue::settings::{IO_TIMEOUT, NR_REQUESTS, Settings, check_value, check_within_depth};
use crate::queue::state::Control;
use crate::queue::tenants::TenantTable;
use crate::queue::threads::ThreadTable;
use crate::queue::topology::hctx::HwCtxTable;
use crate::queue::{LimitsError, Locking, Queue, QueueError, RequestQueue};
use crate::request::clock::Clock;
use crate::request::limits::{Limits, MAX_HW_QUEUES, MAX_THREADS};
use crate::request::{FLUSH_POOL, Slots};
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::liveness::Liveness;
use blkmq_sync::ring::PendingEvents;
use blkmq_sync::{Arc, Line, Mutex};

/// What a queue is built from.
#[derive(Debug)]
pub struct Builder {
    driver: Arc<dyn Driver>,
    clock: Clock,
    scheduler: Option<SchedulerChoice>,
    locking: Locking,
    bypass: Option<bool>,
    nr_requests: Option<u32>,
    wbt_lat_usec: i64,
    slots: u16,
    io_timeout_ms: u32,
    experiments: Experiments,
    ranges: Vec<SectorRange>,
}

/// Slots of a submitter, unless the builder sets another number.
const DEFAULT_SLOTS: u16 = 256;

/// Milliseconds that a driver may keep a request, unless the builder or the knob `io_timeout` sets another time.
const DEFAULT_IO_TIMEOUT_MS: u32 = 30_000;

impl Builder {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Self {
        Self {
            driver,
            clock: Clock::real(),
            scheduler: None,
            locking: Locking::default(),
            bypass: None,
            nr_requests: None,
            wbt_lat_usec: 0,
            slots: DEFAULT_SLOTS,
            io_timeout_ms: DEFAULT_IO_TIMEOUT_MS,
            experiments: Experiments::default(),
            ranges: Vec::new(),
        }
    }

    /// The scheduler: its name, or one of the caller's own, in which nothing waits yet. As in Linux, the default is
    /// `mq-deadline` for one hardware queue, and `none` otherwise. Neither shares by weight: for clients with weights,
    /// name `fair`. The queue calls a scheduler under a lock, one thread at a time. Before the queue inserts any
    /// request, it tells the scheduler its limits and how many requests can wait.
    #[must_use]
    pub fn scheduler(mut self, scheduler: impl Into<SchedulerChoice>) -> Self {
        self.scheduler = Some(scheduler.into());
        self
    }

    /// The locking around the scheduler; [`Locking::default`] otherwise.
    #[must_use]
    pub fn locking(mut self, locking: Locking) -> Self {
        self.locking = locking;
        self
    }

    /// Whether requests may bypass the scheduler while nothing waits and the scheduler allows it. By default they may
    /// under the locking [`combining`](Locking::Combining), and under no other.
    #[must_use]
    pub fn bypass(mut self, bypass: bool) -> Self {
        self.bypass = Some(bypass);
        self
    }

    /// Requests that each hardware queue may have, queued and with the driver, 1 to 65536; see the knob `nr_requests`.
    /// The default with a scheduler is 65536, so that the scheduler sees everything that waits. Without a scheduler the
    /// default is the depth, which is also the most.
    #[must_use]
    pub fn nr_requests(mut self, nr_requests: u32) -> Self {
        self.nr_requests = Some(nr_requests);
        self
    }

    /// What a read may take in the device on average, in microseconds, before the queue holds requests back so that
    /// they wait in the scheduler: see the knob `wbt_lat_usec`, and [`sched::limiter`](blkmq_sched::limiter). -1 is
    /// four times what the fastest read took. 0, the default, is no bound. For any other value the scheduler must be
    /// one that orders the whole queue.
    #[must_use]
    pub fn wbt_lat_usec(mut self, usec: i64) -> Self {
        self.wbt_lat_usec = usec;
        self
    }

    /// The clock; the machine's by default.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Requests that each submitter can have outstanding, 1 to 32768; 256 by default.
    #[must_use]
    pub fn slots(mut self, slots: u16) -> Self {
        self.slots = slots;
        self
    }

    /// Milliseconds before a request that the driver keeps is overdue, at least 1; 30000 by default.
    #[must_use]
    pub fn io_timeout_ms(mut self, ms: u32) -> Self {
        self.io_timeout_ms = ms;
        self
    }

    /// Reads the calling thread's CPU time in nanoseconds, for
    /// [`QueueCounters::lock_wait_ns`](crate::QueueCounters::lock_wait_ns), which stays 0 without it. Called only
    /// before and after a wait for the scheduler's lock.
    #[must_use]
    pub fn wait_meter(mut self, meter: fn() -> u64) -> Self {
        self.experiments.waits.meter = Some(meter);
        self
    }

    /// Called with the kind of a wait on the way to the scheduler and its nanoseconds, by the thread that ends the
    /// wait. The function is for histograms. The function may be called under the scheduler's lock, so it must be quick
    /// and must not call the queue. With such a function the machine's clock is read before and after each wait.
    #[must_use]
    pub fn observe_waits(mut self, observer: fn(Wait, u64)) -> Self {
        self.experiments.waits.observe(observer);
        self
    }

    /// How the statistics know what is in flight. The default is per thread.
    #[must_use]
    pub fn accounting(mut self, accounting: Accounting) -> Self {
        self.experiments.accounting = accounting;
        self
    }

    /// For tests and measurements: under the locking `combining`, every submitter finds the scheduler taken and stages
    /// its requests.
    #[doc(hidden)]
    #[must_use]
    pub fn stage_all(mut self) -> Self {
        self.experiments.stages_all = true;
        self
    }

    /// Ranges of sectors that are also counted apart; see [`RequestQueue::change_ranges`].
    #[must_use]
    pub fn ranges(mut self, ranges: Vec<SectorRange>) -> Self {
        self.ranges = ranges;
        self
    }

    /// Builds the queue.
    ///
    /// # Errors
    /// The scheduler is unknown or not new, a number is out of range, a range is bad, the driver's description of the
    /// device makes no sense, or the device is behind another queue.
    pub fn build(self) -> Result<RequestQueue, QueueError> {
        let (topology, limits) = (self.driver.topology(), self.driver.limits());
        topology.check()?;
        check_limits(&limits).map_err(QueueError::BadLimits)?;
        if self.slots == 0 || self.slots > 32768 {
            return Err(QueueError::BadSlots(self.slots));
        }
        check_value(&IO_TIMEOUT, self.io_timeout_ms)?;
        self.nr_requests.map_or(Ok(()), |nr_requests| check_value(&NR_REQUESTS, nr_requests))?;
        WBT_LAT_USEC.check(self.wbt_lat_usec).map_err(QueueError::BadValue)?;
        check_ranges(&self.ranges, limits.capacity_sectors)?;
        let single = topology.default_queues == 1 && topology.read_queues == 0;
        let by_default = || SchedulerChoice::from(if single { "mq-deadline" } else { "none" });
        let scheduler = self.scheduler.unwrap_or_else(by_default).find()?;
        if let (Some(nr_requests), None) = (self.nr_requests, &scheduler) {
            check_within_depth(nr_requests, topology.depth)?;
        }
        let slots = Slots::new(MAX_THREADS);
        slots.make_pool(FLUSH_POOL, MAX_HW_QUEUES as u16);
        let now = self.clock.now();
        let bypass = self.bypass.unwrap_or(self.locking == Locking::Combining);
        let q = Arc::new(Queue {
            live: Liveness::default(),
            settings: Line::new(
                "queue.settings",
                Settings::new(self.io_timeout_ms, self.locking, bypass, self.nr_requests, self.experiments.stages_all),
            ),
            domains: Domains::new(self.experiments.waits),
            pools: Pools::new(),
            pending_events: PendingEvents::default(),
            hctxs: HwCtxTable::new(&topology),
            threads: ThreadTable::new(),
            slots,
            capacity: AtomicU64::new(limits.capacity_sectors),
            limits,
            is_concurrent: self.driver.is_concurrent(),
            is_owned: self.driver.is_owned(),
            #[cfg(feature = "eventfd")]
            has_descriptors: self.driver.ready_fd(0).is_some(),
            #[cfg(not(feature = "eventfd"))]
            has_descriptors: false,
            _attached: Attached::new(&self.driver)?,
            driver: self.driver,
            clock: self.clock,
            nr_slots: self.slots,
            account: Account::new(self.experiments.accounting, now),
            control: Control::default(),
            tenants: Mutex::new(TenantTable::default()),
            timeout_scan: Line::new("queue.timeout_scan", AtomicU64::new(0)),
            limiter_look: LimiterLook::new(),
        });
        q.name_places();
        q.timeout_scan.store(now.after(q.settings.timeout_ns()).0, Ordering::Relaxed);
        q.domains.install(&q, scheduler)?;
        if self.wbt_lat_usec != 0 {
            q.domains.set_wbt_lat_usec(&q, self.wbt_lat_usec)?;
        }
        q.install_ranges(self.ranges);
        Ok(RequestQueue(q))
    }
}

fn check_limits(limits: &Limits) -> Result<(), LimitsError> {
    let block = limits.logical_block_size;
    if !block.is_power_of_two() || !(512..=65536).contains(&block) {
        return Err(LimitsError::LogicalBlock(block));
    }
    let sectors = block / 512;
    if limits.max_sectors < sectors || limits.max_segments == 0 || limits.max_segment_size < block {
        return Err(LimitsError::NoRoom(block));
    }
    if !limits.boundary_sectors.is_multiple_of(sectors) {
        return Err(LimitsError::Boundary { boundary: limits.boundary_sectors, block: sectors });
    }
    let missing = limits.missing_bytes;
    if missing > 0 && (block > 512 || missing > 511 || limits.capacity_sectors == 0) {
        return Err(LimitsError::MissingBytes(missing));
    }
    let align = limits.pages_align;
    if align > 0 && !align.is_power_of_two() {
        return Err(LimitsError::PagesAlign(align));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a limit that makes no sense is accepted, or is refused without the value that is wrong.
    #[test]
    fn limits_that_make_no_sense_are_refused_with_the_value() {
        let good = Limits { capacity_sectors: 8, ..Limits::default() };
        let refused = |limits| check_limits(&limits).expect_err("the limits are bad").to_string();
        for (limits, told) in [
            (Limits { logical_block_size: 768, ..good }, "a power of two from 512 to 65536, not 768"),
            (
                Limits { max_segment_size: 511, ..good },
                "at least one logical block, which is 512 bytes, in one segment",
            ),
            (
                Limits { logical_block_size: 4096, boundary_sectors: 9, ..good },
                "a multiple of the logical block's 8 sectors, not 9",
            ),
            (Limits { missing_bytes: 512, ..good }, "at most 511 and not 512, and only with logical blocks of 512"),
            (Limits { pages_align: 768, ..good }, "0 or a power of two, not 768"),
        ] {
            let error = refused(limits);
            assert!(error.ends_with(told), "{error}");
        }
        assert_eq!(check_limits(&Limits { missing_bytes: 511, boundary_sectors: 9, ..good }), Ok(()));
    }

    /// Red if an error from below is turned into words and lost.
    #[test]
    fn an_error_of_a_queue_keeps_its_cause() {
        use std::error::Error;
        let error = QueueError::from(crate::driver::TopologyError::refused(std::io::Error::from_raw_os_error(24)));
        let refused = error.source().expect("the driver's answer");
        let cause = refused.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
        assert_eq!(cause.and_then(std::io::Error::raw_os_error), Some(24));
        assert_eq!(error.to_string(), cause.expect("it was found").to_string());
    }
}
