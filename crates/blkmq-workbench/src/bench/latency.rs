//! How long operations took.

use hdrhistogram::Histogram;

/// Significant digits of a percentile.
const DIGITS: u8 = 3;

/// How long operations took, in nanoseconds. The shortest, the longest and the mean are exact; percentiles have three
/// digits.
#[derive(Debug, Clone, PartialEq)]
pub struct Latency {
    histogram: Histogram<u64>,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new(DIGITS).expect("the number of digits is within what a histogram offers");
        Self { histogram, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl Latency {
    /// Adds an operation that took `ns` nanoseconds.
    ///
    /// COST: some ten nanoseconds; allocates when a value is longer than any before, which happens a few times in a
    /// run.
    pub(crate) fn record(&mut self, ns: u64) {
        self.histogram.record(ns).expect("the histogram grows to hold any number");
        self.sum += u128::from(ns);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// Adds the operations that `other` has counted.
    pub fn add(&mut self, other: &Self) {
        self.histogram.add(&other.histogram).expect("the histogram grows to hold any number");
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// How many operations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The shortest latency, 0 if there was none.
    #[must_use]
    pub fn min(&self) -> u64 {
        if self.count() == 0 { 0 } else { self.min }
    }

    /// The longest latency, 0 if there was none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The mean latency, 0 if there was none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.sum as f64 / self.count() as f64 }
    }

    /// The standard deviation of the latencies, 0 if there was none.
    #[must_use]
    pub fn stddev(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.histogram.stdev() }
    }

    /// The latency that this many percent of the operations did not exceed.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> u64 {
        self.histogram.value_at_percentile(percent).min(self.max)
    }

    /// The histogram itself, for distributions and plots.
    #[must_use]
    pub fn histogram(&self) -> &Histogram<u64> {
        &self.histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_exact_is_exact_and_percentiles_have_three_digits() {
        let (mut latency, mut other) = (Latency::default(), Latency::default());
        assert_eq!((latency.min(), latency.max(), latency.mean()), (0, 0, 0.0));
        (1..=500).for_each(|n| latency.record(n * 1_000_003));
        (501..=1000).for_each(|n| other.record(n * 1_000_003));
        latency.add(&other);
        assert_eq!((latency.count(), latency.min(), latency.max()), (1000, 1_000_003, 1_000_003_000));
        assert!((latency.mean() - 500.5 * 1_000_003.0).abs() < 1.0);
        assert!((latency.stddev() / 288.675e6 - 1.0).abs() < 0.002, "{}", latency.stddev());
        assert!((latency.percentile(99.0) as f64 / 990e6 - 1.0).abs() < 0.001, "{}", latency.percentile(99.0));
        assert_eq!(latency.percentile(100.0), 1_000_003_000);
    }
}
