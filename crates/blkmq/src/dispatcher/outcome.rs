//! What comes of inserting and dispatching.

/// What came of inserting a plug.
#[must_use]
pub(super) struct Inserted {
    /// How many operations left the plug and have entered the queue.
    pub(super) entered: u64,
    /// How far dispatching came together with the insertion. `None` if this thread still has to dispatch.
    pub(super) dispatched: Option<Dispatched>,
}

impl Inserted {
    /// Adds what came of another part of the plug.
    pub(super) fn add(&mut self, next: Self) {
        self.dispatched = self.dispatched.zip(next.dispatched).map(|(before, next)| before.and(next));
        self.entered += next.entered;
    }
}

/// How far a thread came in dispatching.
#[must_use]
#[derive(Debug, Clone, Copy)]
pub(super) struct Dispatched {
    /// How many requests became ready to be issued. With this type the whole outcome fits into one register.
    chosen: u32,
    /// The thread has used its budget at the scheduler: it [defers](blkmq_sync::liveness::Liveness::defer) what
    /// remains.
    pub(super) gave_up: bool,
}

/// Called for each batch, so what a thread is told of it stays in registers.
const _: () = assert!(size_of::<Option<Dispatched>>() == 8 && size_of::<Inserted>() == 16);

impl Dispatched {
    /// `chosen` is at most the number of tags of all hardware queues.
    pub(super) const fn new(chosen: usize, gave_up: bool) -> Self {
        std::debug_assert!(chosen <= u32::MAX as usize, "no more requests become ready than there are tags");
        Self { chosen: chosen as u32, gave_up }
    }

    pub(super) const fn chosen(self) -> usize {
        self.chosen as usize
    }

    /// Both, one after the other.
    #[inline]
    pub(super) const fn and(self, next: Self) -> Self {
        Self { chosen: self.chosen + next.chosen, gave_up: self.gave_up | next.gave_up }
    }

    /// `chosen` requests, and the thread went as far as it could.
    pub(super) const fn all(chosen: usize) -> Self {
        Self::new(chosen, false)
    }
}
