//! Which queue is served next: B-WF2Q+ over a hierarchy of groups.
//!
//! The ideal system serves all entities at once, each at a rate of its weight among the weights of the entities that
//! wait. B-WF2Q+ serves one entity at a time, a budget of sectors each, and stays within about one largest budget of
//! the ideal system. It knows of each entity when the ideal system would start and finish its budget, in virtual time.
//! Of the entities that the ideal system has started (the eligible ones), B-WF2Q+ serves the one that would finish
//! first. If it served entities that are not eligible, a heavy one could run ahead by as much as its weight is larger.
//!
//! Sources: J. Bennett and H. Zhang, "Hierarchical packet fair queueing algorithms" (WF2Q+), ACM SIGCOMM 1996;
//! P. Valente and F. Checconi, "High throughput disk scheduling with fair bandwidth distribution" (budgets), IEEE
//! Transactions on Computers, 2010; I. Stoica and H. Abdel-Wahab, "Earliest eligible virtual deadline first" (the tree
//! that finds the eligible entity with the earliest finish), 1995.
//!
//! The budget of an entity that begins to wait starts now, or at its last finish time if that is still to come: until
//! then an entity that has left is remembered. When a service ends, the finish time is set to what was really served,
//! and the next budget starts there.
//!
//! A group is an entity of its own group, with the budget of the member that it would serve next. It waits while a
//! member waits.

mod entity;
mod group;
mod pass;
mod service_tree;
#[cfg(test)]
mod tests;
mod virtual_time;

pub(super) use entity::Entity;

use entity::{EntityState, InTree};
use group::Group;
use service_tree::ServiceTree;
use virtual_time::{MOST_SERVICE, is_after, later, span};

use super::clock::{Ticks, ticks};
use crate::data::Tracked;
use crate::slab::{Index, Slab};
use crate::{Class, Time};

/// All entities of a scheduler, and the root that holds them.
#[derive(Debug, Clone)]
pub(super) struct Forest {
    states: Slab<EntityState>,
    groups: Slab<Group>,
    root: Entity,
    now: Tracked<Ticks>,
    decides_early: bool,
}

impl Forest {
    /// A forest with an empty root.
    pub(super) fn new(now: Time) -> Self {
        let now = ticks(now);
        let (mut states, mut groups) = (Slab::new("bfq.entities"), Slab::new("bfq.trees"));
        let members = groups.insert(Group::new(None, now));
        // The root competes with no other entity. Its weight is never looked at.
        let root = states.insert(EntityState::new(None, Some(members), Class::BestEffort, 1));
        groups.get_mut(members).owner = Some(root);
        Self { states, groups, root: Entity(root), now: Tracked::new(now), decides_early: false }
    }

    /// From now on the next entity is the one that was looked up when the one before came into service, as in Linux.
    pub(super) const fn decide_early(&mut self) {
        self.decides_early = true;
    }

    /// Makes room for so many queues, and for so many groups beside the root; never shrinks.
    pub(super) fn reserve(&mut self, nr_queues: usize, nr_groups: usize) {
        self.states.reserve(nr_queues + nr_groups + 1);
        self.groups.reserve(nr_groups + 1);
    }

    /// Tells the time. The forest has no clock of its own.
    pub(super) fn set_now(&mut self, now: Time) {
        *self.now = ticks(now);
    }

    pub(super) const fn root(&self) -> Entity {
        self.root
    }

    /// A queue in the group `parent`. Its `weight` is in hundredths, so that a service of one sector to a weight of 100
    /// takes one unit of virtual time.
    pub(super) fn new_leaf(&mut self, parent: Entity, class: Class, weight: u32) -> Entity {
        self.insert(parent, None, class, weight)
    }

    /// A group without members in the group `parent`. Groups are best-effort.
    pub(super) fn new_group(&mut self, parent: Entity, weight: u32) -> Entity {
        let members = self.groups.insert(Group::new(None, *self.now));
        let group = self.insert(parent, Some(members), Class::BestEffort, weight);
        self.groups.get_mut(members).owner = Some(group.0);
        group
    }

    fn insert(&mut self, parent: Entity, members: Option<Index>, class: Class, weight: u32) -> Entity {
        debug_assert!(weight > 0, "an entity has a weight");
        let within = self.members(parent);
        self.groups.get_mut(within).nr_members += 1;
        let entity = self.states.insert(EntityState::new(Some(within), members, class, weight));
        self.finish_now(entity);
        Entity(entity)
    }

