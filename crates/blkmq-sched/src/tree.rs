//! A balanced tree of items in a slab, sorted by a key; equal keys keep the order in which they came.
//!
//! It is an AVL tree with parent links: the heights of a node's two subtrees differ by at most one, so with n items no
//! path is longer than 1.45 log2(n). Nothing recurses.

use crate::data::Tracked;
use crate::slab::{Index, Slab};

/// An item's place in a tree.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Branches {
    parent: Option<Index>,
    /// The subtree before this item and the subtree after it.
    child: [Option<Index>; 2],
    /// By how much the subtree after the item is higher than the one before it: -1 to 1.
    lean: i8,
}

impl Branches {
    /// The tops of the subtrees before and after this item.
    pub(crate) const fn children(&self) -> [Option<Index>; 2] {
        self.child
    }
}

/// An item that can be in a tree. The item's key must not change while the item is in a tree.
pub(crate) trait Keyed: Sized {
    /// True if each item keeps a summary of the subtree below and including it, which [`summarize`](Self::summarize)
    /// computes.
    const HAS_SUMMARY: bool = false;

    fn key(&self) -> u64;
    fn branches(&self) -> &Branches;
    fn branches_mut(&mut self) -> &mut Branches;

    /// Whether an item with the key `key` stands before one with the key `other`.
    #[inline]
    fn is_before(key: u64, other: u64) -> bool {
        key < other
    }

    /// Computes the summary of the subtree of `node` anew, from `node` and the summaries of its two children.
    fn summarize(_slab: &mut Slab<Self>, _node: Index) {}
}

/// The side of the subtree before a node, as an index of [`Branches::child`].
const BEFORE: usize = 0;
const AFTER: usize = 1;

/// How a node leans when its subtree on `side` is the higher one.
const fn towards(side: usize) -> i8 {
    if side == AFTER { 1 } else { -1 }
}

/// The root of a tree. The tree owns nothing: items live in the slab that is passed to each method.
///
/// COST: each method touches a logarithmic number of items.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    root: Tracked<Option<Index>>,
}

impl Tree {
    pub(crate) fn root(&self) -> Option<Index> {
        *self.root
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.root().is_none()
    }

    /// The first item in order.
    pub(crate) fn first<T: Keyed>(&self, slab: &Slab<T>) -> Option<Index> {
        Some(outermost(slab, self.root()?, BEFORE))
    }

    /// The last item in order.
    pub(crate) fn last<T: Keyed>(&self, slab: &Slab<T>) -> Option<Index> {
        Some(outermost(slab, self.root()?, AFTER))
    }

    /// Puts `item` in its place: behind all items whose keys are equal.
    #[inline(always)]
    pub(crate) fn insert<T: Keyed>(&mut self, slab: &mut Slab<T>, item: Index) {
        let key = slab.get(item).key();
        let (mut parent, mut side, mut at) = (None, BEFORE, self.root());
        while let Some(node) = at {
            debug_assert_ne!(node, item, "an item is put into the tree once");
            let here = slab.get(node);
            side = usize::from(!T::is_before(key, here.key()));
            (parent, at) = (Some(node), here.branches().child[side]);
        }
        *slab.get_mut(item).branches_mut() = Branches { parent, child: [None; 2], lean: 0 };
        match parent {
            Some(node) => {
                slab.get_mut(node).branches_mut().child[side] = Some(item);
                summarize_upwards(slab, Some(item));
                self.grew(slab, node, side);
            }
            None => {
                *self.root = Some(item);
                summarize_upwards(slab, Some(item));
            }
        }
    }

    /// Takes `item`, which is in this tree, out.
    #[inline(always)]
    pub(crate) fn remove<T: Keyed>(&mut self, slab: &mut Slab<T>, item: Index) {
        let old = *slab.get(item).branches();
        debug_assert!(old.parent.is_some() || *self.root == Some(item), "an item is removed from its own tree");
        if let [Some(_), Some(after)] = old.child {
            self.remove_inner(slab, item, &old, after);
        } else {
            let successor = old.child[BEFORE].or(old.child[AFTER]);
            let side = self.replace(slab, old.parent, item, successor);
            summarize_upwards(slab, old.parent);
            self.shrank(slab, old.parent, side);
        }
    }

