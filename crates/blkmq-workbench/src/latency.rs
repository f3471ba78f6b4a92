//! How long operations took, kind by kind.

use std::collections::BTreeMap;

use blkmq::Op;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Significant digits of a latency. With four, a histogram takes at most some megabytes.
const DIGITS: u8 = 4;

/// The latencies of operations by kind, in nanoseconds, to four digits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Latencies(BTreeMap<&'static str, Histogram<u64>>);

/// Percentiles of latencies, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// The number of operations.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// The latency that 90 of 100 operations did not exceed.
    pub p90: u64,
    /// The latency that 99 of 100 operations did not exceed.
    pub p99: u64,
    /// The latency that 999 of 1000 operations did not exceed.
    #[serde(rename = "p99.9")]
    pub p99_9: u64,
    /// The longest one.
    pub max: u64,
}

impl Latencies {
    /// The kinds of operations, in the order of reports.
    pub const KINDS: [&str; 4] = ["read", "write", "discard", "flush"];

    /// Adds an operation that took `ns` nanoseconds.
    pub fn record(&mut self, op: Op, ns: u64) {
        let kind = match op {
            Op::Read => "read",
            Op::Write | Op::WriteZeroes => "write",
            Op::Discard => "discard",
            Op::Flush => "flush",
        };
        let new = || Histogram::new(DIGITS).expect("the number of digits is within what a histogram offers");
        let histogram = self.0.entry(kind).or_insert_with(new);
        histogram.record(ns).expect("the histogram grows to hold any number");
    }

    /// The percentiles of one of [`KINDS`](Self::KINDS); `None` if there was no such operation.
    #[must_use]
    pub fn percentiles(&self, kind: &str) -> Option<Percentiles> {
        let histogram = self.0.get(kind)?;
        let at = |quantile| histogram.lowest_equivalent(histogram.value_at_quantile(quantile));
        Some(Percentiles {
            count: histogram.len(),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p99_9: at(0.999),
            max: at(1.0),
        })
    }
}
