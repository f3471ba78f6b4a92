//! Cooperating clients: their queues are merged, and split again when that does not pay any more.
//!
//! Some programs read one area with several threads, each thread a piece. Apart, each of their queues seeks; together
//! the queues are sequential. So on a device that gains by that, a queue whose request is near the next request of
//! another queue is merged with that queue. In a replay, queues that are created shortly after each other are merged
//! for good.

use super::Bfq;
use super::burst::{INTERVAL, Membership};
use super::client::SavedState;
use super::clock::{Ticks, of_ms, ticks};
use crate::slab::Index;
use crate::{Class, Time};

/// Two positions no farther from each other are near, in sectors.
const NEAR: u64 = 8192;
/// Clients that cooperate begin to do so soon after their first request.
const EARLY: Ticks = of_ms(100);
/// A queue created no longer than this after another one may be merged with it for good.
const TOGETHER: Ticks = of_ms(600);
/// On a device that gains by cooperation the merge for good is not done at once, but when the queue is so old.
const ENGAGED: Ticks = of_ms(600);

/// Merging of queues.
impl Bfq {
    /// Whether the device takes several requests at once, as far as is known.
    pub(super) fn takes_several(&self) -> bool {
        self.queueing != Some(false)
    }

    /// Whether near requests gain nothing by going together: the device orders them itself, and does not seek.
    const fn orders_itself(&self) -> bool {
        !self.rotational && !matches!(self.queueing, Some(false))
    }

    /// The first queue of a client: its own, or the queue that was created just before and with which that is merged.
    pub(super) fn first_queue(&mut self, place: u16, now: Time) -> Index {
        let q = self.own_queue(place, now);
        if !self.merges_newborn {
            return q;
        }
        let queue = self.queues.get(q);
        let (group, created) = (queue.group, queue.created_at);
        let last = self.groups.get(group).last_created;
        let fits = last.filter(|last| {
            let last = self.queues.get(*last);
            last.created_at + TOGETHER >= created && last.priority == queue.priority && last.weight == queue.weight
        });
        let Some(last) = fits else {
            self.groups.get_mut(group).last_created = Some(q);
            return q;
        };
        if self.queues.get(last).created_at + INTERVAL < created {
            return q;
        }
        if !self.orders_itself() {
            self.queues.get_mut(last).merge_candidates += 1;
            self.clients.get_mut(place).pending_merge = Some(last);
            return q;
        }
        let Some(successor) = self.plan_merge(q, last) else { return q };
        self.keep_merged(place, successor);
        self.queues.get_mut(q).owner = Some(place);
        self.merge_queues(place, q, successor);
        successor
    }

    /// The client gives up the merge for good that it has in mind.
    pub(super) fn break_betrothal(&mut self, place: u16) {
        if let Some(other) = self.clients.get_mut(place).pending_merge.take() {
            self.queues.get_mut(other).merge_candidates -= 1;
            self.end_if_unused(other);
        }
    }

    /// A request at `sector` comes to `q`. Returns the queue to which its client then sends: another one if they
    /// cooperate.
    ///
    /// A client keeps its queue while the device has requests of the client that passed. No merge is planned meanwhile:
    /// the queue with which `q` is to be merged would count two clients and belong to one, also when that one is gone.
    pub(super) fn cooperate(&mut self, place: u16, q: Index, sector: u64, now: Time) -> Index {
        if self.clients.get(place).has_passing() {
            return q;
        }
        let Some(successor) = self.find_successor(place, q, sector, ticks(now)) else { return q };
        if self.clients.get(place).sync == Some(q) {
            self.merge_queues(place, q, successor);
        }
        successor
    }

    fn find_successor(&mut self, place: u16, q: Index, sector: u64, now: Ticks) -> Option<Index> {
        if self.queues.get(q).merged_into.is_some() {
            return Some(self.last_successor(q));
        }
        if self.orders_itself() {
            return None;
        }
        let queue = self.queues.get(q);
        let is_settled = queue.split_at.max(queue.created_at) + ENGAGED < now;
        if queue.is_sync
            && !queue.just_created
            && is_settled
            && let Some(other) = self.clients.get(place).pending_merge
        {
            return self.marry(place, q, other);
        }
        if self.is_late(q, now) || self.nr_busy() == 1 {
            return None;
        }
        let group = self.queues.get(q).group;
        let in_service = self.service.queue.filter(|other| {
            *other != q
                && self.service.last_position.abs_diff(sector) <= NEAR
                && self.queues.get(*other).group == group
                && self.may_cooperate(q, *other, now)
        });
        if let Some(other) = in_service
            && let successor @ Some(_) = self.plan_merge(q, other)
        {
            return successor;
        }
        let near = self.nearest(group, sector).filter(|near| *near != q && self.may_cooperate(q, *near, now))?;
        self.plan_merge(q, near)
    }

