//! What becomes of an operation: it is over, or it was not taken.

use std::fmt;

use blkmq_sched::{RqId, Time};

use crate::Status;
use crate::bio::Bio;

/// An operation that was not taken, with the reason.
#[derive(Debug)]
pub struct Rejected {
    /// The operation, as it was handed in.
    pub bio: Bio,
    /// Why.
    pub reason: RejectReason,
}

/// Why an operation was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// All slots are in use: reap completions first.
    Full,
    /// The operation can never succeed.
    Bad(Status),
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            RejectReason::Full => f.write_str("every slot of the submitter is in use"),
            RejectReason::Bad(status) => status.fmt(f),
        }
    }
}

impl std::error::Error for Rejected {}

/// An operation that is over.
///
/// # Times
/// The clock is read once for a batch of operations, so these are the times of the batches that this operation was part
/// of.
#[derive(Debug)]
pub struct Completion {
    /// The id that [`Submitter::submit`](crate::Submitter::submit) returned.
    pub id: RqId,
    /// How it ended.
    pub status: Status,
    /// When the plug that the operation went into was begun.
    pub submitted: Time,
    /// When the driver got the last part of the operation: when its plug was passed on, or when its request was
    /// dispatched later. If [`submit_batch`](crate::Submitter::submit_batch) or
    /// [`flush_batch`](crate::Submitter::flush_batch) passed the plug on, the time at which the plug was begun is taken
    /// for it. Zero if the operation never reached the driver.
    pub issued: Time,
    /// When a thread found that the operation had finished, or when the operation was refused.
    pub completed: Time,
    /// The operation, with its buffers.
    pub bio: Bio,
}
