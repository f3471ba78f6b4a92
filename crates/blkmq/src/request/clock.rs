//! Time, read once per batch and only through this module.

use std::time::Duration;

pub(crate) use blkmq_sched::Time;

use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{Arc, Instant};

/// Where the block layer gets its time from.
#[derive(Debug, Clone)]
pub enum Clock {
    /// A monotonic clock of the machine, counted from the creation of this value.
    Real(RealClock),
    /// A clock that stands still until it is advanced: by its owner, or by a submitter that waits.
    Virtual(VirtualClock),
}

/// One of the machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct RealClock(Origin);

#[derive(Debug, Clone, Copy)]
enum Origin {
    Exact(Instant),
    #[cfg(feature = "coarse-clock")]
    Coarse(u64),
}

/// The time of the kernel's last tick, in nanoseconds.
#[cfg(feature = "coarse-clock")]
fn tick() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    // The clock counts from the start of the machine: neither part is negative, and 64 bits last for 584 years.
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

impl RealClock {
    fn now(&self) -> Time {
        match self.0 {
            Origin::Exact(origin) => {
                let since = origin.elapsed();
                // 64 bits of nanoseconds last for 584 years.
                Time(since.as_secs().wrapping_mul(1_000_000_000).wrapping_add(u64::from(since.subsec_nanos())))
            }
            #[cfg(feature = "coarse-clock")]
            Origin::Coarse(origin) => Time(tick().saturating_sub(origin)),
        }
    }
}

impl Clock {
    /// A clock that follows the machine's.
    #[must_use]
    pub fn real() -> Self {
        Self::Real(RealClock(Origin::Exact(Instant::now())))
    }

    /// A clock that follows the machine's from tick to tick of its kernel, 1 to 10 ms apart. This clock is for callers
    /// that have no use for exact time stamps and do not want to pay for these. Everything that takes its time from the
    /// queue's clock becomes as coarse: [`Completion`](crate::Completion), the statistics, a scheduler's deadlines, and
    /// the null device's latency.
    #[cfg(feature = "coarse-clock")]
    #[must_use]
    pub fn coarse() -> Self {
        Self::Real(RealClock(Origin::Coarse(tick())))
    }

    /// Whether it moves from tick to tick of the kernel.
    pub(crate) fn is_coarse(&self) -> bool {
        match self {
            #[cfg(feature = "coarse-clock")]
            Self::Real(RealClock(Origin::Coarse(_))) => true,
            _ => false,
        }
    }

    /// The time now.
    ///
    /// COST: for the exact real clock, which reads the processor's counter, a vDSO call of about 25 ns; for the coarse
    /// one, of about 5 ns. Callers read it once per batch.
    #[must_use]
    pub fn now(&self) -> Time {
        match self {
            Self::Real(clock) => clock.now(),
            Self::Virtual(clock) => clock.now(),
        }
    }

    /// The time that is so far from now, for [`Submitter::wait`](crate::Submitter::wait).
    #[must_use]
    pub fn after(&self, duration: Duration) -> Time {
        self.now().after(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// A clock that moves only when it is advanced. A submitter that waits advances it to the next event. Clones show the
/// same time.
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

    /// Moves the clock forward to `time`. A time in the past has no effect.
    pub fn advance_to(&self, time: Time) {
        self.0.fetch_max(time.0, Ordering::Relaxed);
    }

    /// Moves the clock forward by `ns` nanoseconds, at most to the last time that there is.
    pub fn advance(&self, ns: u64) {
        let later = |now: u64| Some(now.saturating_add(ns));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a virtual clock goes back when it is moved past the last time.
    #[test]
    fn a_virtual_clock_stops_at_the_last_time() {
        let clock = VirtualClock::new();
        clock.advance(5);
        clock.advance(u64::MAX);
        assert_eq!(clock.now(), Time(u64::MAX));
    }

    /// Red if the coarse clock does not begin at the origin, does not move on, or differs from the exact one by more
    /// than a tick.
    #[test]
    #[cfg(feature = "coarse-clock")]
    #[cfg_attr(miri, ignore = "Miri knows no coarse clock")]
    fn the_coarse_clock_follows_the_exact_one() {
        let coarse = Clock::coarse();
        let exact = Clock::real();
        let mut last = coarse.now();
        let mut moves = 0;
        while moves < 5 {
            let before = exact.now();
            let now = coarse.now();
            assert!(now >= last);
            // A tick is at most 10 ms. The two clocks were made one after the other, less than a tick apart.
            assert!(before.0 <= now.0 + 20_000_000, "{now:?} is too early at {before:?}");
            moves += u32::from(now > last);
            last = now;
        }
        // The tick before the clock's creation may have been one period ago.
        assert!(last.0 <= exact.now().0 + 20_000_000, "{last:?}");
    }
}
