//! Jobs that run at the same time, and what they share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use blkmq::{RequestQueue, Stats, Submitter};

/// Jobs that run at the same time.
#[derive(Debug)]
pub(super) struct Stage {
    /// How many of them are in their `ramp_time`.
    nr_ramping: AtomicUsize,
    /// What the queue had counted when what is measured began.
    base: Mutex<Stats>,
}

impl Stage {
    /// A stage of which so many threads begin with a ramp.
    pub(super) fn new(q: &RequestQueue, nr_ramping: usize) -> Self {
        Self { nr_ramping: AtomicUsize::new(nr_ramping), base: Mutex::new(q.stats()) }
    }

    /// One thread's ramp is over; the last one's ends what is not counted of the queue.
    pub(super) fn ramp_is_over(&self, submitter: &Submitter) {
        if self.nr_ramping.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.base.lock().unwrap_or_else(PoisonError::into_inner) = submitter.queue().stats();
        }
    }

    /// What the queue has counted since.
    pub(super) fn stats(&self, q: &RequestQueue) -> Stats {
        q.stats() - *self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
