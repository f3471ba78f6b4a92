//! What the control path keeps, under one lock.

use blkmq_sync::word::{Flag, Word};
use blkmq_sync::{Mutex, MutexGuard};

/// State of the control path: how many handles to each flag there are. While a thread holds the lock, no other thread
/// makes a change, joins or leaves.
#[derive(Debug, Default)]
pub(crate) struct Control(Mutex<[u32; 2]>);

impl Control {
    pub(crate) fn lock(&self) -> MutexGuard<'_, [u32; 2]> {
        self.0.lock()
    }

    /// Sets a flag of this word, once more. From here on nothing new enters the queue, or no thread that enters it
    /// gives the driver anything.
    pub(crate) fn close(&self, word: &Word, flag: Flag) {
        let mut handles = self.lock();
        handles[flag as usize] += 1;
        word.close(flag);
    }

    /// Takes back that a flag was set once. Returns whether that was the last time, so that the flag is cleared. Then
    /// the caller wakes the threads that sleep, without the lock: what is notified may leave the queue, and leaving
    /// takes the lock.
    pub(crate) fn open(&self, word: &Word, flag: Flag) -> bool {
        let mut handles = self.lock();
        let left = &mut handles[flag as usize];
        debug_assert!(*left > 0, "{flag:?} is taken back that was set");
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            word.open(flag);
        }
        is_last
    }
}
