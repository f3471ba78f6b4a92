//! What a thread leaves to other threads: a thread that polled before something was left, and is about to sleep, looks
//! again.

use crate::platform::atomic::{AtomicU32, Ordering};
use crate::platform::{order, placed};

/// How often something was left to the thread that polls next. The count wraps.
#[derive(Debug)]
pub struct Left(AtomicU32);

/// Nothing has been left yet.
impl Default for Left {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Left {
    fn number(&self) -> &AtomicU32 {
        placed("queue.left", &self.0)
    }

    /// Counts that something is left to other threads. The queue's word says what is left. The caller then wakes the
    /// threads that sleep, if there are [any](crate::wake::Sleepers::any).
    pub fn count(&self) {
        // Release: a thread that reads the count before it polls sees what this thread did. For threads that sleep, the
        // fence in `Sleepers::any` makes sure that they look again.
        self.number().fetch_add(1, order("left.count", Ordering::Release));
    }

    /// The count. A thread reads it before it polls, and sleeps only if its last look finds the same count.
    #[must_use]
    pub fn read(&self) -> u32 {
        // Acquire pairs with the Release of `count`.
        self.number().load(order("left.read", Ordering::Acquire))
    }
}
