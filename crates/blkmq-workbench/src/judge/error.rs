//! Why there is no judgement.

use std::fmt;

use blkmq::QueueError;
use blkmq::driver::spec::SpecError;

/// Why there is no judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum JudgeError {
    /// The device cannot be opened.
    Device(SpecError),
    /// The device cannot be judged on: why, and what would be right.
    Unfit(String),
    /// A scheduler cannot be in front of the device.
    Queue(String, QueueError),
    /// An operation failed.
    Failed(String),
    /// It was stopped before its end.
    Stopped,
}

impl fmt::Display for JudgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::Queue(scheduler, error) => write!(f, "scheduler {scheduler}: {error}"),
            Self::Unfit(what) | Self::Failed(what) => f.write_str(what),
            Self::Stopped => f.write_str("interrupted before its end"),
        }
    }
}

impl std::error::Error for JudgeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Device(error) => Some(error),
            Self::Queue(_, error) => Some(error),
            _ => None,
        }
    }
}
