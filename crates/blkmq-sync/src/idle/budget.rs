//! How much may be lost, in time that passes.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds. What was not lost in this much time may be lost at once later. With the share of 1/32, a thread may so
/// begin to poll several times in a row.
pub(super) const CREDIT: u64 = 10_000_000;

/// When everything is paid, after `cost` was added to what was paid at `paid`. Something may be lost whenever all is
/// paid. So between two moments all costs of a thread together are at most the time between them, the credit, and the
/// last cost. If several threads pay together, it is the last cost of each.
pub(super) fn charged(paid: u64, now: u64, cost: u64) -> u64 {
    paid.max(now.saturating_sub(CREDIT)).saturating_add(cost)
}

/// What all threads may lose together.
#[derive(Debug)]
pub(super) struct Budget {
    /// When everything is paid. Only a number: no access has an order.
    paid: AtomicU64,
}

impl Budget {
    pub(super) const fn new() -> Self {
        Self { paid: AtomicU64::new(0) }
    }

    pub(super) fn allows(&self, now: u64) -> bool {
        now >= self.paid.load(Ordering::Relaxed)
    }

    /// COST: a write to a line of all threads. They write it seldom, because each write keeps all of them from polling
    /// for some time.
    pub(super) fn charge(&self, now: u64, cost: u64) {
        let _ = self.paid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| Some(charged(paid, now, cost)));
    }
}
