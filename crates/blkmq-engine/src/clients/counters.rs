//! What one thread of a client counts, and how the thread is woken.

use std::iter::Sum;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use blkmq::Time;
use blkmq::event::EventFd;

use super::errors::{ErrorMeter, Errors};
use super::latency::{Latencies, Meter, add};
use crate::ask::Ask;
use crate::failure::Cause;

/// A thread that serves a client. A connection has one, and a block device of several queues has one for each. Only the
/// thread itself writes the counts.
#[derive(Debug)]
pub(crate) struct ThreadCounters {
    /// No other counters of these clients has this number.
    pub(crate) number: u64,
    /// Wakes the thread.
    pub(crate) bell: Arc<EventFd>,
    requests: AtomicU64,
    answers: AtomicU64,
    bytes: AtomicU64,
    memory: AtomicUsize,
    meter: Meter,
    errors: ErrorMeter,
}

impl ThreadCounters {
    pub(super) fn new(number: u64, bell: Arc<EventFd>) -> Self {
        let [requests, answers, bytes] = [const { AtomicU64::new(0) }; 3];
        let (meter, errors) = (Meter::default(), ErrorMeter::default());
        Self { number, bell, requests, answers, bytes, memory: AtomicUsize::new(0), meter, errors }
    }

    /// Counts a request that was taken.
    #[inline]
    pub(crate) fn count_request(&self) {
        add(&self.requests, 1);
    }

    /// Counts a request that is answered.
    #[inline]
    pub(crate) fn count_answer(&self) {
        add(&self.answers, 1);
    }

    /// Counts bytes that the client has read or written.
    #[inline]
    pub(crate) fn count_bytes(&self, bytes: u64) {
        add(&self.bytes, bytes);
    }

    /// Counts a request that asked for this when it is over.
    #[inline]
    pub(crate) fn count_time(&self, ask: Ask, taken: Time, over: Time) {
        self.meter.count(ask, taken, over);
    }

    /// Counts a request that is answered with this error.
    pub(crate) fn count_error(&self, cause: Cause) {
        self.errors.count(cause);
    }

    /// Notes that the thread has this many bytes of memory for data.
    #[inline]
    pub(crate) fn note_memory(&self, bytes: usize) {
        // Relaxed: this number is only shown to people, and orders nothing.
        self.memory.store(bytes, Ordering::Relaxed);
    }

    /// Returns the requests that were answered, and those that were taken.
    pub(super) fn requests(&self) -> [u64; 2] {
        // The answers are read first. If requests are counted meanwhile, the difference is larger, but not negative.
        [&self.answers, &self.requests].map(|count| count.load(Ordering::Relaxed))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes of memory that the thread has for data.
    pub(super) fn memory(&self) -> usize {
        // Relaxed: as above.
        self.memory.load(Ordering::Relaxed)
    }

    pub(super) fn outcomes(&self) -> Outcomes {
        Outcomes { latencies: self.meter.read(), errors: self.errors.read() }
    }
}

/// How requests ended: how long they took, and with which errors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcomes {
    pub(super) latencies: Latencies,
    pub(super) errors: Errors,
}

impl Sum for Outcomes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, more| {
            sum.latencies += more.latencies;
            sum.errors += more.errors;
            sum
        })
    }
}
