//! A waiting request, and where it belongs.

use crate::Info;
use crate::slab::Index;
use crate::waiting::Waiting;

/// Where a waiting request belongs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Home {
    /// The queue in which it waits.
    pub(super) queue: Index,
    /// The place of the client that asks.
    pub(super) client: u16,
}

/// One waiting request.
pub(super) type Request = Waiting<Home>;

// COST: two lines of 64 bytes at most, wherever in the slab it lies.
const _: () = assert!(size_of::<Request>() <= 88);

/// Whether a thread waits for a request. A read is always waited for.
pub(super) const fn is_sync(info: &Info) -> bool {
    info.sync || info.op.is_read()
}
