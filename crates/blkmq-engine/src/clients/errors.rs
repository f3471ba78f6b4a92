//! Requests that were answered with an error, by kind: one thread counts, and any thread reads.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use super::latency::add;
use crate::failure::Cause;

/// Kinds of error.
const NR_KINDS: usize = Cause::ALL.len();

/// How many requests were answered with an error, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Errors([u64; NR_KINDS]);

impl Errors {
    /// Returns how many requests were answered with this error.
    #[must_use]
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// Returns how many requests were answered with any error.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl AddAssign for Errors {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

/// The errors of one connection. Only the connection's own thread counts.
#[derive(Debug, Default)]
pub(super) struct ErrorMeter([AtomicU64; NR_KINDS]);

impl ErrorMeter {
    /// Counts a request that is answered with this error.
    pub(super) fn count(&self, cause: Cause) {
        add(&self.0[cause as usize], 1);
    }

    pub(super) fn read(&self) -> Errors {
        Errors(self.0.each_ref().map(|cell| cell.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if two kinds are counted as one.
    #[test]
    fn every_kind_is_counted_apart() {
        let meter = ErrorMeter::default();
        for (times, cause) in Cause::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| meter.count(cause));
        }
        let mut sum = meter.read();
        sum += meter.read();
        for (times, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(sum.of(cause), 2 * times as u64, "{cause:?}");
        }
        assert_eq!(sum.count(), 2 * (1 + 2 + 3 + 4 + 5 + 6));
    }
}
