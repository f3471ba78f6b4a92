//! Clients, and the queue in which the requests of each wait.

use alloc::vec::Vec;

use super::Bfq;
use super::burst::Membership;
use super::inject::Injection;
use super::queue::Name;
use super::think_time::ThinkTime;
use super::weight::weight;
use super::weight_raising::WeightRaising;
use crate::data::{Named, Tracked};
use crate::site::unless_mutated;
use crate::slab::Index;
use crate::{ClientId, ClientSettings, IoPriority, Time};

/// What a client's own queue has learnt. It is kept here while the client sends to a shared queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct SavedState {
    pub(super) think_time: ThinkTime,
    pub(super) injection: Injection,
    pub(super) raising: WeightRaising,
    pub(super) membership: Membership,
}

/// Requests that bypassed the scheduler.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BypassCounts {
    /// Requests that the device has.
    pub(super) with_device: u32,
    /// Requests that are over, though the scheduler has not been told yet that they passed: another thread tells that.
    pub(super) early: u32,
}

/// One client.
#[derive(Debug, Clone, Default)]
pub(super) struct Client {
    pub(super) id: ClientId,
    settings: ClientSettings,
    /// The priority of its latest request.
    priority: IoPriority,
    /// The queue of its synchronous requests.
    pub(super) sync: Option<Index>,
    /// The queue that its latest asynchronous request went to.
    pub(super) latest_async: Option<Name>,
    /// Its requests that wait or are with the device.
    pub(super) outstanding: u32,
    /// Of these, those that bypassed the scheduler, asynchronous and synchronous ones.
    pub(super) passing: [BypassCounts; 2],
    pub(super) saved: Option<SavedState>,
    /// Its queue was merged with the one that was created just before, and stays so.
    pub(super) is_merged_for_good: bool,
    /// The queue with which its own is to be merged for good, later.
    pub(super) pending_merge: Option<Index>,
}

impl Client {
    /// Whether the device has synchronous requests of the client that bypassed. They count in the client's queue, so
    /// the client keeps that queue.
    pub(super) const fn has_passing(&self) -> bool {
        self.passing[1].with_device > 0
    }

    fn new(id: ClientId, settings: ClientSettings) -> Self {
        Self { id, settings, priority: settings.priority, ..Self::default() }
    }
}

/// The clients by place. Requests of a client that did not join are counted as those of one more client, in the root.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    places: Named<Vec<Tracked<Option<Client>>>>,
    stranger: Tracked<Client>,
    len: usize,
}

/// The place of the client that stands for all that did not join.
const STRANGER: u16 = u16::MAX;

