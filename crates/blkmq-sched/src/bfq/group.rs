//! Groups of clients, and their queues of asynchronous requests.

use alloc::vec::Vec;

use super::Bfq;
use super::weight::{NR_LEVELS, weight};
use super::wf2q::Entity;
use crate::data::{Named, Tracked};
use crate::site::unless_mutated;
use crate::slab::Index;
use crate::tree::Tree;
use crate::{Class, GroupId, GroupSettings, IoPriority, Time};

/// Asynchronous queues of a group: one for each level of the first two classes, and one for class idle.
pub(super) const NR_ASYNC: usize = 2 * NR_LEVELS + 1;

/// The weight of a group, in hundredths, for each unit of the weight that its settings give.
const UNIT: u32 = 100;

/// Counts of the requests of a group's own queues.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) inserted: u64,
    pub(super) merged: u64,
    pub(super) dispatched: u64,
    /// Sectors of the dispatched requests.
    pub(super) sectors: u64,
    pub(super) completed: u64,
    /// For how many nanoseconds the device had each completed request, summed over the requests.
    pub(super) in_device: u64,
    /// How many times of service its queues had.
    pub(super) slots: u64,
    /// How often idling for one of its queues ended without a request.
    pub(super) fruitless_waits: u64,
}

/// One group.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    pub(super) id: GroupId,
    pub(super) entity: Entity,
    pub(super) parent: usize,
    asyncs: [Option<Index>; NR_ASYNC],
    /// Requests that wait or are with the device, of its queues and of the groups in it.
    pub(super) allocated: u32,
    /// Queues of it with requests, waiting or with the device.
    nr_pending: u32,
    /// Its queues that may be merged with another one, by the position of their next request.
    pub(super) positions: Tree,
    /// The queue of a client that was created last, if that may still matter.
    pub(super) last_created: Option<Index>,
    pub(super) counts: Counts,
}

/// The groups by place; the root is the first and always there.
#[derive(Debug, Clone)]
pub(super) struct Groups {
    places: Named<Vec<Tracked<Option<Group>>>>,
    /// Groups with a queue of their own that has requests, waiting or with the device.
    pub(super) nr_pending: u32,
}

impl Groups {
    pub(super) fn new(root: Entity) -> Self {
        let root = Group { entity: root, ..Group::default() };
        Self { places: Named::new("bfq.groups", Vec::from([Tracked::new(Some(root))])), nr_pending: 0 }
    }

    /// The place of a group that joined; that of the root for any other one.
    pub(super) fn place(&self, id: GroupId) -> usize {
        let group = self.places.get(id.place()).and_then(|group| group.as_ref());
        group.map_or(0, |group| if group.id == id { id.place() } else { 0 })
    }

    pub(super) fn get(&self, place: usize) -> &Group {
        self.places[place].as_ref().expect("queues belong to groups that are there")
    }

    pub(super) fn get_mut(&mut self, place: usize) -> &mut Group {
        self.places[place].as_mut().expect("queues belong to groups that are there")
    }

    pub(super) fn entity(&self, place: usize) -> Entity {
        self.get(place).entity
    }

    /// If `old` is the queue of its group that was created last, `new` takes that place.
    pub(super) fn replace_created(&mut self, place: usize, old: Index, new: Option<Index>) {
        let last = &mut self.get_mut(place).last_created;
        if *last == Some(old) {
            *last = new;
        }
    }

    /// A queue of this group has requests now.
    pub(super) fn begin_pending(&mut self, place: usize) {
        let group = self.get_mut(place);
        group.nr_pending += 1;
        self.nr_pending += u32::from(group.nr_pending == 1);
    }

    /// A queue of this group has no requests any more.
    pub(super) fn end_pending(&mut self, place: usize) {
        let group = self.get_mut(place);
        debug_assert!(group.nr_pending > 0, "what ends to be pending began to be");
        group.nr_pending -= 1;
        self.nr_pending -= u32::from(group.nr_pending == 0);
    }

    /// The group's queues have `requests` more. COST: one step for each group above.
    pub(super) fn count_in(&mut self, place: usize, requests: u32) {
        let mut at = place;
        while at != 0 {
            let group = self.get_mut(at);
            group.allocated += requests;
            at = group.parent;
        }
    }

    /// The group's queues have `requests` less.
    pub(super) fn count_out(&mut self, place: usize, requests: u32) {
        let mut at = place;
        while at != 0 {
            let group = self.get_mut(at);
            debug_assert!(group.allocated >= requests, "a group has what its queues have");
            group.allocated -= requests;
            at = group.parent;
        }
    }

    /// The groups that are there.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Group> {
        self.places.iter().filter_map(|group| group.as_ref())
    }
}

/// Which asynchronous queue of a group has requests of this priority.
fn async_place(priority: IoPriority) -> usize {
    let level = usize::from(priority.level).min(NR_LEVELS - 1);
    match priority.class {
        Class::RealTime => level,
        Class::BestEffort => NR_LEVELS + level,
        Class::Idle => 2 * NR_LEVELS,
    }
}