    /// The merge for good that the client has in mind.
    fn marry(&mut self, place: u16, q: Index, other: Index) -> Option<Index> {
        let fits = other != q && self.queues.get(other).clients > 0;
        let successor = if fits { self.plan_merge(q, other) } else { None };
        if let Some(successor) = successor {
            self.keep_merged(place, successor);
        }
        self.break_betrothal(place);
        successor
    }

    /// Whether the queue began long ago: clients of such queues only happen to be near each other.
    fn is_late(&self, q: Index, now: Ticks) -> bool {
        let raising = &self.queues.get(q).raising;
        raising.service_since > 0 && raising.first_service + EARLY < now
    }

    fn may_cooperate(&self, q: Index, other: Index, now: Ticks) -> bool {
        let [one, two] = [q, other].map(|q| self.queues.get(q));
        let [class, other_class] = [self.class(q), self.class(other)];
        !self.is_late(other, now)
            && class == other_class
            && class != Class::Idle
            && one.weight == two.weight
            && !one.seeks.is_seeky()
            && !two.seeks.is_seeky()
            && one.is_sync
            && two.is_sync
    }

    /// The queue of a group whose next request is nearest to `sector`, if one is near.
    fn nearest(&self, group: usize, sector: u64) -> Option<Index> {
        let positions = &self.groups.get(group).positions;
        let after = positions.first_from(&self.queues, sector);
        let before = match after {
            Some(after) => positions.prev(&self.queues, after),
            None => positions.last(&self.queues),
        };
        let distance = |q: &Index| self.queues.get(*q).position.abs_diff(sector);
        [after, before].into_iter().flatten().min_by_key(distance).filter(|q| distance(q) <= NEAR)
    }

    /// The queue to which clients of `q` send in the end: `q`, or the one with which it was merged, and so on.
    fn last_successor(&self, q: Index) -> Index {
        let mut successor = q;
        while let Some(next) = self.queues.get(successor).merged_into {
            successor = next;
        }
        successor
    }

    /// The client's queue and `successor`, with which it is merged, are not split again.
    fn keep_merged(&mut self, place: u16, successor: Index) {
        if let Some(owner) = self.queues.get(successor).owner {
            self.clients.get_mut(owner).is_merged_for_good = true;
        }
        self.clients.get_mut(place).is_merged_for_good = true;
    }

    /// All clients of `q` are to send to `other` from their next request on. Returns the queue to which they then send.
    /// They count there at once.
    fn plan_merge(&mut self, q: Index, other: Index) -> Option<Index> {
        let successor = self.last_successor(other);
        let clients = self.queues.get(q).clients;
        let [from, to] = [q, successor].map(|q| self.queues.get(q));
        if successor == q || clients == 0 || to.clients == 0 || from.group != to.group {
            return None;
        }
        self.queues.get_mut(q).merged_into = Some(successor);
        self.queues.get_mut(successor).clients += clients;
        Some(successor)
    }

    /// The client sends to `successor` from now on, and no longer to `q`.
    fn merge_queues(&mut self, place: u16, q: Index, successor: Index) {
        debug_assert_ne!(q, successor, "a queue is merged with another one");
        debug_assert_eq!(self.clients.get(place).sync, Some(q), "the client sends to the queue that is merged");
        let now = ticks(*self.now);
        self.save(q, now);
        self.save(successor, now);
        let is_io_bound = core::mem::take(&mut self.queues.get_mut(q).think_time.is_io_bound);
        self.queues.get_mut(successor).think_time.is_io_bound |= is_io_bound;
        let waker = self.queues.get(q).waking.waker.filter(|waker| *waker != successor);
        if waker.is_some() && self.queues.get(successor).waking.waker.is_none() {
            self.set_waker(successor, waker);
        }
        let [from, to] = [q, successor].map(|q| self.queues.get(q).raising);
        if from.is_raised() {
            if !to.is_raised() {
                self.queues.get_mut(successor).raising.inherit(&from);
                self.note_coefficient(successor, to.coefficient);
            }
            self.queues.get_mut(q).raising.coefficient = 1;
            self.note_coefficient(q, from.coefficient);
        }
        self.clients.get_mut(place).sync = Some(successor);
        let shared = self.queues.get_mut(successor);
        (shared.is_shared, shared.owner) = (true, None);
        let queue = self.queues.get_mut(q);
        (queue.owner, queue.just_created) = (None, false);
        let mut next = queue.merged_into;
        self.release(q, Some(successor));
        // The client counts in each queue on the way to the successor, and goes past them.
        while let Some(between) = next.filter(|between| *between != successor) {
            next = self.queues.get(between).merged_into;
            self.release(between, None);
        }
    }

