//! `bfq`: each client its share of the device's service, in budgets of sectors.

mod follow;
#[expect(dead_code, reason = "the scheduler that uses virtual time comes next")]
mod wf2q;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

pub use follow::{Expiration, QueueName, Reason};

use crate::{Info, InsertAt, RqId, Scheduler, Time};

/// The kernel's name of the policy.
pub(crate) const NAME: &str = "bfq";

/// The scheduler `bfq`. Not yet in the registry: it still hands requests out in the order in which they came.
#[derive(Debug, Clone, Default)]
pub struct Bfq {
    waiting: VecDeque<(RqId, Info)>,
    expirations: Option<Vec<Expiration>>,
    is_following: bool,
}

impl Bfq {
    /// An empty scheduler with default knobs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Scheduler for Bfq {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reserve(&mut self, capacity: usize) {
        self.waiting.reserve(capacity.saturating_sub(self.waiting.len()));
    }

    fn insert(&mut self, rq: RqId, info: &Info, _at: InsertAt, _now: Time) {
        self.waiting.push_back((rq, *info));
    }

    fn dispatch(&mut self, _now: Time) -> Option<RqId> {
        self.waiting.pop_front().map(|(rq, _)| rq)
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}
