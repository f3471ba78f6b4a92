//! What a queue, or a range of its sectors, keeps only once: up to which time its busy time has been counted.

use blkmq_sched::Time;

use super::in_flight;
use super::stat::DiskStats;
use super::sums::Sums;
use crate::queue::experiments::{Accounting, SharedCount};
use blkmq_sync::Line;
use blkmq_sync::atomic::{AtomicU64, Ordering};

/// The length of a tick as a power of two, in ns: busy time is counted in ticks of 2^20 ns, where Linux counts jiffies.
/// A power of two needs a shift and no division. A power of two also has no rhythm in common with loads whose period is
/// in whole milliseconds.
const TICK_SHIFT: u32 = 20;

/// The busy time. For a baseline also what is in flight, on the same line: see [`SharedCount`].
///
/// Time is counted from tick to tick. A thread that starts or ends requests moves the stamp to its own tick, and counts
/// the time between as busy if something was in flight. The end of a request proves that something was in flight; at a
/// start the thread has to look. So a request that neither begins nor ends a tick counts nothing, and one that lies
/// across the edge of a tick counts the whole tick. Over many requests the sum is right.
#[derive(Debug)]
pub(in crate::queue) struct Gauge(Line<Cells>);

#[derive(Debug)]
struct Cells {
    /// Up to which tick the busy time has been counted.
    stamp: AtomicU64,
    ticks: AtomicU64,
    shared: SharedCount,
}

impl Gauge {
    pub(super) fn new(accounting: Accounting, now: Time) -> Self {
        let shared = SharedCount::new(accounting);
        let cells = Cells { stamp: AtomicU64::new(0), ticks: AtomicU64::new(0), shared };
        let gauge = Self(Line::new("queue.gauge", cells));
        gauge.reset(now);
        gauge
    }

    /// Starts from zero at the next edge of a tick, so that never more than the time that passes is counted.
    pub(super) fn reset(&self, now: Time) {
        self.0.stamp.store(now.0.div_ceil(1 << TICK_SHIFT), Ordering::Relaxed);
        self.0.ticks.store(0, Ordering::Relaxed);
    }

    /// Moves the stamp to the tick of `now`, and counts the time since if `is_busy`.
    ///
    /// COST: a load of a line that is written at most once a tick; once a tick, one compare-exchange and, at a start,
    /// the sum over all threads' lines.
    #[inline]
    pub(in crate::queue) fn advance(&self, now: Time, is_busy: impl Fn() -> bool) {
        let tick = now.0 >> TICK_SHIFT;
        let stamp = self.0.stamp.load(Ordering::Relaxed);
        if tick > stamp {
            self.advance_to(tick, stamp, is_busy);
        }
    }

    /// Looks whether the queue is busy before it moves the stamp. A request that starts afterwards has moved the stamp
    /// itself, or found it where it should be. So the exchange fails, and idle time is not counted as that request's.
    #[cold]
    fn advance_to(&self, tick: u64, mut stamp: u64, is_busy: impl Fn() -> bool) {
        while tick > stamp {
            let busy = is_busy();
            // ORDERING: Relaxed is enough for the stamp alone; see `Counters::entered` for what must be seen with it.
            match self.0.stamp.compare_exchange(stamp, tick, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) if busy => {
                    self.0.ticks.fetch_add(tick - stamp, Ordering::Relaxed);
                    return;
                }
                Ok(_) => return,
                Err(seen) => stamp = seen,
            }
        }
    }

    /// Requests in flight: operations that entered and are not gone, by the counts of all threads.
    pub(in crate::queue) fn in_flight(
        &self,
        entered: impl Iterator<Item = u64>,
        gone: impl Iterator<Item = u64>,
    ) -> u64 {
        self.0.shared.nr().unwrap_or_else(|| in_flight(entered, gone))
    }

    /// What a baseline counts here.
    #[inline]
    pub(in crate::queue) fn shared(&self) -> &SharedCount {
        &self.0.shared
    }

    /// All that is shown. `all` are the sums of all threads, and `in_flight` is what the caller made of them. While the
    /// statistics are on, the busy time up to now is counted first; otherwise a long request would show none until it
    /// ends. While the statistics are off, no time is counted, for two reasons: requests that seem to be in flight may
    /// be about to be marked as not counted, and the stamp may be old.
    pub(in crate::queue) fn stat<'a>(
        &self,
        now: Time,
        in_flight: u64,
        is_on: bool,
        all: impl Iterator<Item = &'a Sums>,
    ) -> DiskStats {
        if in_flight > 0 && is_on {
            self.advance(now, || true);
        }
        let io_ticks = (self.0.ticks.load(Ordering::Relaxed) << TICK_SHIFT) / 1_000_000;
        DiskStats { in_flight, io_ticks, ..Sums::stat(all) }
    }
}
