//! The entities of one class in one group: those that wait for service, and those that had their last service not long
//! enough ago to be forgotten.

use super::entity::{EntityState, InTree};
use super::virtual_time::{is_after, later, span};
use crate::slab::{Index, Slab};
use crate::tree::{Keyed, Tree};

/// One class of one group. Its clock, the virtual time, runs as fast as the ideal system serves a weight of one.
#[derive(Debug, Clone, Default)]
pub(super) struct ServiceTree {
    /// Entities that wait, but for the one in service.
    active: Tree,
    /// Entities without requests whose finish time is still to come. Their weight counts until then: an entity that
    /// comes back before starts where it finished, and so gains nothing by its absence.
    idle: Tree,
    pub(super) now: u64,
    /// The sum of the weights of the entities in both trees and of the one in service.
    pub(super) weight_sum: u64,
}

impl ServiceTree {
    pub(super) fn has_active(&self) -> bool {
        !self.active.is_empty()
    }

    #[inline]
    fn tree(&mut self, place: InTree) -> &mut Tree {
        debug_assert_ne!(place, InTree::Nowhere, "there are two trees");
        if place == InTree::Idle { &mut self.idle } else { &mut self.active }
    }

    /// Puts an entity that counts and is in no tree into one.
    #[inline]
    pub(super) fn insert(&mut self, states: &mut Slab<EntityState>, entity: Index, place: InTree) {
        let state = states.get_mut(entity);
        debug_assert!(
            state.place == InTree::Nowhere && state.is_counted,
            "an entity is put into one tree, and counted"
        );
        debug_assert!(
            place == InTree::Active || is_after(state.finish, self.now),
            "only an entity whose finish is to come is remembered"
        );
        state.place = place;
        self.tree(place).insert(states, entity);
    }

    /// Takes an entity from the tree that it is in.
    #[inline]
    pub(super) fn extract(&mut self, states: &mut Slab<EntityState>, entity: Index, place: InTree) {
        let state = states.get_mut(entity);
        debug_assert_eq!(state.place, place, "an entity is taken from the tree it is in");
        state.place = InTree::Nowhere;
        self.tree(place).remove(states, entity);
    }

    /// An entity ceases to wait. If `remembers`, it is kept in mind until its finish time.
    pub(super) fn leave(&mut self, states: &mut Slab<EntityState>, entity: Index, remembers: bool) {
        if remembers && is_after(states.get(entity).finish, self.now) {
            self.insert(states, entity, InTree::Idle);
        } else {
            self.forget(states, entity);
        }
    }

    /// Counts the weight of an entity that is about to be put into a tree.
    pub(super) fn count(&mut self, states: &mut Slab<EntityState>, entity: Index) {
        let state = states.get_mut(entity);
        debug_assert!(!state.is_counted, "a weight counts once");
        state.is_counted = true;
        self.weight_sum += state.weight;
    }

    /// Counts the weight of an entity no more.
    pub(super) fn forget(&mut self, states: &mut Slab<EntityState>, entity: Index) {
        let state = states.get_mut(entity);
        debug_assert!(state.is_counted && state.place == InTree::Nowhere, "an entity without a tree is forgotten");
        state.is_counted = false;
        self.weight_sum -= state.weight;
    }

    /// Moves the clock by a service to one of the tree's entities.
    ///
    /// COST: a division, and a logarithmic number of idle entities.
    pub(super) fn serve(&mut self, states: &mut Slab<EntityState>, sectors: u64) {
        self.now = self.now.wrapping_add(span(sectors, self.weight_sum));
        self.forget_past(states);
    }

    /// As [`serve`](Self::serve), to an entity that waits, and is not put into the active tree for that.
    pub(super) fn serve_one(&mut self, states: &mut Slab<EntityState>, sectors: u64) {
        self.now = self.now.wrapping_add(span(sectors, self.weight_sum));
        self.forget_first(states);
    }

    /// Moves the clock to `time`, unless it is past that.
    pub(super) fn jump(&mut self, states: &mut Slab<EntityState>, time: u64) {
        if is_after(time, self.now) {
            self.now = time;
            self.forget_past(states);
        }
    }

    /// Forgets an idle entity whose finish time has come. As in Linux it is one at a time, which bounds the work. While
    /// no entity waits, the clock stops at the last finish time on its way: no entity is left that it could make start
    /// later.
    fn forget_past(&mut self, states: &mut Slab<EntityState>) {
        if !self.has_active()
            && let Some(last) = self.idle.last(states)
            && !is_after(states.get(last).finish, self.now)
        {
            self.now = states.get(last).finish;
        }
        self.forget_first(states);
    }

    fn forget_first(&mut self, states: &mut Slab<EntityState>) {
        if let Some(first) = self.idle.first(states)
            && !is_after(states.get(first).finish, self.now)
        {
            self.extract(states, first, InTree::Idle);
            self.forget(states, first);
        }
    }

    /// The time at which at least one active entity may be served: now, or the earliest start if that is to come.
    pub(super) fn eligible_time(&self, states: &Slab<EntityState>) -> u64 {
        let Some(root) = self.active.root() else { return self.now };
        later(self.now, states.get(root).min_start)
    }

    /// Of the active entities that have started at `time`, the one that finishes first. If several finish then, the one
    /// of them that came first.
    ///
    /// COST: one path from the root down.
    pub(super) fn first_eligible(&self, states: &Slab<EntityState>, time: u64) -> Option<Index> {
        let has_started = |entity: &Index| !is_after(states.get(*entity).min_start, time);
        let mut at = self.active.root().filter(has_started)?;
        loop {
            let here = states.get(at);
            let [before, after] = here.branches().children();
            if let Some(before) = before.filter(has_started) {
                at = before;
            } else if !is_after(here.start, time) {
                return Some(at);
            } else {
                at = after.expect("one in the subtree has started, and it is neither here nor before");
            }
        }
    }
}
