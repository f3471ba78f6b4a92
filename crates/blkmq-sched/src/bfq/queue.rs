//! A queue of requests, and how long it lives.
//!
//! A queue lives while a client sends its requests there, while requests of it wait or are with the device, or while a
//! client has it in mind for a merge. Wakers, bursts and the list of queues that wait refer to queues without keeping
//! them: a queue that ends leaves all of these.

use super::Bfq;
use super::clock::{LONG_AGO, Ticks, ticks};
use super::inject::Injection;
use super::think_time::{Seeks, ThinkTime};
use super::weight_raising::WeightRaising;
use super::wf2q::Entity;
use crate::list::{Links, List, chains};
use crate::site::unless_mutated;
use crate::slab::Index;
use crate::tree::{Branches, Keyed, Tree};
use crate::waiting::ByAge;
use crate::{Class, ClientId, IoPriority, Time};

/// One queue.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    /// Tells the queue from all queues that had its slot before; 0 once the queue has ended.
    pub(super) serial: u64,
    all: Links,
    pub(super) entity: Entity,
    /// The place of the group that it belongs to.
    pub(super) group: usize,
    pub(super) is_sync: bool,
    /// The class and level that were asked for last.
    pub(super) priority: IoPriority,
    /// The weight that was asked for last, and the one that holds, both without raising.
    pub(super) weight: u32,
    pub(super) weight_in_force: u32,

    /// Clients that send here, or will as soon as they send something; the group, if it is asynchronous.
    pub(super) clients: u32,
    /// Clients that may merge their queues with this one later.
    pub(super) merge_candidates: u32,
    /// The place of its only client; `None` if it is shared, asynchronous or left behind.
    pub(super) owner: Option<u16>,
    /// The client for which it was made, or that has it alone again; `None` if it is asynchronous. For people alone.
    pub(super) made_for: Option<ClientId>,
    /// Requests that wait here or are with the device.
    pub(super) allocated: u32,
    /// Of these, those that are with the device.
    pub(super) dispatched: u32,

    pub(super) sorted: Tree,
    pub(super) fifo: List<ByAge>,
    pub(super) next: Option<Index>,
    /// Requests in the two lists above.
    pub(super) nr_waiting: u32,
    /// Where the request that arrived last ended.
    pub(super) last_position: u64,
    /// The oldest request was looked at in this time of service.
    pub(super) fifo_looked_at: bool,

    /// The queue waits or is in service; for a while it may do so without requests.
    pub(super) is_busy: bool,
    /// The class under which it is counted as busy.
    pub(super) busy_class: Class,
    /// It is counted in its group as one with requests, waiting or with the device.
    pub(super) is_pending: bool,
    /// Its place among the weights of queues with requests.
    pub(super) weighed: Option<Index>,
    active: Links,
    pub(super) is_listed: bool,

    /// How many sectors the next budgets have.
    pub(super) max_budget: u64,
    /// What was left of the budget when the queue ran out of requests.
    pub(super) budget_left: u64,
    /// It ran out of requests while it had time and budget left.
    pub(super) may_resume: bool,
    /// When its time in service is over; while it has no requests at all, since when it has none.
    pub(super) timeout: Ticks,

    pub(super) seeks: Seeks,
    pub(super) think_time: ThinkTime,
    pub(super) injection: Injection,
    pub(super) waking: Waking,
    pub(super) raising: WeightRaising,

    pub(super) just_created: bool,
    pub(super) created_at: Ticks,
    pub(super) in_large_burst: bool,
    burst: Links,
    pub(super) is_in_burst: bool,

    /// Several clients send here, or did.
    pub(super) is_shared: bool,
    /// It is shared and seeky: its clients are to get their own queues back.
    pub(super) is_to_split: bool,
    /// The queue to which its clients send from their next request on.
    pub(super) merged_into: Option<Index>,
    pub(super) split_at: Ticks,
    /// Where its next request begins, while it is among the queues that are looked up by position.
    pub(super) position: u64,
    pub(super) is_placed: bool,
    branches: Branches,
}

impl Queue {
    /// One client sends here, now and from its next request on.
    pub(super) const fn has_one_client(&self) -> bool {
        self.clients == 1 && self.merged_into.is_none()
    }

    /// True if nothing waits here.
    pub(super) const fn is_empty(&self) -> bool {
        self.nr_waiting == 0
    }
}

/// The tree of a group's queues by position.
impl Keyed for Queue {
    fn key(&self) -> u64 {
        self.position
    }
    fn branches(&self) -> &Branches {
        &self.branches
    }
    fn branches_mut(&mut self) -> &mut Branches {
        &mut self.branches
    }
}

