//! What becomes of an operation: it is over, or it was not taken.

use std::io::{self, ErrorKind};

use blkmq_sched::{RqId, Time};

use crate::request::bio::Bio;
use crate::request::status::Status;

/// An operation that was not taken, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejected {
    /// The operation, as it was handed in.
    pub bio: Bio,
    /// Why.
    pub reason: RejectReason,
}

/// Why an operation was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum RejectReason {
    /// All slots are in use: reap completions first.
    #[error("every slot of the submitter is in use")]
    Full,
    /// The operation can never succeed.
    #[error("{0}")]
    Bad(Status),
}

/// A batch that ended at an operation which can never succeed: the error of
/// [`submit_batch`](crate::Submitter::submit_batch).
#[derive(Debug, thiserror::Error)]
#[error("the batch ended after {taken} operations: {status}")]
#[non_exhaustive]
pub struct RejectedBatch {
    /// How many operations in front of it were taken.
    pub taken: usize,
    /// The operation, as it was handed in.
    pub bio: Bio,
    /// Why it can never succeed.
    pub status: Status,
}

/// An operation that is over.
///
/// # Times
/// The clock is read once for a batch of operations, so these are the times of the batches that this operation was part
/// of.
#[derive(Debug)]
#[non_exhaustive]
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
    /// for it. An operation of which the driver got only a flush has the time of that flush, which may serve other
    /// operations too. A flush after the data of a write does not change the write's time. Zero if the operation never
    /// reached the driver.
    pub issued: Time,
    /// When a thread found that the operation had finished, with the flush after its data, or when the operation was
    /// refused. A flush of a device without a write cache has the time at which its plug was begun.
    pub completed: Time,
    /// The operation, with its buffers.
    pub bio: Bio,
}

impl Completion {
    /// The completion as a result, for the operator `?`.
    ///
    /// # Errors
    /// The operation was not done, or was done in part.
    #[inline]
    pub fn into_result(self) -> Result<Self, Failed> {
        if self.status.is_ok() { Ok(self) } else { Err(Failed { completion: self }) }
    }
}

/// An operation that was not done, or was done in part.
#[derive(Debug, thiserror::Error)]
#[error(
    "{:?} of {} sectors at sector {} failed: {}",
    .completion.bio.op, .completion.bio.nr_sectors, .completion.bio.sector, .completion.status
)]
#[non_exhaustive]
pub struct Failed {
    /// The operation with its buffers, and its status, which is not [`Status::Ok`].
    pub completion: Completion,
}

/// The kind is for programs, the text for people. [`io::Error::get_ref`] leads back to the operation.
impl From<Failed> for io::Error {
    fn from(failed: Failed) -> Self {
        Self::new(failed.completion.status.error_kind(), failed)
    }
}

/// The kind of [`RejectReason::Full`] is [`ErrorKind::WouldBlock`].
impl From<Rejected> for io::Error {
    fn from(rejected: Rejected) -> Self {
        let kind = match rejected.reason {
            RejectReason::Full => ErrorKind::WouldBlock,
            RejectReason::Bad(status) => status.error_kind(),
        };
        Self::new(kind, rejected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    fn over(status: Status) -> Completion {
        let bio = Bio::read(8, Buffer::zeroed(512));
        Completion { id: RqId(1), status, submitted: Time(0), issued: Time(0), completed: Time(0), bio }
    }

    /// Red if the error forgets the operation, its buffers or the status, as itself or as an I/O error.
    #[test]
    fn a_completion_is_a_result() {
        assert_eq!(over(Status::Ok).into_result().expect("it was done").bio.sector, 8);
        let failed = over(Status::Medium).into_result().expect_err("it failed");
        assert_eq!(failed.to_string(), "Read of 1 sectors at sector 8 failed: medium error");
        let error = io::Error::from(over(Status::NoSpace).into_result().expect_err("it failed"));
        let failed = error.get_ref().and_then(|inner| inner.downcast_ref::<Failed>()).expect("it is inside");
        assert_eq!((error.kind(), failed.completion.status), (ErrorKind::StorageFull, Status::NoSpace));
        assert_eq!(failed.completion.bio.buffers.len(), 512);
    }
}