    /// Keeps what a queue with one client has learnt, until that client gets its own queue again.
    fn save(&mut self, q: Index, now: Ticks) {
        let queue = self.queues.get(q);
        let Some(owner) = queue.owner else { return };
        let starts = queue.just_created && !queue.in_large_burst && self.tunables.low_latency;
        let raising = if starts { queue.raising.as_interactive(self.rate.starting_time(), now) } else { queue.raising };
        let membership = Membership { was_in_burst: queue.is_in_burst, in_large_burst: queue.in_large_burst };
        let saved = SavedState { think_time: queue.think_time, injection: queue.injection, raising, membership };
        self.clients.get_mut(owner).saved = Some(saved);
    }
}

/// Splitting.
impl Bfq {
    /// The queue to which the client of a request sends: `q`, its present one, or a queue of its own if `q` is to be
    /// split and there is room.
    pub(super) fn own_again(&mut self, place: u16, q: Index, now: Time) -> Index {
        let queue = self.queues.get(q);
        let client = self.clients.get(place);
        let id = client.id;
        if !queue.is_shared || !queue.is_to_split || client.is_merged_for_good || client.has_passing() {
            return q;
        }
        if queue.in_large_burst
            && let Some(saved) = &mut self.clients.get_mut(place).saved
        {
            saved.membership.in_large_burst = true;
        }
        let queue = self.queues.get_mut(q);
        if queue.has_one_client() {
            (queue.is_shared, queue.is_to_split) = (false, false);
            (queue.owner, queue.made_for) = (Some(place), Some(id));
            self.resume(place, q, now);
            return q;
        }
        if !self.has_room_for_another() {
            return q;
        }
        // The shared queue must not end before the new one has its waker.
        self.queues.get_mut(q).merge_candidates += 1;
        self.abandon_queue(place);
        let own = self.own_queue(place, now);
        let membership = self.clients.get(place).saved.map(|saved| saved.membership);
        if let Some(membership) = membership {
            self.rejoin_burst(own, membership);
        }
        self.queues.get_mut(own).split_at = ticks(now);
        self.queues.get_mut(own).owner = Some(place);
        self.resume(place, own, now);
        // The waker that the shared queue has now: the waker of before may have ended, if its last client has left it.
        let waker = self.queues.get(q).waking.waker;
        self.set_waker(own, waker);
        self.queues.get_mut(q).merge_candidates -= 1;
        self.end_if_unused(q);
        own
    }

    /// Gives a queue back what it had learnt before it was merged.
    fn resume(&mut self, place: u16, q: Index, now: Time) {
        let Some(saved) = self.clients.get(place).saved else { return };
        let queue = self.queues.get_mut(q);
        queue.think_time = saved.think_time;
        queue.injection = saved.injection;
        self.resume_raising(q, &saved.raising, ticks(now));
    }
}

/// Queues by position.
impl Bfq {
    /// Notes where the next request of a queue begins, if the queue may be merged with another one.
    #[inline]
    pub(super) fn place(&mut self, q: Index) {
        if self.queues.get(q).is_placed || !self.orders_itself() {
            self.place_anew(q);
        }
    }

    #[inline(never)]
    fn place_anew(&mut self, q: Index) {
        self.displace(q);
        if self.orders_itself() || self.is_late(q, ticks(*self.now)) || self.class(q) == Class::Idle {
            return;
        }
        let queue = self.queues.get_mut(q);
        let Some(next) = queue.next else { return };
        (queue.position, queue.is_placed) = (self.requests.get(next).info.sector, true);
        let group = queue.group;
        self.groups.get_mut(group).positions.insert(&mut self.queues, q);
    }

    #[inline]
    pub(super) fn displace(&mut self, q: Index) {
        if self.queues.get(q).is_placed {
            self.displace_now(q);
        }
    }

    #[inline(never)]
    fn displace_now(&mut self, q: Index) {
        let queue = self.queues.get_mut(q);
        queue.is_placed = false;
        let group = queue.group;
        self.groups.get_mut(group).positions.remove(&mut self.queues, q);
    }
}
