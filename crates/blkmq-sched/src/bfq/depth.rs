//! How many requests may be outstanding: which requests the scheduler admits, and which may bypass it.
//!
//! A policy can divide the device only among requests that wait here or are with the device. A client that writes as
//! much as it can would leave no room here for others. So requests other than reads have a part of the room, and new
//! requests of a queue or group that has more than its share wait outside.

use super::Bfq;
use super::request::is_sync;
use super::wf2q::Entity;
use crate::scheduler::DEFAULT_NR_REQUESTS;
use crate::site::unless_mutated;
use crate::slab::Index;
use crate::{Admission, Class, ClientId, Info, Outstanding, Passing};

impl Bfq {
    /// Whether a request may be inserted beside what is outstanding.
    pub(super) fn admission(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        let client = self.clients.get(self.clients.place(newcomer.client));
        if client.outstanding == 0 {
            return Admission::First;
        }
        if newcomer.op.is_read() {
            let limit = self.nr_requests.saturating_mul(outstanding.nr_hctxs);
            return Admission::fitting(!self.exceeds_share(newcomer, limit));
        }
        // More room than in Linux would only make requests wait here instead of outside.
        let room = self.nr_requests.min(DEFAULT_NR_REQUESTS);
        let limit = match (self.raised_busy > 0, is_sync(newcomer)) {
            (false, true) => room * 3 / 4,
            (false, false) => room / 2,
            (true, true) => room * 6 / 16,
            (true, false) => room * 3 / 16,
        };
        let limit = limit.max(1);
        let exceeds_share = || self.exceeds_share(newcomer, limit.saturating_mul(outstanding.nr_hctxs));
        Admission::fitting(outstanding.is_below(limit) && !exceeds_share())
    }

    /// Whether the newcomer's queue, or a group above it, already has as many requests as its weight gives it of
    /// `limit`.
    fn exceeds_share(&self, newcomer: &Info, limit: u32) -> bool {
        let Some(q) = self.queue_of_newcomer(newcomer) else { return false };
        let queue = self.queues.get(q);
        queue.is_busy
            && self.share_of_group(queue.group, limit).is_none_or(|of| {
                let (weight, sum) = self.weight_of(queue.entity);
                // COST: as `share` says, without its division.
                queue.allocated > 0 && u64::from(queue.allocated) * sum >= u64::from(of) * weight
            })
    }

    /// What a group may have of `limit`; `None` if it, or a group above it, has that already.
    fn share_of_group(&self, place: usize, limit: u32) -> Option<u32> {
        if place == 0 {
            return Some(limit);
        }
        let group = self.groups.get(place);
        let of = self.share_of_group(group.parent, limit)?;
        self.share(group.entity, of, group.allocated)
    }

    /// What a member of a group may have of `of`, by its weight among the members that wait; `None` if it has that
    /// already.
    fn share(&self, entity: Entity, of: u32, allocated: u32) -> Option<u32> {
        let (weight, sum) = self.weight_of(entity);
        let share = (u64::from(of) * weight).div_ceil(sum) as u32;
        (allocated < share.max(1)).then_some(share.max(1))
    }

    /// The weight of a member of a group, and the sum of the weights of those that wait. A member may be served without
    /// being counted among its siblings; then it is alone.
    fn weight_of(&self, entity: Entity) -> (u64, u64) {
        let weight = self.forest.state(entity).weight;
        (weight, self.forest.weight_sum(entity).max(weight).max(1))
    }

    /// The queue has `requests` more, which wait or are with the device, and so have the groups above it.
    pub(super) fn count_in(&mut self, q: Index, requests: u32) {
        let queue = self.queues.get_mut(q);
        queue.allocated += requests;
        self.groups.count_in(queue.group, requests);
    }

    /// The queue has `requests` less: these were merged into others, or have completed.
    pub(super) fn count_out(&mut self, q: Index, requests: u32) {
        let queue = self.queues.get_mut(q);
        debug_assert!(queue.allocated >= requests, "a request counts in its queue until it completes");
        queue.allocated -= requests;
        self.groups.count_out(queue.group, requests);
    }

    /// Which requests may pass: all while no queue is in service, and those of the client that the device waits for.
    pub(super) fn passing(&self, class: Class, client: ClientId) -> Passing {
        let is_strict = self.tunables.strict_guarantees && unless_mutated("bfq.strict");
        if self.requests.len() > 0 || is_strict {
            return Passing::Nobody;
        }
        let Some(q) = self.service.queue else {
            // A queue may be kept waiting without requests, since it is owed the device.
            return if self.nr_busy() == 0 { Passing::All } else { Passing::Nobody };
        };
        // With another class it may be worth waiting for: that holds as soon as another client's request comes.
        let keeps_class = self.class(q) == self.queues.get(q).priority.class;
        if self.nr_busy() == 1 && self.service.timer.is_none() && keeps_class && !self.better_to_idle(q) {
            return Passing::All;
        }
        let queue = self.queues.get(q);
        let is_its_own = queue.owner.is_some_and(|place| self.clients.get(place).id == client);
        let goes_on = self.budget_left(q) > 0 && !self.is_out_of_time(q, *self.now);
        if is_its_own && goes_on && self.nr_busy() == 1 && self.class(q) == class {
            Passing::Client
        } else {
            Passing::Nobody
        }
    }
}
