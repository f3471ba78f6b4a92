//! Completions, and requests that bypassed.

use super::choose::of_ticket;
use super::clock::ticks;
use super::request::is_waited_for;
use super::{Bfq, Reason};
use crate::site::unless_mutated;
use crate::slab::Index;
use crate::{Event, Report, Ticket, Time};

/// More requests than this with the device at once show that the device takes several.
const SEVERAL: u32 = 3;
/// So many samples decide that.
const SAMPLES: u32 = 32;

impl Bfq {
    /// A request that was dispatched with this ticket has completed.
    pub(super) fn note_completed(&mut self, report: &Report, ticket: Ticket) {
        let (Some(q), mark) = of_ticket(ticket) else { return };
        self.end_sample(q, mark, report.at);
        let place = self.clients.place(report.client);
        let client = self.clients.get_mut(place);
        client.outstanding = client.outstanding.saturating_sub(1);
        self.count_completed(self.queues.get(q).group, 1, report);
        self.complete(q, 1, report.at);
        self.count_out(q, 1);
        self.end_if_unused(q);
    }

    /// Requests bypassed. Their queue is charged for them as if it had been served, and they count among the requests
    /// that the device has.
    pub(super) fn note_passed(&mut self, report: &Report) {
        let (requests, sectors) = (u32::from(report.requests), u64::from(report.sectors));
        let place = self.clients.place(report.client);
        let is_sync = is_waited_for(report.op, report.sync);
        let q = self.queue_for(place, is_sync, report.priority, report.at);
        self.charge_passed(q, sectors, report.at);
        let client = self.clients.get_mut(place);
        client.outstanding += requests;
        let passing = &mut client.passing[usize::from(is_sync)];
        passing.with_device += requests;
        let over = requests.min(passing.early);
        passing.early -= over;
        *self.in_driver += requests;
        self.count_passed(q, requests, sectors);
        if is_sync {
            self.count_in(q, requests);
            self.queues.get_mut(q).dispatched += requests;
            self.begin_pending(q);
            if self.service.queue == Some(q) {
                self.service.timer = None;
            }
        }
        if over > 0 {
            self.end_passing(place, is_sync, over, report);
        }
    }

    /// Handles the reports of requests that bypassed the scheduler and then completed together, while no queue is in
    /// service and their queue has no other requests. The second report subtracts again the counts that the first one
    /// adds; the service and the times remain. Returns false, and does nothing, for any other reports.
    pub(super) fn note_both(&mut self, passed: &Report, over: Option<&Report>) -> bool {
        let Some(over) = over.filter(|over| over.event == Event::Completed(None)) else { return false };
        if self.service.queue.is_some() {
            return false;
        }
        let Some(q) = self.lone_queue(passed, over) else { return false };
        let (requests, sectors) = (u32::from(passed.requests), u64::from(passed.sectors));
        self.charge_passed(q, sectors, passed.at);
        self.pass_time(over.at);
        *self.in_driver += requests;
        self.note_queueing();
        *self.in_driver -= requests;
        self.count_passed(q, requests, sectors);
        let queue = self.queues.get_mut(q);
        queue.think_time.note_end(over.at);
        queue.timeout = ticks(over.at);
        let group = queue.group;
        self.count_completed(group, requests, over);
        self.conclude(q, over.at);
        true
    }

    /// The queue of requests that bypassed and were over, if nothing is in service, all that the reports tell of are
    /// the same requests, and their queue is settled and has no others.
    fn lone_queue(&self, passed: &Report, over: &Report) -> Option<Index> {
        let kind = |report: &Report| (report.client, report.op, report.sync, report.requests);
        if kind(passed) != kind(over) || !is_waited_for(passed.op, passed.sync) {
            return None;
        }
        let place = self.clients.place(passed.client);
        let client = self.clients.get(place);
        let q = client.sync.filter(|q| client.passing[1].early == 0 && self.is_settled(place, *q, passed.priority))?;
        let queue = self.queues.get(q);
        (!queue.is_busy && queue.dispatched == 0).then_some(q)
    }

    /// Counts requests of `q` that bypassed in the queue's group.
    fn count_passed(&mut self, q: Index, requests: u32, sectors: u64) {
        let queue = self.queues.get_mut(q);
        queue.just_created = false;
        let counts = &mut self.groups.get_mut(queue.group).counts;
        counts.inserted += u64::from(requests);
        counts.dispatched += u64::from(requests);
        counts.sectors += sectors;
    }

