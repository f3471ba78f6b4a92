//! A balanced tree of items in a slab, sorted by a key; equal keys keep the order in which they came.
//!
//! It is an AVL tree with parent links: the heights of a node's two subtrees differ by at most one, so with n items no
//! path is longer than 1.45 log2(n). Nothing recurses.

use crate::slab::{Index, Probe, Slab};

/// An item's place in a tree.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Branches {
    parent: Option<Index>,
    /// The subtrees before and after.
    child: [Option<Index>; 2],
    /// Nodes on the longest path down, this one included.
    height: u8,
}

/// An item that can be in a tree. Its key must not change while it is.
pub(crate) trait Keyed {
    fn key(&self) -> u64;
    fn branches(&self) -> &Branches;
    fn branches_mut(&mut self) -> &mut Branches;
}

const BEFORE: usize = 0;
const AFTER: usize = 1;

/// The root of a tree. It owns nothing: items live in the slab that is passed to each method.
/// COST: each method touches a logarithmic number of items.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    root: Option<Index>,
}

impl Tree {
    /// Puts `item` in its place: behind all whose keys are equal.
    pub(crate) fn insert<T: Keyed, P: Probe>(&mut self, slab: &mut Slab<T, P>, item: Index) {
        let key = slab.get(item).key();
        let (mut parent, mut side, mut at) = (None, BEFORE, self.root);
        while let Some(node) = at {
            let here = slab.get(node);
            side = usize::from(here.key() <= key);
            (parent, at) = (Some(node), here.branches().child[side]);
        }
        *slab.get_mut(item).branches_mut() = Branches { parent, child: [None; 2], height: 1 };
        match parent {
            Some(node) => slab.get_mut(node).branches_mut().child[side] = Some(item),
            None => self.root = Some(item),
        }
        self.rebalance(slab, parent);
    }

    /// Takes `item`, which is in this tree, out.
    pub(crate) fn remove<T: Keyed, P: Probe>(&mut self, slab: &mut Slab<T, P>, item: Index) {
        let old = core::mem::take(slab.get_mut(item).branches_mut());
        let lowest_changed = match old.child {
            [Some(_), Some(after)] => {
                let heir = outermost(slab, after, BEFORE);
                let heir_branches = *slab.get(heir).branches();
                let mut adopted = old;
                let mut lowest = Some(heir);
                if heir != after {
                    lowest = heir_branches.parent;
                    self.replace(slab, heir_branches.parent, heir, heir_branches.child[AFTER]);
                } else {
                    adopted.child[AFTER] = heir_branches.child[AFTER];
                }
                *slab.get_mut(heir).branches_mut() = adopted;
                for child in adopted.child.into_iter().flatten() {
                    slab.get_mut(child).branches_mut().parent = Some(heir);
                }
                self.replace(slab, old.parent, item, Some(heir));
                lowest
            }
            [before, after] => {
                self.replace(slab, old.parent, item, before.or(after));
                old.parent
            }
        };
        self.rebalance(slab, lowest_changed);
    }

    /// The first item whose key is at least `key`; of equal ones, the one that came first.
    pub(crate) fn first_from<T: Keyed, P: Probe>(&self, slab: &Slab<T, P>, key: u64) -> Option<Index> {
        let (mut best, mut at) = (None, self.root);
        while let Some(node) = at {
            let here = slab.get(node);
            let fits = here.key() >= key;
            if fits {
                best = Some(node);
            }
            at = here.branches().child[if fits { BEFORE } else { AFTER }];
        }
        best
    }

    /// The item after `item` in order.
    pub(crate) fn next<T: Keyed, P: Probe>(&self, slab: &Slab<T, P>, item: Index) -> Option<Index> {
        neighbor(slab, item, AFTER)
    }

    /// The item before `item` in order.
    pub(crate) fn prev<T: Keyed, P: Probe>(&self, slab: &Slab<T, P>, item: Index) -> Option<Index> {
        neighbor(slab, item, BEFORE)
    }

    /// Makes `new` the child that `old` was of `parent`.
    fn replace<T: Keyed, P: Probe>(
        &mut self,
        slab: &mut Slab<T, P>,
        parent: Option<Index>,
        old: Index,
        new: Option<Index>,
    ) {
        match parent {
            None => self.root = new,
            Some(parent) => {
                let child = &mut slab.get_mut(parent).branches_mut().child;
                let side = usize::from(child[AFTER] == Some(old));
                child[side] = new;
            }
        }
        if let Some(new) = new {
            slab.get_mut(new).branches_mut().parent = parent;
        }
    }

    /// Restores heights and balance from `at` upwards, and stops where nothing changes any more.
    fn rebalance<T: Keyed, P: Probe>(&mut self, slab: &mut Slab<T, P>, mut at: Option<Index>) {
        while let Some(node) = at {
            let Branches { child, height: old_height, .. } = *slab.get(node).branches();
            let [before, after] = child.map(|child| height(slab, child));
            let top = if before > after + 1 {
                self.lean(slab, node, BEFORE)
            } else if after > before + 1 {
                self.lean(slab, node, AFTER)
            } else {
                slab.get_mut(node).branches_mut().height = before.max(after) + 1;
                node
            };
            let branches = slab.get(top).branches();
            if branches.height == old_height {
                return;
            }
            at = branches.parent;
        }
    }

    /// Levels `node`, whose subtree on `side` is higher by two; returns the new top of these.
    fn lean<T: Keyed, P: Probe>(&mut self, slab: &mut Slab<T, P>, node: Index, side: usize) -> Index {
        let heavy = slab.get(node).branches().child[side].expect("the higher subtree is not empty");
        let grandchildren = slab.get(heavy).branches().child.map(|child| height(slab, child));
        if grandchildren[1 - side] > grandchildren[side] {
            self.rotate(slab, heavy, 1 - side);
        }
        self.rotate(slab, node, side)
    }

    /// Lifts the child of `node` on `side` above it; returns that child.
    fn rotate<T: Keyed, P: Probe>(&mut self, slab: &mut Slab<T, P>, node: Index, side: usize) -> Index {
        let lifted = slab.get(node).branches().child[side].expect("only an existing child is lifted");
        let parent = slab.get(node).branches().parent;
        let inner = slab.get(lifted).branches().child[1 - side];
        slab.get_mut(node).branches_mut().child[side] = inner;
        if let Some(inner) = inner {
            slab.get_mut(inner).branches_mut().parent = Some(node);
        }
        self.replace(slab, parent, node, Some(lifted));
        slab.get_mut(lifted).branches_mut().child[1 - side] = Some(node);
        slab.get_mut(node).branches_mut().parent = Some(lifted);
        for index in [node, lifted] {
            let [before, after] = slab.get(index).branches().child.map(|child| height(slab, child));
            slab.get_mut(index).branches_mut().height = before.max(after) + 1;
        }
        lifted
    }
}

fn height<T: Keyed, P: Probe>(slab: &Slab<T, P>, at: Option<Index>) -> u8 {
    at.map_or(0, |node| slab.get(node).branches().height)
}

/// The last item on the way down from `at` that always turns to `side`.
fn outermost<T: Keyed, P: Probe>(slab: &Slab<T, P>, mut at: Index, side: usize) -> Index {
    while let Some(child) = slab.get(at).branches().child[side] {
        at = child;
    }
    at
}

fn neighbor<T: Keyed, P: Probe>(slab: &Slab<T, P>, item: Index, side: usize) -> Option<Index> {
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
