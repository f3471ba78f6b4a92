//! Waking a thread that sleeps until something completes for it.

use std::fmt;
#[cfg(all(feature = "eventfd", not(loom)))]
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
#[cfg(all(feature = "eventfd", not(loom)))]
use std::sync::OnceLock;
use std::time::Duration;

#[cfg(all(feature = "eventfd", not(loom)))]
use crate::event::EventFd;

use crate::notify::Notify;
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Line, Mutex, Parker, fence_at, kept};

/// How to reach a member's thread.
pub struct Wake {
    sleeping: Line<AtomicBool>,
    parker: Parker,
    /// Where the thread waits for the device's descriptors, it is woken by this one.
    #[cfg(all(feature = "eventfd", not(loom)))]
    bell: OnceLock<EventFd>,
    has_notify: AtomicBool,
    notify: Mutex<Option<Arc<dyn Notify>>>,
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").field("sleeping", &self.sleeping).finish_non_exhaustive()
    }
}

impl Default for Wake {
    fn default() -> Self {
        Self::new()
    }
}

impl Wake {
    /// A thread that is awake, and nobody else to tell.
    #[must_use]
    pub fn new() -> Self {
        Self {
            sleeping: Line::new("submitter.sleeping", AtomicBool::new(false)),
            parker: Parker::new(),
            #[cfg(all(feature = "eventfd", not(loom)))]
            bell: OnceLock::new(),
            has_notify: AtomicBool::new(false),
            notify: Mutex::new(None),
        }
    }

    /// Makes the thread wait for the device's descriptors too when it sleeps. Called before it sleeps or is woken.
    #[cfg(all(feature = "eventfd", not(loom)))]
    pub(crate) fn equip(&self) -> io::Result<()> {
        if self.bell.get().is_none() {
            let _ = self.bell.set(EventFd::new()?);
        }
        Ok(())
    }

    /// Whether the thread waits for descriptors when it sleeps.
    #[cfg(not(loom))]
    pub(crate) fn is_equipped(&self) -> bool {
        #[cfg(feature = "eventfd")]
        return self.bell.get().is_some();
        #[cfg(not(feature = "eventfd"))]
        false
    }

    /// Whom to tell of completions, beside the thread itself. Returns how that changes the number of those who wait for
    /// news: 1, -1, or `None`.
    pub fn set_notify(&self, notify: Option<Arc<dyn Notify>>) -> Option<i32> {
        let is_some = notify.is_some();
        let was_some = self.has_notify.swap(is_some, Ordering::Relaxed);
        *self.notify.lock() = notify;
        (is_some != was_some).then_some(if is_some { 1 } else { -1 })
    }

    /// Wakes the thread if it sleeps. Called after what it should see was made visible.
    ///
    /// COST: a fence and two loads of lines that change only when the thread goes to sleep.
    pub fn wake(&self) {
        // ORDERING: between the waker's publication and its look at `sleeping`; pairs with the fence in `sleep`,
        // between the store of `sleeping` and the sleeper's last look. One of the two sees the other.
        fence_at("wake.wake_fence");
        self.rouse();
    }

    /// Like [`wake`](Self::wake), for a caller that has fenced already.
    pub fn rouse(&self) {
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed) {
            self.end_sleep();
        }
        if self.has_notify.load(Ordering::Relaxed) {
            let notify = self.notify.lock().clone();
            if let Some(notify) = notify {
                notify.notify();
            }
        }
    }

    #[cold]
    fn end_sleep(&self) {
        #[cfg(all(feature = "eventfd", not(loom)))]
        if let Some(bell) = self.bell.get() {
            return bell.notify();
        }
        self.parker.unpark();
    }

    /// Sleeps until woken, or one of `fds` is readable, or `timeout` has passed, unless `ready` says that there is
    /// something to do.
    fn sleep(&self, fds: &[BorrowedFd<'_>], ready: impl FnOnce() -> bool, timeout: impl FnOnce() -> Option<Duration>) {
        self.sleeping.store(true, Ordering::Relaxed);
        // Between what says that this thread sleeps and its last look; pairs with the fences of `wake` and of
        // `Sleepers::any`.
        fence_at("wake.sleep_fence");
        if !(kept("wake.last_look") && ready()) {
            self.nap(fds, timeout());
        }
        self.sleeping.store(false, Ordering::Relaxed);
    }

    fn nap(&self, fds: &[BorrowedFd<'_>], timeout: Option<Duration>) {
        #[cfg(all(feature = "eventfd", not(loom)))]
        if let Some(bell) = self.bell.get() {
            return bell.wait_beside(fds, timeout);
        }
        debug_assert!(fds.is_empty(), "who is to wait for descriptors was equipped for it");
        self.parker.park_until(timeout);
    }
}

/// How many threads of a queue sleep or are about to, those included that wait elsewhere and are told.
#[derive(Debug)]
pub struct Sleepers(Line<AtomicU32>);

impl Default for Sleepers {
    fn default() -> Self {
        Self::new()
    }
}

impl Sleepers {
    /// Nobody sleeps.
    #[must_use]
    pub fn new() -> Self {
        Self(Line::new("queue.nr_sleepers", AtomicU32::new(0)))
    }

    /// How many there are now.
    #[must_use]
    pub fn nr(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts who is [told](Wake::set_notify), or no longer.
    pub fn change(&self, by: i32) {
        self.0.fetch_add(by.cast_unsigned(), Ordering::Relaxed);
    }

    /// Lets a thread sleep until it is woken, or one of `fds` is readable, or `timeout` has passed, unless `ready`,
    /// asked last, says that there is something to do.
    pub fn sleep(
        &self,
        wake: &Wake,
        fds: &[BorrowedFd<'_>],
        ready: impl FnOnce() -> bool,
        timeout: impl FnOnce() -> Option<Duration>,
    ) {
        // Before the fence in there, so that who looks behind a fence sees this thread counted.
        self.0.fetch_add(1, Ordering::Relaxed);
        wake.sleep(fds, ready, timeout);
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Fences, and looks whether any thread sleeps or is about to. Called after what it should see was made visible.
    #[must_use = "who sleeps is to be woken"]
    pub fn any(&self) -> bool {
        // Pairs with the fence in `Wake::sleep`, which stands behind the count going up: either the count is seen
        // here, or the sleeper's last look sees what the caller did before.
        fence_at("sleepers.any_fence");
        self.nr() > 0
    }
}
