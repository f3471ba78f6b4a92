//! The handle of a queue: what programs ask of it and read from it.

use super::accounting::{DiskStats, QueueCounters, SectorRange};
use super::builder::Builder;
use super::error::QueueError;
use super::locking::Locking;
use super::ordered::limiter::LimiterInfo;
use super::tenants::Tenants;
use super::{RequestQueue, WeakRequestQueue};
use crate::driver::Driver;
use crate::request::buffer::{Arena, Buffer};
use crate::request::clock::Clock;
use crate::request::limits::Limits;
use blkmq_sync::Arc;
use blkmq_sync::atomic::Ordering;

impl WeakRequestQueue {
    /// The queue, if any handle or submitter still keeps it alive.
    #[must_use]
    pub fn upgrade(&self) -> Option<RequestQueue> {
        self.0.upgrade().map(RequestQueue)
    }

    /// Whether this and `other` are handles of one queue.
    #[must_use]
    pub fn is_of(&self, other: &RequestQueue) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&other.0))
    }
}

impl RequestQueue {
    /// Starts building a queue in front of a device.
    #[must_use]
    pub fn builder(driver: Arc<dyn Driver>) -> Builder {
        Builder::new(driver)
    }

    /// A handle that does not keep the queue alive.
    #[must_use]
    pub fn downgrade(&self) -> WeakRequestQueue {
        WeakRequestQueue(Arc::downgrade(&self.0))
    }

    /// Whether both are handles of one queue.
    #[must_use]
    pub fn same_queue(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The clients that submitters serve, and the groups that they are in.
    #[must_use]
    pub fn tenants(&self) -> Tenants<'_> {
        self.0.tenants()
    }

    /// `count` zeroed buffers of `len` bytes for operations that come again and again. The device may prepare their
    /// memory for itself, once instead of for each operation. Otherwise the buffers are like any other buffers. The
    /// buffers may be used with other queues too, and may outlive this queue. The memory of all of them is freed
    /// together, with the last of them.
    ///
    /// # Panics
    /// If they exceed half the address space.
    #[must_use]
    pub fn register_buffers(&self, count: usize, len: usize) -> Vec<Buffer> {
        if count == 0 || len == 0 {
            return (0..count).map(|_| Buffer::zeroed(0)).collect();
        }
        Arena::buffers(count, len, |arena| self.0.driver.register(arena))
    }

    /// What the device accepts, as far as the queue knows. [`revalidate`](Self::revalidate) asks for the capacity
    /// again.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.0.limits()
    }

    /// Asks the device for its capacity again: files and volumes can be made larger while they are used. From then on
    /// operations may reach as far as the new end. Returns the capacity in sectors.
    ///
    /// # Errors
    /// The device has become smaller. The queue goes on as it was, and operations behind the device's end fail there.
    pub fn revalidate(&self) -> Result<u64, QueueError> {
        // The device is asked without a lock, because it may take its time to answer. If two threads ask, the larger
        // answer is right.
        let found = self.0.driver.limits().capacity_sectors;
        let known = self.0.capacity.fetch_max(found, Ordering::Relaxed);
        if found < known {
            return Err(QueueError::Shrunk { known, found });
        }
        Ok(found)
    }

    /// The device.
    #[inline]
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.0.driver()
    }

    /// The queue's clock.
    #[inline]
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.0.clock()
    }

    /// What the queue has done since it was built, summed over all threads: merges, dispatches, waits, wake-ups. Sums
    /// taken while I/O runs may miss what is just being counted. [`disk_stats`](Self::disk_stats) has Linux's
    /// statistics.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        let mut counters = QueueCounters::default();
        for (_, thread) in self.0.threads.iter() {
            counters += thread.counters.read();
        }
        counters.gate = self.0.account.gate.counts(|| self.0.clock.now());
        counters
    }

    /// Linux's statistics of a disk, as in `/sys/block/X/stat`, for the whole queue, requests of the ranges included.
    #[must_use]
    pub fn disk_stats(&self) -> DiskStats {
        // The time is read first: a request that is found in flight after that was in flight at that time, or has ended
        // and counted its time.
        let (now, gauge) = (self.0.clock.now(), &self.0.account.gauge);
        let all = self.0.threads.iter().map(|(_, thread)| &thread.sums);
        gauge.stat(now, self.0.threads.nr_queued(gauge), self.0.settings.has_iostats(), all)
    }

    /// The ranges, in the order of their sectors, with their statistics.
    #[must_use]
    pub fn range_stats(&self) -> Vec<(SectorRange, DiskStats)> {
        let (now, ranges) = (self.0.clock.now(), &self.0.account.ranges);
        let stat = |(range, place)| {
            let gauge = ranges.gauge(place);
            let (nr_queued, is_on) = (self.0.threads.nr_queued_in(place, gauge), self.0.settings.has_iostats());
            (range, gauge.stat(now, nr_queued, is_on, self.0.threads.range_sums(place)))
        };
        ranges.by_sector().into_iter().map(stat).collect()
    }

    /// The locking around the scheduler.
    #[inline]
    #[must_use]
    pub fn locking(&self) -> Locking {
        self.0.locking()
    }

    /// Whether requests may bypass the scheduler while nothing waits.
    #[must_use]
    pub fn has_bypass(&self) -> bool {
        self.0.settings.has_bypass()
    }

    /// The scheduler's name, or `none`.
    #[must_use]
    pub fn scheduler(&self) -> &'static str {
        self.0.scheduler()
    }

    /// The state and the measurements of the limiter. `None` if the queue has no limiter: the knob `wbt_lat_usec` is 0,
    /// or the scheduler is none or orders each hardware queue by itself.
    #[must_use]
    pub fn limiter(&self) -> Option<LimiterInfo> {
        self.0.whole_domain()?.control().limiter_info(&self.0)
    }

    /// Reads, and requests other than reads, that the driver has just now, as the kernel's file `inflight` shows them.
    /// This looks at every tag that is out. Requests that have a tag and are on their way to the driver are in
    /// [`busy_tags`](Self::busy_tags) too. Requests that only wait in the queue are in [`DiskStats::in_flight`] alone.
    #[must_use]
    pub fn inflight(&self) -> [u32; 2] {
        let mut inflight = [0; 2];
        self.0.hctxs.for_each_with_driver(&self.0.slots, |_, is_read| inflight[usize::from(!is_read)] += 1);
        inflight
    }

    /// Requests that the driver has, or is about to get: the tags that are out. Exact while no thread takes tags;
    /// otherwise it may count some tags that are just being made free again. [`inflight`](Self::inflight) counts only
    /// what the driver has, and [`DiskStats::in_flight`](crate::DiskStats::in_flight) also what waits.
    #[must_use]
    pub fn busy_tags(&self) -> u32 {
        self.0.hctxs.iter().map(|(_, hctx)| hctx.tags.weight()).sum()
    }
}
