//! What the thread at the scheduler, the combiner, and the other threads tell each other.
//!
//! One word says whether a thread holds the scheduler, and what other threads left for it. A thread that finds the
//! scheduler held leaves its requests, or a kick that says that there is something to look at. Either takes one
//! exchange, and the thread does not wait. The combiner lets go by one exchange too, which succeeds only if nothing was
//! left. If something was left, the exchange fails, and the combiner works off what was left first.
//!
//! A combiner gives up instead ([`Staging::give_up`]) in two cases: it has done its share, or it leaves the rest to the
//! next combiner, for which requests could go through the scheduler without being put into it. A combiner that gives up
//! lets go, and the requests that were left stay in the word. Such a combiner tells other threads that something is
//! left, and the next combiner takes what is left. So whatever is left is worked off by the present combiner or by a
//! later one, and the publisher need not look back.
//!
//! ```text
//!  63       34  33      32   31                            0
//! +-----------+--------+------+------------------------------+
//! |     0     | KICKED | HELD | the slot left last, or none  |
//! +-----------+--------+------+------------------------------+
//! ```

use crate::platform::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::platform::{Line, fence_at, order, pause, unless_explored, unless_mutated};
use crate::stack::{Chain, NIL};

/// A thread holds the scheduler; and it has been told to look once more.
const HELD: u64 = 1 << 32;
const KICKED: u64 = 1 << 33;
const NOTHING: u64 = NIL as u64;

/// Loads: how often a thread that finds the word held looks whether the combiner lets go, before it leaves its
/// requests. So many loads take as long as a hold in which requests wait. Where interleavings are explored there are
/// none.
const LOOKS: u32 = 128;

/// How far the combiner came in one round of [`Staging::serve`].
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// Some of what was left is not yet worked off.
    pub has_more: bool,
    /// The combiner has done its share, and begins no other round.
    pub is_last: bool,
}

impl Round {
    /// All that was left has been worked off, and the combiner may go on.
    pub const DONE: Self = Self { has_more: false, is_last: false };
}

/// The word, on a line of its own. The word changes only by the named transitions below.
#[derive(Debug)]
pub struct Staging(Line<AtomicU64>);

/// The slot left last when the word was read, or none.
const fn newest(word: u64) -> u32 {
    word as u32
}

