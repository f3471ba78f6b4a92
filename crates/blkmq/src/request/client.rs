//! The tenant for which operations are done: Linux's io_context and cgroup in one.

pub use blkmq_sched::DEFAULT_WEIGHT;
use blkmq_sched::{GroupId, IoPriority};

/// A tenant of a queue: shares are a client's, not a submitter's. A client is known by its name. Submitters that are
/// made with one client name serve one client, which a queue knows as long as one of these submitters is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    /// The name, which is also shown in dumps and statistics. It has no character that
    /// [`is_hidden`](crate::is_hidden).
    pub name: String,
    /// The share relative to the other clients and groups of its group, 1 to 1000. A client that the queue knows
    /// already keeps its weight; [`set_client_weight`](crate::Tenants::set_client_weight) changes it.
    pub weight: u16,
    /// The priority of the submitter's operations that carry none of their own.
    pub priority: IoPriority,
    /// The group that the client belongs to. A client that the queue knows already stays in its group;
    /// [`move_client`](crate::Tenants::move_client) moves it. A group has a share of its own, which its clients
    /// divide. Requests of two groups never merge.
    pub group: GroupId,
}

impl Client {
    /// A client with weight 100 and best-effort priority level 4, in the root group.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), weight: DEFAULT_WEIGHT, priority: IoPriority::default(), group: GroupId::ROOT }
    }

    /// The same client with another default priority.
    #[must_use]
    pub fn with_priority(mut self, priority: IoPriority) -> Self {
        self.priority = priority;
        self
    }
}