    /// An entity that has never been in its tree has finished now.
    fn finish_now(&mut self, entity: Index) {
        let (tree, states) = self.tree(entity);
        states.get_mut(entity).finish = tree.now;
    }

    /// Removes an entity that does not wait and is not in service.
    pub(super) fn remove(&mut self, entity: Entity) {
        debug_assert_ne!(entity, self.root, "the root stays");
        debug_assert!(!self.is_active(entity), "an entity that is removed neither waits nor is in service");
        self.forget(entity.0);
        let (within, members) = (self.within(entity.0), self.states.get(entity.0).members);
        self.groups.get_mut(within).nr_members -= 1;
        if let Some(members) = members {
            debug_assert_eq!(self.groups.get(members).nr_members, 0, "a group is removed after its members");
            self.groups.remove(members);
        }
        self.states.remove(entity.0);
    }

    /// Moves an entity that is not in service into another group. If it waits, it goes on waiting there, as a newcomer.
    pub(super) fn reparent(&mut self, entity: Entity, parent: Entity) {
        debug_assert!(!self.is_in_service(entity), "an entity in service is not moved");
        let waits = self.is_active(entity);
        if waits {
            self.leave(entity.0, false);
        }
        self.forget(entity.0);
        let (from, to) = (self.within(entity.0), self.members(parent));
        self.groups.get_mut(from).nr_members -= 1;
        self.groups.get_mut(to).nr_members += 1;
        self.states.get_mut(entity.0).within = Some(to);
        self.finish_now(entity.0);
        if waits {
            self.join(entity.0, false);
        }
    }

    /// Asks for another weight, in hundredths. It holds from when the entity is next put into its active tree.
    pub(super) fn set_weight(&mut self, entity: Entity, weight: u32) {
        debug_assert!(weight > 0, "an entity has a weight");
        let state = self.states.get_mut(entity.0);
        state.has_new_params |= state.new_params.weight != weight;
        state.new_params.weight = weight;
    }

    /// Asks for another class of a queue. It holds from when the queue is next put into its active tree.
    pub(super) fn set_class(&mut self, leaf: Entity, class: Class) {
        let state = self.states.get_mut(leaf.0);
        debug_assert!(state.members.is_none(), "groups are best-effort");
        state.has_new_params |= state.new_params.class != class;
        state.new_params.class = class;
    }

    /// Asks for `coefficient` times the queue's weight; 1 ends that. It holds from when the queue is next put into its
    /// active tree.
    pub(super) fn raise(&mut self, leaf: Entity, coefficient: u32) {
        debug_assert!(coefficient > 0, "a raised weight is not zero");
        let state = self.states.get_mut(leaf.0);
        debug_assert!(state.members.is_none(), "only queues are raised");
        state.has_new_params |= state.new_params.coefficient != coefficient;
        state.new_params.coefficient = coefficient;
    }

    /// Applies a weight that was asked for at once, without a look at the times that the old one gave.
    pub(super) fn apply_weight(&mut self, entity: Entity) {
        let class = self.states.get(entity.0).class;
        self.apply_wish(entity.0, class);
    }

    /// The queue, which did not wait, has requests now and may be served `budget` sectors. `was_prompt` says that it
    /// did not block while it was waited for: it then keeps its right to service from where it finished.
    pub(super) fn activate(&mut self, leaf: Entity, budget: u64, was_prompt: bool) {
        debug_assert!(!self.is_active(leaf), "a queue is activated when it does not wait yet");
        let state = self.states.get_mut(leaf.0);
        debug_assert!(state.members.is_none(), "a group waits because a member waits");
        (state.budget, state.service) = (budget, 0);
        self.join(leaf.0, was_prompt);
    }

    /// Gives a queue that waits or is in service another budget. A queue in service leaves service, and waits again.
    pub(super) fn requeue(&mut self, leaf: Entity, budget: u64) {
        debug_assert!(self.is_active(leaf), "only a queue that waits or is in service has times to set anew");
        self.states.get_mut(leaf.0).budget = budget;
        let expires = self.is_in_service(leaf);
        self.requeue_from(Some(leaf.0), expires);
    }

    /// The queue, which waited or was in service, has no requests any more. If `remembers`, it is kept in mind until
    /// its finish time. [`EntityState::service`] still tells what it was served.
    pub(super) fn deactivate(&mut self, leaf: Entity, remembers: bool) {
        debug_assert!(self.is_active(leaf), "only a queue that waits or is in service can cease to");
        self.leave(leaf.0, remembers);
    }