impl Staging {
    /// A word that no thread holds and in which nothing was left, on a line called `name`.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self(Line::new(name, AtomicU64::new(NOTHING)))
    }

    /// Takes the hold, and what was left, if no other thread has the hold. Never spins.
    ///
    /// COST: one load if the word is held; a load and a compare-exchange if it is free.
    #[inline]
    pub fn try_hold(&self) -> Option<Chain> {
        let seen = self.0.load(Ordering::Relaxed);
        if seen & HELD != 0 { None } else { self.hold_from(seen) }
    }

    /// Takes the hold, and what was left. If another thread has the hold, makes sure that the combiner looks once more
    /// at everything before it lets go. Called by a thread that has made visible what the combiner is to see:
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
    /// A combiner that takes the kick away by [`give_up`](Self::give_up) does not take the steps b and c. The next
    /// combiner does, as is told there.
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

    /// Looks for a moment whether the combiner lets go, for as long as a hold takes in which requests wait. Stops if
    /// another thread has left something, because then the combiner stays longer. Returns whether the combiner has let
    /// go.
    ///
    /// Leaving requests at once would cost more. The combiner needs more time for requests that were left than for its
    /// own, since their lines are in another processor's cache, and the publisher has nothing to do meanwhile.
    /// Correctness does not depend on these looks.
    ///
    /// COST: up to 128 loads of a line that the combiner writes once.
    #[must_use]
    pub fn is_let_go_soon(&self) -> bool {
        let look = |_| {
            pause();
            let seen = self.0.load(Ordering::Relaxed);
            (seen & HELD == 0 || newest(seen) != NIL).then_some(seen & HELD == 0)
        };
        (0..unless_explored(LOOKS, 0)).find_map(look).unwrap_or(false)
    }

    fn hold_from(&self, seen: u64) -> Option<Chain> {
        debug_assert_eq!(seen & HELD, 0, "the hold is taken only from a word that no thread holds");
        // Acquire pairs with the Release of `let_go`, `give_up` and `leave`: this thread sees what the last combiner
        // did, and what was left since.
        let acquire = order("staging.hold", Ordering::Acquire);
        let taken = self.0.compare_exchange(seen, HELD | NOTHING, acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Chain::from_newest(newest(seen)))
    }

    /// Leaves `slots`, oldest first, with the combiner. If no thread holds the word, leaves nothing and returns false:
    /// then the caller is to take the hold itself.
    ///
    /// COST: one compare-exchange of the shared line, for any number of slots; one load if no thread holds the word.
    #[inline]
    pub fn leave<'a>(&self, slots: impl IntoIterator<Item = u32>, link_of: impl Fn(u32) -> &'a AtomicU32) -> bool {
        self.leave_if(HELD, slots, link_of)
    }

    /// Leaves `slots` even if no thread holds the word. The caller makes sure that a thread comes for them.
    pub fn leave_anyway<'a>(&self, slots: impl IntoIterator<Item = u32>, link_of: impl Fn(u32) -> &'a AtomicU32) {
        self.leave_if(0, slots, link_of);
    }

    /// Leaves `slots` if the word has these flags.
    #[inline]
    fn leave_if<'a>(
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
                order("staging.leave", Ordering::Release),
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// What the combiner does until it lets go. `round` gets what was left, works on it, and says how far it came.
    /// Returns true if the combiner let go because nothing was left. Returns false if it gave up: then it has called
    /// `give_up`, which ends with [`give_up`](Self::give_up) or [`give_up_and_look`](Self::give_up_and_look).
    #[inline]
    #[must_use]
    pub fn serve(&self, published: Chain, mut round: impl FnMut(Chain) -> Round, give_up: impl FnOnce(&Self)) -> bool {
        let mut published = published;
        loop {
            let Round { has_more, is_last } = round(published);
            if !has_more && self.let_go() {
                return true;
            }
            if has_more || is_last {
                give_up(self);
                return false;
            }
            published = self.take();
        }
    }

    /// Called by the combiner: takes what was left, and the kick. Whatever the combiner looks at after this call, it
    /// sees as it is now.
    #[inline]
    pub fn take(&self) -> Chain {
        let published = self.0.swap(HELD | NOTHING, Ordering::Relaxed);
        debug_assert!(published & HELD != 0, "only the combiner takes what was left");
        // Step b of `hold_or_kick`, between the kick that this swap takes away and the look at what the kick was for;
        // pairs with the fence there. This fence also stands between the swap and the reads of the slots, and so pairs
        // with the Release of `leave`.
        fence_at("staging.take_fence");
        Chain::from_newest(newest(published))
    }

    /// Called by the combiner: lets go, unless a thread has left something or kicked since the combiner took what there
    /// was. Returns whether it let go. If it did not, the combiner takes what was left and looks again.
    #[inline]
    #[must_use]
    pub fn let_go(&self) -> bool {
        // Release publishes what this combiner did to the next one.
        let release = order("staging.let_go", Ordering::Release);
        if !unless_mutated("staging.last_look") {
            self.0.store(NOTHING, release);
            return true;
        }
        let before = self.0.compare_exchange(HELD | NOTHING, NOTHING, release, Ordering::Relaxed);
        debug_assert!(before.unwrap_or_else(|seen| seen) & HELD != 0, "only the combiner lets go");
        before.is_ok()
    }

    /// Called by a combiner that has done its share, or leaves the rest to the next combiner: lets go, and leaves in
    /// the word the requests that were left there.
    ///
    /// This takes a kick away too, without a fence and without a look at what the kick was for. Nothing is lost,
    /// because the next combiner fences and looks. The combiner that gives up sets WAITING before, and [hands
    /// on](crate::liveness::Liveness::defer) afterwards, so that another thread comes and takes the hold. Only a
    /// combiner clears WAITING where combiners give up like this. So the next combiner finds it set, and fences
    /// ([`Liveness::waiter_present`](crate::liveness::Liveness::waiter_present)) before it looks at everything. These
    /// are the steps b and c of [`hold_or_kick`](Self::hold_or_kick).
    pub fn give_up(&self) {
        // Release as in `let_go`.
        let before = self.0.fetch_and(NOTHING, order("staging.give_up", Ordering::Release));
        debug_assert!(before & HELD != 0, "only the combiner gives up");
    }

    /// Gives up like [`give_up`](Self::give_up), for a combiner that itself looks again at once: after this call it
    /// finds what it was kicked for.
    pub fn give_up_and_look(&self) {
        self.give_up();
        // Step b of `hold_or_kick`, between the kick that `give_up` takes away and the look at what the kick was for;
        // pairs with the fence there.
        fence_at("staging.look_fence");
    }

    /// Whether requests were left that no combiner has taken over yet.
    #[inline]
    #[must_use]
    pub fn has_published(&self) -> bool {
        // Acquire pairs with the Release of `let_go` and of `give_up`: a thread that finds nothing left because a
        // combiner has taken it sees what that combiner did before it let go.
        newest(self.0.load(order("staging.has_published", Ordering::Acquire))) != NIL
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::{Arc, thread};

    impl Staging {
        fn is_free(&self) -> bool {
            self.0.load(Ordering::Relaxed) == NOTHING
        }
    }

    #[test]
    fn staging_is_let_go_only_when_nothing_was_left() {
        let links = [const { AtomicU32::new(0) }; 6];
        let link_of = |slot: u32| &links[slot as usize];
        let staging = Staging::new("test.staging");
        assert!(staging.is_free());
        assert!(!staging.leave([3], link_of), "nobody would come for it");
        assert!(staging.try_hold().is_some_and(|chain| chain.is_empty()));
        assert!(staging.try_hold().is_none() && !staging.is_free());
        assert!(staging.leave([4, 1], link_of) && staging.leave([2], link_of));
        assert!(!staging.let_go());
        assert_eq!(staging.take().oldest_first(link_of), [4, 1, 2]);
        assert!(staging.let_go() && staging.is_free());
    }

    #[test]
    fn staging_that_was_kicked_is_looked_at_again() {
        let staging = Staging::new("test.staging");
        assert!(staging.hold_or_kick().is_some());
        assert!(staging.hold_or_kick().is_none() && staging.hold_or_kick().is_none());
        assert!(!staging.let_go());
        assert!(staging.take().is_empty());
        assert!(staging.let_go());
    }

    #[test]
    fn staging_that_was_given_up_goes_to_the_next_with_what_was_left() {
        let links = [const { AtomicU32::new(0) }; 2];
        let link_of = |slot: u32| &links[slot as usize];
        let staging = Staging::new("test.staging");
        assert!(staging.try_hold().is_some());
        assert!(staging.leave([1, 0], link_of) && staging.hold_or_kick().is_none());
        staging.give_up();
        assert!(!staging.is_free());
        let chain = staging.hold_or_kick().expect("nobody holds it");
        assert_eq!(chain.oldest_first(link_of), [1, 0]);
        assert!(staging.let_go());
    }

    /// Each slot arrives once, and after those that its thread left before it.
    #[test]
    fn staging_loses_nothing_under_threads() {
        const THREADS: u32 = 3;
        const EACH: u32 = if cfg!(miri) { 40 } else { 20_000 };
        let links: Vec<_> = (0..THREADS * EACH).map(|_| AtomicU32::new(0)).collect();
        let done: Vec<_> = (0..THREADS).map(|_| AtomicU32::new(0)).collect();
        let shared = Arc::new((Staging::new("test.staging"), links, done));
        let threads = (0..THREADS).map(|number| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (staging, links, done) = &*shared;
                let link_of = |slot: u32| &links[slot as usize];
                let work = |chain: Chain| {
                    for slot in chain.oldest_first(link_of) {
                        let next = done[(slot / EACH) as usize].fetch_add(1, Ordering::Relaxed);
                        assert_eq!(next, slot % EACH, "out of its thread's order");
                    }
                };
                for slot in number * EACH..(number + 1) * EACH {
                    loop {
                        if let Some(chain) = staging.try_hold() {
                            work(chain);
                            done[number as usize].fetch_add(1, Ordering::Relaxed);
                            while !staging.let_go() {
                                work(staging.take());
                            }
                            break;
                        }
                        if staging.leave([slot], link_of) {
                            break;
                        }
                    }
                }
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        assert!(shared.0.is_free());
        assert!(shared.2.iter().all(|done| done.load(Ordering::Relaxed) == EACH));
    }
}
