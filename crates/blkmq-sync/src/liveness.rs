//! How the threads of a queue notify each other, so that no waiting request is forgotten.
//!
//! Each side of a protocol is one function, with the fence that it needs. The models in `tests/loom` call these
//! functions.
//!
//! # Waiting and notifying
//! A thread that finds no tag, no room in the scheduler, or that the scheduler holds its requests back until others
//! complete, does not block: it returns, and the thread that frees the resource dispatches.
//! [`Liveness::prepare_to_wait`] and [`Liveness::fence_before_notify`] guarantee that the second thread knows of the
//! first one:
//!
//! ```text
//!     the thread that needs a tag              the thread that frees one
//!  1. tries to get a tag: there is none     a. puts a tag back
//!  2. sets WAITING                          b. fence
//!  3. fence                                 c. reads WAITING
//!  4. tries to get a tag again
//! ```
//!
//! All threads agree which of the fences 3 and b comes first. If 3 comes first, c finds WAITING set, and the second
//! thread dispatches. If b comes first, 4 finds the tag. Without either fence both may miss each other, and the request
//! waits forever.
//!
//! # A waiter is present
//! A thread that enters the scheduler may find WAITING set already. Step 2 has happened then, and the thread fences
//! once ([`Liveness::waiter_present`]), which is step 3. Each of its attempts under the lock is step 4, because no
//! other thread clears WAITING meanwhile. So one attempt is enough.
//!
//! # Deferring
//! A thread may stop before it has dispatched all that could go. Such a thread sets WAITING, counts a deferral, and
//! wakes a sleeping thread ([`Liveness::defer`]). A polling thread reads the count before it polls, and sleeps only if
//! its last check before it sleeps finds the same count.
//!
//! One thread is enough: it dispatches as far as it can, or defers in its turn. Even if it wakes for another
//! reason at that moment, it must see the new count before it returns to its caller
//! ([`Wake::rouse_sleeper`](crate::wake::Wake::rouse_sleeper)).

use crate::platform::atomic::{AtomicU32, Ordering};
use crate::platform::{fence_at, order, place_anew};
use crate::staging::Staging;
use crate::wake::Sleepers;
use crate::word::Word;

/// How many times a thread deferred work to the thread that polls next. The count wraps.
#[derive(Debug)]
pub struct Deferrals(AtomicU32);

/// No thread has deferred work yet.
impl Default for Deferrals {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Deferrals {
    /// Counts a deferral. The queue's word says that requests wait. The caller then wakes the threads that sleep, if
    /// there are [any](crate::wake::Sleepers::any).
    pub fn count(&self) {
        // Release: a thread that reads the count before it polls sees what this thread did. For sleeping threads, the
        // fence in `Sleepers::any` makes sure that they re-check.
        self.0.fetch_add(1, order("deferrals.count", Ordering::Release));
    }

    /// The count. A thread reads it before it polls, and sleeps only if its last check finds the same count.
    #[must_use]
    pub fn read(&self) -> u32 {
        // Acquire pairs with the Release of `count`.
        self.0.load(order("deferrals.read", Ordering::Acquire))
    }
}

/// The state by which the threads of a queue notify each other.
#[derive(Debug, Default)]
pub struct Liveness {
    /// The queue's word, with WAITING.
    pub word: Word,
    /// How often work was deferred.
    pub deferrals: Deferrals,
    /// How many threads sleep.
    pub sleepers: Sleepers,
}

/// Whether the thread that has the scheduler found WAITING set, and has fenced since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "whether one attempt is enough depends on it"]
pub struct WaiterPresent(bool);

impl WaiterPresent {
    /// The thread has not checked.
    pub const NO: Self = Self(false);
}

impl Liveness {
    /// Names the number of deferrals, for rigs. The queue has its place.
    pub fn name_places(&self) {
        place_anew("queue.deferrals", &self.deferrals.0);
    }

