//! What a server has acknowledged and may have lost: writes that no flush has covered when the server was away.
//!
//! A server that comes back may be the same program with its cache, or one that began anew on a machine that stopped.
//! Nothing on the wire tells which. So what was acknowledged and not flushed counts as lost, unless the operator knows
//! better (`keeps_cache=1`), and a flush never says that it is durable: until the device is opened anew flushes and FUA
//! fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A counter on a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

/// The server's cache as far as the device knows.
#[derive(Debug)]
pub(super) struct Cache {
    /// The server has flushes, so there may be a cache, and the operator has not said that it outlives the server.
    is_volatile: bool,
    /// By hardware queue, the changes that were acknowledged and not durable by themselves. The thread that takes
    /// replies counts.
    acknowledged: Box<[Count]>,
    /// So many of them, of all hardware queues together, a flush has made durable.
    flushed: AtomicU64,
    is_lost: AtomicBool,
}

impl Cache {
    pub(super) fn new(is_volatile: bool, queues: usize) -> Self {
        let acknowledged = (0..queues).map(|_| Count::default()).collect();
        Self { is_volatile, acknowledged, flushed: AtomicU64::new(0), is_lost: AtomicBool::new(false) }
    }

    /// The server has acknowledged a change. The caller has the lock of the side that receives for this hardware queue,
    /// so no other thread counts there.
    ///
    /// COST: a load and a store of a line that no other thread writes.
    pub(super) fn count(&self, hctx: u16) {
        let Count(count) = &self.acknowledged[usize::from(hctx)];
        // Relaxed: nothing is published by it; see `flushed`.
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The changes that have been acknowledged so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.iter().map(|Count(count)| count.load(Ordering::Relaxed)).sum()
    }

    /// A flush was answered. Before it was sent, `covers` changes had been acknowledged.
    ///
    /// The thread that sends a flush reads the counts first, so each change that it counts had been acknowledged
    /// before, and the flush covers it. A count that is seen late only makes more changes count as lost than are.
    pub(super) fn flushed(&self, covers: u64) {
        self.flushed.fetch_max(covers, Ordering::Relaxed);
    }

    /// The server is away, and no connection to it is left.
    pub(super) fn server_is_away(&self) {
        if self.is_volatile && self.acknowledged() > self.flushed.load(Ordering::Relaxed) {
            // Relaxed: the caller has closed both sides of every connection under their locks, so each thread that
            // sends to the server's successor has taken one of these locks since.
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something that was acknowledged may be lost. No flush is good from then on.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with two changes, acknowledged to different hardware queues, and what had been acknowledged before the
    /// second.
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
