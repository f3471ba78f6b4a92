//! Rings: where the guest puts requests, and where it finds what has become of them.
//!
//! A [`Split`] or [`Packed`] ring takes chains of descriptors from the guest, one at a time, and gives them back. It
//! trusts nothing that it reads: whatever the guest has written, each number is read once, and then checked. What
//! cannot be is a [`Fault`], which ends the connection, and not the process.

mod chain;
mod fault;
mod packed;
mod split;

pub(crate) use self::chain::{Chain, Descriptor};
#[cfg(test)]
pub(crate) use self::chain::{INDIRECT, MAX_CHAIN, NEXT, WRITE};
pub(crate) use self::fault::Fault;
pub(crate) use self::packed::{Cursor, Packed};
pub(crate) use self::split::Split;

/// The most descriptors of a ring.
pub(crate) const MAX_SIZE: u16 = 32768;

/// A ring as the front-end describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) size: u16,
    /// The guest's addresses: of the descriptors, of what the driver writes, and of what the device writes.
    pub(crate) descriptors: u64,
    pub(crate) driver: u64,
    pub(crate) device: u64,
    pub(crate) is_packed: bool,
    pub(crate) has_event_idx: bool,
    pub(crate) has_indirect: bool,
}

/// Whether the guest wants to be told of the step from `old` to `new`, if it waits for `event`.
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
pub(crate) mod tests;
