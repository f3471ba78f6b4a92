//! Finds the requests that end at a given sector, latest first.

use alloc::vec::Vec;

use core::marker::PhantomData;

use crate::data::{Named, Tracked};
use crate::list::{Linked, Links, walk};
use crate::slab::{Index, Slab};

/// An item with the sector under which the item is found. The sector must not change while the item is in the table.
pub(crate) trait EndSector {
    fn end(&self) -> u64;
}

/// Buckets of items by their end.
#[derive(Debug, Clone)]
pub(crate) struct Hash<C> {
    /// The first item of each bucket.
    buckets: Named<Vec<Tracked<Option<Index>>>>,
    /// The number of buckets is two to this power.
    bits: u32,
    chain: PhantomData<C>,
}

/// The least number of buckets, as a power of two. Linux has as many; they are there before anything is reserved.
const LEAST_BITS: u32 = 6;

/// The largest number of buckets, as a power of two: 256 times as many as Linux has. More buckets would lie farther
/// from the processor, and would help only when tens of thousands of requests wait together, which is seldom.
const MOST_BITS: u32 = 14;

/// How many items of a bucket a look-up passes at most. Sectors that come by chance put far fewer items into one
/// bucket. But a client that chooses its sectors can choose all of them to fall into one bucket.
const LONGEST_WALK: usize = 32;

impl<C> Hash<C> {
    pub(crate) fn new() -> Self {
        Self::with_bits(LEAST_BITS)
    }

    fn with_bits(bits: u32) -> Self {
        debug_assert!((1..=MOST_BITS).contains(&bits), "a table has at least two buckets, and not more than the most");
        let mut buckets = Vec::new();
        buckets.resize(1 << bits, Tracked::new(None));
        Self { buckets: Named::new("sched.hash", buckets), bits, chain: PhantomData }
    }

    /// Makes at least as many buckets as `capacity`, or 2^[`MOST_BITS`], keeping what is in them. Allocates.
    pub(crate) fn reserve<T: EndSector + Linked<C>>(&mut self, slab: &mut Slab<T>, capacity: usize) {
        let bits = capacity.next_power_of_two().trailing_zeros().min(MOST_BITS);
        if bits <= self.bits {
            return;
        }
        let mut grown = Self::with_bits(bits);
        for bucket in self.buckets.iter() {
            let items: Vec<Index> = walk(slab, **bucket, |item| item.place().next).map(|(item, _)| item).collect();
            // A new bucket gets its items from one old bucket only. So inserting from the end of the old one keeps the
            // latest first.
            for item in items.into_iter().rev() {
                grown.insert(slab, item);
            }
        }
        *self = grown;
    }

    /// COST: two slots at most, and the bucket.
    #[inline]
    pub(crate) fn insert<T: EndSector + Linked<C>>(&mut self, slab: &mut Slab<T>, item: Index) {
        let number = self.number(slab.get(item).end());
        let next = self.buckets[number].replace(item);
        debug_assert_ne!(next, Some(item), "an item is put into the table once");
        *slab.get_mut(item).links() = Links { prev: None, next };
        if let Some(next) = next {
            slab.get_mut(next).links().prev = Some(item);
        }
    }

    /// COST: three slots at most, or two and the bucket.
    #[inline]
    pub(crate) fn remove<T: EndSector + Linked<C>>(&mut self, slab: &mut Slab<T>, item: Index) {
        let gone = slab.get_mut(item);
        let (end, Links { prev, next }) = (gone.end(), *gone.links());
        match prev {
            Some(prev) => slab.get_mut(prev).links().next = next,
            None => {
                let number = self.number(end);
                debug_assert_eq!(*self.buckets[number], Some(item), "the first item of a bucket is found by its end");
                *self.buckets[number] = next;
            }
        }
        if let Some(next) = next {
            slab.get_mut(next).links().prev = prev;
        }
    }

    /// The items that end at `end`, the latest first; not all of them if their bucket is overcrowded.
    /// COST: the bucket, up to a bound.
    pub(crate) fn find<'a, T: EndSector + Linked<C>>(
        &self,
        slab: &'a Slab<T>,
        end: u64,
    ) -> impl Iterator<Item = (Index, &'a T)> {
        walk(slab, *self.buckets[self.number(end)], |item| item.place().next)
            .take(LONGEST_WALK)
            .filter(move |(_, item)| item.end() == end)
    }

    #[inline]
    fn number(&self, end: u64) -> usize {
        // Multiplying by 2^64 over the golden ratio spreads neighboring sectors; the upper bits are the good ones.
        (end.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - self.bits)) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::list::{Links, chains};
    use crate::slab::LOOKS;

    #[derive(Debug)]
    struct Item {
        name: u32,
        end: u64,
        links: Links,
    }

    chains! {
        /// The chain of a bucket.
        pub(super) ByEnd: Item => links;
    }

    impl EndSector for Item {
        fn end(&self) -> u64 {
            self.end
        }
    }

    #[test]
    fn the_latest_comes_first_and_growing_keeps_that() {
        let mut slab = Slab::new("test");
        let mut hash = Hash::<ByEnd>::new();
        let mut indices = Vec::new();
        for name in 0..1000 {
            let index = slab.insert(Item { name, end: u64::from(name % 100), links: Links::default() });
            hash.insert(&mut slab, index);
            indices.push(index);
        }
        hash.remove(&mut slab, indices[507]);
        for capacity in [0, 10, 1000, 5000, 100_000] {
            hash.reserve(&mut slab, capacity);
            let found: Vec<u32> = hash.find(&slab, 7).map(|(_, item)| item.name).collect();
            assert_eq!(found, [907, 807, 707, 607, 407, 307, 207, 107, 7]);
        }
        assert_eq!(hash.buckets.len(), 1 << MOST_BITS);
        assert_eq!(hash.find(&slab, 100).count(), 0);
    }

    /// Red if a look-up walks the whole bucket: one client could then make the merges of all clients slow.
    #[test]
    fn ends_chosen_to_share_a_bucket_do_not_make_a_look_up_long() {
        let mut slab = Slab::new("test");
        let mut hash = Hash::<ByEnd>::new();
        hash.reserve(&mut slab, 1024);
        let bucket = hash.number(0);
        for end in (1..).filter(|end| hash.number(*end) == bucket).take(1024).collect::<Vec<u64>>() {
            let index = slab.insert(Item { name: 0, end, links: Links::default() });
            hash.insert(&mut slab, index);
        }
        let before = LOOKS.get();
        assert_eq!(hash.find(&slab, 0).count(), 0);
        assert!(LOOKS.get() - before <= LONGEST_WALK as u64);
    }
}