    /// Takes out a node with two subtrees. The first item of the subtree after the node takes its place.
    fn remove_inner<T: Keyed>(&mut self, slab: &mut Slab<T>, item: Index, old: &Branches, after: Index) {
        let successor = outermost(slab, after, BEFORE);
        let Branches { parent, child: [_, orphan], .. } = *slab.get(successor).branches();
        let mut adopted = *old;
        let (lowest, side) = if successor == after {
            adopted.child[AFTER] = orphan;
            (Some(successor), AFTER)
        } else {
            (parent, self.replace(slab, parent, successor, orphan))
        };
        *slab.get_mut(successor).branches_mut() = adopted;
        for child in adopted.child.into_iter().flatten() {
            slab.get_mut(child).branches_mut().parent = Some(successor);
        }
        self.replace(slab, old.parent, item, Some(successor));
        summarize_upwards(slab, lowest);
        self.shrank(slab, lowest, side);
    }

    /// The first item whose key is at least `key`. Among equal keys, the item that came first.
    pub(crate) fn first_from<T: Keyed>(&self, slab: &Slab<T>, key: u64) -> Option<Index> {
        let (mut best, mut at) = (None, self.root());
        while let Some(node) = at {
            let here = slab.get(node);
            let fits = !T::is_before(here.key(), key);
            if fits {
                best = Some(node);
            }
            at = here.branches().child[if fits { BEFORE } else { AFTER }];
        }
        best
    }

    /// The item after `item` in order.
    pub(crate) fn next<T: Keyed>(&self, slab: &Slab<T>, item: Index) -> Option<Index> {
        neighbor(slab, item, AFTER)
    }

    /// The item before `item` in order.
    pub(crate) fn prev<T: Keyed>(&self, slab: &Slab<T>, item: Index) -> Option<Index> {
        neighbor(slab, item, BEFORE)
    }

    /// Makes `new` the child that `old` was of `parent`; returns on which side that is.
    fn replace<T: Keyed>(
        &mut self,
        slab: &mut Slab<T>,
        parent: Option<Index>,
        old: Index,
        new: Option<Index>,
    ) -> usize {
        if let Some(new) = new {
            slab.get_mut(new).branches_mut().parent = parent;
        }
        let Some(parent) = parent else {
            *self.root = new;
            return BEFORE;
        };
        let child = &mut slab.get_mut(parent).branches_mut().child;
        let side = usize::from(child[AFTER] == Some(old));
        debug_assert_eq!(child[side], Some(old), "the parent of a node has the node as its child");
        child[side] = new;
        side
    }

    /// Restores the balance upwards from `node`, whose subtree on `side` has become higher by one.
    fn grew<T: Keyed>(&mut self, slab: &mut Slab<T>, mut node: Index, mut side: usize) {
        loop {
            let here = slab.get_mut(node).branches_mut();
            if here.lean == towards(side) {
                // A rotation makes up for the height that an insertion added.
                self.level(slab, node, side);
                return;
            }
            here.lean += towards(side);
            debug_assert!((-1..=1).contains(&here.lean), "a tree is balanced before an item is put into it");
            if here.lean == 0 {
                return;
            }
            let Some(parent) = here.parent else { return };
            side = usize::from(slab.get(parent).branches().child[AFTER] == Some(node));
            node = parent;
        }
    }

