//! Time, read once per batch and through one door.

use std::time::Instant;

pub use blkmq_sched::Time;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Where the block layer gets its time from.
#[derive(Debug, Clone)]
pub enum Clock {
    /// The monotonic clock of the machine, counted from the creation of this value.
    Real(Instant),
    /// A clock that stands still until it is told to move.
    Virtual(VirtualClock),
}

impl Clock {
    /// A clock that follows the machine's.
    #[must_use]
    pub fn real() -> Self {
        Self::Real(Instant::now())
    }

    /// The time now. COST: a vDSO call of some 25 ns for the real clock; callers read it once per batch.
    #[must_use]
    pub fn now(&self) -> Time {
        match self {
            Self::Real(origin) => Time(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            Self::Virtual(clock) => clock.now(),
        }
    }
}

/// A clock that its owner moves. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    /// A clock at the origin.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The time shown.
    #[must_use]
    pub fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }

    /// Moves the clock forward to `time`; a time in the past leaves it alone.
    pub fn advance_to(&self, time: Time) {
        self.0.fetch_max(time.0, Ordering::Relaxed);
    }

    /// Moves the clock forward by `ns` nanoseconds.
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}
