//! The hardware queues of a device.

use std::error::Error;

use super::cause::Cause;
use crate::request::limits::{MAX_DEPTH, MAX_HW_QUEUES};

/// How many hardware queues a device has, of which type, and how deep each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// Queues for everything that the other types do not take; at least one.
    pub default_queues: u16,
    /// Queues for plain reads. If there are none, reads go to the default queues.
    pub read_queues: u16,
    /// Queues for polled operations. If there are none, these go to the default queues.
    pub poll_queues: u16,
    /// Tags of each queue, 1 to [`MAX_DEPTH`].
    pub depth: u16,
}

impl Topology {
    /// So many hardware queues of the default type, and none of the others.
    #[must_use]
    pub const fn new(default_queues: u16, depth: u16) -> Self {
        Self { default_queues, read_queues: 0, poll_queues: 0, depth }
    }

    /// Queues of all types.
    #[must_use]
    pub const fn nr_queues(&self) -> usize {
        self.default_queues as usize + self.read_queues as usize + self.poll_queues as usize
    }

    /// Checks that a device can have these hardware queues.
    pub(crate) fn check(&self) -> Result<(), TopologyError> {
        if self.default_queues == 0 {
            return Err(TopologyError::NoDefaultQueue);
        }
        if self.nr_queues() > MAX_HW_QUEUES {
            return Err(TopologyError::TooManyQueues(*self));
        }
        if !(1..=MAX_DEPTH).contains(&self.depth) {
            return Err(TopologyError::BadDepth(self.depth));
        }
        Ok(())
    }
}

/// Why a device cannot have the hardware queues that it is to have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// There is no hardware queue of the default type.
    #[error("there must be a hardware queue of the default type")]
    NoDefaultQueue,
    /// More hardware queues than [`MAX_HW_QUEUES`].
    #[error(
        "{} default, {} read and {} polled hardware queues are more than {MAX_HW_QUEUES}",
        .0.default_queues, .0.read_queues, .0.poll_queues
    )]
    TooManyQueues(Topology),
    /// A hardware queue cannot have that many tags.
    #[error("a hardware queue has 1 to {MAX_DEPTH} tags, not {0}")]
    BadDepth(u16),
    /// The device of this name has a fixed number of hardware queues.
    #[error("the device '{0}' has a fixed number of hardware queues")]
    Fixed(&'static str),
    /// The driver's own reason.
    #[error("{0}")]
    Refused(#[source] Cause),
}

impl TopologyError {
    /// A driver's own reason: an error, or a sentence that says what would be right.
    #[must_use]
    pub fn refused(why: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused(Cause::new(why))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Red if a driver's error is turned into words and lost.
    #[test]
    fn a_drivers_reason_is_told_and_kept() {
        let cause = || io::Error::from(io::ErrorKind::NotFound);
        let error = TopologyError::refused(cause());
        assert_eq!(error.to_string(), cause().to_string());
        let found = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(found.map(io::Error::kind), Some(io::ErrorKind::NotFound));
        assert_eq!(error, TopologyError::refused(cause().to_string()));
        assert_ne!(error, TopologyError::refused("no"));
    }
}
