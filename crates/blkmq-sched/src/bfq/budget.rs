//! Budgets: how much a queue is served before the next one, what it is charged, and the end of its time in service.

use super::clock::{NS_PER_MS, NS_PER_US, Ticks, of_ms, ticks, to_ms};
use super::{Bfq, Expiration, QueueName, Reason};
use crate::Time;
use crate::site::unless_mutated;
use crate::slab::Index;

/// The largest budget in sectors, until the device is known.
pub(super) const DEFAULT: u64 = 16 * 1024;
/// The largest budget is never more than this, the maximum of the knob `max_budget`.
const MOST: u64 = i32::MAX as u64;
/// The smallest budget is the largest one divided by this.
const LEAST_PART: u64 = 32;
/// The device counts as known once [`Bfq::slots`], which tends to 256, is at least this.
const ENOUGH_SLOTS: u32 = 194;
/// How long a queue is served at most, by default. A queue that is charged by time pays for a part of this.
pub(super) const TIMEOUT: Ticks = of_ms(124);
/// Below this, a queue is judged by how far it seeks.
const MOMENT: u64 = NS_PER_MS;
/// From then on, a queue is slow if it got less than half of the largest budget.
const LONG: u64 = 20 * NS_PER_MS;

/// The queue in service, and since when.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Service {
    pub(super) queue: Option<Index>,
    since: Time,
    /// When the device began to wait for the queue last.
    pub(super) idle_since: Time,
    /// When it will have waited long enough, while it waits.
    pub(super) timer: Option<Time>,
    /// Where the queue's request that went out last ended; 0 before the first one.
    pub(super) last_position: u64,
}

impl Bfq {
    /// The largest budget that new queues count with.
    pub(super) fn default_budget(&self) -> u64 {
        if *self.slots < ENOUGH_SLOTS { DEFAULT } else { self.max_budget }
    }

    pub(super) fn least_budget(&self) -> u64 {
        self.default_budget() / LEAST_PART
    }

    /// What the queue may still be served, in sectors; less than nothing counts as nothing.
    pub(super) fn budget_left(&self, q: Index) -> u64 {
        let queue = self.queues.get(q);
        if !queue.is_busy {
            return queue.budget_left;
        }
        self.forest.state(queue.entity).budget.saturating_sub(self.forest.state(queue.entity).service)
    }

    pub(super) fn is_out_of_time(&self, q: Index, now: Time) -> bool {
        self.queues.get(q).timeout <= ticks(now)
    }

    /// Whether the queue in service may leave because its time is over: not while it is waited for, unless much of its
    /// budget is left.
    pub(super) fn may_time_out(&self, q: Index, now: Time) -> bool {
        let budget = self.forest.state(self.queues.get(q).entity).budget;
        let may = self.service.timer.is_none() || self.budget_left(q) >= budget / 3;
        may && self.is_out_of_time(q, now)
    }

    /// The next queue comes into service, if one waits.
    pub(super) fn start_service(&mut self, now: Time) -> Option<Index> {
        debug_assert!(self.service.queue.is_none(), "one queue is in service at a time");
        let entity = self.forest.next()?;
        let q = self.queue_of(entity);
        self.serve_from_now(q, now);
        Some(q)
    }

    /// Virtual time has put this queue into service.
    fn serve_from_now(&mut self, q: Index, now: Time) {
        debug_assert_eq!(self.forest.in_service(), Some(self.queues.get(q).entity), "virtual time has put it there");
        self.unlist(q);
        self.queues.get_mut(q).fifo_looked_at = false;
        *self.slots = (*self.slots * 7 + 256) / 8;
        let tick = ticks(now);
        self.note_served_raising(q, tick);
        let queue = self.queues.get_mut(q);
        let raised = if queue.raising.has_soft_duration() {
            1
        } else {
            (self.forest.state(queue.entity).weight / u64::from(queue.weight_in_force)).cast_signed()
        };
        queue.timeout = tick + self.tunables.timeout() * raised;
        let group = queue.group;
        self.groups.get_mut(group).counts.slots += 1;
        *self.service = Service { queue: Some(q), since: now, ..Service::default() };
    }

