//! How long requests take: histograms that one thread writes and any thread reads.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use blkmq::Time;

use crate::ask::Ask;

/// The kinds of requests that are counted separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes, including writes of zeroes.
    Write,
    /// Discards.
    Discard,
    /// Flushes.
    Flush,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Discard, Self::Flush];

    /// The kind of what is asked. `None` if such requests are not counted.
    const fn of(ask: Ask) -> Option<Self> {
        match ask {
            Ask::Read => Some(Self::Read),
            Ask::Write { .. } | Ask::WriteZeroes { .. } => Some(Self::Write),
            Ask::Discard { .. } => Some(Self::Discard),
            Ask::Flush => Some(Self::Flush),
            Ask::Cache | Ask::Tell { .. } => None,
        }
    }
}

/// The number of buckets of a histogram.
pub const NR_BUCKETS: usize = 26;
/// The longest time in the first bucket, as an exponent of two, in nanoseconds: about a microsecond.
const FIRST: u32 = 10;

/// Requests by the time that they took: from the moment when the server had taken a request, within the bounds of its
/// connection, to the moment when its reply was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Histogram {
    /// The number of requests in each bucket. The limit of each bucket is twice that of the bucket before it. The last
    /// bucket has all longer requests.
    pub buckets: [u64; NR_BUCKETS],
    /// Nanoseconds that all requests took.
    pub sum_ns: u64,
}

impl Histogram {
    /// Returns the longest time in a bucket, in nanoseconds. `None` for the last bucket, which has no limit.
    #[must_use]
    pub fn upper_ns(bucket: usize) -> Option<u64> {
        (bucket + 1 < NR_BUCKETS).then(|| 1 << (FIRST as usize + bucket))
    }

    /// Requests in all.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl AddAssign for Histogram {
    fn add_assign(&mut self, other: Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(sum, more)| *sum += more);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }
}

/// Returns the bucket of a request that took this many nanoseconds.
#[inline]
fn bucket(ns: u64) -> usize {
    // The number of bits of the time, counted in lengths of the first bucket.
    let bits = u64::BITS - (ns.saturating_sub(1) >> FIRST).leading_zeros();
    (bits as usize).min(NR_BUCKETS - 1)
}

/// A histogram of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latencies([Histogram; Kind::ALL.len()]);

impl Latencies {
    /// Returns the histogram of a kind.
    #[must_use]
    pub const fn of(&self, kind: Kind) -> &Histogram {
        &self.0[kind as usize]
    }
}

impl AddAssign for Latencies {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

#[derive(Debug, Default)]
struct Cells {
    buckets: [AtomicU64; NR_BUCKETS],
    sum_ns: AtomicU64,
}

/// COST: a load and a store of a line that one thread writes; no read-modify-write.
#[inline]
pub(super) fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// The histograms of one connection. Only the connection's own thread counts.
#[derive(Debug, Default)]
pub(super) struct Meter([Cells; Kind::ALL.len()]);

impl Meter {
    /// Counts a request that asked for this when it is over.
    #[inline]
    pub(super) fn count(&self, ask: Ask, taken: Time, over: Time) {
        let Some(kind) = Kind::of(ask) else { return };
        let (cells, ns) = (&self.0[kind as usize], over.since(taken));
        add(&cells.buckets[bucket(ns)], 1);
        add(&cells.sum_ns, ns);
    }

    /// Returns the counts so far. A request that is being counted at this moment may be in only a part of them.
    pub(super) fn read(&self) -> Latencies {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Latencies(
            self.0
                .each_ref()
                .map(|cells| Histogram { buckets: cells.buckets.each_ref().map(get), sum_ns: get(&cells.sum_ns) }),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_the_first_bucket_that_is_long_enough() {
        for ns in [0, 1, 1023, 1024, 1025, 2048, 2049, 1_000_000, 1 << 34, (1 << 34) + 1, u64::MAX] {
            let expected = (0..NR_BUCKETS).find(|&bucket| Histogram::upper_ns(bucket).is_none_or(|upper| ns <= upper));
            assert_eq!(Some(bucket(ns)), expected, "{ns} ns");
        }
    }

    #[test]
    fn kinds_are_counted_apart() {
        let meter = Meter::default();
        meter.count(Ask::Read, Time(1000), Time(2000));
        meter.count(Ask::Read, Time(1000), Time(4000));
        meter.count(Ask::Flush, Time(0), Time(1 << 40));
        meter.count(Ask::Cache, Time(0), Time(5));
        let found = meter.read();
        assert_eq!((found.of(Kind::Read).count(), found.of(Kind::Read).sum_ns), (2, 4000));
        assert_eq!(found.of(Kind::Read).buckets[..3], [1, 0, 1]);
        assert_eq!((found.of(Kind::Write).count(), found.of(Kind::Discard).count()), (0, 0));
        assert_eq!(found.of(Kind::Flush).buckets[NR_BUCKETS - 1], 1);
        let mut sum = found;
        sum += found;
        assert_eq!((sum.of(Kind::Read).count(), sum.of(Kind::Read).sum_ns), (4, 8000));
    }
}
