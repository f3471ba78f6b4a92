//! How many requests may be outstanding: whom the scheduler admits, and who may pass it by.
//!
//! A policy can divide the device only among requests that wait here or are with the device. What a client that writes
//! as much as it can has outstanding would leave no room for others. So requests other than reads have a part of the
//! room, and a queue with more than its share waits outside.

use super::Bfq;
use super::request::is_sync;
use crate::scheduler::DEFAULT_NR_REQUESTS;
use crate::{Class, ClientId, Info, Outstanding, Passing};

impl Bfq {
    /// Whether a request may be inserted beside what is outstanding.
    pub(super) fn has_room_for(&self, newcomer: &Info, outstanding: Outstanding) -> bool {
        let client = self.clients.get(self.clients.place(newcomer.client));
        if newcomer.op.is_read() || client.outstanding == 0 {
            return true;
        }
        // More room than in Linux would only make requests wait here instead of outside.
        let room = self.nr_requests.min(DEFAULT_NR_REQUESTS);
        let limit = match (self.raised_busy > 0, is_sync(newcomer)) {
            (false, true) => room * 3 / 4,
            (false, false) => room / 2,
            (true, true) => room * 6 / 16,
            (true, false) => room * 3 / 16,
        };
        outstanding.is_below(limit.max(1)) && !self.exceeds_share(newcomer, u64::from(limit))
    }

    /// Whether the newcomer's queue already has as many requests as its weight gives it of `limit`.
    fn exceeds_share(&self, newcomer: &Info, limit: u64) -> bool {
        let Some(q) = self.queue_of_newcomer(newcomer) else { return false };
        let queue = self.queues.get(q);
        if !queue.is_busy {
            return false;
        }
        let mut share = limit;
        let (mut entity, mut group) = (queue.entity, queue.group);
        loop {
            // A group may be served without its own place in the tree above being counted; then it is alone there.
            let sum = self.forest.weight_sum(entity).max(1);
            share = (share * self.forest.weight(entity)).div_ceil(sum);
            if group == 0 {
                break;
            }
            entity = self.groups.entity(group);
            group = self.groups.get(group).parent;
        }
        u64::from(queue.allocated) >= share.clamp(1, limit)
    }

    /// Which requests may pass: all while no queue is in service, and those of the client that the device waits for.
    pub(super) fn may_pass(&self, class: Class, client: ClientId) -> Passing {
        if self.requests.len() > 0 || self.tunables.strict_guarantees {
            return Passing::Nobody;
        }
        let Some(q) = self.service.queue else {
            // A queue may be kept waiting without requests, since it is owed the device.
            return if self.nr_busy() == 0 { Passing::All } else { Passing::Nobody };
        };
        let queue = self.queues.get(q);
        let is_its_own = queue.owner.is_some_and(|place| self.clients.get(place).id == client);
        let goes_on = self.budget_left(q) > 0 && !self.is_out_of_time(q, self.now);
        if is_its_own && goes_on && self.nr_busy() == 1 && self.class(q) == class {
            Passing::Client
        } else {
            Passing::Nobody
        }
    }
}