    /// Accounts a service of `sectors` to a queue that waits or is in service, and to all groups above it.
    ///
    /// COST: a division for each level.
    pub(super) fn serve(&mut self, leaf: Entity, sectors: u64) {
        debug_assert!(self.is_active(leaf), "a queue without requests is not served");
        let mut at = Some(leaf.0);
        while let Some(entity) = at
            && let Some(within) = self.states.get(entity).within
        {
            let state = self.states.get_mut(entity);
            state.service = (state.service + sectors).min(MOST_SERVICE);
            let class = state.class.index();
            let group = self.groups.get_mut(within);
            group.trees[class].serve(&mut self.states, sectors);
            at = group.owner;
        }
    }

    /// Makes the service of the queue in service count as `sectors` in all, if it was less, and its budget no less.
    /// Returns what was missing.
    pub(super) fn charge(&mut self, leaf: Entity, sectors: u64) -> u64 {
        debug_assert!(self.is_in_service(leaf), "only the queue in service is charged more than it was served");
        let state = self.states.get_mut(leaf.0);
        state.budget = state.budget.max(sectors);
        let missing = sectors.saturating_sub(state.service);
        self.serve(leaf, missing);
        missing
    }

    /// Puts the queue that comes next into service, with all groups above it. None if no queue waits.
    ///
    /// The queue is looked up anew on each level. Since the last look-up other entities may have started that finish
    /// earlier. And the clock jumps if no entity has started. Otherwise an entity that is served while it is alone
    /// would be ever further ahead of the clock. The next entity to come would start at the clock, and be served alone
    /// until it has caught up.
    ///
    /// COST: a walk down a tree at each level.
    pub(super) fn next(&mut self) -> Option<Entity> {
        let mut members = self.members(self.root);
        debug_assert!(self.groups.get(members).in_service.is_none(), "one queue is in service at a time");
        let leaf = loop {
            let group = self.groups.get_mut(members);
            if !self.decides_early {
                group.next = group.look_up(&mut self.states, *self.now, true);
            }
            let entity = group.next?;
            group.in_service = Some(entity);
            let state = self.states.get(entity);
            if state.class == Class::Idle {
                group.idle_class_served = *self.now;
            }
            match state.members {
                Some(below) => members = below,
                None => break entity,
            }
        };
        self.take_into_service(leaf);
        Some(Entity(leaf))
    }

    /// Makes a queue that waits the one that comes next, whatever its times are.
    pub(super) fn prefer(&mut self, leaf: Entity) {
        debug_assert!(self.is_active(leaf), "a queue that does not wait cannot come next");
        let mut at = Some(leaf.0);
        while let Some(entity) = at {
            let within = self.within(entity);
            self.groups.get_mut(within).next = Some(entity);
            at = self.above(entity);
        }
    }

    /// Whether the root would serve another member next than the one in service.
    pub(super) fn may_preempt(&self) -> bool {
        let group = self.groups.get(self.members(self.root));
        group.next != group.in_service
    }

    /// The queue in service.
    pub(super) fn in_service(&self) -> Option<Entity> {
        let mut members = self.members(self.root);
        loop {
            let entity = self.groups.get(members).in_service?;
            match self.states.get(entity).members {
                Some(below) => members = below,
                None => return Some(Entity(entity)),
            }
        }
    }

    /// Whether the entity waits or is in service.
    pub(super) fn is_active(&self, entity: Entity) -> bool {
        self.states.get(entity.0).place == InTree::Active || self.is_in_service(entity)
    }

    pub(super) fn is_in_service(&self, entity: Entity) -> bool {
        let within = self.states.get(entity.0).within;
        within.is_some_and(|within| self.groups.get(within).in_service == Some(entity.0))
    }

    /// What virtual time knows of the entity.
    pub(super) fn state(&self, entity: Entity) -> &EntityState {
        self.states.get(entity.0)
    }

    /// The sum of the weights in force of all members of the entity's group that wait, are in service or are
    /// remembered.
    pub(super) fn weight_sum(&self, entity: Entity) -> u64 {
        self.groups.get(self.within(entity.0)).trees.iter().map(|tree| tree.weight_sum).sum()
    }
}

/// One level at a time. The members of a group have the group's index in [`EntityState::within`].
impl Forest {
    fn members(&self, group: Entity) -> Index {
        self.states.get(group.0).members.expect("only groups have members")
    }

