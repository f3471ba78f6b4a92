//! Waking the threads of a queue, and counting the wake-ups by cause.
//!
//! A thread that wakes others counts that on a line of its own ([`Wakeups`](crate::Wakeups)).

use super::ThreadTable;
use crate::queue::accounting::WakeCause;
use crate::queue::{CONTROL, Queue};

impl ThreadTable {
    fn rouse_all(&self, thread: u16, cause: WakeCause) {
        let woken = self.iter().filter(|(_, other)| other.wake.rouse()).count();
        self.note_woken(thread, cause, woken);
    }

    /// `thread` has woken `woken` others.
    #[inline]
    pub(crate) fn note_woken(&self, thread: u16, cause: WakeCause, woken: usize) {
        if woken > 0 {
            self.count_woken(thread, cause, woken as u64);
        }
    }

    #[cold]
    fn count_woken(&self, thread: u16, cause: WakeCause, woken: u64) {
        self.get(thread).counters.woke(cause, woken, thread == CONTROL);
    }

    /// Wakes the next sleeping thread after `thread`, round-robin. If no thread sleeps, notifies those that wait
    /// elsewhere.
    ///
    /// # Liveness
    /// One is enough. A submitter's thread that is woken polls before it does anything else, and dispatches as far as
    /// it can, or defers in its turn. A background thread that is to stop does not poll, and the thread that stops it
    /// wakes all. A thread that waits elsewhere polls at some later time, so all of these are notified.
    #[cold]
    fn rouse_next(&self, thread: u16) {
        let behind = self.iter().filter(|(other, _)| *other > thread);
        let before = self.iter().filter(|(other, _)| *other < thread);
        if behind.chain(before).any(|(_, other)| other.wake.rouse_sleeper()) {
            self.note_woken(thread, WakeCause::Deferred, 1);
        } else {
            self.rouse_all(thread, WakeCause::Deferred);
        }
    }

    /// Wakes the owner of a hardware queue, to whose issue list `thread` has appended.
    pub(crate) fn wake_owner(&self, owner: u16, thread: u16) {
        let woken = self.get(owner).wake.wake();
        self.note_woken(thread, WakeCause::Deferred, woken.into());
    }
}

impl Queue {
    /// Wakes every sleeping thread, so that it polls. Called by `thread`, which has made visible what the sleepers are
    /// to see.
    ///
    /// COST: a fence and a load while no thread sleeps.
    pub(crate) fn wake_sleepers(&self, thread: u16) {
        self.live.wake(|| self.threads.rouse_all(thread, WakeCause::Changed));
    }

    /// Called when waiting requests may proceed, and this thread does not dispatch them: see
    /// [`Liveness::defer`](blkmq_sync::liveness::Liveness::defer).
    pub(crate) fn defer(&self, thread: u16) {
        self.live.defer(|| self.threads.rouse_next(thread));
    }

    /// Called when a change may let waiting requests proceed: see
    /// [`Liveness::notify_others`](blkmq_sync::liveness::Liveness::notify_others).
    pub(crate) fn notify_others(&self, thread: u16) {
        self.live.notify_others(|| self.threads.rouse_all(thread, WakeCause::Changed));
    }

    /// Wakes the threads that must plan for requests which the driver got from `thread`: `owners`, or all if these are
    /// not known, and the background threads.
    pub(crate) fn wake_for_started(&self, owners: Option<&[u16]>, thread: u16) {
        match owners {
            None => self.live.wake(|| self.threads.rouse_all(thread, WakeCause::Started)),
            Some(owners) if !owners.is_empty() && self.live.sleepers.any() => {
                let woken = owners.iter().filter(|owner| self.threads.get(**owner).wake.rouse()).count();
                self.threads.note_woken(thread, WakeCause::Started, woken);
            }
            Some(_) => {}
        }
        if self.threads.nr_background() > 0 && self.live.sleepers.any() {
            let background = self.threads.iter().filter(|(_, other)| other.is_background());
            let woken = background.filter(|(_, other)| other.wake.rouse()).count();
            self.threads.note_woken(thread, WakeCause::Started, woken);
        }
    }
}
