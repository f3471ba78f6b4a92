//! Chains of descriptors: the memory of one request.

use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

use super::fault::Fault;
use crate::memory::{Memory, NoMemory, Piece};

/// The most descriptors of a chain, with those of its table, and the most pieces of memory. As with QEMU: the length
/// that a driver may use follows from `seg_max`, which is far below.
pub(crate) const MAX_CHAIN: usize = 1024;
/// The most bytes of one chain. No guest asks for that much; it bounds what the numbers below may come to.
const MAX_BYTES: u64 = 1 << 30;

pub(crate) const NEXT: u16 = VRING_DESC_F_NEXT as u16;
pub(crate) const WRITE: u16 = VRING_DESC_F_WRITE as u16;
pub(crate) const INDIRECT: u16 = VRING_DESC_F_INDIRECT as u16;
/// Bytes of a descriptor, in both kinds of rings.
pub(super) const DESCRIPTOR: usize = 16;

/// A descriptor as it was read, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    /// In a packed ring the id of the buffer.
    pub(crate) next: u16,
    pub(crate) flags: u16,
}

impl Descriptor {
    /// From a ring of this kind, or from a table of one.
    pub(super) fn of(bits: u128, is_packed: bool) -> Self {
        let bits = u128::from_le(bits);
        let (third, last) = ((bits >> 96) as u16, (bits >> 112) as u16);
        let (next, flags) = if is_packed { (third, last) } else { (last, third) };
        Self { address: bits as u64, len: (bits >> 64) as u32, next, flags }
    }
}

/// The memory of one request: first what the device reads, then what it writes.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// The number by which the guest knows the chain.
    pub(crate) id: u16,
    /// Descriptors of the ring, without those of tables.
    pub(crate) nr_descriptors: u16,
    /// The descriptors of a packed ring, without those of tables: the guest writes others over them.
    pub(crate) copy: Vec<Descriptor>,
    pub(crate) readable: Vec<Piece>,
    pub(crate) writable: Vec<Piece>,
    /// Descriptors so far, with those of tables.
    nr_all: usize,
    nr_bytes: u64,
}

impl Chain {
    /// Forgets the last chain, and keeps its memory.
    pub(super) fn begin(&mut self) {
        (self.nr_descriptors, self.nr_all, self.nr_bytes) = (0, 0, 0);
        self.copy.clear();
        self.readable.clear();
        self.writable.clear();
    }

    /// Adds a descriptor of the ring itself, which may stand for a table.
    pub(super) fn add(
        &mut self,
        memory: &Memory,
        descriptor: Descriptor,
        has_indirect: bool,
        is_packed: bool,
    ) -> Result<(), Fault> {
        self.nr_descriptors += 1;
        if is_packed {
            self.copy.push(descriptor);
        }
        if descriptor.flags & INDIRECT == 0 {
            return self.add_memory(memory, descriptor);
        }
        // A table ends its chain: a driver MUST NOT set both flags. There may be descriptors of memory in front of it.
        if !has_indirect || descriptor.flags & NEXT != 0 {
            return Err(Fault::Table);
        }
        let (len, size) = (descriptor.len, DESCRIPTOR as u32);
        let nr = len / size;
        if !len.is_multiple_of(size) || nr == 0 || nr as usize > MAX_CHAIN {
            return Err(Fault::TableLength(len));
        }
        let none = Fault::Memory(NoMemory { address: descriptor.address, len: len.into() });
        let mut index = 0;
        loop {
            let address = descriptor.address.checked_add(u64::from(index) * DESCRIPTOR as u64).ok_or(none)?;
            let inner = Descriptor::of(memory.read_at(address).map_err(|_| none)?, is_packed);
            if inner.flags & INDIRECT != 0 {
                return Err(Fault::Table);
            }
            self.add_memory(memory, inner)?;
            // The descriptors of a packed ring's table follow one another, and only WRITE means something.
            if is_packed {
                index += 1;
                if index == nr {
                    return Ok(());
                }
            } else if inner.flags & NEXT == 0 {
                return Ok(());
            } else {
                index = inner.next.into();
                if index >= nr {
                    return Err(Fault::Index(inner.next));
                }
            }
        }
    }

    fn add_memory(&mut self, memory: &Memory, descriptor: Descriptor) -> Result<(), Fault> {
        let Descriptor { address, len, flags, .. } = descriptor;
        self.nr_all += 1;
        self.nr_bytes += u64::from(len);
        if self.nr_all > MAX_CHAIN || self.nr_bytes > MAX_BYTES {
            return Err(Fault::TooLong);
        }
        if len == 0 {
            return Err(Fault::Empty);
        }
        let is_write = flags & WRITE != 0;
        if !is_write && !self.writable.is_empty() {
            return Err(Fault::Order);
        }
        let pieces = if is_write { &mut self.writable } else { &mut self.readable };
        memory.pieces(address, len, |piece| pieces.push(piece)).map_err(Fault::Memory)?;
        // A descriptor has many pieces if its memory lies in many regions.
        if self.readable.len() + self.writable.len() > MAX_CHAIN { Err(Fault::TooLong) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::{file, info};

    /// Red if a chain whose descriptors lie in many regions is taken with more pieces than a chain has descriptors.
    #[test]
    fn a_chain_has_no_more_pieces_than_descriptors() {
        let page = 4096;
        let mut memory = Memory::default();
        for nr in 0..3 {
            memory.add(info(page * nr, page), file(page)).unwrap();
        }
        let most = MAX_CHAIN as u64;
        for (nr_across, is_right) in [(most / 2, true), (most / 2 + 1, false)] {
            let mut chain = Chain::default();
            let across = Descriptor { address: page - 1, len: 2, next: 0, flags: WRITE };
            let added = (0..nr_across).try_for_each(|_| chain.add(&memory, across, false, false));
            assert_eq!(added.is_ok(), is_right, "{nr_across} descriptors of two pieces each");
        }
    }
}
