//! Requests of a block device, as they stand in a chain.

use blkmq::SECTOR_SIZE;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_ID_BYTES, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP as UNMAP,
};

use crate::memory::{Memory, Piece};
use crate::ring::{Chain, Fault};

/// Bytes of a request's header.
const HEADER: usize = 16;
/// Bytes of a range of a discard, or of zeroes.
const RANGE: usize = 16;
/// The most ranges of one request. The configuration tells the guest.
pub(crate) const MAX_RANGES: usize = 32;
/// Bytes of a device's name.
pub(crate) const NAME: usize = VIRTIO_BLK_ID_BYTES as usize;

/// A range of sectors, and its flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) sector: u64,
    pub(crate) nr_sectors: u32,
    flags: u32,
}

/// A request. Its data is what is left of the chain: what is read, without the header, and what is written, without the
/// status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    /// A `VIRTIO_BLK_T_` of the standard, or any other number.
    pub(crate) kind: u32,
    pub(crate) sector: u64,
    /// What the guest says of the priority: a field that the standard reserves, and Linux sets.
    pub(crate) priority: u32,
    /// Where the status is to be written.
    pub(crate) status: Piece,
}

/// Cuts so many bytes off the front. False if there are not as many.
pub(crate) fn cut_front(memory: &Memory, pieces: &mut Vec<Piece>, to: &mut [u8]) -> bool {
    let (mut filled, mut whole) = (0, 0);
    for piece in pieces.iter_mut() {
        let (first, rest) = piece.split((to.len() - filled) as u32);
        memory.read(first, &mut to[filled..]);
        filled += first.len as usize;
        *piece = rest;
        if rest.len > 0 {
            break;
        }
        whole += 1;
    }
    pieces.drain(..whole);
    filled == to.len()
}

impl Request {
    /// Reads the header, and takes header and status out of the chain.
    pub(crate) fn parse(memory: &Memory, chain: &mut Chain) -> Result<Self, Fault> {
        let header = match chain.readable.first() {
            // As drivers lay it out.
            Some(first) if first.len as usize == HEADER => memory.get(chain.readable.remove(0)),
            _ => {
                let mut header = [0; HEADER];
                if !cut_front(memory, &mut chain.readable, &mut header) {
                    return Err(Fault::NoHeader);
                }
                u128::from_ne_bytes(header)
            }
        };
        let last = chain.writable.pop().ok_or(Fault::NoStatus)?;
        let (rest, status) = last.split(last.len - 1);
        if rest.len > 0 {
            chain.writable.push(rest);
        }
        let header = u128::from_le(header);
        Ok(Self { kind: header as u32, priority: (header >> 32) as u32, sector: (header >> 64) as u64, status })
    }
}

/// Whether the device's memory is cut into whole sectors, as the block layer wants it.
pub(crate) fn is_whole(pieces: &[Piece]) -> bool {
    pieces.iter().all(|piece| (piece.len as usize).is_multiple_of(SECTOR_SIZE))
}

/// The bytes of all pieces.
pub(crate) fn len(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.len as usize).sum()
}

impl Range {
    /// The ranges of a discard, or of zeroes. `None` if they cannot be.
    pub(crate) fn all(memory: &Memory, pieces: &mut Vec<Piece>) -> Option<Vec<Self>> {
        let len = len(pieces);
        if len == 0 || !len.is_multiple_of(RANGE) || len > MAX_RANGES * RANGE {
            return None;
        }
        let mut bytes = [0; MAX_RANGES * RANGE];
        cut_front(memory, pieces, &mut bytes[..len]);
        let range = |bytes: &[u8; RANGE]| {
            let bits = u128::from_le_bytes(*bytes);
            Self { sector: bits as u64, nr_sectors: (bits >> 64) as u32, flags: (bits >> 96) as u32 }
        };
        Some(bytes[..len].as_chunks().0.iter().map(range).collect())
    }

    /// Whether the flags are those that the operation may have.
    pub(crate) fn has_known_flags(&self, kind: u32) -> bool {
        self.flags & !if kind == VIRTIO_BLK_T_WRITE_ZEROES { UNMAP } else { 0 } == 0
    }

    pub(crate) fn may_unmap(&self) -> bool {
        self.flags & UNMAP != 0
    }
}
