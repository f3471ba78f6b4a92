//! How long requests took, counted by each thread for itself.

use crate::queue::accounting::add;
use blkmq_sched::{Latency, SchedDomain, Sums, Throttle};

use blkmq_sync::Line;
use blkmq_sync::atomic::{AtomicU64, Ordering};

/// How long requests took that one thread completed: counts since ever, by the index of the kind and of the latency,
/// and by bucket. Only this thread writes them.
#[derive(Debug)]
pub(crate) struct Latencies(Line<[[[AtomicU64; Throttle::BUCKETS]; Latency::ALL.len()]; SchedDomain::MEASURED.len()]>);

impl Latencies {
    pub(in crate::queue) fn new() -> Self {
        Self(Line::new("submitter.latencies", Default::default()))
    }

    /// COST: a load and a store.
    #[inline]
    pub(super) fn add(&self, of: SchedDomain, latency: Latency, bucket: usize, number: u64) {
        add(&self.0[of.index()][latency.index()][bucket], number);
    }

    pub(super) fn add_to(&self, sums: &mut Sums) {
        let counts = self.0.as_flattened().as_flattened().iter();
        for (sum, count) in sums.counts.as_flattened_mut().as_flattened_mut().iter_mut().zip(counts) {
            *sum += count.load(Ordering::Relaxed);
        }
    }
}
