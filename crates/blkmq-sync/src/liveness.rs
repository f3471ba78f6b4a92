//! What the threads of a queue tell each other, so that no request that waits is forgotten.
//!
//! Each protocol is one function for each of its sides, with the fence that it needs. The models in `tests/loom`
//! call these same functions.
//!
//! # Lacking and bringing
//! A thread that lacks something (a tag, room in the scheduler, a completion that the scheduler waits for) leaves,
//! because another thread will bring it. [`Liveness::lack`] and [`Liveness::brought`] make sure that the other thread
//! knows:
//!
//! ```text
//!     the thread that lacks a tag              the thread that brings one
//!  1. looks for a tag: there is none        a. puts a tag back
//!  2. sets WAITING                          b. fence
//!  3. fence                                 c. looks at WAITING
//!  4. looks for a tag again
//! ```
//!
//! All threads agree which of the fences 3 and b comes first. If 3 comes first, then c finds WAITING set, and the
//! second thread dispatches. If b comes first, then 4 finds the tag. Without either fence both looks may miss, and the
//! request waits for ever.
//!
//! # Being told
//! A thread that has the scheduler may find WAITING set already. Then step 2 has happened, and the thread fences once
//! ([`Liveness::told`]), which is step 3. For the rest of its hold each of its looks is step 4, because no other thread
//! clears WAITING meanwhile. So a single look is enough wherever it lacks something.
//!
//! # Handing on
//! A thread may stop before everything is done that could be done. Such a thread sets WAITING, counts that it left
//! something, and wakes a thread that sleeps ([`Liveness::hand_on`]). A thread that polls reads that count before it
//! looks at anything. The polling thread sleeps only if its last look before it sleeps finds the same count.
//!
//! One thread is enough: it goes as far as it can, or hands on in its turn. It must see the count, also if its sleep
//! ends for another reason at the same moment, because it may leave then and not come again
//! ([`Wake::rouse_sleeper`](crate::wake::Wake::rouse_sleeper)).

use crate::platform::atomic::{AtomicU32, Ordering};
use crate::platform::{fence_at, order, placed};
use crate::staging::Staging;
use crate::wake::Sleepers;
use crate::word::Word;

/// How often something was left to the thread that polls next. The count wraps.
#[derive(Debug)]
pub struct Left(AtomicU32);

/// Nothing has been left yet.
impl Default for Left {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl Left {
    fn number(&self) -> &AtomicU32 {
        placed("queue.left", &self.0)
    }

    /// Counts that something is left to other threads. The queue's word says what is left. The caller then wakes the
    /// threads that sleep, if there are [any](crate::wake::Sleepers::any).
    pub fn count(&self) {
        // Release: a thread that reads the count before it polls sees what this thread did. For threads that sleep, the
        // fence in `Sleepers::any` makes sure that they look again.
        self.number().fetch_add(1, order("left.count", Ordering::Release));
    }

    /// The count. A thread reads it before it polls, and sleeps only if its last look finds the same count.
    #[must_use]
    pub fn read(&self) -> u32 {
        // Acquire pairs with the Release of `count`.
        self.number().load(order("left.read", Ordering::Acquire))
    }
}

/// The marks by which the threads of a queue tell each other what waits.
#[derive(Debug, Default)]
pub struct Liveness {
    /// The queue's word, with WAITING.
    pub word: Word,
    /// How often something was handed on.
    pub left: Left,
    /// How many threads sleep.
    pub sleepers: Sleepers,
}

/// Whether the thread that has the scheduler found WAITING set, and has fenced since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a look that finds nothing depends on it"]
pub struct Told(bool);

impl Told {
    /// The thread has not looked.
    pub const NO: Self = Self(false);
}

impl Liveness {
    /// Called by a thread that has looked for something and has not found it: sets WAITING, fences, and looks again.
    ///
    /// COST: a read-modify-write of the queue's word and a fence.
    #[inline]
    pub fn lack<R>(&self, look_again: impl FnOnce() -> R) -> R {
        self.word.set_waiting();
        // Between WAITING and the second look; pairs with the fence of `brought`.
        fence_at("liveness.lack_fence");
        look_again()
    }

    /// Like [`lack`](Self::lack), for a thread that may have been told. A thread that was told owes no look after its
    /// first one, and the result is that it found nothing.
    #[inline]
    pub fn lack_unless<R: Default>(&self, told: Told, look_again: impl FnOnce() -> R) -> R {
        if told == Told::NO { self.lack(look_again) } else { R::default() }
    }

    /// Called by a thread that has just taken the scheduler. If WAITING is set, the thread fences, so that each of its
    /// looks from here on counts as the second look of [`lack`](Self::lack). No other thread clears WAITING while this
    /// one has the scheduler.
    #[inline]
    pub fn told(&self) -> Told {
        let is_told = self.word.load().is_waiting();
        if is_told {
            // Between WAITING and the looks that follow; pairs with the fence of `brought`.
            fence_at("liveness.told_fence");
        }
        Told(is_told)
    }

    /// Called by a thread that has put tags back, or made room, or counted completions: fences. The caller then looks
    /// at WAITING, or makes sure that the thread at the scheduler does.
    #[inline]
    pub fn brought(&self) {
        // Between what was brought and the looks at WAITING; pairs with the fences of `lack` and `told`.
        fence_at("liveness.brought_fence");
    }

    /// Called by a thread that leaves undone what could be done, and may not come again. WAITING tells other threads
    /// that something is left. The count tells a thread that polls, or is about to sleep, that something was left since
    /// that thread last read the count. The caller wakes a thread that sleeps in `wake`.
    pub fn hand_on(&self, wake: impl FnOnce()) {
        // First the mark, which says what was left: a thread that reads the new count must find it.
        self.word.set_waiting();
        self.call_others(wake);
    }

    /// Like [`hand_on`](Self::hand_on), for a thread that made a change which may let requests go, and does not know
    /// whether any wait. A thread that left a request waiting has set WAITING.
    pub fn call_others(&self, wake_all: impl FnOnce()) {
        self.left.count();
        self.wake(wake_all);
    }

    /// Gives up the scheduler with whatever was left for its holder. The caller then [hands on](Self::hand_on).
    pub fn give_up(&self, staging: &Staging) {
        // First the mark: a thread that finds the scheduler free must find that something waits.
        self.word.set_waiting();
        staging.give_up();
    }

    /// Called by a thread before it lets go the scheduler. Sets WAITING if something waits there (`waits`). Clears
    /// WAITING if nothing waits there and `is_rest_idle` finds nothing elsewhere.
    #[inline]
    pub fn settle(&self, waits: bool, is_rest_idle: impl FnOnce() -> bool) {
        // Before the look elsewhere: a thread that leaves something there afterwards changes the word, and the clearing
        // fails.
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
