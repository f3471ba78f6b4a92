//! Wake-ups of threads, by what woke them.

use blkmq_sync::atomic::{AtomicU64, Ordering};

use super::{add, get};

/// What a thread is woken for, in the order of [`Wakeups::by_cause`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum WakeCause {
    Completed,
    Deferred,
    Started,
    Changed,
}

const NR_CAUSES: usize = WakeCause::Changed as usize + 1;

sums! {
    /// Threads that other threads woke, by what they were woken for. A thread counts if it slept, or was about to: it
    /// may have found something to do before it slept. A thread whose own timer ended its sleep does not count, and
    /// neither do [notifications](crate::Submitter::set_notify).
    pub struct Wakeups {
        /// Another thread completed operations of the woken thread's submitter.
        pub completed: u64,
        /// A thread left work to others: it had dispatched its share, or the hardware queue belongs to the woken
        /// thread.
        pub deferred: u64,
        /// The driver got requests, so that the woken thread plans for their completion.
        pub started: u64,
        /// A thread changed what others plan by. The driver refused a request or gave one back, the scheduler is to be
        /// asked earlier, the timeout scan was moved, a knob or a weight changed, a freeze or a quiescence ended, a
        /// thread left the queue, or the driver panicked. All threads that sleep are woken.
        pub changed: u64,
    }
}

impl Wakeups {
    /// The name and the number of each cause.
    #[must_use]
    pub const fn by_cause(&self) -> [(&'static str, u64); 4] {
        let Self { completed, deferred, started, changed } = *self;
        [("completed", completed), ("deferred", deferred), ("started", started), ("changed", changed)]
    }

    /// Wake-ups of all causes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_cause().iter().map(|(_, number)| number).sum()
    }
}

/// The wake-ups that one thread counts.
#[derive(Debug, Default)]
pub(super) struct WakeupCells([AtomicU64; NR_CAUSES]);

impl WakeupCells {
    /// A thread has woken `woken` threads. `is_shared`: these cells belong to no single thread.
    pub(super) fn count(&self, cause: WakeCause, woken: u64, is_shared: bool) {
        let cell = &self.0[cause as usize];
        if is_shared {
            cell.fetch_add(woken, Ordering::Relaxed);
        } else {
            add(cell, woken);
        }
    }

    pub(super) fn read(&self) -> Wakeups {
        let [completed, deferred, started, changed] = self.0.each_ref().map(get);
        Wakeups { completed, deferred, started, changed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a cause is counted as another one, or is left out of a sum or a difference.
    #[test]
    fn each_cause_is_counted_by_itself() {
        let causes = [WakeCause::Completed, WakeCause::Deferred, WakeCause::Started, WakeCause::Changed];
        let cells = WakeupCells::default();
        for (number, cause) in (1..).zip(causes) {
            cells.count(cause, number, false);
            cells.count(cause, 10 * number, true);
        }
        let once = cells.read();
        let expected = Wakeups { completed: 11, deferred: 22, started: 33, changed: 44 };
        assert_eq!((once, once.total()), (expected, 110));
        let mut twice = once;
        twice += once;
        assert_eq!((twice.total(), twice - once), (220, once));
        let names = once.by_cause().map(|(name, _)| name.to_owned());
        assert_eq!(names, causes.map(|cause| format!("{cause:?}").to_lowercase()), "names are in the order of causes");
    }
}
