use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::request::bio::Flags;
use crate::request::buffer::{Buffer, Buffers};
use crate::request::pages::Pages;
use crate::request::pages::tests::Nowhere;

fn limits() -> impl Strategy<Value = Limits> {
    let block = prop::sample::select(vec![512_u32, 1024, 4096]);
    let sizes = (1_u32..300, prop::sample::select(vec![8_u16, 9, 40, 128]), 0_u32..20, 1_u32..20);
    let dataless = (0_u32..300, 0_u32..300);
    (block, sizes, dataless).prop_map(|(block, (sectors, segments, boundary, size), (discard, zeroes))| Limits {
        capacity_sectors: 1 << 40,
        logical_block_size: block,
        max_sectors: sectors.max(block / 512),
        max_segments: segments,
        max_segment_size: block.max(size * 512),
        boundary_sectors: boundary * block / 512,
        max_discard_sectors: discard,
        max_write_zeroes_sectors: zeroes,
        ..Limits::default()
    })
}

/// An operation of any kind, whose data is cut at random, or in pages of the kernel.
fn bio() -> impl Strategy<Value = Bio> {
    let op = prop::sample::select(vec![Op::Read, Op::Write, Op::Discard, Op::WriteZeroes]);
    let pieces = prop::collection::vec(1_usize..40, 1..12);
    (op, 0_u64..1 << 36, pieces, prop::bool::weighted(0.2)).prop_map(|(op, sector, pieces, has_pages)| {
        let nr_sectors = pieces.iter().sum::<usize>() as u64;
        let buffers = match op {
            Op::Read | Op::Write if has_pages => Pages::new(Arc::new(Nowhere), 0, nr_sectors as u32 * 512).into(),
            Op::Read | Op::Write => {
                Buffers::Many(pieces.iter().map(|sectors| Buffer::zeroed(sectors * SECTOR_SIZE)).collect())
            }
            _ => Buffers::None,
        };
        Bio::new(op, sector, nr_sectors, buffers)
    })
}

/// How many segments the device sees in a piece.
fn segments(limits: &Limits, bio: &Bio, piece: &Piece) -> usize {
    if bio.buffers.pages().is_some() {
        return 1;
    }
    let segments = bio.buffers.segments(piece.offset, piece.nr_sectors as usize * SECTOR_SIZE);
    segments.map(|segment| segment.len().div_ceil(limits.max_segment_size as usize)).sum()
}

/// Checks one piece that begins at `sector`.
fn check(limits: &Limits, bio: &Bio, piece: &Piece, sector: u64) -> Result<(), TestCaseError> {
    let block = limits.logical_block_size / SECTOR_SIZE as u32;
    prop_assert_eq!(piece.sector, sector, "no gap, no overlap");
    prop_assert!(piece.nr_sectors > 0 && piece.nr_sectors.is_multiple_of(block));
    prop_assert!(piece.nr_sectors <= limits.max_op_sectors(bio.op));
    if limits.boundary_sectors > 0 {
        let boundary = u64::from(limits.boundary_sectors);
        prop_assert_eq!(sector / boundary, (sector + u64::from(piece.nr_sectors) - 1) / boundary);
    }
    if bio.buffers.is_empty() {
        prop_assert_eq!((piece.offset, piece.nr_segments), (0, 1));
    } else {
        prop_assert_eq!(piece.offset as u64, (sector - bio.sector) * SECTOR_SIZE as u64);
        let segments = segments(limits, bio, piece);
        prop_assert!(segments <= usize::from(piece.nr_segments), "{} segments are {}", piece.nr_segments, segments);
        prop_assert!(piece.nr_segments <= limits.max_segments);
    }
    Ok(())
}

/// Whether the piece could have been a block longer.
fn could_grow(limits: &Limits, bio: &Bio, piece: &Piece) -> bool {
    let block = limits.logical_block_size / SECTOR_SIZE as u32;
    let longer = Piece { nr_sectors: piece.nr_sectors + block, ..*piece };
    let (end, boundary) = (piece.sector + u64::from(longer.nr_sectors), u64::from(limits.boundary_sectors));
    longer.nr_sectors <= limits.max_op_sectors(bio.op)
        && (boundary == 0 || piece.sector / boundary == (end - 1) / boundary)
        && end <= bio.sector + bio.nr_sectors
        && segments(limits, bio, &longer) <= usize::from(limits.max_segments)
}

