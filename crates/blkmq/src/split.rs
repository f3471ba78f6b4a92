//! Cutting an operation into requests that the device accepts.

use blkmq_sched::Op;

use crate::bio::Bio;
use crate::buffer::Buffers;
use crate::limits::{Limits, SECTOR_SIZE};

/// One request's share of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) sector: u64,
    pub(crate) nr_sectors: u32,
    /// Where its data begins in the operation's buffers, in bytes.
    pub(crate) offset: usize,
    pub(crate) nr_segments: u16,
}

/// The pieces of an operation that passed [`Limits::check`], in order. They cover it without gap or overlap, and each
/// is a multiple of the logical block size.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    limits: &'a Limits,
    bio: &'a Bio,
    done: u64,
}

impl<'a> Pieces<'a> {
    pub(crate) const fn new(limits: &'a Limits, bio: &'a Bio) -> Self {
        Self { limits, bio, done: 0 }
    }

    /// Sectors until the next line that no request may cross.
    fn until_boundary(&self, sector: u64) -> u64 {
        match u64::from(self.limits.boundary_sectors) {
            0 => u64::MAX,
            boundary => boundary - sector % boundary,
        }
    }

    /// An operation of one buffer that is one segment, and one request: the common case, without a loop.
    fn whole(&self) -> Option<Piece> {
        let Bio { op: Op::Read | Op::Write, sector, nr_sectors, buffers: Buffers::One(buffer), .. } = self.bio else {
            return None;
        };
        let most = u64::from(self.limits.max_op_sectors(self.bio.op)).min(self.until_boundary(*sector));
        let fits = *nr_sectors <= most && buffer.len() <= self.limits.max_segment_size as usize;
        fits.then_some(Piece { sector: *sector, nr_sectors: *nr_sectors as u32, offset: 0, nr_segments: 1 })
    }

    /// Cuts `most` bytes from `offset` down to what fits into `max_segments`, and counts the segments.
    fn fit_segments(&self, offset: usize, most: usize) -> (usize, u16) {
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
        if self.done == 0
            && let Some(piece) = self.whole()
        {
            self.done = bio.nr_sectors;
            return Some(piece);
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
                // A block of more segments than the device takes goes as it is: the driver sees what it can do with it.
                ((sectors - sectors % block).max(block.min(most)), segments)
            }
            Op::Flush | Op::Discard | Op::WriteZeroes => (most, 1),
        };
        self.done += nr_sectors;
        let nr_sectors = u32::try_from(nr_sectors).expect("a request's length fits its limits");
        let offset = if bio.buffers.is_empty() { 0 } else { offset };
        Some(Piece { sector, nr_sectors, offset, nr_segments })
    }
}

/// How many requests an operation needs, counted no further than one above `most`: an operation without data may be as
/// large as the device.
pub(crate) fn count(limits: &Limits, bio: &Bio, most: usize) -> usize {
    let pieces = Pieces::new(limits, bio);
    if pieces.whole().is_some() { 1 } else { pieces.take(most + 1).count() }
}

#[cfg(test)]
mod tests;
