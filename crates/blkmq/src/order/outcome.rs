//! What comes of inserting and dispatching.

/// What came of inserting a plug.
#[must_use]
pub(crate) struct Inserted {
    /// How many operations left the plug and have entered the queue.
    pub(crate) entered: u64,
    /// What was dispatched with the insertion, if this thread tried to dispatch all that it has to.
    pub(crate) dispatched: Option<Dispatched>,
}

/// How far a thread came in dispatching.
#[must_use]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dispatched {
    /// How many requests became ready to be issued.
    pub(crate) chosen: usize,
    /// The thread has done its share at the scheduler, and left the rest: it [hands
    /// on](blkmq_sync::liveness::Liveness::hand_on) what it left.
    pub(crate) gave_up: bool,
}

impl Dispatched {
    /// `chosen` requests, and the thread went as far as it could.
    pub(crate) const fn all(chosen: usize) -> Self {
        Self { chosen, gave_up: false }
    }
}
