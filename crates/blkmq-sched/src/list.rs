//! A doubly linked list of items in a slab.

use core::marker::PhantomData;

use crate::data::Tracked;
use crate::slab::{Index, Slab};

/// An item's neighbours in a list.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Links {
    pub(crate) prev: Option<Index>,
    pub(crate) next: Option<Index>,
}

/// An item that can be in a list of the chain `C`: an item may be in one list of each chain.
pub(crate) trait Linked<C> {
    fn links(&mut self) -> &mut Links;
    fn place(&self) -> Links;
}

/// Declares chains, each a type that names it, and the links of an item that belong to it.
macro_rules! chains {
    ($($(#[$doc:meta])* $vis:vis $chain:ident: $item:ident $(<$home:ident>)? => $($links:ident).+;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Default)]
        $vis struct $chain;

        impl $(<$home>)? $crate::list::Linked<$chain> for $item $(<$home>)? {
            fn links(&mut self) -> &mut $crate::list::Links {
                &mut self.$($links).+
            }
            fn place(&self) -> $crate::list::Links {
                self.$($links).+
            }
        }
    )+};
}
pub(crate) use chains;

/// The two ends of a list. The list owns nothing: items live in the slab that is passed to each method.
///
/// COST: each method touches the item and at most two neighbours.
#[derive(Debug, Clone, Default)]
pub(crate) struct List<C> {
    head: Tracked<Option<Index>>,
    tail: Tracked<Option<Index>>,
    chain: PhantomData<C>,
}

impl<C> List<C> {
    pub(crate) fn head(&self) -> Option<Index> {
        *self.head
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head().is_none()
    }

    pub(crate) fn push_front<T: Linked<C>>(&mut self, slab: &mut Slab<T>, item: Index) {
        self.link(slab, item, Links { prev: None, next: self.head() });
    }

    pub(crate) fn push_back<T: Linked<C>>(&mut self, slab: &mut Slab<T>, item: Index) {
        self.link(slab, item, Links { prev: *self.tail, next: None });
    }

    /// Puts `item` just before `place`, which is in this list.
    pub(crate) fn insert_before<T: Linked<C>>(&mut self, slab: &mut Slab<T>, place: Index, item: Index) {
        debug_assert_ne!(place, item, "an item does not stand before itself");
        let prev = slab.get_mut(place).links().prev;
        self.link(slab, item, Links { prev, next: Some(place) });
    }

    pub(crate) fn remove<T: Linked<C>>(&mut self, slab: &mut Slab<T>, item: Index) {
        let Links { prev, next } = *slab.get_mut(item).links();
        debug_assert!(prev.is_some() || *self.head == Some(item), "an item is removed from its own list");
        debug_assert!(next.is_some() || *self.tail == Some(item), "an item is removed from its own list");
        self.set_next(slab, prev, next);
        self.set_prev(slab, next, prev);
    }

    /// The item behind `item`, which is in this list.
    pub(crate) fn after<T: Linked<C>>(&self, slab: &Slab<T>, item: Index) -> Option<Index> {
        slab.get(item).place().next
    }

    /// The items from head to tail.
    pub(crate) fn iter<'a, T: Linked<C>>(&self, slab: &'a Slab<T>) -> impl Iterator<Item = (Index, &'a T)> {
        walk(slab, self.head(), |item| item.place().next)
    }

    /// The items from tail to head.
    pub(crate) fn iter_back<'a, T: Linked<C>>(&self, slab: &'a Slab<T>) -> impl Iterator<Item = (Index, &'a T)> {
        walk(slab, *self.tail, |item| item.place().prev)
    }

    /// Moves all items of `other` behind those of this list, in their order.
    pub(crate) fn append<T: Linked<C>>(&mut self, slab: &mut Slab<T>, other: &mut Self) {
        let (Some(first), tail) = (other.head.take(), other.tail.take()) else { return };
        self.set_next(slab, *self.tail, Some(first));
        self.set_prev(slab, Some(first), *self.tail);
        *self.tail = tail;
    }

    fn link<T: Linked<C>>(&mut self, slab: &mut Slab<T>, item: Index, links: Links) {
        debug_assert!(![links.prev, links.next].contains(&Some(item)), "an item is put into a list once");
        *slab.get_mut(item).links() = links;
        self.set_next(slab, links.prev, Some(item));
        self.set_prev(slab, links.next, Some(item));
    }

    fn set_next<T: Linked<C>>(&mut self, slab: &mut Slab<T>, of: Option<Index>, next: Option<Index>) {
        match of {
            Some(item) => slab.get_mut(item).links().next = next,
            None => *self.head = next,
        }
    }

    fn set_prev<T: Linked<C>>(&mut self, slab: &mut Slab<T>, of: Option<Index>, prev: Option<Index>) {
        match of {
            Some(item) => slab.get_mut(item).links().prev = prev,
            None => *self.tail = prev,
        }
    }
}

