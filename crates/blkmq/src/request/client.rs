//! The tenant for which operations are done: Linux's io_context and cgroup in one.

pub use blkmq_sched::DEFAULT_WEIGHT;
pub use blkmq_sched::{Class, ClientId, GroupId, IoPriority};

/// A tenant of a queue. Fairness is between clients. A client is known by its name: submitters that serve clients of
/// one name serve one client, which is there as long as one of them is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    /// The name, which is also shown in dumps and statistics.
    pub name: String,
    /// The share relative to the other clients and groups of its group, 1 to 1000, unless the client is known already;
    /// see [`set_client_weight`](crate::RequestQueue::set_client_weight).
    pub weight: u16,
    /// The priority of the submitter's operations that carry none of their own.
    pub priority: IoPriority,
    /// The group that the client belongs to, unless the client is known already; see
    /// [`move_client`](crate::RequestQueue::move_client). Fairness is first between groups, and requests of two groups
    /// never merge.
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