    /// Restores the balance upwards from `at`, whose subtree on `side` has become lower by one.
    fn shrank<T: Keyed>(&mut self, slab: &mut Slab<T>, mut at: Option<Index>, mut side: usize) {
        while let Some(node) = at {
            let here = slab.get_mut(node).branches_mut();
            let top = if here.lean == towards(1 - side) {
                let (top, is_lower) = self.level(slab, node, 1 - side);
                if !is_lower {
                    return;
                }
                top
            } else {
                here.lean -= towards(side);
                debug_assert!((-1..=1).contains(&here.lean), "a tree is balanced before an item is removed from it");
                if here.lean != 0 {
                    return;
                }
                node
            };
            at = slab.get(top).branches().parent;
            if let Some(parent) = at {
                side = usize::from(slab.get(parent).branches().child[AFTER] == Some(top));
            }
        }
    }

    /// Levels `node`, whose subtree on `side` is higher by two. Returns the new top of this subtree, and whether the
    /// whole subtree has become lower.
    fn level<T: Keyed>(&mut self, slab: &mut Slab<T>, node: Index, side: usize) -> (Index, bool) {
        let heavy = slab.get(node).branches().child[side].expect("the higher subtree is not empty");
        let heavy_lean = slab.get(heavy).branches().lean;
        if heavy_lean != towards(1 - side) {
            self.lift(slab, node, side, heavy);
            // Only a removal meets a child that does not lean. The whole subtree then stays as high as it was.
            let lean = if heavy_lean == 0 { towards(side) } else { 0 };
            slab.get_mut(node).branches_mut().lean = lean;
            slab.get_mut(heavy).branches_mut().lean = -lean;
            return (heavy, lean == 0);
        }
        let inner = slab.get(heavy).branches().child[1 - side].expect("the subtree it leans to is not empty");
        self.lift(slab, heavy, 1 - side, inner);
        self.lift(slab, node, side, inner);
        let inner_lean = core::mem::take(&mut slab.get_mut(inner).branches_mut().lean);
        slab.get_mut(node).branches_mut().lean = if inner_lean == towards(side) { -inner_lean } else { 0 };
        slab.get_mut(heavy).branches_mut().lean = if inner_lean == towards(1 - side) { -inner_lean } else { 0 };
        (inner, true)
    }

    /// Lifts `lifted`, the child of `node` on `side`, above it.
    fn lift<T: Keyed>(&mut self, slab: &mut Slab<T>, node: Index, side: usize, lifted: Index) {
        let inner = slab.get_mut(lifted).branches_mut().child[1 - side].replace(node);
        let below = slab.get_mut(node).branches_mut();
        debug_assert_eq!(below.child[side], Some(lifted), "a node is lifted above its own parent");
        below.child[side] = inner;
        let parent = below.parent.replace(lifted);
        if let Some(inner) = inner {
            slab.get_mut(inner).branches_mut().parent = Some(node);
        }
        self.replace(slab, parent, node, Some(lifted));
        if T::HAS_SUMMARY {
            T::summarize(slab, node);
            T::summarize(slab, lifted);
        }
    }
}

/// Computes the summaries anew from `at` up to the root.
fn summarize_upwards<T: Keyed>(slab: &mut Slab<T>, mut at: Option<Index>) {
    if !T::HAS_SUMMARY {
        return;
    }
    while let Some(node) = at {
        T::summarize(slab, node);
        at = slab.get(node).branches().parent;
    }
}

/// The last item on the way down from `at` that always turns to `side`.
fn outermost<T: Keyed>(slab: &Slab<T>, mut at: Index, side: usize) -> Index {
    while let Some(child) = slab.get(at).branches().child[side] {
        at = child;
    }
    at
}

fn neighbor<T: Keyed>(slab: &Slab<T>, item: Index, side: usize) -> Option<Index> {
    let branches = slab.get(item).branches();
    if let Some(child) = branches.child[side] {
        return Some(outermost(slab, child, 1 - side));
    }
    let (mut below, mut at) = (item, branches.parent);
    while let Some(node) = at {
        let branches = slab.get(node).branches();
        if branches.child[side] != Some(below) {
            return Some(node);
        }
        (below, at) = (node, branches.parent);
    }
    None
}

#[cfg(test)]
mod tests;