    /// Accounts a service to a queue that waits or is in service.
    pub(super) fn account(&mut self, q: Index, sectors: u64, now: Time) {
        let queue = self.queues.get_mut(q);
        queue.raising.serve(sectors, ticks(now));
        self.forest.serve(queue.entity, sectors);
    }

    /// Ends the time in service of `q`, unless another scheduler is followed. With `compensate`, the time for which the
    /// device waited for `q` last does not count.
    pub(super) fn expire(&mut self, q: Index, compensate: bool, reason: Reason, now: Time) {
        if self.is_following {
            return;
        }
        if self.expirations.is_some() {
            let queue = self.queue_name(q);
            self.expirations.get_or_insert_default().push(Expiration { at: now, queue, reason });
        }
        self.end_service(q, compensate, reason, now);
    }

    pub(super) fn end_service(&mut self, q: Index, compensate: bool, reason: Reason, now: Time) {
        debug_assert_eq!(self.service.queue, Some(q), "only the queue in service can leave it");
        let (is_slow, milliseconds) = self.judge(q, compensate, now);
        let queue = self.queues.get(q);
        let (entity, is_raised) = (queue.entity, queue.raising.is_raised());
        let is_late = reason == Reason::BudgetTimeout && self.budget_left(q) >= self.forest.state(entity).budget / 3;
        if !is_raised && (is_slow || is_late) {
            self.charge_time(q, milliseconds, now);
        }
        self.note_expired_raising(q, ticks(now));
        self.sample.stop();
        let budget = self.next_budget(q, reason);
        let group = self.queues.get(q).group;
        self.groups.get_mut(group).counts.fruitless_waits += u64::from(reason == Reason::TooIdle);
        self.leave_service_with(q, reason, budget, now);
    }

    /// Takes the queue in service out of it without an account of its time, because its group or client goes.
    pub(super) fn leave_service(&mut self, q: Index, reason: Reason) {
        let budget = self.forest.state(self.queues.get(q).entity).budget;
        self.sample.stop();
        self.leave_service_with(q, reason, budget, *self.now);
    }

    fn leave_service_with(&mut self, q: Index, reason: Reason, budget: u64, now: Time) {
        let queue = self.queues.get(q);
        if queue.is_shared && queue.seeks.is_seeky() {
            self.queues.get_mut(q).is_to_split = true;
        }
        let queue = self.queues.get(q);
        let (is_empty, dispatched, entity) = (queue.is_empty(), queue.dispatched, queue.entity);
        // A queue that is owed the device goes on waiting without requests. Otherwise others would be served without a
        // bound while its next request is on its way.
        if is_empty && !(reason == Reason::Preempted && self.idling_keeps_shares(q)) {
            let left = self.forest.state(entity).budget.saturating_sub(self.forest.state(entity).service);
            self.cease(q, true);
            let may_resume = !matches!(reason, Reason::BudgetTimeout | Reason::BudgetExhausted);
            let queue = self.queues.get_mut(q);
            if dispatched == 0 {
                queue.timeout = ticks(now);
            }
            (queue.may_resume, queue.budget_left) = (may_resume, if may_resume { left } else { 0 });
        } else {
            self.requeue(q, budget);
            self.place(q);
        }
        self.service.queue = None;
        self.service.timer = None;
        self.end_if_unused(q);
    }

    /// Whether a queue was slow, and for how many milliseconds it is to be charged then.
    fn judge(&self, q: Index, compensate: bool, now: Time) -> (bool, u64) {
        let queue = self.queues.get(q);
        if !queue.is_sync {
            return (false, 0);
        }
        let end = if compensate { self.service.idle_since } else { now };
        let took = end.since(self.service.since);
        if took < MOMENT {
            let least = if self.rotational { self.tunables.slice_idle } else { super::idle::SHORT };
            return (queue.seeks.is_seeky(), least / NS_PER_MS);
        }
        let is_slow = if took / NS_PER_US > LONG / NS_PER_US {
            self.forest.state(queue.entity).service < self.max_budget / 2
        } else {
            queue.seeks.is_seeky()
        };
        (is_slow, took / NS_PER_MS)
    }

