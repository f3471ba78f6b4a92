//! The tenant for which operations are done: Linux's io_context and cgroup in one.

pub use blkmq_sched::{Class, ClientId, IoPriority};

/// A tenant of a queue. Fairness is between clients; several submitters may serve one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Client {
    /// The name shown in dumps and statistics.
    pub name: String,
    /// The share relative to other clients, 1 to 1000.
    pub weight: u16,
    /// The priority of its operations that carry none of their own.
    pub priority: IoPriority,
    /// The group that the client belongs to, 0 if none. Fairness is first between groups, and requests of two groups
    /// never merge.
    pub group: u32,
}

impl Client {
    /// A client with weight 100, best-effort priority level 4 and no group.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), weight: 100, priority: IoPriority::default(), group: 0 }
    }

    /// The same client with another default priority.
    #[must_use]
    pub fn with_priority(mut self, priority: IoPriority) -> Self {
        self.priority = priority;
        self
    }
}
