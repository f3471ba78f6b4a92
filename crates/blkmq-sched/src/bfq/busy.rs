//! Queues that wait: what is counted of them, and their way into and out of virtual time.

use super::Bfq;
use super::queue::Queue;
use crate::slab::Index;
use crate::tree::{Branches, Keyed};

/// A weight of a queue that has requests, waiting or with the device, and is not raised.
#[derive(Debug, Clone)]
pub(super) struct Weight {
    weight: u64,
    branches: Branches,
}

impl Keyed for Weight {
    fn key(&self) -> u64 {
        self.weight
    }
    fn branches(&self) -> &Branches {
        &self.branches
    }
    fn branches_mut(&mut self) -> &mut Branches {
        &mut self.branches
    }
}

impl Bfq {
    /// Queues that wait or are in service.
    pub(super) fn nr_busy(&self) -> u32 {
        self.busy.iter().sum()
    }

    /// A queue that did not wait starts to, with this budget.
    pub(super) fn begin(&mut self, q: Index, budget: u64) {
        let queue = self.queues.get_mut(q);
        debug_assert!(!queue.is_busy, "a queue begins to wait once");
        let was_prompt = core::mem::take(&mut queue.may_resume);
        let entity = queue.entity;
        self.forest.activate(entity, budget, was_prompt);
        self.note_weight(q);
        self.list(q);
        let class = self.forest.state(entity).class;
        let queue = self.queues.get_mut(q);
        (queue.is_busy, queue.busy_class) = (true, class);
        let (is_raised, dispatched) = (queue.raising.is_raised(), queue.dispatched);
        self.busy[class.index()] += 1;
        if dispatched == 0 {
            self.begin_pending(q);
        }
        self.raised_busy += u32::from(is_raised);
        self.come_first_of_woken(q);
    }

    /// A queue ceases to wait. If `remembers`, virtual time remembers it until its finish time, so a quick return gains
    /// nothing.
    pub(super) fn cease(&mut self, q: Index, remembers: bool) {
        let queue = self.queues.get_mut(q);
        debug_assert!(queue.is_busy && queue.is_empty(), "a queue ceases to wait when it has no requests");
        queue.is_busy = false;
        let (entity, is_raised, dispatched) = (queue.entity, queue.raising.is_raised(), queue.dispatched);
        let class = queue.busy_class;
        self.busy[class.index()] -= 1;
        self.raised_busy -= u32::from(is_raised);
        self.unlist(q);
        self.forest.deactivate(entity, remembers);
        if dispatched == 0 {
            self.end_pending(q);
        }
    }

    /// A queue that waits or leaves service has another budget from now on.
    pub(super) fn requeue(&mut self, q: Index, budget: u64) {
        let entity = self.queues.get(q).entity;
        self.forest.requeue(entity, budget);
        self.note_weight(q);
        self.unlist(q);
        self.list(q);
        self.count_class(q);
    }

    /// Makes the weight that was asked for hold at once.
    pub(super) fn apply_weight(&mut self, q: Index) {
        self.forest.apply_weight(self.queues.get(q).entity);
        self.note_weight(q);
    }

    /// A queue that waits may have another class in force: it counts as busy there.
    pub(super) fn count_class(&mut self, q: Index) {
        let class = self.class(q);
        let queue = self.queues.get_mut(q);
        if queue.is_busy && queue.busy_class != class {
            self.busy[queue.busy_class.index()] -= 1;
            self.busy[class.index()] += 1;
            queue.busy_class = class;
        }
    }

    /// The queue has requests now, waiting or with the device.
    pub(super) fn begin_pending(&mut self, q: Index) {
        let queue = self.queues.get_mut(q);
        if !core::mem::replace(&mut queue.is_pending, true) {
            self.groups.begin_pending(queue.group);
        }
        if !self.queues.get(q).raising.is_raised() {
            self.weigh(q);
        }
    }

    /// The queue has no requests any more.
    pub(super) fn end_pending(&mut self, q: Index) {
        let queue = self.queues.get_mut(q);
        if core::mem::take(&mut queue.is_pending) {
            self.groups.end_pending(queue.group);
        }
        self.unweigh(q);
    }

    fn weigh(&mut self, q: Index) {
        let weight = self.forest.state(self.queues.get(q).entity).weight;
        if self.queues.get(q).weighed.is_none() {
            let item = self.weights.insert(Weight { weight, branches: Branches::default() });
            self.weight_order.insert(&mut self.weights, item);
            self.queues.get_mut(q).weighed = Some(item);
        }
    }

    fn unweigh(&mut self, q: Index) {
        if let Some(item) = self.queues.get_mut(q).weighed.take() {
            self.weight_order.remove(&mut self.weights, item);
            self.weights.remove(item);
        }
    }

    /// The weight in force of a queue may have changed.
    pub(super) fn note_weight(&mut self, q: Index) {
        let Queue { entity, weight, weighed, is_pending, .. } = *self.queues.get(q);
        self.queues.get_mut(q).weight_in_force = weight;
        let in_force = self.forest.state(entity).weight;
        let counted = weighed.map(|item| self.weights.get(item).weight);
        if counted == Some(in_force) {
            return;
        }
        self.unweigh(q);
        if is_pending && !self.queues.get(q).raising.is_raised() {
            self.weigh(q);
        }
    }

    /// Whether queues of different weights have requests, of which `q` has not the smallest weight.
    fn weights_differ(&self, q: Index) -> bool {
        let Some(smallest) = self.weight_order.first_from(&self.weights, 0) else { return false };
        let smallest = self.weights.get(smallest).weight;
        let own = self.queues.get(q).weighed.map(|item| self.weights.get(item).weight);
        own != Some(smallest) && self.weight_order.first_from(&self.weights, smallest + 1).is_some()
    }

    /// Whether `q` gets its share only if it is waited for and its service is counted exactly: because another queue
    /// has another weight, class or group.
    pub(super) fn is_asymmetric(&self, q: Index) -> bool {
        let classes = self.busy.iter().filter(|number| **number > 0).count();
        // COST: the weights are looked at last, because that is a walk down a tree.
        classes > 1 || self.groups.nr_pending > 1 || self.weights_differ(q)
    }

    /// Puts a queue first among the queues that wait.
    fn list(&mut self, q: Index) {
        debug_assert!(!self.queues.get(q).is_listed, "a queue is listed once");
        self.queues.get_mut(q).is_listed = true;
        self.active.push_front(&mut self.queues, q);
    }

    pub(super) fn unlist(&mut self, q: Index) {
        if core::mem::take(&mut self.queues.get_mut(q).is_listed) {
            self.active.remove(&mut self.queues, q);
        }
    }
}
