//! What a device accepts, and the checks that every operation passes first.

use blkmq_sched::{MergeLimits, Op};

use crate::request::bio::Flags;
pub(crate) use crate::request::bio::SECTOR_SIZE;
use crate::request::status::Status;

/// Hardware queues: the most that a device can have.
pub const MAX_HW_QUEUES: usize = 1024;

/// Tags: the most that a hardware queue can have.
pub const MAX_DEPTH: u16 = 10240;

/// Threads: how many a queue can work with at once. The queue's own pool counts as one.
pub(crate) const MAX_THREADS: usize = 1024;

/// What a device accepts. Names follow the kernel's queue limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Size of the device in sectors of 512 bytes. May grow while a queue exists:
    /// [`RequestQueue::revalidate`](crate::RequestQueue::revalidate).
    pub capacity_sectors: u64,
    /// Bytes that the device's last sector lacks, 0 to 511. Reads return zeroes for these bytes, and writes to them are
    /// dropped. Only with logical blocks of 512 bytes, and for a device that never grows.
    pub missing_bytes: u16,
    /// Smallest unit of I/O in bytes; a power of two from 512 to 65536.
    pub logical_block_size: u32,
    /// Unit that the device writes without a read-modify-write, in bytes.
    pub physical_block_size: u32,
    /// Largest read or write, in sectors.
    pub max_sectors: u32,
    /// Most scatter-list segments of a request.
    pub max_segments: u16,
    /// Largest segment in bytes.
    pub max_segment_size: u32,
    /// No request crosses a multiple of this many sectors (the kernel's `chunk_sectors`); 0 for none.
    pub boundary_sectors: u32,
    /// Largest discard in sectors; 0 if the device cannot discard.
    pub max_discard_sectors: u32,
    /// Most ranges of one discard.
    pub max_discard_segments: u16,
    /// Largest write-zeroes in sectors; 0 if the device cannot do it.
    pub max_write_zeroes_sectors: u32,
    /// The device has a volatile write cache, and flushes it when it is asked to.
    pub write_cache: bool,
    /// The device honours FUA itself.
    pub fua: bool,
    /// What completes may be lost when the power fails, and the device cannot be asked to flush it. If neither this nor
    /// `write_cache` is set, what completes is durable.
    pub no_flush: bool,
    /// Seeks cost time.
    pub rotational: bool,
    /// The device reads and writes [pages of the kernel](crate::request::pages) too, whose data begins at multiples of
    /// this number of bytes; a power of two. 0 if the device needs the data in memory of this process, as most do.
    pub pages_align: u32,
    /// Nothing on the device can be changed. Operations that would do so are refused as [`Status::Unsupported`].
    pub read_only: bool,
}

impl Default for Limits {
    /// The kernel's defaults for a device that says nothing: 512-byte blocks, 1280 KiB, 128 segments, no extras.
    fn default() -> Self {
        Self {
            capacity_sectors: 0,
            missing_bytes: 0,
            logical_block_size: 512,
            physical_block_size: 512,
            max_sectors: 2560,
            max_segments: 128,
            max_segment_size: 65536,
            boundary_sectors: 0,
            max_discard_sectors: 0,
            max_discard_segments: 1,
            max_write_zeroes_sectors: 0,
            write_cache: false,
            fua: false,
            no_flush: false,
            rotational: false,
            pages_align: 0,
            read_only: false,
        }
    }
}

