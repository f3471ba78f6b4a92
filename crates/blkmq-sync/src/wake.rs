//! Waking a thread that sleeps until something completes for it.
//!
//! ```text
//!     the sleeper                              the waker
//!  1. says that it sleeps                   a. makes visible what the sleeper is to see
//!  2. fence                                 b. fence
//!  3. re-checks for something to do         c. checks whether a thread sleeps
//! ```
//!
//! All threads agree which of the fences 2 and b comes first. If 2 comes first, then c finds that a thread sleeps, and
//! the waker wakes it. If b comes first, then 3 finds what the waker made visible, and the thread does not sleep.
//!
//! A thread says in two places that it sleeps: in its own [`Wake`], and in the queue's count of [`Sleepers`]. A thread
//! that is [notified](Wake::set_notify) says in the same two places that it waits elsewhere, and takes the sleeper's
//! steps once, when the notification is set ([`Wake::poll_pending_event`]).

use std::fmt;
#[cfg(all(feature = "eventfd", not(loom)))]
use std::io;
use std::sync::Arc;
#[cfg(all(feature = "eventfd", not(loom)))]
use std::sync::OnceLock;
use std::time::Duration;

#[cfg(all(feature = "eventfd", not(loom)))]
use crate::event::EventFd;

use crate::notify::Notify;
use crate::platform::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::platform::{Line, Mutex, Parker, fence_at, order, place_anew, unless_mutated};

/// How to wake a thread.
pub struct Wake {
    sleeping: Line<AtomicBool>,
    parker: Parker,
    /// A thread that waits for the device's descriptors waits for this one too, and is woken by it.
    #[cfg(all(feature = "eventfd", not(loom)))]
    eventfd: OnceLock<EventFd>,
    has_notify: AtomicBool,
    notify: Mutex<Option<Arc<dyn Notify>>>,
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wake").field("sleeping", &self.sleeping).finish_non_exhaustive()
    }
}

/// A thread that is awake, and no other thread to notify.
impl Default for Wake {
    fn default() -> Self {
        Self {
            sleeping: Line::new("submitter.sleeping", AtomicBool::new(false)),
            parker: Parker::new(),
            #[cfg(all(feature = "eventfd", not(loom)))]
            eventfd: OnceLock::new(),
            has_notify: AtomicBool::new(false),
            notify: Mutex::new(None),
        }
    }
}

impl Wake {
    /// Makes the thread wait for the device's descriptors too when it sleeps. Called before the thread sleeps or is
    /// woken for the first time.
    #[cfg(all(feature = "eventfd", not(loom)))]
    pub fn equip(&self) -> io::Result<()> {
        if self.eventfd.get().is_none() {
            let _ = self.eventfd.set(EventFd::new()?);
        }
        Ok(())
    }

    /// Whether the thread waits for descriptors when it sleeps.
    #[cfg(not(loom))]
    pub fn is_equipped(&self) -> bool {
        #[cfg(feature = "eventfd")]
        return self.eventfd.get().is_some();
        #[cfg(not(feature = "eventfd"))]
        false
    }

    /// Names what the thread sleeps by, for rigs. The thread's state has its place.
    pub fn name_places(&self) {
        place_anew("submitter.has_notify", &self.has_notify);
        place_anew("submitter.notify", &self.notify);
        self.parker.name_places();
    }

    /// Sets the [`Notify`] for completions, besides the thread itself. Returns the change of the
    /// number of threads that wait for an event: 1, -1, or `None`. Events before this call are not notified: the caller
    /// counts the change and then calls [`poll_pending_event`](Self::poll_pending_event).
    pub fn set_notify(&self, notify: Option<Arc<dyn Notify>>) -> Option<i32> {
        let is_some = notify.is_some();
        let was_some = self.has_notify.swap(is_some, Ordering::Relaxed);
        // Dropped outside the lock: it may be the last thing that keeps something that wakes threads when it ends.
        let old = std::mem::replace(&mut *self.notify.lock(), notify);
        drop(old);
        (is_some != was_some).then_some(if is_some { 1 } else { -1 })
    }

