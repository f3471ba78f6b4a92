//! What a thread leaves to others: who polled before it was left, and is about to sleep, looks again.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::order;

/// How often something was left to whoever polls next, wrapping.
#[derive(Debug)]
pub struct Left(AtomicU32);

impl Default for Left {
    fn default() -> Self {
        Self::new()
    }
}

impl Left {
    /// Nothing was left yet.
    #[must_use]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Something is left to others, who know by the queue's word what. The caller then wakes who sleeps, if
    /// [anybody](crate::wake::Sleepers::any) does.
    pub fn count(&self) {
        // Release: who reads the count before it polls sees what this thread did. The fence in `Sleepers::any` sees to
        // those who sleep.
        self.0.fetch_add(1, order("left.count", Ordering::Release));
    }

    /// The count. Who polls reads it before, and sleeps only if it is still the same in the last look.
    #[must_use]
    pub fn read(&self) -> u32 {
        // Acquire pairs with the Release of `count`.
        self.0.load(order("left.read", Ordering::Acquire))
    }
}
