//! The members of a group, by class, and which of them comes next.

use super::super::clock::{TICKS_PER_SECOND, Ticks};
use super::entity::EntityState;
use super::service_tree::ServiceTree;
use super::virtual_time::is_after;
use crate::Class;
use crate::slab::{Index, Slab};

/// How often the idle class is tried before the others.
const IDLE_CLASS_PERIOD: Ticks = TICKS_PER_SECOND / 5;

/// After so long without service the idle class comes before the others until it is served.
const MOST_IDLE_CLASS_WAIT: Ticks = 2 * TICKS_PER_SECOND;

/// The entities of one group.
#[derive(Debug, Clone, Default)]
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
    /// When the idle class was last tried before the others.
    idle_class_tried: Ticks,
    /// When a member of the idle class was last put into service, or none waited.
    pub(super) idle_class_served: Ticks,
}

impl Group {
    pub(super) fn new(owner: Option<Index>, now: Ticks) -> Self {
        Self { owner, idle_class_tried: now, idle_class_served: now, ..Self::default() }
    }

    /// Whether no member waits or is in service.
    pub(super) const fn is_quiet(&self) -> bool {
        self.nr_active == 0 && self.in_service.is_none() && self.next.is_none()
    }

    /// The member to serve next. While no member is in service, a clock that is before the earliest start jumps to it.
    /// `decides` says that the member comes into service next, unless others come: then a try of the idle class counts.
    pub(super) fn look_up(&mut self, states: &mut Slab<EntityState>, now: Ticks, decides: bool) -> Option<Index> {
        let first = if self.is_idle_class_due(now, decides) { Class::Idle } else { Class::RealTime };
        let tree = self.trees[first.index()..].iter_mut().find(|tree| tree.has_active())?;
        let time = tree.eligible_time(states);
        if self.in_service.is_none() {
            tree.jump(states, time);
        }
        tree.first_eligible(states, time)
    }

    /// Whether the idle class is tried before the others. As in Linux the try counts, served or not, and a newcomer of
    /// a higher class can undo it. Linux then tries again after the same time. Here it is tried until it is served,
    /// once it has waited for long.
    fn is_idle_class_due(&mut self, now: Ticks, decides: bool) -> bool {
        let waits = self.trees[Class::Idle.index()].has_active();
        if !waits {
            self.idle_class_served = now;
        }
        let is_due = now - self.idle_class_tried > IDLE_CLASS_PERIOD;
        if is_due && decides {
            self.idle_class_tried = now;
        }
        waits && (is_due || now - self.idle_class_served > MOST_IDLE_CLASS_WAIT)
    }

    /// Whether `newcomer` comes before `kept`, the next member so far: it is of the same class, eligible, and finishes
    /// first.
    pub(super) fn comes_before(&self, states: &Slab<EntityState>, newcomer: Index, kept: Index) -> bool {
        let [newcomer, kept] = [newcomer, kept].map(|entity| states.get(entity));
        let tree = &self.trees[newcomer.class.index()];
        newcomer.class == kept.class && !is_after(newcomer.start, tree.now) && is_after(kept.finish, newcomer.finish)
    }
}