    /// Called by the thread itself behind [`set_notify`](Self::set_notify): notifies at once if `has_pending_event`,
    /// which is asked behind a fence. So events before the notification was set are not missed.
    pub fn poll_pending_event(&self, has_pending_event: impl FnOnce() -> bool) {
        // ORDERING: as in `sleep`, between the marks and the last check; pairs with the fences of `wake` and `wake_for`
        // for completions, and with that of `Sleepers::any` for deferrals.
        fence_at("wake.notify_fence");
        if has_pending_event() {
            self.call_notify(|notify| notify.notify());
        }
    }

    /// Wakes the thread if it sleeps. Called by a thread that has made visible what the sleeper is to see. Returns
    /// whether the thread slept, or was about to.
    ///
    /// COST: a fence and two loads of lines that change only when the thread goes to sleep.
    pub fn wake(&self) -> bool {
        // ORDERING: step b of the module's interleaving, between what the caller made visible and its loads of
        // `sleeping` and `has_notify`; pairs with the fences in `sleep` and `poll_pending_event`.
        fence_at("wake.wake_fence");
        self.rouse()
    }

    /// Like [`wake`](Self::wake), for a caller that has fenced already.
    pub fn rouse(&self) -> bool {
        let roused = self.rouse_sleeper();
        if self.has_notify() {
            self.call_notify(|notify| notify.notify());
        }
        roused
    }

    /// Whether a [`Notify`] is set. If so, a caller that has completed operations calls
    /// [`wake_for`](Self::wake_for).
    pub fn has_notify(&self) -> bool {
        self.has_notify.load(Ordering::Relaxed)
    }

    /// Like [`wake`](Self::wake), for a caller that has made visible that the operations in these slots completed.
    #[cold]
    pub fn wake_for(&self, slots: &[u16]) -> bool {
        // ORDERING: as in `wake`; pairs with the fences in `sleep` and `poll_pending_event`.
        fence_at("wake.wake_fence");
        let roused = self.rouse_sleeper();
        self.call_notify(|notify| notify.completed(slots));
        roused
    }

    /// Like [`rouse`](Self::rouse), but notifies nothing. Returns whether the thread slept, or was about to. If so, its
    /// next poll sees what the caller has made visible, whatever else has ended its sleep meanwhile.
    pub fn rouse_sleeper(&self) -> bool {
        // Relaxed: the fence before this call publishes what the thread is to see to the Acquire at the end of `sleep`.
        // The thread may wake because its time has come, and not because of this call.
        let roused = self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::Relaxed);
        if roused {
            self.end_sleep();
        }
        roused
    }

    /// Calls the notification, outside the lock. A panic there is contained: the calling thread works for other threads
    /// too, and holds their requests.
    fn call_notify(&self, call: impl FnOnce(&dyn Notify)) {
        let notify = self.notify.lock().clone();
        if let Some(notify) = notify {
            contain(|| call(&*notify));
        }
    }

    #[cold]
    fn end_sleep(&self) {
        #[cfg(all(feature = "eventfd", not(loom)))]
        if let Some(eventfd) = self.eventfd.get() {
            return eventfd.notify();
        }
        self.parker.unpark();
    }

    /// Sleeps in `sleeper` until the thread is woken, or `sleeper`'s device has something, or `timeout` has passed.
    /// Does not sleep if `ready` says that there is something to do.
    fn sleep(&self, sleeper: impl Sleeper, ready: impl FnOnce() -> bool, timeout: impl FnOnce() -> Option<Duration>) {
        self.sleeping.store(true, Ordering::Relaxed);
        let _awake = OnDrop(|| {
            // Acquire pairs with the fence before `rouse_sleeper`: a thread that was roused sees what it was roused
            // for.
            let _ = self.sleeping.swap(false, order("wake.woken", Ordering::Acquire));
        });
        // Step 2 of the module's interleaving, between the marks and the last check; pairs with the fences of `wake`
        // and of `Sleepers::any`.
        fence_at("wake.sleep_fence");
        if !(unless_mutated("wake.last_look") && ready()) {
            self.nap(sleeper, timeout());
        }
    }

    fn nap(&self, sleeper: impl Sleeper, timeout: Option<Duration>) {
        #[cfg(all(feature = "eventfd", not(loom)))]
        if let Some(eventfd) = self.eventfd.get() {
            return sleeper.sleep(eventfd, timeout);
        }
        let _ = sleeper;
        self.parker.park_until(timeout);
    }
}

