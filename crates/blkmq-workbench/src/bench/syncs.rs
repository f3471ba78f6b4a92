//! The flushes of a job, by fio's options `fsync` and `fdatasync`.
//!
//! As in fio, a job flushes before its next operation while the number of its writes is a multiple of either option. So
//! a read between two writes is followed by another flush, and nothing flushes after the last operation of a job.
//!
//! After its first flush a job needs a completion for each further one. In fio a flush completes when it is submitted,
//! so each operation of a job of full depth follows a completion. Here a flush is outstanding as any operation is, and
//! completions that come meanwhile are saved up for the flushes that follow.

use crate::job::{Direction, Job};

/// What decides when a job flushes.
#[derive(Debug)]
pub(super) struct Syncs {
    /// `fsync` and `fdatasync`; 0 for never.
    every: [u32; 2],
    writes: u64,
    has_flushed: bool,
    /// No operation was submitted since the last flush.
    is_last: bool,
    /// Something completed since the last check. Operations that complete together count as one.
    has_completed: bool,
    /// Completions that no flush has followed.
    completions: u64,
}

impl Syncs {
    /// The flushes of a job; `None` if it has neither option.
    pub(super) fn new(job: &Job) -> Option<Self> {
        let every = [job.fsync, job.fdatasync];
        let (has_flushed, is_last, has_completed) = (false, false, false);
        (every != [0; 2]).then_some(Self { every, writes: 0, has_flushed, is_last, has_completed, completions: 0 })
    }

    /// Called when an operation other than a flush was submitted.
    pub(super) fn submitted(&mut self, direction: Direction) {
        self.writes += u64::from(direction == Direction::Write);
        self.is_last = false;
    }

    /// Called when an operation other than a flush completed.
    pub(super) fn completed(&mut self) {
        self.has_completed = true;
    }

    /// Called when a flush was submitted.
    pub(super) fn flushed(&mut self) {
        (self.has_flushed, self.is_last) = (true, true);
        self.completions = self.completions.saturating_sub(1);
    }

    /// Whether the job flushes before its next operation.
    pub(super) fn is_due(&mut self) -> bool {
        self.completions += u64::from(std::mem::take(&mut self.has_completed));
        let divides = |every: &u32| *every > 0 && self.writes.is_multiple_of((*every).into());
        let may_flush = !self.is_last && (self.completions > 0 || !self.has_flushed);
        may_flush && self.writes > 0 && self.every.iter().any(divides)
    }
}
