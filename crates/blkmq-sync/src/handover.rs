//! A hand-over list: an ordered list that the first thread to come drains for all threads.
//!
//! A thread appends to the list and then tries the lock. A thread that gets the lock (the holder) drains the list. A
//! thread that fails returns, because the holder re-checks the list after it has unlocked:
//!
//! ```text
//!     the appender                    the holder
//!  1. appends                      a. unlocks
//!  2. fence                        b. fence
//!  3. tries the lock               c. looks at the list
//! ```
//!
//! All threads agree which of the fences 2 and b comes first. If 2 comes first, then c finds what was appended. If b
//! comes first, then 3 finds the lock free, unless another thread has taken the lock meanwhile. Then that thread is the
//! holder of this interleaving.
//!
//! If no thread holds the list and nothing is incoming, a thread may also [put](Handover::put) something behind the
//! holder's state instead of appending it.

use crate::platform::atomic::{AtomicBool, AtomicU32, Ordering};
use crate::platform::{Line, TryLock, fence_at, order, unless_mutated};
use crate::stack::{Chain, SlotStack};

/// A hand-over list with the state `T` that only the holder touches, for example the requests that the driver refused
/// and that stay at the head.
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

    /// Asks for the line of the list's lock, for a caller that will [put](Self::put) something soon.
    #[inline]
    pub fn fetch(&self) {
        self.holder.fetch();
    }

    /// Appends `slots` in order, as one chain. The caller then owes a [`drain`](Self::drain). Returns whether nothing
    /// else was incoming.
    #[inline]
    pub fn append<'a>(&self, slots: impl IntoIterator<Item = u32>, link_of: impl Fn(u32) -> &'a AtomicU32) -> bool {
        self.incoming.push(slots, link_of)
    }

    /// If no thread holds the list and nothing is incoming, shows the holder's state to `put`, which puts something
    /// behind it. The caller then owes a [`drain`](Self::drain). Only for a caller that knows that everything that
    /// comes before in the order has been appended already. Returns whether `put` was called.
    ///
    /// COST: a compare-exchange and a store if no thread holds the list, also if something is incoming; a load if one
    /// does.
    #[inline]
    pub fn put(&self, put: impl FnOnce(&mut T)) -> bool {
        let Some(mut state) = self.holder.try_lock() else { return false };
        // A thread may append meanwhile, and leave because this thread holds the list. The drain that this thread owes
        // finds what was appended.
        let is_idle = !(unless_mutated("handover.put_look") && self.is_pending());
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

    /// Works the list off through `work`, which gets the holder's state and the next chain in order. The first chain
    /// may be empty: then there is only what the state keeps. After the first round there are up to `rounds` more, for
    /// what other threads append meanwhile.
    ///
    /// Returns true if no thread needs to come again: everything has been through `work`, or another holder is certain
    /// to look. Returns false if `rounds` ran out. Then the caller makes sure that a thread drains again.
    ///
    /// COST: a fence and a load for a thread that finds the list held. For the holder, per round, two fences, an
    /// exchange of the lock, and a swap of the list if it is not empty.
    pub fn drain(&self, rounds: u32, mut work: impl FnMut(&mut T, Chain)) -> bool {
        // Step 2 of the module's interleaving, between the append and the look at the lock; pairs with the holder's
        // fence below.
        fence_at("handover.append_fence");
        for _ in 0..=rounds {
            let Some(mut state) = self.holder.try_lock() else { return true };
            work(&mut state, self.incoming.take_all());
            drop(state);
            // Step b, between the unlocking and the look at the list; pairs with the appender's fence above.
            fence_at("handover.look_fence");
            if !unless_mutated("handover.look") || !self.is_pending() {
                return true;
            }
        }
        false
    }
}

/// A flag by which threads that appended to a list notify its owner, the one thread that may drain it.
///
/// The owner clears the flag before it drains. So slots that are appended before the flag is set are drained at the
/// latest after the owner has cleared it.
#[derive(Debug)]
pub struct Inbox(Line<AtomicBool>);

/// The flag is clear.
impl Default for Inbox {
    fn default() -> Self {
        Self(Line::new("hctx.inbox", AtomicBool::new(false)))
    }
}

impl Inbox {
    /// Sets the flag. Called after appending. Returns true if it was clear before: then the caller wakes the owner,
    /// which checks the flag last before it sleeps.
    ///
    /// COST: an exchange of a line that the owner reads at each poll.
    #[must_use = "the owner is to be woken"]
    pub fn leave(&self) -> bool {
        // Release publishes what was appended to the owner, which clears the flag and then reads behind the fences of
        // `drain`.
        !self.0.swap(true, order("inbox.leave", Ordering::Release))
    }

    /// Clears the flag. Called by the owner. Returns whether it was set; then the owner drains the list.
    ///
    /// COST: a load while the flag is clear.
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
