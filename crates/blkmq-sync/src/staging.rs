//! The staging word, by which threads publish requests for the combiner, the thread in the scheduler.
//!
//! The word holds whether a thread has the scheduler, and the requests that other threads have published for it. A
//! thread that finds the scheduler held publishes its requests, or a kick, which asks the combiner to re-check. Either
//! takes one exchange, and the thread does not wait. The combiner releases the word by one exchange too, which succeeds
//! only if nothing was published. Otherwise it takes the published requests first.
//!
//! A combiner gives up instead ([`Staging::give_up`]) if it has used its budget, of published or of dispatched
//! requests, or if the next combiner can dispatch the rest on the fast path. A combiner that gives up releases the
//! word, and the published requests stay in it. It then defers, and the next combiner takes them. So published requests
//! are handled by the present combiner or by a later one, and the publisher need not check.
//!
//! ```text
//!  63       34  33      32   31                             0
//! +-----------+--------+------+-------------------------------+
//! |     0     | KICKED | HELD | newest published slot, if any |
//! +-----------+--------+------+-------------------------------+
//! ```

use crate::platform::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::platform::{Line, fence_at, order, pause, unless_explored, unless_mutated};
use crate::stack::{Chain, NIL};

/// A thread holds the scheduler; and it has been kicked.
const HELD: u64 = 1 << 32;
const KICKED: u64 = 1 << 33;
const NOTHING: u64 = NIL as u64;

/// The number of loads for which a thread that finds the word held waits for its release, before it publishes its
/// requests. They take as long as a hold in which requests wait. None where interleavings are explored.
const LOOKS: u32 = 128;

/// The outcome of one round of [`Staging::serve`].
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// Some of the published requests are not handled yet.
    pub has_more: bool,
    /// The combiner has used its budget, and begins no other round.
    pub is_last: bool,
}

impl Round {
    /// All published requests are handled, and the combiner may continue.
    pub const DONE: Self = Self { has_more: false, is_last: false };
}

/// The word, on a line of its own. The word changes only by the named transitions below.
#[derive(Debug)]
pub struct Staging(Line<AtomicU64>);

/// The slot published last when the word was read, or none.
const fn newest(word: u64) -> u32 {
    word as u32
}