    fn charge_passed(&mut self, q: Index, sectors: u64, now: Time) {
        let queue = self.queues.get_mut(q);
        if queue.is_busy {
            self.account(q, sectors, now);
            return;
        }
        queue.may_resume = false;
        queue.raising.serve(sectors, ticks(now));
        let entity = queue.entity;
        self.forest.pass(entity, sectors);
        self.note_weight(q);
    }

    pub(super) fn note_passed_completed(&mut self, report: &Report) {
        let place = self.clients.place(report.client);
        let is_sync = is_waited_for(report.op, report.sync);
        let passing = &mut self.clients.get_mut(place).passing[usize::from(is_sync)];
        let over = u32::from(report.requests).min(passing.with_device);
        if unless_mutated("bfq.early") {
            passing.early += u32::from(report.requests) - over;
        }
        if over > 0 {
            self.end_passing(place, is_sync, over, report);
        }
    }

    /// Accounts for completed requests whose bypass has been reported.
    fn end_passing(&mut self, place: u16, is_sync: bool, requests: u32, report: &Report) {
        let client = self.clients.get_mut(place);
        debug_assert!(client.passing[usize::from(is_sync)].with_device >= requests, "they passed before they are over");
        client.passing[usize::from(is_sync)].with_device -= requests;
        client.outstanding = client.outstanding.saturating_sub(requests);
        let Some(q) = client.sync.filter(|_| is_sync) else {
            let group = client.latest_async.and_then(|name| self.named(name)).map(|q| self.queues.get(q).group);
            let group = group.unwrap_or_else(|| self.group_of(place));
            self.count_completed(group, requests, report);
            *self.in_driver -= requests;
            return;
        };
        self.count_completed(self.queues.get(q).group, requests, report);
        self.complete(q, requests, report.at);
        self.count_out(q, requests);
    }

    /// Requests of a queue of this group have completed.
    fn count_completed(&mut self, group: usize, requests: u32, report: &Report) {
        let counts = &mut self.groups.get_mut(group).counts;
        counts.completed += u64::from(requests);
        counts.in_device += u64::from(report.in_device) * u64::from(requests);
    }

    /// Requests of `q` have completed.
    fn complete(&mut self, q: Index, requests: u32, now: Time) {
        self.note_queueing();
        *self.in_driver -= requests;
        let queue = self.queues.get_mut(q);
        debug_assert!(queue.dispatched >= requests, "what completes was with the device");
        queue.dispatched -= requests;
        queue.think_time.note_end(now);
        if queue.dispatched == 0 && !queue.is_busy {
            queue.timeout = ticks(now);
            self.end_pending(q);
        }
        self.conclude(q, now);
        if self.service.queue == Some(q) {
            self.judge_completed(q, now);
        }
    }

    /// What is learnt of a completion beside how many requests there are.
    #[inline(always)]
    fn conclude(&mut self, q: Index, now: Time) {
        if self.rate.note_completion(now) {
            self.follow_rate();
        }
        let is_shared = self.queues.get(q).is_shared;
        *self.last_completed = (!is_shared).then(|| self.name_of(q));
        self.note_completed_raising(q, ticks(now));
    }

    /// A request of the queue in service has completed: does the queue stay in service?
    fn judge_completed(&mut self, q: Index, now: Time) {
        let queue = self.queues.get(q);
        let (is_empty, dispatched) = (queue.is_empty(), queue.dispatched);
        if self.must_idle(q) {
            if dispatched == 0 {
                self.start_idling(q, now);
            }
        } else if self.may_time_out(q, now) {
            self.expire(q, false, Reason::BudgetTimeout, now);
        } else if is_empty {
            self.expire(q, false, Reason::NoMoreRequests, now);
        }
    }

    /// Whether the device takes several requests at once, judged while there are several.
    fn note_queueing(&mut self) {
        self.most_in_driver = self.most_in_driver.max(*self.in_driver);
        if self.queueing == Some(true) || *self.in_driver + *self.nr_waiting <= SEVERAL {
            return;
        }
        // A queue that is waited for may itself be why the device has few.
        if let Some(q) = self.service.queue {
            let queue = self.queues.get(q);
            let has_few = queue.dispatched + queue.nr_waiting < SEVERAL && *self.in_driver < SEVERAL;
            if queue.think_time.thinks_shortly && has_few {
                return;
            }
        }
        if self.queueing_samples < SAMPLES {
            self.queueing_samples += 1;
            return;
        }
        self.queueing_samples = 0;
        self.queueing = Some(self.most_in_driver > SEVERAL);
        self.most_in_driver = 0;
    }
}