/// The items from `at` on, in the order in which `next` leads from one to another.
pub(crate) fn walk<T>(
    slab: &Slab<T>,
    mut at: Option<Index>,
    next: impl Fn(&T) -> Option<Index>,
) -> impl Iterator<Item = (Index, &T)> {
    core::iter::from_fn(move || {
        let index = at?;
        let item = slab.get(index);
        at = next(item);
        Some((index, item))
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[derive(Debug)]
    struct Item {
        name: char,
        links: Links,
    }

    impl Item {
        fn new(name: char) -> Self {
            Self { name, links: Links::default() }
        }
    }

    chains! {
        /// The only one.
        pub(super) Only: Item => links;
    }

    fn forward(list: &List<Only>, slab: &Slab<Item>) -> Vec<char> {
        list.iter(slab).map(|(_, item)| item.name).collect()
    }

    fn backward(list: &List<Only>, slab: &Slab<Item>) -> Vec<char> {
        list.iter_back(slab).map(|(_, item)| item.name).collect()
    }

    #[test]
    fn items_keep_their_order_in_both_directions() {
        let mut slab = Slab::new("test");
        let mut list = List::<Only>::default();
        let [a, b, c, d] = ['a', 'b', 'c', 'd'].map(|name| slab.insert(Item::new(name)));
        list.push_back(&mut slab, b);
        list.push_back(&mut slab, d);
        list.push_front(&mut slab, a);
        list.insert_before(&mut slab, d, c);
        assert_eq!(forward(&list, &slab), ['a', 'b', 'c', 'd']);
        assert_eq!(backward(&list, &slab), ['d', 'c', 'b', 'a']);
        list.remove(&mut slab, b);
        assert_eq!(forward(&list, &slab), ['a', 'c', 'd']);
        list.remove(&mut slab, a);
        list.remove(&mut slab, d);
        assert_eq!((forward(&list, &slab), backward(&list, &slab)), (Vec::from(['c']), Vec::from(['c'])));
        list.insert_before(&mut slab, c, a);
        assert_eq!(backward(&list, &slab), ['c', 'a']);
        list.remove(&mut slab, c);
        list.remove(&mut slab, a);
        assert!(list.is_empty() && list.tail.is_none());
    }

    #[test]
    fn a_list_moves_behind_another_one() {
        let mut slab = Slab::new("test");
        let [mut one, mut other] = [List::<Only>::default(), List::default()];
        one.append(&mut slab, &mut other);
        assert!(one.is_empty() && one.tail.is_none());
        for name in ['a', 'b'] {
            let item = slab.insert(Item::new(name));
            other.push_back(&mut slab, item);
        }
        one.append(&mut slab, &mut other);
        assert_eq!((forward(&one, &slab), backward(&one, &slab)), (Vec::from(['a', 'b']), Vec::from(['b', 'a'])));
        assert!(other.is_empty() && other.tail.is_none());
        let last = slab.insert(Item::new('c'));
        other.push_back(&mut slab, last);
        one.append(&mut slab, &mut other);
        assert_eq!(
            (forward(&one, &slab), backward(&one, &slab)),
            (Vec::from(['a', 'b', 'c']), Vec::from(['c', 'b', 'a']))
        );
    }
}
