//! Which operations a queue takes, and into how many requests it cuts them: the queue's rules, written a second time in
//! another way.

use blkmq_sched::Op;
use blkmq_virtual::{Limits, Status};

use super::super::event::Asked;

const SECTOR: u64 = 512;

/// How many requests a submitter's operation is cut into.
///
/// # Errors
/// Why it can never be taken.
pub(crate) fn parts(limits: &Limits, asked: &Asked, pieces: &[usize]) -> Result<u64, Status> {
    let &Asked { op, sector, nr_sectors, priority, .. } = asked;
    let block = u64::from(limits.logical_block_size) / SECTOR;
    if op == Op::Flush {
        if nr_sectors > 0 {
            return Err(Status::BadBuffer);
        }
    } else if nr_sectors == 0 || !sector.is_multiple_of(block) || !nr_sectors.is_multiple_of(block) {
        return Err(Status::Misaligned);
    } else if sector.saturating_add(nr_sectors) > limits.capacity_sectors {
        return Err(Status::BeyondEnd);
    } else if most_sectors(limits, op) == 0 {
        return Err(Status::Unsupported);
    }
    if priority.level > 7 {
        return Err(Status::BadPriority);
    }
    let has_data = matches!(op, Op::Read | Op::Write);
    let bytes: u64 = pieces.iter().map(|piece| *piece as u64).sum();
    let is_whole = pieces.iter().all(|piece| (*piece as u64).is_multiple_of(SECTOR));
    if bytes != if has_data { nr_sectors * SECTOR } else { 0 } || !is_whole {
        return Err(Status::BadBuffer);
    }
    Ok(if op == Op::Flush { 1 } else { cut(limits, asked, pieces) })
}

/// The most sectors of one request, in whole blocks.
pub(super) const fn most_sectors(limits: &Limits, op: Op) -> u64 {
    let block = limits.logical_block_size as u64 / SECTOR;
    let most = match op {
        Op::Read | Op::Write => limits.max_sectors,
        Op::Discard => limits.max_discard_sectors,
        Op::WriteZeroes => limits.max_write_zeroes_sectors,
        Op::Flush => 0,
    } as u64;
    most / block * block
}

/// Counts the requests, each of which takes as many sectors as it may.
fn cut(limits: &Limits, asked: &Asked, pieces: &[usize]) -> u64 {
    let (most, boundary) = (most_sectors(limits, asked.op), u64::from(limits.boundary_sectors));
    let end = asked.sector + asked.nr_sectors;
    let (mut at, mut nr_parts) = (asked.sector, 0);
    while at < end {
        let line = at.checked_div(boundary).map_or(u64::MAX, |before| (before + 1) * boundary);
        let most = (end - at).min(most).min(line - at);
        let taken = match asked.op {
            Op::Read | Op::Write => fit(limits, pieces, (at - asked.sector) * SECTOR, most * SECTOR),
            _ => most,
        };
        (at, nr_parts) = (at + taken, nr_parts + 1);
    }
    nr_parts
}

/// How many sectors of at most `most` bytes of data, from `offset` on, fit into as many segments as a request may have.
/// The result is a number of whole blocks, and at least one block.
fn fit(limits: &Limits, pieces: &[usize], offset: u64, most: u64) -> u64 {
    let block = u64::from(limits.logical_block_size);
    let (mut skipped, mut taken) = (offset, 0);
    let mut left = u64::from(limits.max_segments);
    for piece in pieces {
        let piece = *piece as u64;
        let len = piece.saturating_sub(skipped).min(most - taken);
        skipped = skipped.saturating_sub(piece);
        let room = left * u64::from(limits.max_segment_size);
        taken += len.min(room);
        left = left.saturating_sub(len.div_ceil(u64::from(limits.max_segment_size)));
        if len > room || taken == most {
            break;
        }
    }
    (taken / block * block).max(block.min(most)) / SECTOR
}
