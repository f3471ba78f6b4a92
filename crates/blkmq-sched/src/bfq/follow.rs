//! Following the choices of another bfq: what a replay of Linux's recorded choices needs.

use alloc::vec::Vec;

use super::Bfq;
use crate::merge::forced;
use crate::slab::Index;
use crate::{ClientId, Info, Join, MergeHow, RqId, Ticket, Time};

/// Why a queue's time in service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Idling for the queue ended without a request.
    TooIdle,
    /// The queue's time in service was over.
    BudgetTimeout,
    /// The queue's next request was larger than what was left of its budget.
    BudgetExhausted,
    /// The queue had no requests, and was not worth waiting for.
    NoMoreRequests,
    /// Another queue had to be served first.
    Preempted,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 5] =
        [Self::TooIdle, Self::BudgetTimeout, Self::BudgetExhausted, Self::NoMoreRequests, Self::Preempted];

    /// Linux's name of the reason.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TooIdle => "TOO_IDLE",
            Self::BudgetTimeout => "BUDGET_TIMEOUT",
            Self::BudgetExhausted => "BUDGET_EXHAUSTED",
            Self::NoMoreRequests => "NO_MORE_REQUESTS",
            Self::Preempted => "PREEMPTED",
        }
    }

    /// The reason that Linux calls so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }
}

/// The name of a queue, for readers of [`Expiration`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueName {
    /// The queue of a client's synchronous requests.
    Sync(ClientId),
    /// A queue of asynchronous requests.
    Async,
    /// A queue that several clients share.
    Shared,
}

/// A queue left service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expiration {
    /// When.
    pub at: Time,
    /// The queue.
    pub queue: QueueName,
    /// Why.
    pub reason: Reason,
}

impl Bfq {
    /// From now on the scheduler keeps the expirations that it makes by itself, for
    /// [`take_expirations`](Self::take_expirations).
    pub fn watch_expirations(&mut self) {
        self.expirations.get_or_insert_default();
    }

    /// The expirations that the scheduler made by itself since this was called last.
    pub fn take_expirations(&mut self) -> Vec<Expiration> {
        self.expirations.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// While the scheduler follows, queues come into service and leave it by the methods below alone.
    pub fn set_following(&mut self, on: bool) {
        self.is_following = on;
    }

    /// From now on the queues of clients whose first requests come shortly after each other are merged for good, as
    /// Linux does with the processes of one parent. This is for a replay. Clients of a block layer that come together
    /// are not one program.
    pub fn merge_newborns(&mut self) {
        self.merges_newborn = true;
    }

    /// From now on the queue that comes next is decided when the one before comes into service, as in Linux. The clock
    /// of virtual time may then stay behind a queue that is alone. That queue pays later for what it got, and its lag
    /// has no bound.
    pub fn decide_early(&mut self) {
        self.forest.decide_early();
    }

    /// Does what the idle timer has to do until `now`.
    pub fn tick(&mut self, now: Time) {
        self.run_timer(now);
    }

    /// Ends the service of the queue in service, if there is one.
    pub fn force_expire(&mut self, reason: Reason, now: Time) {
        self.pass_time(now);
        if let Some(q) = self.service.queue {
            self.end_service(q, reason == Reason::TooIdle, reason, now);
        }
    }

    /// Puts a queue into service; false if there is none of this name. If another queue is in service, it has to leave
    /// first.
    pub fn force_slot(&mut self, queue: QueueName, now: Time) -> bool {
        self.pass_time(now);
        let Some(q) = self.find_queue(queue) else { return false };
        if self.service.queue == Some(q) {
            return true;
        }
        if let Some(other) = self.service.queue {
            self.end_service(other, false, Reason::Preempted, now);
        }
        if !self.queues.get(q).is_busy {
            self.begin(q, self.queues.get(q).max_budget);
        }
        self.forest.prefer(self.queues.get(q).entity);
        self.start_service(now) == Some(q)
    }

    /// Hands this request out, with the returned ticket; `None` if it does not wait. If its queue is not in service, it
    /// is injected.
    pub fn force_serve(&mut self, rq: RqId, now: Time) -> Option<Ticket> {
        self.pass_time(now);
        let at_head = self.at_head.iter(&self.requests).find(|(_, request)| request.id == rq).map(|(item, _)| item);
        if let Some(item) = at_head {
            self.start_at_head(item);
            return *self.ticket;
        }
        let item = self.find_request(rq)?;
        let q = self.requests.get(item).home.queue;
        match self.service.queue {
            Some(other) if other != q => self.note_injected(other, q),
            _ => self.service.timer = None,
        }
        self.serve_request(q, item, now);
        *self.ticket
    }

    /// Hands nothing out.
    pub fn force_none(&mut self, now: Time) {
        self.pass_time(now);
    }

    /// Lets `into` take the newcomer in; false if `into` does not wait.
    pub fn force_merge(&mut self, into: RqId, newcomer: &Info, how: MergeHow) -> bool {
        let Some(host) = self.find_request(into) else { return false };
        let grown = forced(&self.requests.get(host).info, newcomer, how);
        self.grow(host, how, grown);
        true
    }

    /// Lets one waiting request absorb another of its queue; false if one of them does not wait, or in another queue.
    pub fn force_join(&mut self, join: Join) -> bool {
        let pair = [join.survivor, join.absorbed].map(|id| self.find_request(id));
        let [Some(survivor), Some(absorbed)] = pair else { return false };
        let [host, guest] = [survivor, absorbed].map(|item| self.requests.get(item));
        if survivor == absorbed || host.home.queue != guest.home.queue {
            return false;
        }
        let grown = forced(&host.info, &guest.info, MergeHow::Back);
        self.join_requests(survivor, absorbed, grown);
        true
    }

    /// The waiting request of this id, unless it is at the head.
    fn find_request(&self, rq: RqId) -> Option<Index> {
        let mut queues = self.all.iter(&self.queues);
        queues.find_map(|(_, queue)| {
            let mut requests = queue.fifo.iter(&self.requests);
            requests.find(|(_, request)| request.id == rq).map(|(item, _)| item)
        })
    }

    fn find_queue(&self, name: QueueName) -> Option<Index> {
        let of_name = || self.all.iter(&self.queues).filter(|(q, _)| self.queue_name(*q) == name);
        let waiting = of_name().find(|(_, queue)| !queue.is_empty());
        if let Some((q, _)) = waiting.or_else(|| of_name().next()) {
            return Some(q);
        }
        // The queue may have another name here: that of another one of its clients.
        match name {
            QueueName::Async => None,
            QueueName::Sync(client) => self.clients.get(self.clients.place(client)).sync,
            QueueName::Shared => {
                let mut shared = self.all.iter(&self.queues).filter(|(_, queue)| queue.is_shared);
                shared.next().map(|(q, _)| q)
            }
        }
    }
}
