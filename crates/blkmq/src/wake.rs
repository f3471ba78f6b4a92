//! Waking a thread that sleeps until something completes for it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::atomic::{AtomicBool, Ordering, fence};
use crate::sync::{Line, Mutex, Parker, kept};

/// Something outside the queue that wants to know of completions: an eventfd, an executor.
///
/// Called by the completing thread, under no lock of the queue. It must not block and must not call the queue.
pub trait Notify: Send + Sync {
    /// Something completed for the submitter that this was given to.
    fn notify(&self);
}

/// How to reach a member's thread.
pub(crate) struct Wake {
    sleeping: Line<AtomicBool>,
    parker: Parker,
    has_notify: AtomicBool,
    notify: Mutex<Option<Arc<dyn Notify>>>,
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").field("sleeping", &self.sleeping).finish_non_exhaustive()
    }
}

impl Wake {
    pub(crate) fn new() -> Self {
        Self {
            sleeping: Line::new("submitter.sleeping", AtomicBool::new(false)),
            parker: Parker::new(),
            has_notify: AtomicBool::new(false),
            notify: Mutex::new(None),
        }
    }

    /// Whom to tell of completions, beside the thread itself. Returns how that changes the number of those who wait for
    /// news: 1, -1, or `None`.
    pub(crate) fn set_notify(&self, notify: Option<Arc<dyn Notify>>) -> Option<i32> {
        let is_some = notify.is_some();
        let was_some = self.has_notify.swap(is_some, Ordering::Relaxed);
        *self.notify.lock() = notify;
        (is_some != was_some).then_some(if is_some { 1 } else { -1 })
    }

    /// Wakes the thread if it sleeps. Called after what it should see was made visible.
    ///
    /// COST: a fence and two loads of lines that change only when the thread goes to sleep.
    pub(crate) fn wake(&self) {
        // ORDERING: between the waker's publication and its look at `sleeping`; pairs with the fence in `sleep`, between
        // the store of `sleeping` and the sleeper's last look. One of the two sees the other.
        fence(Ordering::SeqCst);
        self.rouse();
    }

    /// Like [`wake`](Self::wake), for a caller that has fenced already.
    pub(crate) fn rouse(&self) {
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            self.parker.unpark();
        }
        if self.has_notify.load(Ordering::Relaxed) {
            let notify = self.notify.lock().clone();
            if let Some(notify) = notify {
                notify.notify();
            }
        }
    }

    /// Sleeps until woken or `timeout` has passed, unless `ready` says that there is something to do.
    pub(crate) fn sleep(&self, ready: impl FnOnce() -> bool, timeout: impl FnOnce() -> Option<Duration>) {
        self.sleeping.store(true, Ordering::Relaxed);
        // ORDERING: pairs with the fence in `wake`.
        fence(Ordering::SeqCst);
        if !(kept("wake.last_look") && ready()) {
            self.parker.park_until(timeout());
        }
        self.sleeping.store(false, Ordering::Relaxed);
    }
}
