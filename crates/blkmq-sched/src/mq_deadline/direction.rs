//! Reads and all other operations, which the scheduler keeps apart.

use crate::Op;

/// The direction of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

impl Direction {
    pub(super) const ALL: [Self; 2] = [Self::Read, Self::Write];

    pub(super) const fn of(op: Op) -> Self {
        if op.is_read() { Self::Read } else { Self::Write }
    }
}
