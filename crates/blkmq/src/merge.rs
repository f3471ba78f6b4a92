//! Joining what is contiguous: in the plug, before a request has met anybody else's.
//!
//! The same rules hold in a scheduler, which decides on copies; see `blkmq_sched::Scheduler::merge`.

use blkmq_sched::{Info, MergeHow, MergeLevel, MergeLimits, Op};

use crate::request::Request;

/// How two requests can be joined under the limits, if they can.
pub(crate) fn fits(limits: &MergeLimits, into: &Info, newcomer: &Info) -> Option<MergeHow> {
    let never = into.merge == MergeLevel::Never || newcomer.merge == MergeLevel::Never;
    if never || into.op != newcomer.op || into.merge_key != newcomer.merge_key {
        return None;
    }
    let how = if into.end() == newcomer.sector {
        MergeHow::Back
    } else if newcomer.end() == into.sector {
        MergeHow::Front
    } else if into.op == Op::Discard && limits.max_discard_segments > 1 {
        MergeHow::Discard
    } else {
        return None;
    };
    within(limits, into, newcomer, how).then_some(how)
}

fn within(limits: &MergeLimits, into: &Info, newcomer: &Info, how: MergeHow) -> bool {
    let (max_sectors, max_segments) = match into.op {
        Op::Read | Op::Write => (limits.max_sectors, limits.max_segments),
        Op::Discard => (limits.max_discard_sectors, limits.max_discard_segments),
        Op::WriteZeroes => (limits.max_write_zeroes_sectors, u16::MAX),
        Op::Flush => return false,
    };
    let sectors = into.nr_sectors.checked_add(newcomer.nr_sectors).is_some_and(|sum| sum <= max_sectors);
    let segments = into.nr_segments.checked_add(newcomer.nr_segments).is_some_and(|sum| sum <= max_segments);
    let start = into.sector.min(newcomer.sector);
    let end = into.end().max(newcomer.end());
    let boundary = u64::from(limits.boundary_sectors);
    let one_side = boundary == 0 || how == MergeHow::Discard || start / boundary == (end - 1) / boundary;
    sectors && segments && one_side
}

/// Joins `newcomer` to the newest request of the plug; gives it back if it does not fit.
pub(crate) fn into_newest<'q>(
    limits: &MergeLimits,
    newest: &mut Request<'q>,
    newcomer: Request<'q>,
) -> Result<(), Request<'q>> {
    match fits(limits, &newest.body().info(), &newcomer.body().info()) {
        Some(how) => {
            newest.absorb(newcomer, how);
            Ok(())
        }
        None => Err(newcomer),
    }
}