    /// Charges the part of the largest budget that the time in service was of the timeout.
    fn charge_time(&mut self, q: Index, milliseconds: u64, now: Time) {
        let whole = to_ms(TIMEOUT);
        let sectors = self.max_budget * milliseconds.min(whole) / whole;
        let queue = self.queues.get_mut(q);
        let missing = self.forest.charge(queue.entity, sectors);
        queue.raising.serve(missing, ticks(now));
    }

    /// Sets how large the budgets of a queue that leaves service are from now on, and returns the next one.
    fn next_budget(&mut self, q: Index, reason: Reason) -> u64 {
        let (least, most) = (self.least_budget(), self.max_budget);
        let queue = self.queues.get(q);
        let (entity, is_raised) = (queue.entity, queue.raising.is_raised());
        let old = queue.max_budget;
        let mut budget = if is_raised { 2 * least } else { old };
        if queue.is_sync && !is_raised {
            budget = match reason {
                Reason::TooIdle if queue.dispatched > 0 => most.min(2 * old),
                Reason::TooIdle if old > 5 * least => old - 4 * least,
                Reason::TooIdle => least,
                Reason::BudgetTimeout => most.min(2 * old),
                Reason::BudgetExhausted if unless_mutated("bfq.most") => most.min(4 * old),
                Reason::BudgetExhausted => 4 * old,
                Reason::NoMoreRequests => self.forest.state(entity).service.max(least),
                Reason::Preempted => return self.in_slice(self.forest.state(entity).budget),
            };
        } else if !queue.is_sync {
            budget = most;
        }
        if *self.slots >= ENOUGH_SLOTS && self.tunables.max_budget == 0 {
            budget = budget.min(most);
        }
        let next = self.queues.get(q).next;
        self.queues.get_mut(q).max_budget = budget;
        match next {
            Some(next) => budget.max(self.charge_of(q, next)),
            None => self.forest.state(entity).budget,
        }
    }

    /// A budget, held to the slice if there is one.
    pub(super) fn in_slice(&self, budget: u64) -> u64 {
        self.slice().map_or(budget, |slice| budget.min(slice))
    }

    /// What the embedder bounds a budget to. A device that seeks does much less if it changes from one client to
    /// another that often, and is left what it has.
    pub(super) const fn slice(&self) -> Option<u64> {
        if self.rotational { None } else { self.slice }
    }

    /// The largest budget keeps within the slice, if there is one.
    pub(super) fn fit_largest(&mut self) {
        self.max_budget = self.in_slice(self.whole_budget);
    }

    /// The next request of a queue has changed: makes its budget large enough for that request.
    #[inline]
    pub(super) fn fit_budget(&mut self, q: Index) {
        if self.service.queue != Some(q) {
            self.fit_budget_now(q);
        }
    }

    #[inline(never)]
    fn fit_budget_now(&mut self, q: Index) {
        let queue = self.queues.get(q);
        let Some(next) = queue.next.filter(|_| queue.is_busy) else { return };
        let (entity, max_budget) = (queue.entity, queue.max_budget);
        let budget = max_budget.max(self.charge_of(q, next)).max(self.forest.state(entity).service);
        if budget != self.forest.state(entity).budget {
            self.requeue(q, budget);
        }
    }

    /// The queue's name for readers of expirations.
    pub(super) fn queue_name(&self, q: Index) -> QueueName {
        let queue = self.queues.get(q);
        match queue.made_for {
            _ if !queue.is_sync => QueueName::Async,
            Some(client) => QueueName::Sync(client),
            None => QueueName::Shared,
        }
    }

    /// The largest budget follows the device's rate, unless the knob `max_budget` sets it.
    pub(super) fn follow_rate(&mut self) {
        if self.tunables.max_budget == 0 {
            self.whole_budget = self.rate.in_time(self.tunables.timeout()).min(MOST);
            self.fit_largest();
        }
    }
}
