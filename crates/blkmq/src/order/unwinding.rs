//! What becomes of the staging word if the scheduler, or a function of the program that is told of waits, panics.

use crate::queue::RequestQueue;
use blkmq_sync::staging::Staging;

/// A holder that has not let go. If the holder unwinds, this gives up: without that, other threads would leave their
/// requests for ever with a holder that does not come. What the holder has taken over stays in the backlog, and the
/// request that it was inserting is lost.
pub(super) struct Holding<'q> {
    q: &'q RequestQueue,
    staging: &'q Staging,
}

impl<'q> Holding<'q> {
    pub(super) fn new(q: &'q RequestQueue, staging: &'q Staging) -> Self {
        Self { q, staging }
    }

    /// The holder has let go, or has given up as it should.
    ///
    /// COST: none. Nothing is dropped here.
    #[inline]
    pub(super) fn end(self) {
        std::mem::forget(self);
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.q.live.give_up(self.staging);
        self.q.call_others();
    }
}
