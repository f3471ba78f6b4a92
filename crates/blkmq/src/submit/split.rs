//! Cutting an operation into requests that the device accepts.

use blkmq_sched::Op;

use crate::request::bio::Bio;
use crate::request::buffer::Buffers;
use crate::request::limits::{Limits, SECTOR_SIZE};
use crate::request::{Part, SlotIndex};

/// The part of an operation that one request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) sector: u64,
    pub(super) nr_sectors: u32,
    /// Where its data begins in the operation's buffers, in bytes.
    pub(super) offset: usize,
    pub(super) nr_segments: u16,
}

impl Piece {
    /// The part of the bio in the slot `parent` that this piece is.
    #[inline(always)]
    pub(super) const fn of(&self, parent: SlotIndex) -> Part {
        Part { parent, sector: self.sector, nr_sectors: self.nr_sectors, offset: self.offset }
    }
}

/// The limits of most operations, worked out once. Such an operation is a read or write of one buffer, and becomes one
/// request of one segment.
#[derive(Debug)]
pub(super) struct UnsplitLimits {
    capacity: u64,
    /// Sectors: the bits that are not set in a multiple of the logical block size.
    unaligned: u64,
    most: u64,
    /// Sectors from one line that no request may cross to the next; 0 if there are no such lines.
    boundary: u64,
}

impl UnsplitLimits {
    pub(super) fn new(limits: &Limits) -> Self {
        let sector_size = SECTOR_SIZE as u64;
        let segment = u64::from(limits.max_segment_size) / sector_size;
        let boundary = u64::from(limits.boundary_sectors);
        let chunk = if boundary == 0 { u64::MAX } else { boundary };
        let most = u64::from(limits.max_op_sectors(Op::Read)).min(segment).min(limits.capacity_sectors).min(chunk);
        Self {
            capacity: limits.capacity_sectors,
            unaligned: u64::from(limits.logical_block_size) / sector_size - 1,
            // If the device refuses writes, every operation has all its checks.
            most: if limits.read_only { 0 } else { most },
            boundary,
        }
    }

    /// The one piece of an operation. `None` unless the operation is of this kind, passes [`Limits::check`], has the
    /// buffer that it needs, and needs nothing of the flush machine.
    #[inline]
    pub(super) fn piece(&self, bio: &Bio) -> Option<Piece> {
        let Bio { op: Op::Read | Op::Write, sector, nr_sectors, flags, buffers: Buffers::One(buffer), .. } = bio else {
            return None;
        };
        let fits = (1..=self.most).contains(nr_sectors)
            && (sector | nr_sectors) & self.unaligned == 0
            && *sector <= self.capacity - nr_sectors
            && buffer.len() as u64 == nr_sectors * SECTOR_SIZE as u64
            && (self.boundary == 0 || sector % self.boundary <= self.boundary - nr_sectors)
            && !(flags.preflush || flags.fua);
        fits.then_some(Piece { sector: *sector, nr_sectors: *nr_sectors as u32, offset: 0, nr_segments: 1 })
    }
}

/// The pieces of an operation that passed [`Limits::check`], in order. The pieces cover the operation without gap or
/// overlap. Each is a multiple of the logical block size.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    limits: &'a Limits,
    bio: &'a Bio,
    done: u64,
}

impl<'a> Pieces<'a> {
    pub(super) const fn new(limits: &'a Limits, bio: &'a Bio) -> Self {
        Self { limits, bio, done: 0 }
    }

    /// Sectors until the next line that no request may cross.
    fn until_boundary(&self, sector: u64) -> u64 {
        match u64::from(self.limits.boundary_sectors) {
            0 => u64::MAX,
            boundary => boundary - sector % boundary,
        }
    }

    /// Cuts `most` bytes from `offset` down to what fits into `max_segments`, and counts the segments.
    fn fit_segments(&self, offset: usize, most: usize) -> (usize, u16) {
        if self.bio.buffers.pages().is_some() {
            // The kernel cuts these by itself, where the device behind the driver wants that.
            return (most, 1);
        }
        let max_segment = self.limits.max_segment_size as usize;
        let (mut bytes, mut segments) = (0, 0_u16);
        for segment in self.bio.buffers.segments(offset, most) {
            let mut left = segment.len();
            while left > 0 && segments < self.limits.max_segments {
                let taken = left.min(max_segment);
                left -= taken;
                bytes += taken;
                segments += 1;
            }
            if left > 0 {
                break;
            }
        }
        (bytes, segments)
    }
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let bio = self.bio;
        if bio.op == Op::Flush {
            let first = std::mem::replace(&mut self.done, 1) == 0;
            return first.then_some(Piece { sector: 0, nr_sectors: 0, offset: 0, nr_segments: 0 });
        }
        let sector = bio.sector + self.done;
        let offset = self.done as usize * SECTOR_SIZE;
        let left = bio.nr_sectors.saturating_sub(self.done);
        if left == 0 {
            return None;
        }
        let most = left.min(u64::from(self.limits.max_op_sectors(bio.op))).min(self.until_boundary(sector));
        let (nr_sectors, nr_segments) = match bio.op {
            Op::Read | Op::Write => {
                let (bytes, segments) = self.fit_segments(offset, most as usize * SECTOR_SIZE);
                let block = u64::from(self.limits.logical_block_size) / SECTOR_SIZE as u64;
                let sectors = (bytes / SECTOR_SIZE) as u64;
                // A block of more segments than the device takes goes as it is, and the driver sees what it can do with
                // the block.
                ((sectors - sectors % block).max(block.min(most)), segments)
            }
            Op::Flush | Op::Discard | Op::WriteZeroes => (most, 1),
        };
        debug_assert!((1..=left).contains(&nr_sectors), "a piece has sectors, and is within the operation");
        self.done += nr_sectors;
        let nr_sectors = u32::try_from(nr_sectors).expect("a request's length fits its limits");
        let offset = if bio.buffers.is_empty() { 0 } else { offset };
        Some(Piece { sector, nr_sectors, offset, nr_segments })
    }
}

/// How many requests an operation needs. Stops counting at one above `most`, because an operation without data may be
/// as large as the device.
pub(super) fn count(limits: &Limits, bio: &Bio, most: usize) -> usize {
    Pieces::new(limits, bio).take(most + 1).count()
}

#[cfg(test)]
mod tests;
