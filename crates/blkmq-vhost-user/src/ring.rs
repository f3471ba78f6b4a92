//! Rings: where the guest puts requests, and where it finds what has become of them.
//!
//! A [`Ring`] takes chains of descriptors from the guest, one at a time, and gives them back. It trusts nothing that it
//! reads: whatever the guest has written, each number is read once, and then checked. What cannot be is a [`Fault`],
//! which ends the connection, and not the process.

mod chain;
mod fault;
mod packed;
mod split;

#[cfg(test)]
pub(crate) use self::chain::MAX_CHAIN;
pub(crate) use self::chain::{Chain, Descriptor, Left};
pub(crate) use self::fault::Fault;
pub(crate) use self::packed::{Cursor, Packed};
pub(crate) use self::split::Split;
use crate::memory::Memory;

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

/// One of the two kinds of rings.
#[derive(Debug)]
pub(crate) enum Ring {
    Split(Split),
    Packed(Packed),
}

impl Ring {
    /// A ring in the guest's memory. `base` is where it goes on, as the front-end has it.
    pub(crate) fn new(memory: &Memory, layout: &Layout, base: u32) -> Result<Self, Fault> {
        let is_size = if layout.is_packed { layout.size > 0 } else { layout.size.is_power_of_two() };
        if !is_size || layout.size > MAX_SIZE {
            return Err(Fault::Size(layout.size));
        }
        Ok(if layout.is_packed {
            Self::Packed(Packed::new(memory, layout, base)?)
        } else {
            Self::Split(Split::new(memory, layout, base)?)
        })
    }

    /// Takes the next chain that the guest has made available. False if there is none.
    pub(crate) fn take(&mut self, memory: &Memory, chain: &mut Chain) -> Result<bool, Fault> {
        match self {
            Self::Split(ring) => ring.take(memory, chain),
            Self::Packed(ring) => ring.take(memory, chain),
        }
    }

    /// Takes a chain that was in progress when another device had the ring.
    pub(crate) fn resume(&mut self, memory: &Memory, chain: &mut Chain, left: &Left) -> Result<(), Fault> {
        match self {
            Self::Split(ring) => ring.resume(memory, chain, left.entry),
            Self::Packed(ring) => ring.resume(memory, chain, &left.copy),
        }
    }

    /// Gives a chain back, of which `len` bytes were written. The guest may find it after [`publish`](Self::publish).
    pub(crate) fn put(&mut self, id: u16, nr_descriptors: u16, len: u32) {
        match self {
            Self::Split(ring) => ring.put(id, len),
            Self::Packed(ring) => ring.put(id, nr_descriptors, len),
        }
    }

    /// Shows the guest all that was given back. True if the guest wants to be told.
    pub(crate) fn publish(&mut self) -> bool {
        match self {
            Self::Split(ring) => ring.publish(),
            Self::Packed(ring) => ring.publish(),
        }
    }

    /// Asks the guest to kick when it makes something available. Returns true if it has done so already.
    pub(crate) fn ask_for_kicks(&mut self) -> Result<bool, Fault> {
        match self {
            Self::Split(ring) => ring.ask_for_kicks(),
            Self::Packed(ring) => ring.ask_for_kicks(),
        }
    }

    /// Tells the guest that it need not kick.
    pub(crate) fn refuse_kicks(&mut self) {
        match self {
            Self::Split(ring) => ring.refuse_kicks(),
            Self::Packed(ring) => ring.refuse_kicks(),
        }
    }

    /// Where the ring goes on, as the front-end has it.
    pub(crate) fn base(&self) -> u32 {
        match self {
            Self::Split(ring) => ring.base(),
            Self::Packed(ring) => ring.base(),
        }
    }
}

/// Whether the guest wants to be told of the step from `old` to `new`, if it waits for `event`.
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
pub(crate) mod tests;