proptest! {
    /// Red without the rounding to blocks, the boundary, or any of the limits in `Pieces`.
    #[test]
    fn pieces_cover_the_operation_within_the_limits(limits in limits(), mut bio in bio()) {
        // The data need not be cut at blocks, but its length and address are whole ones.
        let block = u64::from(limits.logical_block_size) / SECTOR_SIZE as u64;
        bio.sector -= bio.sector % block;
        let missing = bio.nr_sectors.next_multiple_of(block) - bio.nr_sectors;
        if let Buffers::Many(buffers) = &mut bio.buffers
            && missing > 0
        {
            buffers.push(Buffer::zeroed(missing as usize * SECTOR_SIZE));
        }
        bio.nr_sectors += missing;
        prop_assume!(limits.check(bio.op, bio.sector, bio.nr_sectors).is_ok() && bio.buffers_fit());
        let pieces: Vec<_> = Pieces::new(&limits, &bio).collect();
        prop_assert_eq!(pieces.len(), count(&limits, &bio, 10_000));
        let mut sector = bio.sector;
        for piece in &pieces {
            check(&limits, &bio, piece, sector)?;
            prop_assert!(!could_grow(&limits, &bio, piece), "{:?} is shorter than it must be", piece);
            sector += u64::from(piece.nr_sectors);
        }
        prop_assert_eq!(sector, bio.sector + bio.nr_sectors);
    }
}

/// An operation near the end of a small device, whose length and buffer may be wrong.
fn doubtful() -> impl Strategy<Value = (u64, Bio)> {
    let op = prop::sample::select(vec![Op::Read, Op::Write, Op::Write, Op::Discard, Op::Flush]);
    let flag = || prop::bool::weighted(0.1);
    let flags = (flag(), flag()).prop_map(|(preflush, fua)| Flags { preflush, fua, ..Flags::default() });
    let length = (0_u64..100, prop::sample::select(vec![0_usize, 0, 0, 0, 1, 512]), flag());
    (0_u64..120, op, 0_u64..120, length, flags).prop_map(|(capacity, op, sector, (nr_sectors, more, is_cut), flags)| {
        let bytes = nr_sectors as usize * SECTOR_SIZE + more;
        let buffers = match (op, is_cut) {
            (Op::Read | Op::Write, false) => Buffers::One(Buffer::zeroed(bytes)),
            (Op::Read | Op::Write, true) => Buffers::Many(vec![Buffer::zeroed(bytes)]),
            _ => Buffers::None,
        };
        (capacity, Bio::new(op, sector, nr_sectors, buffers).with_flags(flags))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 4000 }))]

    /// Red if any of the limits is missing in `UnsplitLimits`, or off by one.
    #[test]
    fn what_is_taken_whole_is_what_would_be_one_piece(limits in limits(), (capacity_sectors, bio) in doubtful()) {
        let limits = Limits { capacity_sectors, ..limits };
        let is_plain = matches!(bio.buffers, Buffers::One(_)) && !bio.flags.preflush && !bio.flags.fua;
        let is_good = limits.check(bio.op, bio.sector, bio.nr_sectors).is_ok() && bio.buffers_fit();
        let mut expected = None;
        if is_plain && is_good {
            let pieces: Vec<_> = Pieces::new(&limits, &bio).collect();
            expected = pieces.first().copied().filter(|piece| pieces.len() == 1 && piece.nr_segments == 1);
        }
        prop_assert_eq!(UnsplitLimits::new(&limits).piece(&bio), expected);
    }
}

#[test]
fn a_flush_is_one_piece() {
    let pieces: Vec<_> = Pieces::new(&Limits::default(), &Bio::flush()).collect();
    assert_eq!(pieces, [Piece { sector: 0, nr_sectors: 0, offset: 0, nr_segments: 0 }]);
}

/// A device that takes fewer segments than a block has gets the block all the same, rather than nothing forever.
#[test]
fn a_block_of_too_many_segments_goes_as_it_is() {
    let limits = Limits { capacity_sectors: 100, logical_block_size: 4096, max_segments: 2, ..Limits::default() };
    let sectors: Vec<_> = (0..16).map(|_| Buffer::zeroed(SECTOR_SIZE)).collect();
    let bio = Bio::write(8, sectors);
    let pieces: Vec<_> = Pieces::new(&limits, &bio).map(|piece| (piece.sector, piece.nr_sectors)).collect();
    assert_eq!(pieces, [(8, 8), (16, 8)]);
}

/// A discard of a whole device of many exabytes is turned away before all its pieces have been counted.
#[test]
fn counting_ends_above_what_is_asked_for() {
    let limits = Limits { capacity_sectors: u64::MAX, max_discard_sectors: 1, ..Limits::default() };
    assert_eq!(count(&limits, &Bio::discard(0, u64::MAX), 256), 257);
    assert_eq!(count(&limits, &Bio::discard(0, 256), 256), 256);
}
