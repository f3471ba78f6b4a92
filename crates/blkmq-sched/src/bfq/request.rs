//! A waiting request, and where it belongs.

use crate::slab::Index;
use crate::waiting::Waiting;
use crate::{Info, Op};

/// Where a waiting request belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestOwner {
    /// The queue in which it waits.
    pub(super) queue: Index,
    /// The place of the client that asks.
    pub(super) client: u16,
}

/// One waiting request.
pub(super) type Request = Waiting<RequestOwner>;

// COST: two lines of 64 bytes at most, wherever in the slab it lies.
const _: () = assert!(size_of::<Request>() <= 88);

/// Whether a thread waits for a request.
pub(super) const fn is_sync(info: &Info) -> bool {
    is_waited_for(info.op, info.sync)
}

/// Whether a thread waits for a request: for one that is marked `sync`, and for every read.
pub(super) const fn is_waited_for(op: Op, sync: bool) -> bool {
    sync || op.is_read()
}
