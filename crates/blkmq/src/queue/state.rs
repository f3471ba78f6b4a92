//! What the control path keeps, under one lock.

use blkmq_sync::word::Word;
use blkmq_sync::{Mutex, MutexGuard, placed};

/// State of the control path. While a thread holds the lock, no other thread makes a change, joins or leaves.
#[derive(Debug, Default)]
pub(crate) struct Control(Mutex<Handles>);

/// How many handles of each kind there are.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    freezes: u32,
    quiesces: u32,
}

impl Control {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Handles> {
        placed("queue.control", &self.0).lock()
    }

    /// From here on nothing new enters the queue of this word. Freezes nest.
    pub(crate) fn begin_freeze(&self, word: &Word) {
        let mut handles = self.lock();
        handles.freezes += 1;
        word.freeze();
    }

    /// Ends one freeze. Returns whether it was the last one. Then the caller wakes the threads that sleep, without the
    /// lock: what is notified may leave the queue, and leaving takes the lock.
    pub(crate) fn end_freeze(&self, word: &Word) -> bool {
        let mut handles = self.lock();
        debug_assert!(handles.freezes > 0, "a freeze that ends had begun");
        handles.freezes -= 1;
        if handles.freezes == 0 {
            word.unfreeze();
        }
        handles.freezes == 0
    }

    /// From here on no thread that enters the queue of this word gives the driver anything. Quiescences nest.
    pub(crate) fn begin_quiesce(&self, word: &Word) {
        let mut handles = self.lock();
        handles.quiesces += 1;
        word.quiesce();
    }

    /// Ends one quiescence, as [`end_freeze`](Self::end_freeze) does a freeze.
    pub(crate) fn end_quiesce(&self, word: &Word) -> bool {
        let mut handles = self.lock();
        debug_assert!(handles.quiesces > 0, "a quiescence that ends had begun");
        handles.quiesces -= 1;
        if handles.quiesces == 0 {
            word.unquiesce();
        }
        handles.quiesces == 0
    }
}
