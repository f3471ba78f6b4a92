//! Why there is no judgement.

use blkmq::QueueError;
use blkmq::driver::spec::SpecError;

/// Why there is no judgement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// The device cannot be opened.
    #[error("{0}")]
    Device(#[source] SpecError),
    /// The device cannot be judged on: why, and what would be right.
    #[error("{0}")]
    Unfit(String),
    /// A scheduler cannot be in front of the device.
    #[error("scheduler {0}: {1}")]
    Queue(String, #[source] QueueError),
    /// An operation failed.
    #[error("{0}")]
    Failed(String),
    /// It was stopped before its end.
    #[error("interrupted before its end")]
    Stopped,
}
