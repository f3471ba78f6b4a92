//! What must be true of a world, one file for each kind of promise.

use super::event::{Event, Stamp};

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The checker's name.
    pub(crate) rule: &'static str,
    /// What happened and what should have, in one sentence.
    pub(crate) what: String,
    /// The operations concerned, by number.
    pub(crate) bios: Vec<u64>,
    /// The requests concerned.
    pub(crate) requests: Vec<blkmq_sched::RqId>,
}

/// Watches the events of one world for one kind of promise.
pub(crate) trait Checker: Send {
    /// Looks at an event.
    ///
    /// # Errors
    /// The promise that it breaks.
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation>;

    /// Every CPU has come to its end.
    ///
    /// # Errors
    /// The promise that was not kept.
    fn end(&mut self, at: Stamp) -> Result<(), Violation> {
        let _ = at;
        Ok(())
    }
}

impl Violation {
    /// A broken promise that concerns no operation in particular.
    pub(crate) fn new(rule: &'static str, what: String) -> Self {
        Self { rule, what, bios: Vec::new(), requests: Vec::new() }
    }

    /// The same, with an operation that it concerns.
    pub(crate) fn bio(mut self, bio: u64) -> Self {
        self.bios.push(bio);
        self
    }

    /// The same, with a request that it concerns.
    pub(crate) fn request(mut self, rq: blkmq_sched::RqId) -> Self {
        self.requests.push(rq);
        self
    }
}