impl Staging {
    /// A word that no thread holds, with nothing published, on a line called `name`.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self(Line::new(name, AtomicU64::new(NOTHING)))
    }

    /// Takes the hold, and the published requests, if no other thread has the hold. Never spins.
    ///
    /// COST: one load if the word is held; a load and a compare-exchange if it is free.
    #[inline]
    pub fn try_hold(&self) -> Option<Chain> {
        let seen = self.0.load(Ordering::Relaxed);
        if seen & HELD != 0 { None } else { self.hold_from(seen) }
    }

    /// Takes the hold, and the published requests. If another thread has the hold, makes sure that it re-checks
    /// everything before it releases the word. Called by a thread that has made visible what the combiner is to see:
    ///
    /// ```text
    ///     the thread that kicks                    the combiner
    ///  1. leaves something to look at           a. takes the kick away (`take`, `give_up_and_look`)
    ///  2. fence                                 b. fence
    ///  3. kicks, or finds a kick there          c. looks at everything
    /// ```
    ///
    /// There are two cases. In the first, 3 sets the kick, and the combiner takes this kick away in a. So 3 comes
    /// before a. In the second, 3 finds the kick of another thread, and the combiner takes that kick away in a. So 3
    /// reads the word as it was before a. In both cases fence 2 comes before fence b, and c finds what 1 left.
    ///
    /// A combiner that clears the kick by [`give_up`](Self::give_up) does not take the steps b and c. The next combiner
    /// does, as explained there.
    ///
    /// COST: a load and a compare-exchange if the word is free. If the word is held, two loads and a fence, and a
    /// compare-exchange unless the combiner has been kicked already.
    #[inline]
    pub fn hold_or_kick(&self) -> Option<Chain> {
        loop {
            let seen = self.0.load(Ordering::Relaxed);
            if seen & HELD == 0 {
                if let Some(chain) = self.hold_from(seen) {
                    return Some(chain);
                }
                continue;
            }
            // Step 2, between what the caller has made visible and the kick; pairs with the fences of `take` and of
            // `give_up_and_look`.
            fence_at("staging.kick_fence");
            let seen = self.0.load(Ordering::Relaxed);
            if seen & HELD == 0 {
                continue;
            }
            if seen & KICKED != 0
                || self.0.compare_exchange(seen, seen | KICKED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                // Relaxed: the fences give the order.
                return None;
            }
        }
    }

    /// Spins for at most as long as a hold takes in which requests wait. Returns true if the combiner has released the
    /// word, and false at once if another thread has published something, because then the combiner stays longer.
    ///
    /// Publishing at once would cost more: the combiner needs more time for published requests than for its own,
    /// because their cache lines are in another processor's cache. Correctness does not depend on the spinning.
    ///
    /// COST: up to 128 loads of a line that the combiner writes once.
    #[must_use]
    pub fn is_released_soon(&self) -> bool {
        let look = |_| {
            pause();
            let seen = self.0.load(Ordering::Relaxed);
            (seen & HELD == 0 || newest(seen) != NIL).then_some(seen & HELD == 0)
        };
        (0..unless_explored(LOOKS, 0)).find_map(look).unwrap_or(false)
    }

    fn hold_from(&self, seen: u64) -> Option<Chain> {
        debug_assert_eq!(seen & HELD, 0, "the hold is taken only from a word that no thread holds");
        // Acquire pairs with the Release of `release`, `give_up` and `publish`: this thread sees what the last combiner
        // did, and what was left since.
        let acquire = order("staging.hold", Ordering::Acquire);
        let taken = self.0.compare_exchange(seen, HELD | NOTHING, acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Chain::from_newest(newest(seen)))
    }

    /// Publishes `slots`, oldest first, for the combiner. If no thread holds the word, publishes nothing and returns
    /// false: then the caller takes the hold itself.
    ///
    /// COST: one compare-exchange of the shared line, for any number of slots; one load if no thread holds the word.
    #[inline]
    pub fn publish<'a>(&self, slots: impl IntoIterator<Item = u32>, link_of: impl Fn(u32) -> &'a AtomicU32) -> bool {
        self.publish_if(HELD, slots, link_of)
    }

    /// Publishes `slots` even if no thread holds the word. The caller makes sure that a thread takes them.
    pub fn publish_anyway<'a>(&self, slots: impl IntoIterator<Item = u32>, link_of: impl Fn(u32) -> &'a AtomicU32) {
        self.publish_if(0, slots, link_of);
    }

    /// Publishes `slots` if the word has these flags.
    #[inline]
    fn publish_if<'a>(
        &self,
        flags: u64,
        slots: impl IntoIterator<Item = u32>,
        link_of: impl Fn(u32) -> &'a AtomicU32,
    ) -> bool {
        let mut slots = slots.into_iter();
        let Some(first) = slots.next() else { return true };
        let mut last = first;
        debug_assert_ne!(first, NIL, "what is left is a slot");
        for slot in slots {
            debug_assert!(slot != last && slot != NIL, "each slot is left once");
            link_of(slot).store(last, Ordering::Relaxed);
            last = slot;
        }
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            if seen & flags != flags {
                return false;
            }
            link_of(first).store(newest(seen), Ordering::Relaxed);
            let published = seen & !NOTHING | u64::from(last);
            // Release publishes the slots and their links to the Acquire of the thread that takes them. Later changes
            // of the word are read-modify-writes too, so they continue the release sequence.
            match self.0.compare_exchange_weak(
                seen,
                published,
                order("staging.publish", Ordering::Release),
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Combines until the word is released. `round` gets the published requests and returns how far it came. Returns
    /// true if the word was released because nothing was published. Returns false if the combiner gave up: then
    /// `give_up` was called, which ends with [`give_up`](Self::give_up) or
    /// [`give_up_and_look`](Self::give_up_and_look).
    #[inline]
    #[must_use]
    pub fn serve(&self, published: Chain, mut round: impl FnMut(Chain) -> Round, give_up: impl FnOnce(&Self)) -> bool {
        let mut published = published;
        loop {
            let Round { has_more, is_last } = round(published);
            if !has_more && self.release() {
                return true;
            }
            if has_more || is_last {
                give_up(self);
                return false;
            }
            published = self.take();
        }
    }

    /// Takes the published requests, and the kick. Called by the combiner, which sees the present state of everything
    /// that it checks after this call.
    #[inline]
    pub fn take(&self) -> Chain {
        let published = self.0.swap(HELD | NOTHING, Ordering::Relaxed);
        debug_assert!(published & HELD != 0, "only the combiner takes what was left");
        // Step b of `hold_or_kick`, between the kick that this swap takes away and the look at what the kick was for;
        // pairs with the fence there. This fence also stands between the swap and the reads of the slots, and so pairs
        // with the Release of `publish`.
        fence_at("staging.take_fence");
        Chain::from_newest(newest(published))
    }

    /// Releases the word, unless a thread has published something or kicked since the combiner last took. Called by the
    /// combiner. Returns whether the word was released. If not, the combiner takes again and re-checks.
    #[inline]
    #[must_use]
    pub fn release(&self) -> bool {
        // Release publishes what this combiner did to the next one.
        let release = order("staging.release", Ordering::Release);
        if !unless_mutated("staging.last_look") {
            self.0.store(NOTHING, release);
            return true;
        }
        let before = self.0.compare_exchange(HELD | NOTHING, NOTHING, release, Ordering::Relaxed);
        debug_assert!(before.unwrap_or_else(|seen| seen) & HELD != 0, "only the combiner lets go");
        before.is_ok()
    }

    /// Releases the word, with the published requests in it. Called by a combiner that has used its budget, or leaves
    /// the rest to the next combiner.
    ///
    /// This also clears a kick, without a fence and a re-check. Nothing is lost, because the next combiner fences and
    /// checks everything. The combiner that gives up sets WAITING before, and
    /// [defers](crate::liveness::Liveness::defer) afterwards, so that another thread takes the hold. Only a combiner
    /// clears WAITING where combiners give up like this. So the next combiner finds it set, and fences
    /// ([`Liveness::waiter_present`](crate::liveness::Liveness::waiter_present)) before it checks everything. These are
    /// the steps b and c of [`hold_or_kick`](Self::hold_or_kick).
    pub fn give_up(&self) {
        // Release as in `release`.
        let before = self.0.fetch_and(NOTHING, order("staging.give_up", Ordering::Release));
        debug_assert!(before & HELD != 0, "only the combiner gives up");
    }

    /// Gives up like [`give_up`](Self::give_up), for a combiner that re-checks at once: after this call it finds what
    /// it was kicked for.
    pub fn give_up_and_look(&self) {
        self.give_up();
        // Step b of `hold_or_kick`, between the kick that `give_up` takes away and the look at what the kick was for;
        // pairs with the fence there.
        fence_at("staging.look_fence");
    }

    /// Whether there are published requests that no combiner has taken yet.
    #[inline]
    #[must_use]
    pub fn has_published(&self) -> bool {
        // Relaxed: with any ordering, the word may be empty because a combiner has just taken the requests and has not
        // counted them yet. A combiner that leaves requests in the scheduler or the backlog sets WAITING again before
        // it releases the word, and a combiner that gives up defers afterwards, which sets WAITING too.
        newest(self.0.load(Ordering::Relaxed)) != NIL
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    impl Staging {
        fn is_free(&self) -> bool {
            self.0.load(Ordering::Relaxed) == NOTHING
        }
    }

    #[test]
    fn staging_is_released_only_when_nothing_is_published() {
        let links = [const { AtomicU32::new(0) }; 6];
        let link_of = |slot: u32| &links[slot as usize];
        let staging = Staging::new("test.staging");
        assert!(staging.is_free());
        assert!(!staging.publish([3], link_of), "nobody would come for it");
        assert!(staging.try_hold().is_some_and(|chain| chain.is_empty()));
        assert!(staging.try_hold().is_none() && !staging.is_free());
        assert!(staging.publish([4, 1], link_of) && staging.publish([2], link_of));
        assert!(!staging.release());
        assert_eq!(staging.take().oldest_first(link_of), [4, 1, 2]);
        assert!(staging.release() && staging.is_free());
    }

    #[test]
    fn staging_that_was_kicked_is_looked_at_again() {
        let staging = Staging::new("test.staging");
        assert!(staging.hold_or_kick().is_some());
        assert!(staging.hold_or_kick().is_none() && staging.hold_or_kick().is_none());
        assert!(!staging.release());
        assert!(staging.take().is_empty());
        assert!(staging.release());
    }

    #[test]
    fn staging_that_was_given_up_goes_to_the_next_with_the_published_requests() {
        let links = [const { AtomicU32::new(0) }; 2];
        let link_of = |slot: u32| &links[slot as usize];
        let staging = Staging::new("test.staging");
        assert!(staging.try_hold().is_some());
        assert!(staging.publish([1, 0], link_of) && staging.hold_or_kick().is_none());
        staging.give_up();
        assert!(!staging.is_free());
        let chain = staging.hold_or_kick().expect("nobody holds it");
        assert_eq!(chain.oldest_first(link_of), [1, 0]);
        assert!(staging.release());
    }
}
