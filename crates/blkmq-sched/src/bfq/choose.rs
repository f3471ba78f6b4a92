//! The main loop: which queue is served, and which of its requests goes next.

use super::clock::ticks;
use super::{Bfq, Reason};
use crate::site::unless_mutated;
use crate::slab::Index;
use crate::{Class, RqId, Ticket, Time};

/// What is to be done with the queue in service.
enum Verdict {
    /// A request of this queue goes: the queue in service, or one that is injected. `None`: the device waits.
    Serve(Option<Index>),
    /// The time in service of the queue ends.
    Expire(Reason),
}

impl Bfq {
    /// The next request goes out. While none waits nothing is decided: whether the queue in service goes on is decided
    /// when its requests complete, or when others come.
    pub(super) fn choose(&mut self, now: Time) -> Option<RqId> {
        if self.requests.len() == 0 {
            return None;
        }
        if let Some(item) = self.at_head.head() {
            return Some(self.start_at_head(item));
        }
        if self.nr_busy() == 0 || self.tunables.strict_guarantees && *self.in_driver > 0 {
            return None;
        }
        let q = self.select(now)?;
        let item = self.queues.get(q).next.expect("a queue that is served has a request");
        Some(self.serve_request(q, item, now))
    }

    /// The queue of which a request goes out.
    fn select(&mut self, now: Time) -> Option<Index> {
        let mut q = match self.service.queue {
            Some(q) if self.may_time_out(q, now) && !self.must_idle(q) => {
                self.expire(q, false, Reason::BudgetTimeout, now);
                self.start_service(now)?
            }
            Some(q) => q,
            None => self.start_service(now)?,
        };
        loop {
            match self.judge_in_service(q) {
                Verdict::Serve(chosen) => return chosen,
                Verdict::Expire(reason) => self.expire(q, false, reason, now),
            }
            q = self.start_service(now)?;
        }
    }

    fn judge_in_service(&mut self, q: Index) -> Verdict {
        let queue = self.queues.get(q);
        if let Some(next) = queue.next {
            if self.charge_of(q, next) > self.budget_left(q) {
                return Verdict::Expire(Reason::BudgetExhausted);
            }
            // It was waited for until there were more requests, or the device wanted one.
            self.service.timer = None;
            return Verdict::Serve(Some(q));
        }
        if self.service.timer.is_some() || queue.dispatched > 0 && self.better_to_idle(q) {
            return Verdict::Serve(self.choose_injected(q));
        }
        Verdict::Expire(Reason::NoMoreRequests)
    }

    pub(super) fn start_at_head(&mut self, item: Index) -> RqId {
        debug_assert!(!self.mergeable.is_last(item), "nothing merges into a request at the head");
        self.at_head.remove(&mut self.requests, item);
        let q = self.requests.get(item).home.queue;
        self.queues.get_mut(q).dispatched += 1;
        self.begin_pending(q);
        self.start(q, item, 0)
    }

    /// Counts and forgets a request that is in no list any more.
    fn start(&mut self, q: Index, item: Index, mark: u32) -> RqId {
        let request = self.requests.remove(item);
        let (id, sectors) = (request.id, request.info.nr_sectors);
        *self.in_driver += 1;
        let counts = &mut self.groups.get_mut(self.queues.get(q).group).counts;
        counts.dispatched += 1;
        counts.sectors += u64::from(sectors);
        let owner = if unless_mutated("bfq.ticket") { q } else { self.service.queue.unwrap_or(q) };
        *self.ticket = Some(ticket(owner, mark));
        id
    }

    pub(super) fn serve_request(&mut self, q: Index, item: Index, now: Time) -> RqId {
        let charge = self.charge_of(q, item);
        let charged = if unless_mutated("bfq.charge") { q } else { self.service.queue.unwrap_or(q) };
        debug_assert!(
            self.is_following || self.budget_left(charged) >= charge,
            "a queue is charged within the budget that it has"
        );
        self.account(charged, charge, now);
        let is_in_service = self.service.queue == Some(q);
        let mark = if is_in_service { self.sample.mark_dispatched() } else { 0 };
        self.queues.get_mut(q).dispatched += 1;
        let info = self.requests.get(item).info;
        if self.rate.note_dispatch(&info, *self.in_driver, now) {
            self.follow_rate();
        }
        if is_in_service {
            self.service.last_position = info.end();
        }
        self.take_out(q, item, now);
        let id = self.start(q, item, mark);
        if is_in_service {
            self.update_raising(q, ticks(now));
            if self.nr_busy() > 1 && self.class(q) == Class::Idle {
                self.expire(q, false, Reason::BudgetExhausted, now);
            }
        }
        id
    }