impl Limits {
    /// Size of the device in bytes, up to its last byte.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.capacity_sectors.saturating_mul(SECTOR_SIZE as u64).saturating_sub(self.missing_bytes as u64)
    }

    /// Sectors of all whole logical blocks: the size for a client that addresses nothing smaller than a block.
    #[must_use]
    pub const fn whole_sectors(&self) -> u64 {
        let bytes = self.size_bytes();
        (bytes - bytes % self.logical_block_size as u64) / SECTOR_SIZE as u64
    }

    /// Checks address and length of an operation of `nr_sectors` sectors.
    ///
    /// # Errors
    /// The status that says what is wrong with it.
    pub fn check(&self, op: Op, sector: u64, nr_sectors: u64) -> Result<(), Status> {
        if matches!(op, Op::Flush) {
            return if nr_sectors == 0 { Ok(()) } else { Err(Status::BadBuffer) };
        }
        let block = u64::from(self.logical_block_size) / SECTOR_SIZE as u64;
        if nr_sectors == 0 || !sector.is_multiple_of(block) || !nr_sectors.is_multiple_of(block) {
            return Err(Status::Misaligned);
        }
        if sector.checked_add(nr_sectors).is_none_or(|end| end > self.capacity_sectors) {
            return Err(Status::BeyondEnd);
        }
        if self.max_op_sectors(op) == 0 || self.read_only && op != Op::Read {
            return Err(Status::Unsupported);
        }
        Ok(())
    }

    /// Checks that the device can do what an operation asks for beside its data: a flush, also one before a write, and
    /// a write that is durable when it completes.
    ///
    /// # Errors
    /// [`Status::Unsupported`]: the device can do neither what is asked for nor anything that has the same effect.
    pub fn check_durability(&self, op: Op, flags: &Flags) -> Result<(), Status> {
        let needs_flush = op == Op::Flush || flags.preflush;
        let is_durable = flags.fua && op != Op::Read;
        if self.no_flush && (needs_flush || is_durable && !self.fua) { Err(Status::Unsupported) } else { Ok(()) }
    }

    /// The largest single request of this operation, in sectors and in whole logical blocks.
    #[must_use]
    pub fn max_op_sectors(&self, op: Op) -> u32 {
        let most = match op {
            Op::Read | Op::Write => self.max_sectors,
            Op::Discard => self.max_discard_sectors,
            Op::WriteZeroes => self.max_write_zeroes_sectors,
            Op::Flush => 0,
        };
        most - most % (self.logical_block_size / SECTOR_SIZE as u32)
    }

    /// The limits that merging respects.
    #[must_use]
    pub fn merge_limits(&self) -> MergeLimits {
        MergeLimits {
            max_sectors: self.max_op_sectors(Op::Read),
            max_segments: self.max_segments,
            boundary_sectors: self.boundary_sectors,
            max_discard_sectors: self.max_discard_sectors,
            max_discard_segments: self.max_discard_segments,
            max_write_zeroes_sectors: self.max_write_zeroes_sectors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the bytes that the last sector lacks count, or are subtracted for a device that lacks none.
    #[test]
    fn a_device_ends_at_the_last_byte_that_its_last_sector_has() {
        let size = |capacity_sectors, missing_bytes| {
            Limits { capacity_sectors, missing_bytes, ..Limits::default() }.size_bytes()
        };
        assert_eq!([size(0, 0), size(2, 0), size(2, 24), size(1, 511)], [0, 1024, 1000, 1]);
    }

    /// Red if a client of whole blocks is told of a block of which the device has a part.
    #[test]
    fn clients_of_whole_blocks_reach_whole_blocks() {
        let whole = |capacity_sectors, missing_bytes, logical_block_size| {
            Limits { capacity_sectors, missing_bytes, logical_block_size, ..Limits::default() }.whole_sectors()
        };
        assert_eq!([whole(2, 0, 512), whole(2, 24, 512), whole(1, 1, 512), whole(0, 0, 512)], [2, 1, 0, 0]);
        assert_eq!([whole(16, 0, 4096), whole(15, 0, 4096), whole(7, 0, 4096)], [16, 8, 0]);
    }

    #[test]
    fn merging_keeps_to_what_each_operation_may_be() {
        let limits = Limits {
            logical_block_size: 4096,
            max_sectors: 21,
            max_segments: 3,
            boundary_sectors: 64,
            max_discard_sectors: 100,
            max_discard_segments: 5,
            max_write_zeroes_sectors: 50,
            ..Limits::default()
        };
        let expected = MergeLimits {
            max_sectors: 16,
            max_segments: 3,
            boundary_sectors: 64,
            max_discard_sectors: 100,
            max_discard_segments: 5,
            max_write_zeroes_sectors: 50,
        };
        assert_eq!(limits.merge_limits(), expected);
    }
}
