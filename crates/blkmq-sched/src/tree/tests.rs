use std::vec::Vec;

use super::*;

#[derive(Debug)]
struct Item {
    name: usize,
    key: u64,
    branches: Branches,
}

impl Keyed for Item {
    fn key(&self) -> u64 {
        self.key
    }
    fn branches(&self) -> &Branches {
        &self.branches
    }
    fn branches_mut(&mut self) -> &mut Branches {
        &mut self.branches
    }
}

/// A tree beside the sorted vector that it must equal.
struct Pair {
    slab: Slab<Item>,
    tree: Tree,
    sorted: Vec<(u64, usize, Index)>,
    names: usize,
}

impl Pair {
    fn new() -> Self {
        Self { slab: Slab::new("test"), tree: Tree::default(), sorted: Vec::new(), names: 0 }
    }

    fn insert(&mut self, key: u64) {
        let name = self.names;
        self.names += 1;
        let index = self.slab.insert(Item { name, key, branches: Branches::default() });
        self.tree.insert(&mut self.slab, index);
        let place = self.sorted.partition_point(|entry| entry.0 <= key);
        self.sorted.insert(place, (key, name, index));
    }

    fn remove(&mut self, place: usize) {
        let (_, name, index) = self.sorted.remove(place);
        self.tree.remove(&mut self.slab, index);
        assert_eq!(self.slab.remove(index).name, name);
    }

    fn check_look_up(&self, key: u64) {
        let expected = self.sorted.iter().find(|entry| entry.0 >= key).map(|entry| entry.2);
        assert_eq!(self.tree.first_from(&self.slab, key), expected);
    }

    /// Order both ways, parents and balance.
    fn check(&self) {
        let order: Vec<Index> = self.sorted.iter().map(|entry| entry.2).collect();
        let forward: Vec<Index> =
            core::iter::successors(self.tree.first_from(&self.slab, 0), |item| self.tree.next(&self.slab, *item))
                .collect();
        assert_eq!(forward, order);
        let mut backward: Vec<Index> =
            core::iter::successors(order.last().copied(), |item| self.tree.prev(&self.slab, *item)).collect();
        backward.reverse();
        assert_eq!(backward, order);
        self.check_heights(*self.tree.root, None);
    }

    fn check_heights(&self, at: Option<Index>, parent: Option<Index>) -> u8 {
        let Some(node) = at else { return 0 };
        let branches = self.slab.get(node).branches();
        assert_eq!(branches.parent, parent);
        let [before, after] = branches.child.map(|child| self.check_heights(child, at));
        assert!(before.abs_diff(after) <= 1, "subtrees of heights {before} and {after}");
        assert_eq!(branches.lean, after as i8 - before as i8);
        before.max(after) + 1
    }
}

fn run(operations: impl IntoIterator<Item = (bool, u64)>, most: usize) {
    let mut pair = Pair::new();
    for (insert, value) in operations {
        if pair.sorted.is_empty() || (insert && pair.sorted.len() < most) {
            pair.insert(value);
        } else {
            pair.remove(value as usize % pair.sorted.len());
        }
        pair.check_look_up(value);
        pair.check();
    }
}

#[test]
fn every_order_of_six_insertions_and_removals() {
    for code in 0..6_u32.pow(6) {
        let digits: Vec<u64> = (0..6).map(|place| u64::from(code / 6_u32.pow(place) % 6)).collect();
        let mut pair = Pair::new();
        for digit in &digits {
            pair.insert(*digit / 2);
        }
        for digit in &digits {
            let place = *digit as usize % pair.sorted.len();
            pair.remove(place);
            pair.check();
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]
    #[test]
    fn any_operations_leave_a_sorted_balanced_tree(
        operations in proptest::collection::vec((proptest::bool::weighted(0.6), 0_u64..60), 0..300),
    ) {
        run(operations, 64);
    }
}