    /// Called by a thread that did not get what it needs: sets WAITING, fences, and tries again.
    ///
    /// COST: a read-modify-write of the queue's word and a fence.
    #[inline]
    pub fn prepare_to_wait<R>(&self, retry: impl FnOnce() -> R) -> R {
        self.word.set_waiting();
        // Between WAITING and the second attempt; pairs with the fence of `fence_before_notify`.
        fence_at("liveness.wait_fence");
        retry()
    }

    /// Like [`prepare_to_wait`](Self::prepare_to_wait), unless a waiter was present when this thread entered the
    /// scheduler. Then the first attempt was enough, and the default is returned.
    #[inline]
    pub fn prepare_to_wait_unless<R: Default>(&self, waiter_present: WaiterPresent, retry: impl FnOnce() -> R) -> R {
        if waiter_present == WaiterPresent::NO { self.prepare_to_wait(retry) } else { R::default() }
    }

    /// Called by a thread that has just entered the scheduler. If WAITING is set, the thread fences, so that each of
    /// its attempts from here on counts as the second attempt of [`prepare_to_wait`](Self::prepare_to_wait). No other
    /// thread clears WAITING while this one has the scheduler.
    #[inline]
    pub fn waiter_present(&self) -> WaiterPresent {
        let is_waiting = self.word.load().is_waiting();
        if is_waiting {
            // Between WAITING and the attempts that follow; pairs with the fence of `fence_before_notify`.
            fence_at("liveness.present_fence");
        }
        WaiterPresent(is_waiting)
    }

    /// Called by a thread that has put tags back, made room, or counted completions: fences. The caller then reads
    /// WAITING, or makes sure that the thread at the scheduler does.
    #[inline]
    pub fn fence_before_notify(&self) {
        // Between what was freed and the load of WAITING; pairs with the fences of `prepare_to_wait` and
        // `waiter_present`.
        fence_at("liveness.notify_fence");
    }

    /// Called by a thread that stops before its work is done, and may not come back. WAITING says that requests wait.
    /// The count says so to a thread that polls, or is about to sleep, and has read the count before. `wake` wakes a
    /// sleeping thread.
    pub fn defer(&self, wake: impl FnOnce()) {
        // WAITING first: a thread that reads the new count must find it set.
        self.word.set_waiting();
        self.notify_others(wake);
    }

    /// Like [`defer`](Self::defer), for a thread that made a change which may allow dispatch, and does not know whether
    /// requests wait. If one does, WAITING is set.
    pub fn notify_others(&self, wake_all: impl FnOnce()) {
        self.deferrals.count();
        self.wake(wake_all);
    }

    /// Releases the scheduler with whatever was staged for the combiner. The caller then [defers](Self::defer).
    pub fn give_up(&self, staging: &Staging) {
        // WAITING first: a thread that finds the scheduler free must find it set.
        self.word.set_waiting();
        staging.give_up();
    }

    /// Called by a thread before it leaves the scheduler. Sets WAITING if requests wait there (`waits`). Clears WAITING
    /// if none wait there and `is_rest_idle` finds none elsewhere.
    #[inline]
    pub fn settle(&self, waits: bool, is_rest_idle: impl FnOnce() -> bool) {
        // Before the check elsewhere: a thread that publishes a request there afterwards changes the word, and the
        // compare-exchange fails.
        let seen = self.word.load();
        if waits {
            if !seen.is_waiting() {
                self.word.set_waiting();
            }
        } else if seen.is_waiting() && is_rest_idle() {
            let _ = self.word.clear_waiting(seen);
        }
    }

    /// Calls `wake_all` if a thread sleeps or is about to sleep. Called by a thread that has made visible what the
    /// sleepers are to see.
    ///
    /// COST: a fence and a load while no thread sleeps.
    #[inline]
    pub fn wake(&self, wake_all: impl FnOnce()) {
        if self.sleepers.any() {
            wake_all();
        }
    }
}