    fn within(&self, entity: Index) -> Index {
        self.states.get(entity).within.expect("the root is in no group, and is never moved or served")
    }

    /// The group above, unless that is the root.
    fn above(&self, entity: Index) -> Option<Index> {
        let owner = self.groups.get(self.within(entity)).owner?;
        self.states.get(owner).within.map(|_| owner)
    }

    fn tree(&mut self, entity: Index) -> (&mut ServiceTree, &mut Slab<EntityState>) {
        let within = self.within(entity);
        let class = self.states.get(entity).class.index();
        (&mut self.groups.get_mut(within).trees[class], &mut self.states)
    }

    /// Takes an entity that waits from its active tree.
    fn extract_active(&mut self, entity: Index) {
        let within = self.within(entity);
        self.groups.get_mut(within).nr_active -= 1;
        let (tree, states) = self.tree(entity);
        tree.extract(states, entity, InTree::Active);
    }

    /// Forgets an entity that does not wait and is not in service.
    fn forget(&mut self, entity: Index) {
        if self.states.get(entity).place == InTree::Idle {
            let (tree, states) = self.tree(entity);
            tree.extract(states, entity, InTree::Idle);
            tree.forget(states, entity);
        }
    }

    /// Makes the weight that was asked for, and the given class, hold. An entity that changes its class is in no tree.
    fn apply_wish(&mut self, entity: Index, class: Class) {
        let state = self.states.get(entity);
        if !state.has_new_params {
            return;
        }
        let (old_class, was_counted) = (state.class, state.is_counted);
        debug_assert!(old_class == class || state.place == InTree::Nowhere, "an entity in a tree keeps its class");
        let within = self.within(entity);
        let trees = &mut self.groups.get_mut(within).trees;
        let state = self.states.get_mut(entity);
        let old_weight = state.weight;
        state.weight = u64::from(state.new_params.weight) * u64::from(state.new_params.coefficient);
        state.class = class;
        state.has_new_params = state.class != state.new_params.class;
        if was_counted {
            trees[old_class.index()].weight_sum -= old_weight;
            trees[class.index()].weight_sum += state.weight;
        }
        if class != old_class {
            state.start = trees[class.index()].now;
        }
    }

    /// Puts an entity, whose start is set, into its active tree. If it starts in the past and would finish there, both
    /// times move on so that it finishes now. A raised queue moves less: it is to stay ahead of queues that are not
    /// raised.
    fn enqueue(&mut self, entity: Index, starts_in_past: bool) {
        self.set_finish(entity, starts_in_past);
        let within = self.within(entity);
        self.groups.get_mut(within).nr_active += 1;
        let (tree, states) = self.tree(entity);
        tree.insert(states, entity, InTree::Active);
    }

    fn set_finish(&mut self, entity: Index, starts_in_past: bool) {
        self.apply_wish(entity, self.states.get(entity).new_params.class);
        let (tree, states) = self.tree(entity);
        let now = tree.now;
        let state = states.get_mut(entity);
        state.finish = state.start.wrapping_add(span(state.budget, state.weight));
        if starts_in_past && is_after(now, state.finish) {
            let gap = now.wrapping_sub(state.finish) / u64::from(state.new_params.coefficient);
            state.start = state.start.wrapping_add(gap);
            state.finish = state.finish.wrapping_add(gap);
        }
    }

    /// An entity that did not wait starts to.
    fn begin(&mut self, entity: Index, was_prompt: bool) {
        let starts_in_past = self.set_start(entity, was_prompt);
        self.enqueue(entity, starts_in_past);
    }

    /// Sets when an entity starts that does not wait yet, and counts it. Returns whether that is in the past.
    fn set_start(&mut self, entity: Index, was_prompt: bool) -> bool {
        let (tree, states) = self.tree(entity);
        let state = states.get_mut(entity);
        let starts_in_past = was_prompt && is_after(tree.now, state.finish);
        let earliest = if starts_in_past { state.finish } else { tree.now };
        if state.place == InTree::Idle {
            state.start = later(earliest, state.finish);
            tree.extract(states, entity, InTree::Idle);
        } else {
            state.start = earliest;
            tree.count(states, entity);
        }
        starts_in_past
    }

    /// Gives an entity that waits or is in service times for its present budget. An entity in service starts again
    /// where its service has brought it. Unlike in Linux, a group that meets this several times while it is in service
    /// pays for each sector once.
    fn reposition(&mut self, entity: Index) {
        let in_service = self.is_in_service(Entity(entity));
        if self.states.get(entity).place == InTree::Active {
            self.extract_active(entity);
        }
        let state = self.states.get_mut(entity);
        if in_service {
            state.start = state.start.wrapping_add(span(state.service, state.weight));
            state.service = 0;
        }
        self.enqueue(entity, false);
    }

