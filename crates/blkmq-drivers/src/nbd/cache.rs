//! What a server has acknowledged and may have lost: writes that no flush had covered when the server was away.
//!
//! A server that comes back may be the same program with its cache, or a new one on a machine that had stopped. The
//! protocol does not tell which. So writes that were acknowledged and not flushed count as lost, unless the operator
//! knows better (`keeps_cache=1`). A flush never says that such writes are durable: until the device is opened anew,
//! flushes and FUA fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A counter on its own cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

/// The server's cache, as far as the device knows it.
#[derive(Debug)]
pub(super) struct Cache {
    /// Whether there may be a cache, because the server has flushes and the operator has not said that the cache
    /// outlives it.
    is_volatile: bool,
    /// For each hardware queue, the number of changes that were acknowledged and are not durable by themselves. The
    /// thread that takes replies counts.
    acknowledged: Box<[Count]>,
    /// How many of these changes, of all hardware queues together, a flush has made durable.
    flushed: AtomicU64,
    is_lost: AtomicBool,
}

impl Cache {
    pub(super) fn new(is_volatile: bool, queues: usize) -> Self {
        let acknowledged = (0..queues).map(|_| Count::default()).collect();
        Self { is_volatile, acknowledged, flushed: AtomicU64::new(0), is_lost: AtomicBool::new(false) }
    }

    /// Called when the server has acknowledged a change. The caller has the lock of the receiving side of this hardware
    /// queue, so no other thread counts there.
    ///
    /// COST: a load and a store of a line that no other thread writes.
    pub(super) fn count(&self, hctx: u16) {
        let Count(count) = &self.acknowledged[usize::from(hctx)];
        // Relaxed: nothing is published by it; see `flushed`.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Returns the changes that have been acknowledged so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.iter().map(|Count(count)| count.load(Ordering::Relaxed)).sum()
    }

    /// Called when a flush was answered. Before the flush was sent, `covers` changes had been acknowledged.
    ///
    /// The thread that sends a flush reads the counts first. So each change that it counts had been acknowledged
    /// before, and the flush covers it. If a count is seen late, more changes count as lost than really are.
    pub(super) fn flushed(&self, covers: u64) {
        self.flushed.fetch_max(covers, Ordering::Relaxed);
    }

    /// Called when the server is away and no connection to it is left.
    pub(super) fn server_is_away(&self) {
        if self.is_volatile && self.acknowledged() > self.flushed.load(Ordering::Relaxed) {
            // Relaxed: the caller has closed both sides of every connection under their locks. So each thread that
            // sends to the next server has taken one of these locks since.
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if something that was acknowledged may be lost. From then on no flush succeeds.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a cache with two changes, acknowledged to different hardware queues, and what had been acknowledged
    /// before the second.
    fn changed(is_volatile: bool) -> (Cache, u64) {
        let cache = Cache::new(is_volatile, 2);
        cache.count(0);
        let first = cache.acknowledged();
        cache.count(1);
        (cache, first)
    }

    #[test]
    fn changes_that_no_flush_covered_count_as_lost() {
        let (cache, _) = changed(true);
        cache.server_is_away();
        assert!(cache.is_lost());
        let (cache, first) = changed(true);
        cache.flushed(first);
        cache.server_is_away();
        assert!(cache.is_lost(), "the second came after the flush was sent");
        let (cache, _) = changed(true);
        cache.flushed(cache.acknowledged());
        cache.server_is_away();
        assert!(!cache.is_lost());
        let (kept, _) = changed(false);
        kept.server_is_away();
        assert!(!kept.is_lost(), "it outlives the server");
    }
}
