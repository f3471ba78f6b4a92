//! Storage of a scheduler's requests: slots sized once, named by index, reused through a free list.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::data::{Named, Tracked};

#[cfg(test)]
std::thread_local! {
    /// How often this thread has looked at slots in use, or changed them.
    pub(crate) static LOOKS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

/// Names a used slot. The number in it is one more than the slot's number, so that `Option<Index>` is no larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Index(NonZeroU32);

/// The first slot that a slab hands out.
impl Default for Index {
    fn default() -> Self {
        Self(NonZeroU32::MIN)
    }
}

impl Index {
    #[inline]
    fn of_slot(slot: usize) -> Self {
        let number = u32::try_from(slot + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("a slab holds fewer than 2^32 requests"))
    }

    /// The number that names the slot.
    #[inline]
    pub(crate) const fn number(self) -> NonZeroU32 {
        self.0
    }

    /// The slot that this number names, if it names one.
    #[inline]
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    #[inline]
    fn slot(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A fixed set of slots. A caller that looks at a slot that is not in use has a bug, and sees what was there last.
#[derive(Debug, Clone)]
pub(crate) struct Slab<T> {
    items: Named<Vec<Tracked<T>>>,
    /// Slots that are not in use. The slot freed last is used next, because it is still in the cache.
    free: Named<Vec<Tracked<Index>>>,
}

impl<T> Slab<T> {
    /// `name` is that of the slots' memory, for rigs.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { items: Named::new(name, Vec::new()), free: Named::new("sched.free", Vec::new()) }
    }

    /// Makes room for `capacity` items in all; never shrinks. Indices stay valid.
    pub(crate) fn reserve(&mut self, capacity: usize) {
        let [items, free] = [self.items.len(), self.free.len()].map(|len| capacity.saturating_sub(len));
        self.items.reserve_exact(items);
        self.free.reserve_exact(free);
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// COST: one slot written. Allocates only beyond what was reserved.
    #[inline]
    pub(crate) fn insert(&mut self, item: T) -> Index {
        if let Some(index) = self.free.pop() {
            *self.get_mut(index) = item;
            return index;
        }
        self.items.push(item);
        Index::of_slot(self.items.len() - 1)
    }

    /// Ends the use of a slot. Allocates only beyond what was reserved.
    #[inline]
    pub(crate) fn remove(&mut self, index: Index) -> &T {
        debug_assert!(self.free.iter().all(|free| **free != index), "slot {} is not in use", index.slot());
        self.free.push(index);
        &self.items[index.slot()]
    }

    /// For assertions: the look is not counted.
    #[inline]
    pub(crate) fn peek(&self, index: Index) -> &T {
        &self.items[index.slot()]
    }

    /// Looks only at the slot that was freed last: the list of free slots may be long.
    #[inline]
    fn check(&self, index: Index) {
        debug_assert!(
            self.free.last().is_none_or(|free| **free != index),
            "slot {} is looked at after its use ended",
            index.slot()
        );
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
    }

    #[inline]
    pub(crate) fn get(&self, index: Index) -> &T {
        self.check(index);
        &self.items[index.slot()]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: Index) -> &mut T {
        self.check(index);
        &mut self.items[index.slot()]
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn freed_slots_are_used_again_before_new_ones() {
        let mut slab = Slab::new("test");
        let [a, b, c] = [1, 2, 3].map(|item| slab.insert(item));
        assert_eq!((*slab.remove(a), *slab.remove(c)), (1, 3));
        assert_eq!((slab.insert(4), slab.insert(5)), (c, a));
        assert_eq!([a, b, c].map(|index| *slab.get(index)), [5, 2, 4]);
        assert_eq!(slab.len(), 3);
    }

    #[test]
    fn nothing_is_allocated_within_what_was_reserved() {
        let mut slab = Slab::new("test");
        slab.insert(0);
        slab.reserve(100);
        let capacity = [slab.items.capacity(), slab.free.capacity()];
        assert!(capacity.iter().all(|capacity| *capacity >= 100));
        let indices: Vec<Index> = (0..99).map(|item| slab.insert(item)).collect();
        for index in indices {
            slab.remove(index);
        }
        assert_eq!([slab.items.capacity(), slab.free.capacity()], capacity);
    }

    #[test]
    fn each_look_at_a_slot_is_counted() {
        let mut slab = Slab::new("test");
        let index = slab.insert(1);
        let before = LOOKS.get();
        *slab.get_mut(index) += 1;
        assert_eq!((*slab.get(index), *slab.peek(index), LOOKS.get() - before), (2, 2, 2));
    }

    #[test]
    fn an_optional_index_is_no_larger_than_an_index() {
        assert_eq!(size_of::<Option<Index>>(), 4);
    }
}
