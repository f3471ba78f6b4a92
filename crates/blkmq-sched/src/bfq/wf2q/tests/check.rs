//! What holds of a forest after every operation.

use std::vec::Vec;

use super::super::entity::{EntityState, InTree};
use super::super::group::Group;
use super::super::virtual_time::is_after;
use super::super::{Class, Forest};
use crate::slab::Index;
use crate::tree::{Keyed, Tree};

/// The members of a tree in order, the height of the tree, and the earliest start in it.
struct Walk<'a> {
    forest: &'a Forest,
    order: Vec<Index>,
}

impl Walk<'_> {
    fn visit(&mut self, at: Option<Index>) -> (u32, Option<u64>) {
        let Some(node) = at else { return (0, None) };
        let [before, after] = self.state(node).branches().children();
        let (left, left_start) = self.visit(before);
        self.order.push(node);
        let (right, right_start) = self.visit(after);
        assert!(left.abs_diff(right) <= 1, "the tree is balanced");
        let state = self.state(node);
        let earliest = [left_start, right_start]
            .into_iter()
            .flatten()
            .fold(state.start, |best, start| if is_after(best, start) { start } else { best });
        assert_eq!(state.min_start, earliest, "each node knows the earliest start of its subtree");
        (left.max(right) + 1, Some(earliest))
    }

    fn state(&self, node: Index) -> &EntityState {
        self.forest.states.get(node)
    }
}

/// The members of a tree, whose order, balance and summaries are right.
fn members_of(forest: &Forest, tree: &Tree) -> Vec<Index> {
    let mut walk = Walk { forest, order: Vec::new() };
    walk.visit(tree.root());
    let is_sorted = |pair: &[Index]| !is_after(walk.state(pair[0]).finish, walk.state(pair[1]).finish);
    assert!(walk.order.windows(2).all(is_sorted), "a tree is sorted by finish time");
    walk.order
}

/// Checks the group whose entity is `owner`; `all` are all entities of the forest.
fn check_group(forest: &Forest, all: &[Index], owner: Index, group: &Group) {
    let mut nr_active = 0;
    for class in Class::ALL {
        let tree = &group.trees[class.index()];
        let [active, idle] = tree.trees().map(|tree| members_of(forest, tree));
        nr_active += active.len();
        let is_ours = |entity: &&Index| {
            let state = forest.states.get(**entity);
            state.within == forest.states.get(owner).members && state.class == class
        };
        for (members, place) in [(active, InTree::Active), (idle, InTree::Idle)] {
            let mut expected: Vec<Index> = all
                .iter()
                .filter(is_ours)
                .filter(|entity| forest.states.get(**entity).place == place)
                .copied()
                .collect();
            expected.retain(|entity| !members.contains(entity));
            assert!(expected.is_empty(), "an entity is where it says it is");
            assert!(members.iter().all(|entity| forest.states.get(*entity).place == place));
        }
        let weights = all.iter().filter(is_ours).map(|entity| forest.states.get(*entity));
        let sum: u64 = weights.filter(|state| state.is_counted).map(|state| state.weight).sum();
        assert_eq!(tree.weight_sum, sum, "the sum of the weights is that of the entities that count");
    }
    assert_eq!(group.nr_active as usize, nr_active);
    assert_eq!(group.next.is_some(), nr_active > 0, "a group knows a next member while one waits");
    assert!(group.next.is_none_or(|next| forest.states.get(next).place == InTree::Active));
    let is_active = forest.is_active(super::super::Entity(owner));
    let has_active = nr_active > 0 || group.in_service.is_some();
    assert!(forest.root.0 == owner || is_active == has_active, "a group waits while a member waits");
}

/// Panics where the forest, which consists of `all` and the root, contradicts itself.
pub(super) fn check(forest: &Forest, all: &[Index]) {
    for entity in all.iter().chain([&forest.root.0]) {
        let state = forest.states.get(*entity);
        if let Some(members) = state.members {
            check_group(forest, all, *entity, forest.groups.get(members));
        }
        let is_in_service = forest.is_in_service(super::super::Entity(*entity));
        assert_eq!(state.is_counted, state.place != InTree::Nowhere || is_in_service, "who waits or is served counts");
    }
}