    /// Takes a request out of its queue.
    pub(super) fn take_out(&mut self, q: Index, item: Index, now: Time) {
        debug_assert_eq!(self.requests.peek(item).home.queue, q, "a request is taken out of its own queue");
        debug_assert!(self.queues.peek(q).nr_waiting > 0 && *self.nr_waiting > 0, "what is taken out waits");
        if self.queues.get(q).next == Some(item) {
            let next = self.next_after(q, item, now);
            self.queues.get_mut(q).next = next;
            self.fit_budget(q);
        }
        let merge = self.requests.get(item).info.merge;
        let queue = self.queues.get_mut(q);
        self.mergeable.remove(&mut self.requests, &mut queue.sorted, &mut queue.fifo, item, merge);
        queue.nr_waiting -= 1;
        *self.nr_waiting -= 1;
        if !self.queues.get(q).is_empty() {
            self.place(q);
            return;
        }
        debug_assert!(self.queues.get(q).next.is_none(), "an empty queue has no next request");
        if self.queues.get(q).is_busy && self.service.queue != Some(q) {
            self.cease(q, true);
            self.queues.get_mut(q).budget_left = 0;
        }
        self.displace(q);
    }

    /// The request that goes when `last` has gone: once in a time of service the oldest one if its time has come, and
    /// otherwise the nearest one.
    fn next_after(&mut self, q: Index, last: Index, now: Time) -> Option<Index> {
        let queue = self.queues.get_mut(q);
        if !core::mem::replace(&mut queue.fifo_looked_at, true) {
            let oldest = queue.fifo.head().filter(|oldest| *oldest != last);
            if let Some(oldest) = oldest
                && self.requests.get(oldest).deadline <= now
            {
                return Some(oldest);
            }
        }
        let sorted = &self.queues.get(q).sorted;
        let before = sorted.prev(&self.requests, last);
        let after = sorted.next(&self.requests, last).or_else(|| {
            let first = sorted.first_from(&self.requests, 0);
            first.filter(|first| *first != last)
        });
        self.better(after, before, self.requests.get(last).info.sector)
    }

    /// The better one of two requests for a device that stands at `last`: the nearer one, where a way back counts
    /// `back_seek_penalty` times. A request farther back than `back_seek_max` is chosen only if both are, or the other
    /// one is missing.
    pub(super) fn better(&self, one: Option<Index>, other: Option<Index>, last: u64) -> Option<Index> {
        let (Some(first), Some(second)) = (one, other) else { return one.or(other) };
        let [from, to] = [first, second].map(|item| self.requests.get(item).info.sector);
        let [distance, other_distance] = [from, to].map(|sector| {
            if sector >= last {
                return Some(sector - last);
            }
            let is_near = sector.saturating_add(self.tunables.back_seek_max_sectors()) >= last;
            is_near.then(|| (last - sector).saturating_mul(self.tunables.back_seek_penalty))
        });
        let takes_first = match (distance, other_distance) {
            (Some(near), Some(far)) if near != far => near < far,
            (Some(_), Some(_)) => from >= to,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            // One seek back, to the first of all.
            (None, None) => from <= to,
        };
        Some(if takes_first { first } else { second })
    }
}

/// Bits of a ticket that name a queue. The others are the mark.
const QUEUE_BITS: u32 = 20;

/// The ticket of a dispatched request: its queue, and its mark if its time is a sample.
fn ticket(q: Index, mark: u32) -> Ticket {
    debug_assert!(q.number().get() < 1 << QUEUE_BITS, "there are not so many queues");
    Ticket(q.number() | mark << QUEUE_BITS)
}

/// The queue and the mark of a ticket.
pub(super) fn of_ticket(ticket: Ticket) -> (Option<Index>, u32) {
    let number = ticket.0.get();
    (Index::of_number(number % (1 << QUEUE_BITS)), number >> QUEUE_BITS)
}
