//! How much of a request becomes one operation of the queue.

use blkmq::SECTOR_SIZE;
use blkmq::{Limits, Op};

/// The longest step with data, in bytes.
const DATA_STEP: u64 = 32 << 20;
/// The longest step, in bytes, of an operation that moves no data to or from the client, and for which a longer step
/// brings nothing.
const CACHE_STEP: u64 = 1 << 20;
/// The longest step without data, in bytes: a multiple of every block size that fits into the 32 bits of a length.
const DATALESS_STEP: u64 = 1 << 31;

/// The longest operation of each kind that certainly fits into the slots of a submitter, in bytes and whole blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Of a read or write.
    pub(super) data: u64,
    /// Of a read that warms a cache, and of a write of zeroes with data.
    pub(super) idle: u64,
    /// Of a discard.
    pub(super) discard: u64,
    /// Of a write of zeroes without data.
    pub(super) zeroes: u64,
}

impl Plan {
    /// For a device with these limits and a submitter with so many slots, at least one.
    pub(super) fn new(limits: &Limits, nr_slots: usize) -> Self {
        let block = u64::from(limits.logical_block_size) / SECTOR_SIZE as u64;
        let segments = u64::from(limits.max_segments) * u64::from(limits.max_segment_size) / SECTOR_SIZE as u64;
        let bytes = |op: Op, most: u64| {
            let mut piece = u64::from(limits.max_op_sectors(op));
            if op == Op::Read {
                piece = piece.min(segments - segments % block);
            }
            let sectors = longest(piece.max(block), limits.boundary_sectors.into(), nr_slots as u64, block);
            sectors.saturating_mul(SECTOR_SIZE as u64).min(most)
        };
        let data = bytes(Op::Read, DATA_STEP);
        Self {
            data,
            idle: data.min(CACHE_STEP),
            discard: bytes(Op::Discard, DATALESS_STEP),
            zeroes: bytes(Op::WriteZeroes, DATALESS_STEP),
        }
    }
}

/// Returns the longest range, in sectors, that is cut into at most `most` pieces wherever it begins. A piece is at most
/// `piece` long. No piece crosses a multiple of `boundary`, unless that is 0. All lengths are multiples of `block`.
fn longest(piece: u64, boundary: u64, most: u64, block: u64) -> u64 {
    let sectors = if boundary == 0 {
        piece.saturating_mul(most)
    } else {
        // A range touches at most two chunks more than it has whole chunks. A short range crosses one boundary.
        let whole = (most / boundary.div_ceil(piece)).saturating_sub(2).saturating_mul(boundary);
        whole.max(boundary.min(piece.saturating_mul(most.saturating_sub(1))))
    };
    (sectors - sectors % block).max(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of a range, cut as the block layer does.
    fn pieces(mut sector: u64, len: u64, piece: u64, boundary: u64) -> u64 {
        let end = sector + len;
        let mut count = 0;
        while sector < end {
            let until = if boundary == 0 { u64::MAX } else { boundary - sector % boundary };
            sector += piece.min(until).min(end - sector);
            count += 1;
        }
        count
    }

    #[test]
    fn the_longest_range_fits_wherever_it_begins() {
        for piece in [8, 16, 24, 64, 200] {
            for boundary in [0, 8, 16, 40, 64, 128, 1024] {
                for most in [1, 2, 3, 7, 64] {
                    let len = longest(piece, boundary, most, 8);
                    assert!(len >= 8 && len.is_multiple_of(8));
                    for sector in (0..2 * boundary.max(8)).step_by(8) {
                        let count = pieces(sector, len, piece, boundary);
                        assert!(count <= most, "{len} at {sector}: {count} pieces of {piece}, {boundary}, {most}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_common_device_takes_every_request_in_one() {
        let limits = Limits { max_discard_sectors: 1 << 20, max_write_zeroes_sectors: 8, ..Limits::default() };
        let expected = Plan { data: 32 << 20, idle: 1 << 20, discard: 1 << 31, zeroes: 256 * 4096 };
        assert_eq!(Plan::new(&limits, 256), expected);
        let small = Limits { max_sectors: 8, logical_block_size: 4096, ..Limits::default() };
        let plan = Plan::new(&small, 4);
        assert_eq!((plan.data, plan.idle), (16384, 16384));
    }
}
