//! A waiting request.

use super::direction::Direction;
use crate::waiting::Waiting;
use crate::{Class, Info};

/// One waiting request. Of one at the head the deadline is when it came.
pub(super) type Request = Waiting;

// COST: two lines of 64 bytes at most, wherever in the slab it lies.
const _: () = assert!(size_of::<Request>() <= 80);

impl Request {
    pub(super) const fn class(&self) -> Class {
        self.info.priority.class
    }

    pub(super) const fn direction(&self) -> Direction {
        Direction::of(self.info.op)
    }

    /// Whether the request waits where a request such as `info` waits. For assertions.
    pub(super) fn is_of_queue(&self, info: &Info) -> bool {
        self.class() == info.priority.class && self.direction() == Direction::of(info.op)
    }
}