impl Bfq {
    pub(super) fn join_group_now(&mut self, id: GroupId, settings: &GroupSettings) {
        if id == GroupId::ROOT {
            return;
        }
        let parent = self.groups.place(settings.parent);
        let parent_entity = self.groups.entity(parent);
        let weight = u32::from(settings.weight) * UNIT;
        let place = id.place();
        if self.groups.place(id) == place {
            let group = self.groups.get_mut(place);
            let (entity, allocated) = (group.entity, group.allocated);
            let old = core::mem::replace(&mut group.parent, parent);
            if unless_mutated("bfq.group_weight") {
                self.forest.set_weight(entity, weight);
            }
            if old != parent {
                self.groups.count_out(old, allocated);
                self.groups.count_in(parent, allocated);
                self.leave_service_within(place);
                self.forest.reparent(entity, parent_entity);
            }
            return;
        }
        if self.groups.places.len() <= place {
            self.groups.places.resize_with(place + 1, Tracked::default);
        }
        if self.groups.places[place].is_some() {
            self.drop_group(place);
        }
        self.nr_lacking += NR_ASYNC;
        let entity = self.forest.new_group(parent_entity, weight);
        *self.groups.places[place] = Some(Group { id, entity, parent, ..Group::default() });
        // Behind that, so that there is room for one group more than there are.
        self.reserve_queues();
    }

    pub(super) fn leave_group_now(&mut self, id: GroupId) {
        if id != GroupId::ROOT && self.groups.place(id) == id.place() {
            self.drop_group(id.place());
        }
    }

    /// Ends a group that has no clients and groups. What waits in its asynchronous queues goes on waiting in the group
    /// above.
    fn drop_group(&mut self, place: usize) {
        self.leave_service_within(place);
        let parent = self.groups.get(place).parent;
        for number in 0..NR_ASYNC {
            let Some(q) = self.groups.get_mut(place).asyncs[number].take() else {
                self.nr_lacking -= 1;
                continue;
            };
            self.move_queue(q, parent);
            self.queues.get_mut(q).clients -= 1;
            self.end_if_unused(q);
        }
        // Queues that clients have left behind, with requests that the device has.
        let all = self.all.iter(&self.queues);
        let left: Vec<Index> = all.filter(|(_, queue)| queue.group == place).map(|(q, _)| q).collect();
        for q in left.into_iter().filter(|_| unless_mutated("bfq.group")) {
            self.move_queue(q, parent);
        }
        let group = self.groups.places[place].take().expect("the group is there");
        debug_assert_eq!((group.nr_pending, group.allocated), (0, 0), "a group that goes has no queues");
        self.forest.remove(group.entity);
    }

    /// Takes a queue that is in service in this group, or in a group within it, out of service.
    fn leave_service_within(&mut self, place: usize) {
        let Some(q) = self.service.queue else { return };
        let mut at = self.queues.get(q).group;
        while at != place && at != 0 {
            at = self.groups.get(at).parent;
        }
        if at == place {
            self.leave_service(q, super::Reason::Preempted);
        }
    }

    /// Moves a queue into another group, with everything that waits in it.
    pub(super) fn move_queue(&mut self, q: Index, group: usize) {
        let queue = self.queues.get(q);
        let (from, entity, allocated) = (queue.group, queue.entity, queue.allocated);
        if from == group {
            return;
        }
        if self.service.queue == Some(q) {
            self.leave_service(q, super::Reason::Preempted);
        }
        self.displace(q);
        self.groups.replace_created(from, q, None);
        self.groups.count_out(from, allocated);
        self.groups.count_in(group, allocated);
        if self.queues.get(q).is_pending {
            self.groups.end_pending(from);
            self.groups.begin_pending(group);
        }
        self.forest.reparent(entity, self.groups.entity(group));
        let queue = self.queues.get_mut(q);
        queue.group = group;
        self.note_weight(q);
        self.count_class(q);
        self.place(q);
    }

    /// The queue of a group for asynchronous requests of this priority.
    pub(super) fn async_queue(&mut self, group: usize, priority: IoPriority, now: Time) -> Index {
        let number = async_place(priority);
        if let Some(q) = self.groups.get(group).asyncs[number] {
            return q;
        }
        let weight = weight(crate::DEFAULT_WEIGHT, priority.level);
        let q = self.new_queue(group, false, priority, weight, now);
        self.queues.get_mut(q).clients = 1;
        self.groups.get_mut(group).asyncs[number] = Some(q);
        self.nr_lacking -= 1;
        q
    }

    /// Makes room for each queue that a client or a group may still ask for, beside the queues that are there, and for
    /// as many again as there are clients. Allocates.
    pub(super) fn reserve_queues(&mut self) {
        let nr_groups = self.groups.iter().count() + 1;
        let usual = 2 * (self.clients.len() + 1) + NR_ASYNC * nr_groups;
        self.room = self.room.max(usual).max(self.queues.len() + self.nr_lacking);
        self.queues.reserve(self.room);
        self.weights.reserve(self.room);
        self.forest.reserve(self.room, nr_groups);
        let nr_entities = self.room + nr_groups + 2;
        if self.by_entity.len() < nr_entities {
            self.by_entity.resize(nr_entities, None);
        }
    }
}