impl Clients {
    pub(super) fn new() -> Self {
        Self { places: Named::new("bfq.clients", Vec::new()), stranger: Tracked::default(), len: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The place of a client.
    pub(super) fn place(&self, id: ClientId) -> u16 {
        match self.places.get(id.place()).and_then(|client| client.as_ref()) {
            Some(client) if client.id == id => id.place() as u16,
            _ => STRANGER,
        }
    }

    pub(super) fn get(&self, place: u16) -> &Client {
        if place == STRANGER {
            return &self.stranger;
        }
        self.places[usize::from(place)].as_ref().expect("a client that has requests is there")
    }

    pub(super) fn get_mut(&mut self, place: u16) -> &mut Client {
        if place == STRANGER {
            return &mut self.stranger;
        }
        self.places[usize::from(place)].as_mut().expect("a client that has requests is there")
    }
}

impl Bfq {
    pub(super) fn join_now(&mut self, id: ClientId, settings: &ClientSettings) {
        let place = id.place();
        if self.clients.places.len() <= place {
            self.clients.places.resize_with(place + 1, Tracked::default);
        }
        match &mut *self.clients.places[place] {
            Some(client) if client.id == id => {
                client.settings = *settings;
                // What waits already counts under the new weight from its next turn on.
                self.new_params(place as u16);
                return;
            }
            Some(client) => {
                let old = client.id;
                self.leave_now(old);
            }
            None => {}
        }
        *self.clients.places[place] = Some(Client::new(id, *settings));
        self.clients.len += 1;
        self.nr_lacking += 1;
        self.reserve_queues();
    }

    pub(super) fn leave_now(&mut self, id: ClientId) {
        let place = self.clients.place(id);
        if place == STRANGER {
            return;
        }
        debug_assert_eq!(self.clients.get(place).outstanding, 0, "a client leaves when all its requests are reported");
        self.break_betrothal(place);
        if let Some(q) = self.clients.get(place).sync {
            self.shrink_burst(q);
        }
        if unless_mutated("bfq.gone") {
            self.abandon_queue(place);
            self.leave_orphan();
        }
        debug_assert!(
            self.all.iter(&self.queues).all(|(_, queue)| queue.owner != Some(place)),
            "no queue belongs to a client that is gone"
        );
        self.nr_lacking -= usize::from(self.clients.get(place).sync.is_none());
        *self.clients.places[usize::from(place)] = None;
        self.clients.len -= 1;
    }

    /// The client sends nothing more to its queue.
    pub(super) fn abandon_queue(&mut self, place: u16) {
        let Some(q) = self.clients.get_mut(place).sync.take() else { return };
        self.nr_lacking += 1;
        // The client counts in every queue with which its own is to be merged.
        let mut next = Some(q);
        while let Some(left) = next {
            let queue = self.queues.get(left);
            next = queue.merged_into;
            if self.service.queue == Some(left) && queue.clients == 1 && queue.allocated == 0 {
                // No client is left for which the device could wait.
                self.leave_service(left, super::Reason::BudgetTimeout);
            }
            self.release(left, None);
        }
    }

    /// Ends the service of a queue that no client sends to, if it has no requests either. A queue whose client went
    /// over to another one stays in service until its wait is over, as in Linux. But if clients go, there may be no
    /// thread that asks for a request after the wait.
    fn leave_orphan(&mut self) {
        let Some(q) = self.service.queue else { return };
        let queue = self.queues.get(q);
        if queue.is_sync && queue.clients == 0 && queue.is_empty() && queue.allocated == 0 {
            self.leave_service(q, super::Reason::BudgetTimeout);
        }
    }

    /// A client of `q` sends there no longer. `successor` takes the place of `q` as the queue of its group that was
    /// created last.
    pub(super) fn release(&mut self, q: Index, successor: Option<Index>) {
        let queue = self.queues.get_mut(q);
        debug_assert!(queue.clients > 0, "a client counts until it is released");
        queue.clients -= 1;
        if queue.clients == 0 {
            // The queue with which it was to be merged may end before it.
            (queue.owner, queue.merged_into) = (None, None);
        }
        let group = queue.group;
        // No client will send to it. So it is not kept waiting without requests.
        if queue.is_busy && queue.is_empty() && self.service.queue != Some(q) {
            self.cease(q, false);
        }
        self.groups.replace_created(group, q, successor);
        self.end_if_unused(q);
    }

    /// The weight and priority of the client's queue.
    fn wish_of(&self, place: u16) -> (IoPriority, u32) {
        let client = self.clients.get(place);
        (client.priority, weight(client.settings.weight, client.priority.level))
    }

    /// Tells the client's queue what weight and class it is to have, unless others share it.
    fn new_params(&mut self, place: u16) {
        let Some(q) = self.clients.get(place).sync else { return };
        let (priority, weight) = self.wish_of(place);
        let queue = self.queues.get_mut(q);
        if (queue.priority, queue.weight) == (priority, weight) || !queue.has_one_client() {
            return;
        }
        (queue.priority, queue.weight) = (priority, weight);
        self.forest.set_weight(queue.entity, weight);
        self.forest.set_class(queue.entity, priority.class);
    }

    /// The group to which the client belongs.
    pub(super) fn group_of(&self, place: u16) -> usize {
        self.groups.place(self.clients.get(place).settings.group)
    }

    /// The client may have another group, weight or class: then its own queue follows, or the client leaves a shared
    /// queue to the others. Without room for another queue, or while the device has requests of the client that
    /// passed, that comes later.
    fn follow_settings(&mut self, place: u16) {
        self.new_params(place);
        let group = self.group_of(place);
        let Some(q) = self.clients.get(place).sync else { return };
        let (priority, weight) = self.wish_of(place);
        let queue = self.queues.get(q);
        let (moves, weighs_right) = (queue.group != group && unless_mutated("bfq.follow"), queue.weight == weight);
        let is_right = !moves && weighs_right && queue.priority.class == priority.class;
        if is_right || self.clients.get(place).has_passing() {
            return;
        }
        self.break_betrothal(place);
        let queue = self.queues.get(q);
        if queue.has_one_client() && queue.merge_candidates == 0 {
            self.move_queue(q, group);
        } else if self.has_room_for_another() {
            self.clients.get_mut(place).is_merged_for_good = false;
            self.abandon_queue(place);
        }
    }

    /// The queue for a request that arrives, made if it is not there.
    pub(super) fn queue_for(&mut self, place: u16, is_sync: bool, priority: IoPriority, now: Time) -> Index {
        if !is_sync {
            let group = self.group_of(place);
            let q = self.async_queue(group, priority, now);
            self.clients.get_mut(place).latest_async = Some(self.name_of(q));
            return q;
        }
        if let Some(q) = self.clients.get(place).sync
            && self.is_settled(place, q, priority)
        {
            return q;
        }
        self.clients.get_mut(place).priority = priority;
        self.follow_settings(place);
        let q = match self.clients.get(place).sync {
            Some(q) => self.own_again(place, q, now),
            None => self.first_queue(place, now),
        };
        let id = self.clients.get(place).id;
        let queue = self.queues.get_mut(q);
        if queue.has_one_client() {
            (queue.owner, queue.made_for) = (Some(place), Some(id));
        }
        q
    }

    /// Whether the queue of a client is its own, as the client's settings want it, and stays so with a request of this
    /// priority.
    #[inline(always)]
    pub(super) fn is_settled(&self, place: u16, q: Index, priority: IoPriority) -> bool {
        let (client, queue) = (self.clients.get(place), self.queues.get(q));
        (queue.owner, queue.made_for) == (Some(place), Some(client.id))
            && client.priority == priority
            && (queue.priority, queue.weight) == (priority, weight(client.settings.weight, priority.level))
            && !queue.is_shared
            && queue.group == self.groups.place(client.settings.group)
    }

    /// A new queue for a client that has none.
    pub(super) fn own_queue(&mut self, place: u16, now: Time) -> Index {
        debug_assert!(self.clients.get(place).sync.is_none(), "a client has one queue");
        let group = self.group_of(place);
        let (priority, weight) = self.wish_of(place);
        let q = self.new_queue(group, true, priority, weight, now);
        let id = self.clients.get(place).id;
        let queue = self.queues.get_mut(q);
        (queue.clients, queue.made_for) = (1, Some(id));
        self.clients.get_mut(place).sync = Some(q);
        self.nr_lacking -= 1;
        q
    }
}
