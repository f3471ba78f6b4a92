//! Following the choices of another bfq: what a replay of Linux's recorded choices needs.

use alloc::vec::Vec;

use super::Bfq;
use crate::{ClientId, Info, Join, MergeHow, RqId, Time};

/// Why a queue's time in service ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It was waited for in vain.
    TooIdle,
    /// Its time in service was over.
    BudgetTimeout,
    /// Its next request was larger than what was left of its budget.
    BudgetExhausted,
    /// It had no requests, and was not worth waiting for.
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

/// A queue, as people name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueName {
    /// That of a client's synchronous requests.
    Sync(ClientId),
    /// One of asynchronous requests.
    Async,
    /// One that several clients share.
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
    /// From now on keeps the expirations that it makes of itself.
    pub fn watch_expirations(&mut self) {
        self.expirations.get_or_insert_default();
    }

    /// The expirations that it made of itself since it was asked last.
    pub fn take_expirations(&mut self) -> Vec<Expiration> {
        self.expirations.as_mut().map(core::mem::take).unwrap_or_default()
    }

    /// While it follows, nothing comes into service or leaves it but by the methods below.
    pub fn set_following(&mut self, on: bool) {
        self.is_following = on;
    }

    /// Does what the idle timer has to do until `now`.
    pub fn tick(&mut self, _now: Time) {}

    /// Ends the service of the queue in service, if there is one.
    pub fn force_expire(&mut self, _reason: Reason, _now: Time) {}

    /// Puts a queue into service; false if there is none of this name that waits.
    pub fn force_slot(&mut self, _queue: QueueName, _now: Time) -> bool {
        false
    }

    /// Hands this request out; false if it does not wait. If its queue is not in service, it is injected.
    pub fn force_serve(&mut self, rq: RqId, _now: Time) -> bool {
        let place = self.waiting.iter().position(|(id, _)| *id == rq);
        place.is_some_and(|place| {
            self.waiting.remove(place);
            true
        })
    }

    /// Hands nothing out.
    pub fn force_none(&mut self, _now: Time) {}

    /// Lets `into` take the newcomer in; false if `into` does not wait.
    pub fn force_merge(&mut self, _into: RqId, _newcomer: &Info, _how: MergeHow) -> bool {
        false
    }

    /// Lets one waiting request absorb another; false if one of them does not wait.
    pub fn force_join(&mut self, _join: Join) -> bool {
        false
    }
}