    /// An entity that waited or was in service ceases to. It leaves service here, but not at the levels above.
    fn end(&mut self, entity: Index, remembers: bool) {
        let in_service = self.is_in_service(Entity(entity));
        if self.states.get(entity).place == InTree::Active {
            self.extract_active(entity);
        }
        let within = self.within(entity);
        let state = self.states.get_mut(entity);
        state.finish = state.start.wrapping_add(span(state.service, state.weight));
        if in_service {
            self.groups.get_mut(within).in_service = None;
        }
        if self.states.get(entity).members.is_some() {
            self.states.get_mut(entity).service = 0;
        }
        let (tree, states) = self.tree(entity);
        tree.leave(states, entity, remembers);
    }

    /// Sets the next member of a group, whose `newcomer` has just been put into its active tree. A newcomer that comes
    /// before the next one so far, or is alone, needs no look-up: the clock does not jump then. Returns whether the
    /// times of the group itself may have changed: it had no next member before, or it now has a smaller budget.
    fn update_next(&mut self, within: Index, newcomer: Option<Index>) -> bool {
        let group = self.groups.get_mut(within);
        let kept = group.next;
        let wins = match (newcomer, kept) {
            (Some(_), None) => true,
            (Some(newcomer), Some(kept)) => newcomer != kept && group.comes_before(&self.states, newcomer, kept),
            (None, _) => false,
        };
        let next = if wins { newcomer } else { group.look_up(&mut self.states, *self.now, self.decides_early) };
        group.next = next;
        let (Some(next), Some(owner)) = (next, group.owner) else { return false };
        let budget = self.states.get(next).budget;
        let owner = self.states.get_mut(owner);
        let is_smaller = budget < core::mem::replace(&mut owner.budget, budget);
        kept.is_none() || is_smaller
    }
}

/// Along the path from an entity to the root.
impl Forest {
    /// An entity starts to wait, and the groups above it with it.
    fn join(&mut self, entity: Index, was_prompt: bool) {
        let mut at = Some(entity);
        while let Some(entity) = at {
            let in_service = self.is_in_service(Entity(entity));
            if in_service || self.states.get(entity).place == InTree::Active {
                self.reposition(entity);
            } else {
                self.begin(entity, was_prompt);
            }
            if !self.update_next(self.within(entity), Some(entity)) {
                return;
            }
            at = self.above(entity);
        }
    }

    /// An entity ceases to wait, and each group above it that has no other member to serve.
    fn leave(&mut self, entity: Index, remembers: bool) {
        let expires = self.is_in_service(Entity(entity));
        let (mut at, mut remembers) = (Some(entity), remembers);
        while let Some(entity) = at {
            self.end(entity, remembers);
            let within = self.within(entity);
            if self.groups.get(within).next == Some(entity) {
                self.update_next(within, None);
            }
            at = self.above(entity);
            let group = self.groups.get(within);
            if group.next.is_some() || group.in_service.is_some() {
                break;
            }
            remembers = true;
        }
        self.requeue_from(at, expires);
    }

    /// Gives `at` and the groups above it times anew, as far up as that changes something. If the path `expires`, it
    /// leaves service on all levels.
    fn requeue_from(&mut self, mut at: Option<Index>, expires: bool) {
        while let Some(entity) = at {
            let in_service = self.is_in_service(Entity(entity));
            debug_assert!(in_service || !expires, "all groups above a queue in service are in service");
            self.reposition(entity);
            let within = self.within(entity);
            if expires {
                self.groups.get_mut(within).in_service = None;
            }
            let changes = self.update_next(within, Some(entity));
            if !changes && !expires {
                return;
            }
            at = self.above(entity);
        }
    }

    /// Takes a queue and the groups above it, which were put into service, from the active trees, as far as they cannot
    /// come next again: a group can while another member of it waits.
    fn take_into_service(&mut self, leaf: Index) {
        let mut at = Some(leaf);
        while let Some(entity) = at {
            let members = self.states.get(entity).members;
            if members.is_none_or(|members| self.groups.get(members).nr_active == 0) {
                self.extract_active(entity);
            }
            self.update_next(self.within(entity), None);
            at = self.above(entity);
        }
    }
}
