//! What competes for service: a queue (a leaf) or a group.

use super::virtual_time;
use crate::Class;
use crate::slab::{Index, Slab};
use crate::tree::{Branches, Keyed};

/// Names a queue or a group of a [`Forest`](super::Forest); by default its root, which is made first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::bfq) struct Entity(pub(super) Index);

impl Entity {
    /// The entity's place among those that are there, from 1 on.
    pub(in crate::bfq) const fn number(self) -> usize {
        self.0.number().get() as usize
    }
}

/// Where an entity is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum InTree {
    /// In no tree: forgotten, or in service.
    #[default]
    Nowhere,
    /// In the active tree of its class.
    Active,
    /// In the idle tree of its class.
    Idle,
}

/// What is asked of an entity, and holds from the moment at which it is put into the active tree next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct NewParams {
    pub(super) class: Class,
    pub(super) weight: u32,
    /// By how much the weight is multiplied while the queue is raised; 1 while it is not.
    pub(super) coefficient: u32,
}

/// An entity as its group sees it.
#[derive(Debug, Clone, Default)]
pub(in crate::bfq) struct EntityState {
    /// The group that this entity belongs to; none for the root.
    pub(super) within: Option<Index>,
    /// The entities that belong to this one; none for a queue.
    pub(super) members: Option<Index>,
    pub(super) new_params: NewParams,
    /// True if the wish differs from what is in force.
    pub(super) has_new_params: bool,
    /// The class and weight in force.
    pub(in crate::bfq) class: Class,
    pub(in crate::bfq) weight: u64,
    /// Sectors that the entity may be served before it has to queue again. A group has that of its next member.
    pub(in crate::bfq) budget: u64,
    /// Sectors that the entity was served since its start time was set.
    pub(in crate::bfq) service: u64,
    /// Virtual times of its group and class: when its budget starts and ends in the ideal system.
    pub(in crate::bfq) start: u64,
    pub(in crate::bfq) finish: u64,
    /// The earliest start in the subtree of the active tree below and including this entity.
    pub(super) min_start: u64,
    pub(super) place: InTree,
    /// True if the weight counts in the sum of its service tree: the entity is in a tree or in service.
    pub(super) is_counted: bool,
    branches: Branches,
}

impl EntityState {
    pub(super) fn new(within: Option<Index>, members: Option<Index>, class: Class, weight: u32) -> Self {
        let new_params = NewParams { class, weight, coefficient: 1 };
        Self { within, members, new_params, class, weight: u64::from(weight), ..Self::default() }
    }
}

/// Both trees are sorted by finish time. The idle tree has no use for the summary.
impl Keyed for EntityState {
    const HAS_SUMMARY: bool = true;

    fn key(&self) -> u64 {
        self.finish
    }
    fn branches(&self) -> &Branches {
        &self.branches
    }
    fn branches_mut(&mut self) -> &mut Branches {
        &mut self.branches
    }
    fn is_before(key: u64, other: u64) -> bool {
        virtual_time::is_after(other, key)
    }
    fn summarize(slab: &mut Slab<Self>, node: Index) {
        let here = slab.get(node);
        let mut earliest = here.start;
        for child in here.branches.children().into_iter().flatten() {
            let below = slab.get(child).min_start;
            if virtual_time::is_after(earliest, below) {
                earliest = below;
            }
        }
        slab.get_mut(node).min_start = earliest;
    }
}
