//! The direction of a request: a read, or anything else.

use crate::Op;

/// The direction of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// A read.
    Read,
    /// Anything else, as in Linux.
    Write,
}

impl Direction {
    pub(crate) const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// The direction of an operation.
    pub(crate) const fn of(op: Op) -> Self {
        if op.is_read() { Self::Read } else { Self::Write }
    }
}