/// Calls a function at the end of a sleep, even if the driver panics when it is asked for its events: a thread that has
/// ended must not count as asleep.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        // Model checkers unwind through their threads, and nothing may be touched there.
        if !(cfg!(any(loom, virtual_cpus)) && std::thread::panicking()) {
            (self.0)();
        }
    }
}

/// Wakes each of several threads if it sleeps. Called by a thread that has made visible what all of them are to see.
/// Returns how many of the threads slept, or were about to.
///
/// COST: a fence, and for each thread two loads of lines that change only when it goes to sleep.
pub fn wake_each<'w>(wakes: impl Iterator<Item = &'w Wake>) -> usize {
    // ORDERING: as in [`Wake::wake`].
    fence_at("wake.wake_fence");
    wakes.filter(|wake| wake.rouse()).count()
}

/// Where a thread sleeps that is [equipped](Wake::equip) for a device's descriptors.
pub trait Sleeper {
    /// Sleeps until `eventfd` is readable, or the device has something, or `timeout` has passed. May return early.
    #[cfg(all(feature = "eventfd", not(loom)))]
    fn sleep(self, eventfd: &EventFd, timeout: Option<Duration>);
}

/// Nothing but the eventfd.
impl Sleeper for () {
    #[cfg(all(feature = "eventfd", not(loom)))]
    fn sleep(self, eventfd: &EventFd, timeout: Option<Duration>) {
        eventfd.wait_beside(&[], timeout);
    }
}

/// Calls a function of the program, such as a waker. If the function panics, the panic has been reported as every panic
/// is, and goes no further. Model checkers unwind through their threads, so nothing is contained there.
pub fn contain(call: impl FnOnce()) {
    if cfg!(any(loom, virtual_cpus)) {
        call();
    } else {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    }
}

/// How many threads of a queue sleep or are about to sleep. Threads that wait elsewhere and are
/// [notified](Wake::set_notify) count too.
#[derive(Debug)]
pub struct Sleepers(Line<AtomicU32>);

/// No thread sleeps.
impl Default for Sleepers {
    fn default() -> Self {
        Self(Line::new("queue.nr_sleepers", AtomicU32::new(0)))
    }
}

impl Sleepers {
    /// How many threads sleep now.
    #[must_use]
    pub fn nr(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a thread that is [notified](Wake::set_notify) from now on, or is no longer.
    pub fn change(&self, by: i32) {
        let before = self.0.fetch_add(by.cast_unsigned(), Ordering::Relaxed);
        debug_assert!(before.checked_add_signed(by).is_some(), "a thread that is no longer notified was counted");
    }

    /// Lets a thread sleep in `sleeper` until it is woken, or `sleeper`'s device has something, or `timeout` has
    /// passed. `ready` is asked last: if it says that there is something to do, the thread does not sleep.
    pub fn sleep(
        &self,
        wake: &Wake,
        sleeper: impl Sleeper,
        ready: impl FnOnce() -> bool,
        timeout: impl FnOnce() -> Option<Duration>,
    ) {
        // Before the fence in `Wake::sleep`, so that a thread that checks behind a fence of its own finds this thread
        // counted.
        self.0.fetch_add(1, Ordering::Relaxed);
        let _awake = OnDrop(|| {
            let before = self.0.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a thread that sleeps is counted until it is awake");
        });
        wake.sleep(sleeper, ready, timeout);
    }

    /// Fences, and returns whether a thread sleeps or is about to sleep. Called by a thread that has made visible what
    /// the sleepers are to see.
    #[must_use = "who sleeps is to be woken"]
    pub fn any(&self) -> bool {
        // Step b of the module's interleaving; pairs with the fences in `Wake::sleep` and `Wake::poll_pending_event`,
        // before which the count went up.
        fence_at("sleepers.any_fence");
        self.nr() > 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Red if the marks are taken off only where nothing panics: a thread that defers would count on one that is
    /// gone.
    #[test]
    fn a_thread_that_panics_on_its_way_to_sleep_is_not_asleep() {
        let (sleepers, wake) = (Sleepers::default(), Wake::default());
        let sleep = || sleepers.sleep(&wake, (), || false, || panic!("the driver is asked for its next event"));
        assert!(catch_unwind(AssertUnwindSafe(sleep)).is_err());
        assert_eq!((wake.rouse_sleeper(), sleepers.nr()), (false, 0));
    }
}
