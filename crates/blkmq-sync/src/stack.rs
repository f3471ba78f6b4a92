//! A stack of slot indices that many threads push to and one thread empties: completion ring and issue list.

use crate::platform::atomic::{AtomicU32, Ordering};
use crate::platform::{Line, order};

/// The index that ends a chain; no slot has it.
pub const NIL: u32 = u32::MAX;

/// An intrusive stack: the links lie with the slots, and each operation is told where (`link_of`).
///
/// Elements are only ever taken all at once. So an index that returns to the top between a pusher's load and its
/// exchange does no harm (no ABA problem): the pusher links to the index, not to its successor.
#[derive(Debug)]
pub struct SlotStack {
    newest: Line<AtomicU32>,
}

impl SlotStack {
    /// An empty stack, on a line called `name`.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { newest: Line::new(name, AtomicU32::new(NIL)) }
    }

    /// Whether the stack was empty when it was read.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Relaxed) == NIL
    }

    /// Links `slots`, oldest first, and publishes them as one chain. Each one's link names the one *before* it. Returns
    /// whether the stack was empty. Does nothing if there are no slots.
    ///
    /// COST: one compare-exchange on the shared line, for a chain of any length.
    #[inline]
    pub fn push<'a>(&self, slots: impl IntoIterator<Item = u32>, link_of: impl Fn(u32) -> &'a AtomicU32) -> bool {
        let mut slots = slots.into_iter();
        let Some(first) = slots.next() else { return self.is_empty() };
        let mut last = first;
        for slot in slots {
            debug_assert_ne!(slot, last, "a chain has each slot once");
            link_of(slot).store(last, Ordering::Relaxed);
            last = slot;
        }
        debug_assert!(first != NIL && last != NIL, "a chain has slots");
        let mut before = self.newest.load(Ordering::Relaxed);
        loop {
            link_of(first).store(before, Ordering::Relaxed);
            // Release publishes the links and what the slots hold to the Acquire of `take_all`. Later pushes are
            // read-modify-writes too, so they continue the release sequence.
            let release = order("stack.push", Ordering::Release);
            match self.newest.compare_exchange_weak(before, last, release, Ordering::Relaxed) {
                Ok(_) => return before == NIL,
                Err(now) => before = now,
            }
        }
    }

    /// Takes everything.
    ///
    /// COST: one load if the stack is empty; otherwise one swap.
    #[inline]
    pub fn take_all(&self) -> Chain {
        if self.is_empty() {
            return Chain { newest: NIL };
        }
        // Acquire pairs with the Release of every push whose elements are taken.
        Chain { newest: self.newest.swap(NIL, order("stack.take", Ordering::Acquire)) }
    }
}

/// What was taken from a [`SlotStack`]. The chain belongs to the thread that took it.
#[derive(Debug)]
#[must_use = "slots that were taken are in no list any more"]
pub struct Chain {
    newest: u32,
}

impl Chain {
    /// No slot.
    pub const EMPTY: Self = Self::from_newest(NIL);

    /// The chain of which `newest` was pushed last. The caller has just taken it.
    #[inline]
    pub const fn from_newest(newest: u32) -> Self {
        Self { newest }
    }

    /// Whether no slot is left in the chain.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.newest == NIL
    }

    /// Takes off the slot that was pushed last. The slot's link is read before the slot is returned, so the slot may be
    /// used again at once.
    #[inline]
    pub fn pop_newest<'a>(&mut self, link_of: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        let slot = self.newest;
        if slot == NIL {
            return None;
        }
        self.newest = link_of(slot).load(Ordering::Relaxed);
        debug_assert_ne!(self.newest, slot, "a slot is pushed again only after it was taken");
        Some(slot)
    }
}

#[cfg(all(test, not(loom)))]
impl Chain {
    /// All slots, first pushed first, for a caller that can afford a list apart from the slots.
    pub(crate) fn oldest_first<'a>(mut self, link_of: impl Fn(u32) -> &'a AtomicU32) -> Vec<u32> {
        let mut slots: Vec<u32> = std::iter::from_fn(|| self.pop_newest(&link_of)).collect();
        slots.reverse();
        slots
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn stack_returns_chains_first_pushed_first() {
        let links = [const { AtomicU32::new(0) }; 6];
        let link_of = |slot: u32| &links[slot as usize];
        let stack = SlotStack::new("test.stack");
        assert!(stack.is_empty());
        assert!(stack.push([4, 2], link_of));
        assert!(!stack.push([5], link_of));
        assert!(!stack.push([0, 3, 1], link_of));
        assert!(!stack.push([], link_of));
        assert_eq!(stack.take_all().oldest_first(link_of), [4, 2, 5, 0, 3, 1]);
        assert!(stack.is_empty() && stack.take_all().is_empty());
    }
}
