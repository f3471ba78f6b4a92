//! A forest whose queues get requests, and are served one request at a time, beside a judge of what each member gets.

use std::collections::VecDeque;
use std::vec::Vec;

use proptest::prelude::*;

use super::super::*;
use crate::random::Random;

/// Looks at what each member gets: a queue or a group, by a number of the judge's. A queue stands for the groups above
/// it too.
pub(super) trait Judge {
    /// Adds a member, of which no budget is larger than `most`. The first one is the root, and its own parent.
    fn add(&mut self, parent: usize, weight: u32, most: u64) -> usize;

    /// The queue begins to wait.
    fn begin(&mut self, queue: usize);

    /// The queue is put into service.
    fn choose(&mut self, queue: usize);

    /// So many sectors of the queue are served. Panics if a member is too far from where it should be.
    fn serve(&mut self, queue: usize, sectors: u64);

    /// The queue has nothing more.
    fn end(&mut self, queue: usize);
}

/// A queue with the sizes of its requests.
pub(super) struct Leaf {
    pub(super) entity: Entity,
    member: usize,
    /// Its largest budget.
    most: u64,
    pub(super) requests: VecDeque<u64>,
}

/// The forest and the judge, who are told of the same requests.
pub(super) struct World<J> {
    pub(super) forest: Forest,
    pub(super) judge: J,
    pub(super) leaves: Vec<Leaf>,
    pub(super) random: Random,
    groups: Vec<(Entity, usize)>,
    in_service: Option<usize>,
    /// Queues come promptly or late, and are remembered or not when they go. Otherwise they are late and remembered,
    /// and the next one is chosen as soon as one goes.
    varies: bool,
}

impl<J: Judge> World<J> {
    pub(super) fn new(seed: u64, mut judge: J, varies: bool) -> Self {
        let forest = Forest::new(Time(0));
        let groups = Vec::from([(forest.root(), judge.add(0, 1, 0))]);
        Self { forest, judge, leaves: Vec::new(), random: Random(seed), groups, in_service: None, varies }
    }

    pub(super) fn add_group(&mut self, within: usize, weight: u32) {
        let (parent, member) = self.groups[within % self.groups.len()];
        self.groups.push((self.forest.new_group(parent, weight), self.judge.add(member, weight, 0)));
    }

    pub(super) fn add_leaf(&mut self, within: usize, weight: u32, most: u64) {
        let (parent, member) = self.groups[within % self.groups.len()];
        let entity = self.forest.new_leaf(parent, Class::BestEffort, weight);
        let member = self.judge.add(member, weight, most);
        self.leaves.push(Leaf { entity, member, most, requests: VecDeque::new() });
    }

    /// A budget that is large enough for the queue's next request.
    fn budget(&mut self, leaf: usize) -> u64 {
        let Leaf { most, requests, .. } = &self.leaves[leaf];
        requests[0].max(1 + self.random.below(*most))
    }

    /// Requests of these sizes come to a queue.
    pub(super) fn arrive(&mut self, leaf: usize, sizes: impl IntoIterator<Item = u64>) {
        let begins = self.leaves[leaf].requests.is_empty();
        self.leaves[leaf].requests.extend(sizes);
        if begins {
            let budget = self.budget(leaf);
            let was_prompt = self.varies && self.random.below(2) == 0;
            self.forest.activate(self.leaves[leaf].entity, budget, was_prompt);
            self.judge.begin(self.leaves[leaf].member);
        }
    }

    /// Serves one request, and returns its queue. `None` if there is none.
    pub(super) fn serve(&mut self) -> Option<usize> {
        let mut leaf = self.in_service.or_else(|| self.choose())?;
        let entity = self.leaves[leaf].entity;
        if self.forest.state(entity).service + self.leaves[leaf].requests[0] > self.forest.state(entity).budget {
            let budget = self.budget(leaf);
            self.forest.requeue(entity, budget);
            leaf = self.choose().expect("the one that left waits");
        }
        let Leaf { entity, member, .. } = self.leaves[leaf];
        let sectors = self.leaves[leaf].requests.pop_front().expect("a queue that waits has a request");
        self.forest.serve(entity, sectors);
        self.judge.serve(member, sectors);
        if self.leaves[leaf].requests.is_empty() {
            let remembers = !self.varies || self.random.below(4) > 0;
            self.forest.deactivate(entity, remembers);
            self.in_service = None;
            self.judge.end(member);
            if !self.varies {
                self.choose();
            }
        }
        Some(leaf)
    }

    fn choose(&mut self) -> Option<usize> {
        let entity = self.forest.next();
        self.in_service = entity.and_then(|entity| self.leaves.iter().position(|leaf| leaf.entity == entity));
        self.judge.choose(self.leaves[self.in_service?].member);
        self.in_service
    }
}

/// Weights of clients, most of them apart by far.
pub(super) fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![Just(100_u32), Just(1000), Just(4000), Just(40_000), 100_u32..10_000]
}
