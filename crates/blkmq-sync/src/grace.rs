//! Waiting until every thread has left the section it was in, without slowing the threads.
//!
//! ```text
//!     the thread that enters           the thread that closes the queue
//!  1. marks itself active           a. sets a flag in the queue's word
//!  2. fence                         b. fence
//!  3. reads the word                c. reads the marks
//! ```
//!
//! All threads agree which of the fences 2 and b comes first. If 2 comes first, then c finds the mark, and the closer
//! waits for the thread. If b comes first, then 3 finds the flag. Then the entering thread backs out with whatever the
//! flag forbids: in a frozen queue its plug stays out, in a quiesced queue it starts nothing.
//!
//! A freeze goes through steps b and c twice. A frozen queue is still entered, by threads that drive it until it has
//! drained. When the freezing thread has found that everything that entered has completed, it fences and reads the
//! marks once more. Step a is then that last completion. If 2 comes first, then c finds the mark, and the freezing
//! thread waits for the thread that drives. If b comes first, then 3 finds nothing to do, because everything has
//! completed.
//!
//! The marks are counters. So a thread that leaves and enters again between two checks of the closer counts as having
//! left: when it entered again, it saw the flag.

use crate::platform::atomic::{AtomicU64, Ordering};
use crate::platform::{Line, fence_at, order};

/// One thread's mark. The mark is odd while the thread is inside, and goes up by one at each entry and each exit. Only
/// that thread changes it.
#[derive(Debug)]
pub struct Activity(Line<AtomicU64>);

/// The mark of an [`Activity`], as a closer saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observed(u64);

/// A mark of a thread that is outside.
impl Default for Activity {
    fn default() -> Self {
        Self(Line::new("submitter.activity", AtomicU64::new(0)))
    }
}

impl Activity {
    /// Enters. The caller reads the queue's word next. If the queue is closed, the caller calls [`leave`](Self::leave)
    /// and turns back.
    ///
    /// COST: a load and a store of the thread's own line, and a fence; once a batch.
    ///
    /// # Panics
    /// If the thread is inside already, which it also is after a driver's panic that was caught.
    #[inline]
    pub fn enter(&self) {
        let before = self.0.load(Ordering::Relaxed);
        // Checked in a product build too: a second entry would turn the mark to outside while this thread is inside.
        assert!(before.is_multiple_of(2), "entered twice, or again after the driver panicked inside");
        // Release: a closer that reads this entry instead of the exit before it sees what that exit published. The
        // fence is step 2 of the module's interleaving, between the mark and the read of the word. It pairs with the
        // fence of `Word::close`, and with that of a freeze that has found the queue drained.
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

    /// The mark, for [`has_left`](Self::has_left). Called by a closer that has set the flag and fenced.
    #[must_use]
    pub fn observe(&self) -> Observed {
        // Acquire pairs with the Release of `leave` and `enter`.
        Observed(self.0.load(order("grace.observe", Ordering::Acquire)))
    }

    /// Whether the thread was outside when `seen` was read, or has been since.
    #[must_use]
    pub fn has_left(&self, seen: Observed) -> bool {
        seen.0.is_multiple_of(2) || self.observe() != seen
    }
}
