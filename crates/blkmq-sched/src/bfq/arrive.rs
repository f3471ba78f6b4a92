//! Arrival: a request comes to its queue. The queue may begin to wait, and may preempt the queue in service.

use super::clock::ticks;
use super::request::{Request, RequestOwner, is_sync};
use super::{Bfq, Reason};
use crate::slab::Index;
use crate::{Info, InsertAt, RqId, Time};

/// A lone request smaller than so many sectors, of a queue that is waited for, may soon be a part of a larger one.
const SMALL: u32 = 32;
/// A request is in time if it comes within so many times `slice_idle`.
const IN_TIME: u64 = 3;

impl Bfq {
    pub(super) fn take_in(&mut self, rq: RqId, info: &Info, at: InsertAt, now: Time) {
        let place = self.clients.place(info.client);
        let mut q = self.queue_for(place, is_sync(info), info.priority, now);
        self.clients.get_mut(place).outstanding += 1;
        self.note_burst(q, ticks(now));
        let deadline = now.after(self.tunables.expire(is_sync(info)));
        if at == InsertAt::Head {
            self.count_in(q, 1);
            let item =
                self.requests.insert(Request::new(rq, *info, deadline, RequestOwner { queue: q, client: place }));
            self.at_head.push_front(&mut self.requests, item);
            return;
        }
        if is_sync(info) {
            q = self.cooperate(place, q, info.sector, now);
        }
        self.count_in(q, 1);
        self.note_think_time(q, now);
        self.judge_think_time(q, now);
        self.note_seek(q, info, now);
        let item = self.requests.insert(Request::new(rq, *info, deadline, RequestOwner { queue: q, client: place }));
        self.add(q, item, place, now);
        self.queues.get_mut(q).fifo.push_back(&mut self.requests, item);
        self.note_enqueued(q, info, now);
        let group = self.queues.get(q).group;
        self.groups.get_mut(group).counts.inserted += 1;
    }

    /// Counts the request and sorts it in. A queue that did not wait begins to.
    fn add(&mut self, q: Index, item: Index, place: u16, now: Time) {
        let tick = ticks(now);
        let queue = self.queues.get_mut(q);
        queue.nr_waiting += 1;
        *self.nr_waiting += 1;
        let before = queue.raising.coefficient;
        if queue.is_sync {
            if self.clients.get(place).outstanding <= 1 {
                self.look_for_waker(q, now);
                self.begin_sample(q, now);
            }
            self.note_steadiness(q, now);
        }
        self.mergeable.insert(&mut self.requests, &mut self.queues.get_mut(q).sorted, item);
        let old_next = self.queues.get(q).next;
        let next = self.better(old_next, Some(item), self.rate.last_position);
        self.queues.get_mut(q).next = next;
        if next != old_next {
            self.place(q);
        }
        let mut is_interactive = false;
        if self.queues.get(q).is_busy {
            self.raise_async(q, tick);
            if next != old_next {
                self.fit_budget(q);
            }
        } else {
            is_interactive = self.begin_busy(q, place, now);
        }
        self.note_raised_arrival(q, before, is_interactive, tick);
    }

    /// A queue that had no requests has one: its budget and weight are set, and it may preempt the queue in service.
    /// Returns whether it counts as interactive.
    fn begin_busy(&mut self, q: Index, place: u16, now: Time) -> bool {
        let next = self.queues.get(q).next.expect("a queue begins to wait with a request");
        let queue = self.queues.get(q);
        let in_time = now <= queue.think_time.last_end.after(IN_TIME * self.tunables.slice_idle);
        let may_resume = queue.may_resume && in_time && queue.budget_left > 0;
        // Other clients were lent meanwhile what this client left, and need not give it back. If they had to, they
        // would lag behind in virtual time, and later be served alone for long.
        let resumes = may_resume && self.slice().is_none();
        let mut budget = if resumes {
            queue.budget_left.min(queue.max_budget)
        } else {
            queue.max_budget.max(self.charge_of(q, next))
        };
        self.queues.get_mut(q).may_resume = resumes;
        let for_good = self.clients.get(place).is_merged_for_good;
        let is_interactive = self.raise_on_arrival(q, for_good, &mut budget, ticks(now));
        self.begin(q, budget);
        self.preempt(q, resumes, now);
        is_interactive
    }

    /// Ends the service of the queue in service, so that `q`, which just began to wait, may come next. That happens if
    /// `q` goes on within its last budget and is raised no less, or if `q` is above the other queue, or if the other
    /// queue is not worth waiting for; and only if virtual time would serve another member of the root next.
    fn preempt(&mut self, q: Index, resumes: bool, now: Time) {
        let Some(other) = self.service.queue else { return };
        if !self.forest.may_preempt() {
            return;
        }
        let [coefficient, in_service] = [q, other].map(|q| self.queues.get(q).raising.coefficient);
        if resumes && coefficient >= in_service || self.is_above(q, other) || !self.better_to_idle(other) {
            self.expire(other, false, Reason::Preempted, now);
        }
    }

    /// Whether `q` is of a higher class than `other`, or has the larger weight. Of queues of different groups, the
    /// weights of the groups count.
    fn is_above(&self, q: Index, other: Index) -> bool {
        if self.class(q) < self.class(other) {
            return true;
        }
        let groups = [q, other].map(|q| self.queues.get(q).group);
        let same = groups[0] == groups[1];
        let [weight, in_service] = [q, other].map(|q| {
            let queue = self.queues.get(q);
            let counts_alone = same || queue.group == 0;
            let entity = if counts_alone { queue.entity } else { self.groups.entity(queue.group) };
            self.forest.state(entity).weight
        });
        weight > in_service
    }

    /// A request has come: is the device still to wait for the queue?
    fn note_enqueued(&mut self, q: Index, info: &Info, now: Time) {
        let queue = self.queues.get_mut(q);
        queue.last_position = info.end();
        let is_lone = queue.nr_waiting == 1 && info.nr_sectors < SMALL;
        if self.service.queue != Some(q) || self.service.timer.is_none() {
            return;
        }
        let is_late = self.is_out_of_time(q, now);
        if is_lone && self.idling_helps_throughput(q) && !is_late {
            return;
        }
        self.service.timer = None;
        if is_late {
            self.expire(q, false, Reason::BudgetTimeout, now);
        }
    }
}
