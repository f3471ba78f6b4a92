//! An ordered list that whoever comes first works off for all.
//!
//! Everybody appends, or puts what comes next behind the holder's state if nobody holds the list, and then tries the
//! lock. Who fails leaves: the holder looks again after unlocking. Two fences make that certain. The appender's stands
//! between its append and its look at the lock, the holder's between its unlocking and its look at the list. Whichever
//! comes first, either the appender sees the lock free and takes it, or the holder sees the append.

use crate::stack::{Chain, SlotStack};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::sync::{Line, TryLock, fence_at, kept, order};

/// A hand-over list with the state `T` that only the holder touches, such as the requests that the driver refused and
/// that stay at the head.
#[derive(Debug)]
pub struct Handover<T> {
    incoming: SlotStack,
    holder: TryLock<T>,
}

impl<T> Handover<T> {
    /// An empty list.
    #[must_use]
    pub fn new(state: T) -> Self {
        Self { incoming: SlotStack::new("issue.incoming"), holder: TryLock::new("issue.lock", state) }
    }

    /// Appends `slots` in order, as one chain. Owes a [`drain`](Self::drain). Returns whether nothing else was
    /// incoming.
    #[inline]
    pub fn append<'a>(&self, slots: impl IntoIterator<Item = u32>, link_of: impl Fn(u32) -> &'a AtomicU32) -> bool {
        self.incoming.push(slots, link_of)
    }

    /// Shows the holder's state to `put`, which puts something behind it, if nobody holds the list and nothing is
    /// incoming. Owes a [`drain`](Self::drain). For who knows that all that goes before it was appended already.
    ///
    /// COST: of a list that nobody holds a compare-exchange, and a store, also if something is incoming; else a load.
    #[inline]
    pub fn put(&self, put: impl FnOnce(&mut T)) -> bool {
        let Some(mut state) = self.holder.try_lock() else { return false };
        // Who appended meanwhile and left, because this thread holds the list, is found by the drain that this one
        // owes.
        let is_idle = !(kept("handover.put_look") && self.is_pending());
        if is_idle {
            put(&mut state);
        }
        is_idle
    }

    /// Whether something has been appended that no holder has taken.
    #[inline]
    #[must_use]
    pub fn is_pending(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Works the list off through `work`, which gets the holder's state and the next chain in order (the first chain
    /// may be empty: then there is only what was kept). After the first, up to `rounds` more for what others append
    /// meanwhile.
    ///
    /// Returns true if nobody needs to come again: everything has been through `work`, or another holder is certain to
    /// look. False if `rounds` ran out; then the caller sees to it that somebody drains again.
    ///
    /// COST: a fence and a load for who comes second; for the holder two fences, an exchange of the lock, and a swap of
    /// the list if it is not empty, per round.
    pub fn drain(&self, rounds: u32, mut work: impl FnMut(&mut T, Chain)) -> bool {
        // Between the append and the look at the lock; pairs with the holder's fence below.
        fence_at("handover.append_fence");
        for _ in 0..=rounds {
            let Some(mut state) = self.holder.try_lock() else { return true };
            work(&mut state, self.incoming.take_all());
            drop(state);
            // Between the unlocking and the look at the list; pairs with the appender's fence above.
            fence_at("handover.look_fence");
            if !kept("handover.look") || !self.is_pending() {
                return true;
            }
        }
        false
    }
}

/// A word to the one thread that may drain a list, from those who appended to it: there is something.
///
/// It takes the word away before it drains. So what is appended before a word is left is drained when that word is
/// taken, or was before.
#[derive(Debug)]
pub struct Inbox(Line<AtomicBool>);

impl Default for Inbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Inbox {
    /// Nobody has left a word.
    #[must_use]
    pub fn new() -> Self {
        Self(Line::new("hctx.inbox", AtomicBool::new(false)))
    }

    /// Leaves a word, after appending. Returns whether it is news: then the caller wakes the owner, which looks at this
    /// last before it sleeps.
    ///
    /// COST: an exchange of a line that the owner reads at each poll.
    #[must_use = "the owner is to be woken"]
    pub fn leave(&self) -> bool {
        // Release publishes what was appended to who takes the word, behind the fences of `drain`.
        !self.0.swap(true, order("inbox.leave", Ordering::Release))
    }

    /// The owner takes the word, if there is one, and then drains the list.
    ///
    /// COST: a load while there is none.
    #[must_use = "the list is to be drained"]
    pub fn take(&self) -> bool {
        self.is_full() && self.0.swap(false, Ordering::Relaxed)
    }

    /// Whether there is a word.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::{Arc, thread};

    /// Whoever holds the list works for all; in the end everything has been worked off, each thread's slots in order.
    #[test]
    fn handover_leaves_nothing_behind_under_threads() {
        const THREADS: u32 = 4;
        const EACH: u32 = if cfg!(miri) { 30 } else { 20_000 };
        let links: Vec<_> = (0..THREADS * EACH).map(|_| AtomicU32::new(0)).collect();
        let shared = Arc::new((Handover::new(Vec::new()), links));
        let threads = (0..THREADS).map(|number| {
            let shared = shared.clone();
            thread::spawn(move || {
                let (list, links) = &*shared;
                let link_of = |slot: u32| &links[slot as usize];
                for slot in number * EACH..(number + 1) * EACH {
                    list.append([slot], link_of);
                    let work = |done: &mut Vec<u32>, chain: Chain| done.extend(chain.oldest_first(link_of));
                    while !list.drain(number, work) {}
                }
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        assert!(!shared.0.is_pending());
        let mut done = Vec::new();
        shared.0.drain(0, |all, _| done = std::mem::take(all));
        assert_eq!(done.len(), (THREADS * EACH) as usize);
        for number in 0..THREADS {
            assert!(done.iter().filter(|&slot| slot / EACH == number).is_sorted());
        }
    }
}
