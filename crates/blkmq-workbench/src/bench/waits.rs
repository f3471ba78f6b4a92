//! How long threads and requests waited on their way to the scheduler. Each thread gathers its own.

use std::cell::RefCell;

use blkmq::Wait;

use super::Latency;

/// How long threads and requests waited.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Waits {
    /// How long threads waited for the scheduler's lock, if they got it in the end.
    pub lock: Latency,
    /// How long staged requests waited until the thread that they were left with had tried to insert them. If that
    /// thread had just gone, until the thread that left them had tried.
    pub staged: Latency,
}

thread_local! {
    static WAITS: RefCell<Option<Waits>> = const { RefCell::new(None) };
}

/// Notes a wait that this thread has ended.
pub(super) fn note(wait: Wait, ns: u64) {
    WAITS.with_borrow_mut(|waits| {
        let waits = waits.get_or_insert_default();
        match wait {
            Wait::Lock => waits.lock.record(ns),
            Wait::Staged => waits.staged.record(ns),
        }
    });
}

/// What this thread has noted since this was called last.
pub(super) fn take() -> Waits {
    WAITS.take().unwrap_or_default()
}

impl Waits {
    /// Adds what another thread noted.
    pub fn add(&mut self, other: &Self) {
        self.lock.add(&other.lock);
        self.staged.add(&other.staged);
    }
}
