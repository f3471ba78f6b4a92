//! The members of a group, by class, and which of them comes next.

use super::entity::State;
use super::service_tree::ServiceTree;
use super::virtual_time::is_after;
use crate::slab::{Index, Slab};
use crate::{Class, Time};

/// A higher class does not keep the idle class from service for longer than this, in nanoseconds.
const MOST_IDLE_CLASS_WAIT: u64 = 200_000_000;

/// The entities of one group.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// The group as an entity of its own group.
    pub(super) owner: Option<Index>,
    /// By [`Class::index`].
    pub(super) trees: [ServiceTree; 3],
    pub(super) in_service: Option<Index>,
    /// The member to serve next. It is kept, and looked up only when it may have changed.
    pub(super) next: Option<Index>,
    /// Members in active trees.
    pub(super) nr_active: u32,
    pub(super) nr_members: u32,
    /// When a member of the idle class was last put into service, or none was found to wait.
    pub(super) idle_class_served: Time,
}

impl Group {
    pub(super) fn new(owner: Option<Index>, now: Time) -> Self {
        Self {
            owner,
            trees: Default::default(),
            in_service: None,
            next: None,
            nr_active: 0,
            nr_members: 0,
            idle_class_served: now,
        }
    }

    /// The member to serve next. While nobody is in service, a clock that is before the earliest start jumps to it.
    pub(super) fn look_up(&mut self, states: &mut Slab<State>, now: Time) -> Option<Index> {
        let mut first = Class::RealTime.index();
        if now.since(self.idle_class_served) > MOST_IDLE_CLASS_WAIT {
            if self.trees[Class::Idle.index()].has_active() {
                first = Class::Idle.index();
            } else {
                self.idle_class_served = now;
            }
        }
        let tree = self.trees[first..].iter_mut().find(|tree| tree.has_active())?;
        let time = tree.eligible_time(states);
        if self.in_service.is_none() {
            tree.jump(states, time);
        }
        tree.first_eligible(states, time)
    }

    /// Whether `newcomer` comes before `kept`, another member of its class, which is the next one so far.
    pub(super) fn comes_before(&self, states: &Slab<State>, newcomer: Index, kept: Index) -> bool {
        let [newcomer, kept] = [newcomer, kept].map(|entity| states.get(entity));
        debug_assert_eq!(newcomer.class, kept.class, "only times of one tree can be compared");
        let tree = &self.trees[newcomer.class.index()];
        !is_after(newcomer.start, tree.now) && is_after(kept.finish, newcomer.finish)
    }
}
