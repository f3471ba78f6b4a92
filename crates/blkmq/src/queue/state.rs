//! What the control path keeps, under one lock.

use super::{CONTROL, RequestQueue};
use blkmq_sync::{Mutex, placed};

/// State of the control path, under one lock.
#[derive(Debug, Default)]
pub(super) struct Control {
    freezes: u32,
    quiesces: u32,
}

impl RequestQueue {
    pub(super) fn control(&self) -> &Mutex<Control> {
        placed("queue.control", &self.control)
    }

    /// From here on nothing new enters the queue. Freezes nest.
    pub(crate) fn begin_freeze(&self) {
        let mut control = self.control().lock();
        control.freezes += 1;
        self.live.word.freeze();
    }

    /// Ends one freeze.
    pub(crate) fn end_freeze(&self) {
        let mut control = self.control().lock();
        debug_assert!(control.freezes > 0, "a freeze that ends had begun");
        control.freezes -= 1;
        if control.freezes == 0 {
            self.live.word.unfreeze();
            // What is notified may leave the queue, and leaving takes this lock.
            drop(control);
            // Threads whose plugs were held back look again.
            self.wake_sleepers(CONTROL);
        }
    }

    /// From here on no thread that enters the queue gives the driver anything. Quiescences nest.
    pub(crate) fn begin_quiesce(&self) {
        let mut control = self.control().lock();
        control.quiesces += 1;
        self.live.word.quiesce();
    }

    /// Ends one quiescence.
    pub(crate) fn end_quiesce(&self) {
        let mut control = self.control().lock();
        debug_assert!(control.quiesces > 0, "a quiescence that ends had begun");
        control.quiesces -= 1;
        if control.quiesces == 0 {
            self.live.word.unquiesce();
            // As when a freeze ends.
            drop(control);
            // Threads that sleep look again, and find WAITING set if anything was left.
            self.wake_sleepers(CONTROL);
        }
    }

    /// Makes a change while no other change is made, and no thread joins or leaves.
    pub(crate) fn change_alone<R>(&self, change: impl FnOnce() -> R) -> R {
        let _control = self.control().lock();
        change()
    }
}
