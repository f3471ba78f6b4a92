//! The limiter, and the device behind it: when an operation is over, as a function of what was asked before.

use blkmq_sched::Time;

use super::config::Config;
use crate::driver::parameter::units::SECOND;
use crate::driver::random;

/// One ceiling: a bucket into which credit runs at a fixed rate, up to what fits.
#[derive(Debug)]
struct Bucket {
    /// Units a second, and so billionths of a unit in a nanosecond.
    rate: u64,
    /// Billionths of a unit. Less than nothing while operations are held whose credit has not come in yet.
    credit: i128,
    /// Billionths of a unit.
    most: i128,
}

impl Bucket {
    /// A full bucket for `rate` units a second, which holds what comes in within `burst` nanoseconds, but at least
    /// `least` units.
    fn new(rate: u64, burst: u64, least: u64) -> Self {
        let most = (i128::from(rate) * i128::from(burst)).max(i128::from(least) * i128::from(SECOND));
        Self { rate, credit: most, most }
    }

    /// `ns` nanoseconds have passed.
    fn fill(&mut self, ns: u64) {
        self.credit = self.most.min(self.credit + i128::from(self.rate) * i128::from(ns));
    }

    /// Takes `units` units. Returns after how many nanoseconds they will have come in.
    fn take(&mut self, units: u64) -> u64 {
        self.credit -= i128::from(units) * i128::from(SECOND);
        let lacking = u128::try_from(-self.credit).unwrap_or(0);
        u64::try_from(lacking.div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX)
    }
}

/// The limiter and the device. Nothing here waits or is looked at: the end of each operation is computed when the
/// operation comes. That is exact, since what comes later never takes credit that an earlier one was promised.
#[derive(Debug)]
pub struct Limiter {
    operations: Bucket,
    bytes: Bucket,
    /// When the last operation came. The clocks of threads may differ a little.
    now: Time,
    /// Nanoseconds.
    hold: u64,
    latency: u64,
    spread: u64,
    random: u64,
    passed: u64,
    held: u64,
}

impl Limiter {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            operations: Bucket::new(config.iops, config.burst, 1),
            bytes: Bucket::new(config.mbps * 1_000_000, config.burst, 1),
            now: Time(0),
            hold: config.hold,
            latency: config.latency,
            spread: config.spread,
            random: config.seed,
            passed: 0,
            held: 0,
        }
    }

    /// When a request is over that comes at `now` and costs so many operations and bytes.
    pub(super) fn submit(&mut self, operations: u64, bytes: u64, now: Time) -> Time {
        let passed = now.since(self.now);
        self.now = self.now.max(now);
        self.operations.fill(passed);
        self.bytes.fill(passed);
        let wait = self.operations.take(operations).max(self.bytes.take(bytes));
        if wait > 0 {
            self.held += 1;
        } else {
            self.passed += 1;
        }
        // Without a hold the limiter lets each operation go when its credit is there, and so in order.
        let held = if self.hold > 0 { wait.div_ceil(self.hold).saturating_mul(self.hold) } else { wait };
        self.now.after(held).after(self.device())
    }

    /// What the device takes: `latency`, and more the seldomer. Half of the operations take up to `spread` more, a
    /// quarter up to twice that, an eighth up to three times that, and so on: an exponential distribution by pieces.
    fn device(&mut self) -> u64 {
        let draw = random::draw(&mut self.random);
        let (pieces, within) = (u64::from(draw.trailing_ones()).min(31), draw >> 32);
        self.latency + pieces * self.spread + ((u128::from(within) * u128::from(self.spread)) >> 32) as u64
    }

    /// How many operations passed at once, and how many were held.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.passed, self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn limiter(parameters: &str) -> Limiter {
        Limiter::new(&parameters.parse().unwrap())
    }

    /// Red if an operation is held without need, or too short, or if an operation that comes later cannot pass it.
    #[test]
    fn what_is_over_the_ceiling_is_held_and_passed_by_what_comes_later() {
        // A millisecond's worth is one operation.
        let mut limiter = limiter("iops=1000,burst=1ms,hold=3ms,latency=10us,spread=0");
        let mut submit = |us: u64| limiter.submit(1, 0, Time(us * US)).0 / US;
        assert_eq!(submit(0), 10, "there is credit for one");
        assert_eq!(submit(0), 3010, "the second is held, though its credit comes in after a millisecond");
        assert_eq!(submit(2100), 2110, "what comes then passes it");
        assert_eq!(submit(2200), 5210);
        assert_eq!((limiter.passed, limiter.held), (2, 2));
    }

    /// Red if an operation is let go before its credit has come in: many held ones would exceed the ceiling.
    #[test]
    fn many_are_held_several_times() {
        let mut limiter = limiter("iops=1000,burst=0,hold=3ms,latency=0,spread=0");
        let ends: Vec<_> = (0..10).map(|_| limiter.submit(1, 0, Time(0)).0 / 1_000_000).collect();
        assert_eq!(ends, [0, 3, 3, 3, 6, 6, 6, 9, 9, 9]);
    }

    #[test]
    fn bytes_have_a_ceiling_of_their_own() {
        let mut limiter = limiter("iops=1000000,mbps=1,burst=0,hold=0,latency=0,spread=0");
        assert_eq!(limiter.submit(1, 1, Time(0)), Time(0));
        assert_eq!(limiter.submit(1, 4096, Time(0)).0 / US, 4096);
        assert_eq!(limiter.submit(1, 4096, Time(0)).0 / US, 8192);
    }

    #[test]
    fn credit_is_saved_for_as_long_as_burst_says() {
        for (burst, passed) in [("10ms", 10), ("100ms", 100), ("1000s", 2_000)] {
            let mut limiter = limiter(&format!("iops=1000,burst={burst}"));
            (0..2000).for_each(|_| _ = limiter.submit(1, 0, Time(5_000_000_000_000)));
            assert_eq!(limiter.counts().0, passed, "{burst}");
        }
    }

    /// Red if the device's times are not as far apart as `spread` says.
    #[test]
    fn each_further_spread_takes_half_as_many() {
        let mut limiter = limiter("latency=100us,spread=10us");
        let mut counts = [0; 64];
        for _ in 0..100_000 {
            let ns = limiter.device();
            assert!(ns >= 100 * US, "{ns}");
            counts[((ns - 100 * US) / (10 * US)) as usize] += 1;
        }
        // Each within five standard deviations.
        for (piece, expected) in [(0, 50_000_i32), (1, 25_000), (2, 12_500), (3, 6_250)] {
            assert!((counts[piece] - expected).pow(2) < 25 * expected, "{piece}: {}", counts[piece]);
        }
    }
}
