//! Waiting until every thread has left the section it was in, without slowing the threads.
//!
//! A thread marks itself active, fences, and reads the queue's word; whoever closes the queue sets a flag in the word,
//! fences, and reads the marks. Of two such fences one comes first: either the thread sees the flag and leaves, or the
//! closer sees the mark and waits. The marks are counters, so a thread that leaves and enters again between two looks
//! counts as having left: on entering again it saw the flag.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Line, fence_at, order};

/// One thread's mark: odd while it is inside, one higher at each entry and each exit. Only that thread changes it.
#[derive(Debug)]
pub struct Activity(Line<AtomicU64>);

/// What a closer saw of an [`Activity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed(u64);

impl Default for Activity {
    fn default() -> Self {
        Self::new()
    }
}

impl Activity {
    /// A mark of a thread that is outside.
    #[must_use]
    pub fn new() -> Self {
        Self(Line::new("submitter.activity", AtomicU64::new(0)))
    }

    /// Enters. The caller reads the queue's word next and, if it is closed, calls [`leave`](Self::leave) and turns
    /// back.
    ///
    /// COST: a load and a store of the thread's own line, and a fence; once a batch.
    #[inline]
    pub fn enter(&self) {
        let before = self.0.load(Ordering::Relaxed);
        debug_assert!(before.is_multiple_of(2), "entered twice");
        // Release: a closer that reads this entry in place of the exit before it sees what the exit published. The
        // fence orders the mark before the read of the word and pairs with the fence of `Word::close`.
        self.0.store(before + 1, order("grace.enter", Ordering::Release));
        fence_at("grace.enter_fence");
    }

    /// Leaves.
    #[inline]
    pub fn leave(&self) {
        let before = self.0.load(Ordering::Relaxed);
        debug_assert!(!before.is_multiple_of(2), "left twice");
        // Release publishes what was done inside to the closer's `is_active` and `has_left`.
        self.0.store(before + 1, order("grace.leave", Ordering::Release));
    }

    /// Whether the thread is inside.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.observe().0.is_multiple_of(2)
    }

    /// The mark, for [`has_left`](Self::has_left). Taken after the flag was set and fenced.
    #[must_use]
    pub fn observe(&self) -> Observed {
        // Acquire pairs with the Release of `leave` and `enter`.
        Observed(self.0.load(order("grace.observe", Ordering::Acquire)))
    }

    /// Whether the thread has been outside at or since `seen`.
    #[must_use]
    pub fn has_left(&self, seen: Observed) -> bool {
        seen.0.is_multiple_of(2) || self.observe() != seen
    }
}