chains! {
    /// The chain of all queues.
    pub(super) ByBirth: Queue => all;
    /// The chain of the queues that wait.
    pub(super) ByActivity: Queue => active;
    /// The chain of the queues of a burst.
    pub(super) ByBurst: Queue => burst;
    /// The chain of the queues that one waker wakes.
    pub(super) ByWaker: Queue => waking.links;
}

/// Names a queue without keeping it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    index: Index,
    serial: u64,
}

/// A queue's waker, and the queues that it wakes itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Waking {
    pub(super) waker: Option<Index>,
    /// The queue that may be the waker, and how often it was in a row.
    pub(super) tentative: Option<Name>,
    pub(super) detections: u32,
    pub(super) since: Time,
    /// The queues of which this one is the waker, the one that began to have requests last first.
    pub(super) woken: List<ByWaker>,
    links: Links,
}

impl Bfq {
    /// The class of a queue, as it is in force.
    pub(super) fn class(&self, q: Index) -> Class {
        self.forest.state(self.queues.get(q).entity).class
    }

    /// A queue without clients and requests.
    pub(super) fn new_queue(
        &mut self,
        group: usize,
        is_sync: bool,
        priority: IoPriority,
        weight: u32,
        now: Time,
    ) -> Index {
        debug_assert!(self.queues.len() < self.room, "there is room for each queue");
        let entity = self.forest.new_leaf(self.groups.entity(group), priority.class, weight);
        let ticks = ticks(now);
        self.serial += 1;
        let q = self.queues.insert(Queue {
            serial: self.serial,
            entity,
            group,
            is_sync,
            priority,
            weight,
            weight_in_force: weight,
            busy_class: priority.class,
            max_budget: self.default_budget() * 2 / 3,
            timeout: LONG_AGO,
            seeks: Seeks::FIRST,
            think_time: ThinkTime::new(now, is_sync && priority.class != Class::Idle),
            injection: Injection { lowered_at: ticks, ..Injection::default() },
            raising: WeightRaising::new(ticks),
            just_created: is_sync,
            created_at: ticks,
            split_at: LONG_AGO,
            ..Queue::default()
        });
        self.by_entity[entity.number()] = Some(q);
        self.all.push_back(&mut self.queues, q);
        q
    }

    /// Whether a client that has a queue may leave it to others and have another one. Queues that clients have left
    /// stay until their last requests are over, and until their last clients have left, and clients may merge and split
    /// queues meanwhile. Room for each client and group that lacks a queue is never given away, so an arriving request
    /// finds a queue.
    pub(super) fn has_room_for_another(&self) -> bool {
        self.queues.len() + self.nr_lacking < self.room
    }

    pub(super) fn name_of(&self, q: Index) -> Name {
        Name { index: q, serial: self.queues.get(q).serial }
    }

    /// The queue of this name, if it is still there.
    pub(super) fn named(&self, name: Name) -> Option<Index> {
        (self.queues.peek(name.index).serial == name.serial).then_some(name.index)
    }

    /// Ends a queue that has no clients and no requests.
    #[inline]
    pub(super) fn end_if_unused(&mut self, q: Index) {
        if self.queues.get(q).clients == 0 {
            self.end_without_clients(q);
        }
    }

    #[inline(never)]
    fn end_without_clients(&mut self, q: Index) {
        let queue = self.queues.get(q);
        let has_requests = queue.allocated > 0 && unless_mutated("bfq.requests");
        if queue.merge_candidates > 0 || has_requests {
            return;
        }
        debug_assert!(queue.is_empty() && queue.dispatched == 0, "requests that wait or are with the device count");
        if queue.is_busy {
            // It was kept waiting without requests for a client that is gone.
            if self.service.queue == Some(q) {
                return;
            }
            self.cease(q, false);
        }
        debug_assert!(self.service.queue != Some(q), "a queue in service is busy");
        debug_assert!(
            self.all.iter(&self.queues).all(|(_, other)| other.merged_into != Some(q)),
            "a queue with which another one is to be merged counts the clients of that"
        );
        self.leave_burst(q);
        if unless_mutated("bfq.waker") {
            self.forget_waker(q);
        }
        self.displace(q);
        let queue = self.queues.get(q);
        debug_assert!(queue.waking.waker.is_none() && queue.waking.woken.is_empty(), "no waker is a queue that ended");
        debug_assert!(queue.weighed.is_none() && !queue.is_pending && !queue.is_listed, "it has no requests");
        let (entity, group) = (queue.entity, queue.group);
        self.groups.replace_created(group, q, None);
        self.forest.remove(entity);
        self.all.remove(&mut self.queues, q);
        self.queues.get_mut(q).serial = 0;
        self.queues.remove(q);
    }
}
