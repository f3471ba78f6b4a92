//! What a guest reads of its disk.

use blkmq::SECTOR_SIZE;
use blkmq::{Limits, Op};

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};

use crate::request::MAX_RANGES;

/// Bytes of the configuration that mean something.
pub(crate) const SIZE: usize = 60;
/// The most data descriptors of a request. Two more, for header and status, fit into a ring of 128 descriptors.
pub(crate) const SEG_MAX: u32 = 126;

/// Features that a disk has by what its device can do.
pub(crate) fn features(limits: &Limits, is_read_only: bool) -> u64 {
    let is_writable = !(is_read_only || limits.read_only);
    // Without a cache, what is over is durable, and the guest needs no flush. With a cache that cannot be flushed, a
    // guest that is told of flushes would believe what is not so. A guest may not choose a cache that writes through
    // (CONFIG_WCE): front-ends do not tell the choice to the next server, which would then write back.
    let has_flush = limits.write_cache && !limits.no_flush;
    let features = [
        (VIRTIO_BLK_F_SEG_MAX, true),
        (VIRTIO_BLK_F_BLK_SIZE, true),
        (VIRTIO_BLK_F_TOPOLOGY, true),
        (VIRTIO_BLK_F_MQ, true),
        (VIRTIO_BLK_F_RO, !is_writable),
        (VIRTIO_BLK_F_FLUSH, is_writable && has_flush),
        (VIRTIO_BLK_F_DISCARD, is_writable && limits.max_op_sectors(Op::Discard) > 0),
        (VIRTIO_BLK_F_WRITE_ZEROES, is_writable && limits.max_op_sectors(Op::WriteZeroes) > 0),
    ];
    features.iter().map(|(feature, is_offered)| u64::from(*is_offered) << feature).sum()
}

/// The configuration, in the order of the standard's `virtio_blk_config`.
pub(crate) fn bytes(limits: &Limits, nr_queues: u16, is_writeback: bool) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    let block = u64::from(limits.logical_block_size) / SECTOR_SIZE as u64;
    put(&limits.whole_sectors().to_le_bytes());
    put(&0_u32.to_le_bytes()); // size_max: a segment may have any size, for the block layer cuts it.
    put(&SEG_MAX.to_le_bytes());
    put(&[0; 4]); // geometry: none.
    put(&limits.logical_block_size.to_le_bytes());
    let ratio = (limits.physical_block_size / limits.logical_block_size).max(1);
    put(&[ratio.ilog2() as u8, 0]); // physical_block_exp, alignment_offset
    put(&(ratio as u16).to_le_bytes()); // min_io_size, in blocks
    put(&0_u32.to_le_bytes()); // opt_io_size
    put(&[u8::from(is_writeback), 0]);
    put(&nr_queues.to_le_bytes());
    let most = |op| limits.max_op_sectors(op);
    let ranges = |op| if most(op) > 0 { MAX_RANGES as u32 } else { 0 };
    // A range may be as long as a number of sectors can be: it is cut here.
    let longest = |op| if most(op) > 0 { u32::MAX - u32::MAX % block as u32 } else { 0 };
    put(&longest(Op::Discard).to_le_bytes());
    put(&ranges(Op::Discard).to_le_bytes());
    put(&(block as u32).to_le_bytes()); // discard_sector_alignment
    put(&longest(Op::WriteZeroes).to_le_bytes());
    put(&ranges(Op::WriteZeroes).to_le_bytes());
    put(&[1, 0, 0, 0]); // write_zeroes_may_unmap
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::has;

    /// Red before a device that ends within a sector had that sector in the machine, and lost what was written there.
    #[test]
    fn a_machine_is_told_of_no_part_of_a_sector() {
        let limits = Limits { capacity_sectors: 2, missing_bytes: 24, ..Limits::default() };
        assert_eq!(bytes(&limits, 1, true)[..8], 1_u64.to_le_bytes());
    }

    /// Red if a field stands elsewhere than in the standard, or if the disk promises what the device cannot do.
    #[test]
    fn the_configuration_tells_what_the_device_can_do() {
        let limits = Limits {
            capacity_sectors: 2049,
            logical_block_size: 4096,
            physical_block_size: 16384,
            max_discard_sectors: 8,
            ..Limits::default()
        };
        let found = bytes(&limits, 3, true);
        let word = |at: usize| u32::from_le_bytes(found[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4), word(8), word(12), word(20)), (2048, 0, 0, SEG_MAX, 4096));
        assert_eq!((found[24], found[25], found[26], found[32], found[34]), (2, 0, 4, 1, 3));
        assert_eq!((word(36), word(40), word(44)), (0xffff_fff8, 32, 8));
        assert_eq!((word(48), word(52), found[56]), (0, 0, 1));
        let features = features(&limits, false);
        assert!(has(features, VIRTIO_BLK_F_DISCARD) && !has(features, VIRTIO_BLK_F_WRITE_ZEROES));
    }

    #[test]
    fn flushes_are_offered_where_they_help() {
        let offered = |limits, read_only| {
            let features = features(&limits, read_only);
            [VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_RO].map(|feature| has(features, feature))
        };
        let cached = Limits { write_cache: true, ..Limits::default() };
        assert_eq!(offered(cached, false), [true, false]);
        assert_eq!(offered(Limits { no_flush: true, ..cached }, false), [false; 2]);
        assert_eq!(offered(Limits::default(), false), [false; 2]);
        assert_eq!(offered(cached, true), [false, true]);
        assert_eq!(offered(Limits { read_only: true, ..cached }, false), [false, true]);
    }
}
