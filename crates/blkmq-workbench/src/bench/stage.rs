//! Jobs that run at the same time, and what they share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use blkmq::{QueueCounters, RequestQueue, Submitter};

use super::cpu::thread_cpu_ns;
use super::range_locks::RangeLocks;

/// Jobs that run at the same time.
#[derive(Debug)]
pub(super) struct Stage {
    /// How many of them are in their `ramp_time`.
    nr_ramping: AtomicUsize,
    /// The queue's counts when the measurement began.
    base: Mutex<Base>,
    /// On the blocks that jobs with partial operations change.
    pub(super) range_locks: Arc<RangeLocks>,
}

/// The point at which the measurement began.
#[derive(Debug, Clone, Copy)]
struct Base {
    stats: QueueCounters,
    /// CPU time of the thread that ended the last ramp; 0 without one.
    cpu_ns: u64,
}

impl Stage {
    /// A stage in which this many threads begin with a ramp.
    pub(super) fn new(q: &RequestQueue, nr_ramping: usize) -> Self {
        Self {
            nr_ramping: AtomicUsize::new(nr_ramping),
            base: Mutex::new(Base { stats: q.counters(), cpu_ns: 0 }),
            range_locks: Arc::default(),
        }
    }

    /// Called when one thread's ramp has ended. Counting of the queue begins with the end of the last ramp.
    pub(super) fn ramp_is_over(&self, submitter: &Submitter) {
        if self.nr_ramping.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.base.lock().unwrap_or_else(PoisonError::into_inner) =
                Base { stats: submitter.queue().counters(), cpu_ns: thread_cpu_ns() };
        }
    }

    /// What the queue has counted since the measurement began.
    pub(super) fn stats(&self, q: &RequestQueue) -> QueueCounters {
        q.counters() - self.base.lock().unwrap_or_else(PoisonError::into_inner).stats
    }

    /// CPU time that the calling thread has used since the measurement began. All jobs are tasks of this thread, which
    /// had used `before` when they began.
    pub(super) fn cpu_ns(&self, before: u64) -> u64 {
        let ramp_end = self.base.lock().unwrap_or_else(PoisonError::into_inner).cpu_ns;
        thread_cpu_ns().saturating_sub(before.max(ramp_end))
    }
}
