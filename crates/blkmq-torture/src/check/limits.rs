//! Requests keep to the limits of the device. Operations that may not share a request do not: operations that must stay
//! alone, operations of different groups or priorities, and operations of which only one must not wait.

use blkmq_sched::{Info, MergeLevel, Op, RqId};
use blkmq_virtual::{Flags, Limits};

use super::super::event::{Asked, Event, Stamp};
use super::super::text::{FastRequest, Marks, Request, name};
use super::moves::Moves;
use super::parts::most_sectors;
use super::table::is_flush;
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "limits";

const SECTOR: u64 = 512;

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct MergeLimits {
    moves: Moves,
}

/// A request that a device is offered.
#[derive(Debug, Clone, Copy)]
struct Offer<'a> {
    rq: RqId,
    op: Op,
    flags: Flags,
    sector: u64,
    nr_sectors: u32,
    /// First sector and length of each range; none for a flush.
    ranges: &'a [(u64, u32)],
    segments: &'a [usize],
}

impl Offer<'_> {
    fn judge_flush(&self, limits: &Limits) -> Result<(), String> {
        if !is_flush(self.rq) || !limits.write_cache {
            return Err("is for no operation, or the device has no cache".into());
        }
        if self.nr_sectors > 0 || !self.segments.is_empty() {
            return Err("has sectors".into());
        }
        Ok(())
    }

    fn judge_size(&self, limits: &Limits) -> Result<(), String> {
        let (block, nr_sectors) = (u64::from(limits.logical_block_size) / SECTOR, u64::from(self.nr_sectors));
        let most = most_sectors(limits, self.op);
        if nr_sectors == 0 || nr_sectors > most {
            return Err(format!("is larger than {most}, or empty"));
        }
        if !self.sector.is_multiple_of(block) || !nr_sectors.is_multiple_of(block) {
            return Err(format!("is not of whole blocks of {block}"));
        }
        Ok(())
    }

    fn judge_ranges(&self, limits: &Limits) -> Result<(), String> {
        let &Limits { capacity_sectors, max_discard_segments, boundary_sectors, .. } = limits;
        let ranges = self.ranges;
        let most = if self.op == Op::Discard { usize::from(max_discard_segments.max(1)) } else { 1 };
        if ranges.len() > most {
            return Err(format!("has {} ranges, more than {most}", ranges.len()));
        }
        let sum: u64 = ranges.iter().map(|range| u64::from(range.1)).sum();
        if sum != u64::from(self.nr_sectors) || ranges[0].0 != self.sector {
            return Err(format!("is not what its ranges {ranges:?} say"));
        }
        for &(sector, nr_sectors) in ranges {
            let end = sector.saturating_add(nr_sectors.into());
            if nr_sectors == 0 || end > capacity_sectors {
                return Err(format!("has the range {sector}+{nr_sectors}, which is empty or reaches behind the end"));
            }
            let boundary = u64::from(boundary_sectors);
            if boundary > 0 && sector / boundary != (end - 1) / boundary {
                return Err(format!("crosses a multiple of {boundary} with {sector}+{nr_sectors}"));
            }
        }
        Ok(())
    }

    fn judge_data(&self, limits: &Limits) -> Result<(), String> {
        let has_data = matches!(self.op, Op::Read | Op::Write);
        let bytes: u64 = self.segments.iter().map(|segment| *segment as u64).sum();
        if bytes != if has_data { u64::from(self.nr_sectors) * SECTOR } else { 0 } {
            return Err(format!("has {bytes} bytes of data"));
        }
        let &Limits { max_segments, max_segment_size, logical_block_size, .. } = limits;
        let nr_segments: u64 =
            self.segments.iter().map(|segment| (*segment as u64).div_ceil(max_segment_size.into())).sum();
        // A single block that is cut into more pieces than allowed is sent as it is.
        if nr_segments <= max_segments.into() || bytes == u64::from(logical_block_size) {
            return Ok(());
        }
        Err(format!("has {nr_segments} segments of at most {max_segment_size} bytes, more than {max_segments}"))
    }
}

impl MergeLimits {
    fn offered(&self, offer: Offer<'_>, tracker: &Tracker) -> Verdict {
        let limits = &tracker.limits;
        let verdict = if offer.op == Op::Flush {
            offer.judge_flush(limits)
        } else {
            offer
                .judge_size(limits)
                .and_then(|()| offer.judge_ranges(limits))
                .and_then(|()| offer.judge_data(limits))
                .and_then(|()| self.judge_flags(&offer, tracker))
        };
        verdict.map_err(|what| {
            let Offer { rq, op, sector, nr_sectors, .. } = offer;
            Violation::new(RULE, format!("{}, a {} of {sector}+{nr_sectors}, {what}", Request(rq), name(op)))
                .request(rq)
        })
    }

    /// The operations in a request other than a read must ask for the same flags.
    fn judge_flags(&self, offer: &Offer<'_>, tracker: &Tracker) -> Result<(), String> {
        let has_fua = tracker.limits.fua;
        let flags = offer.flags;
        if flags.preflush || flags.fua && !(has_fua && offer.op != Op::Read) {
            return Err(format!("asks for what the device does not do:{}", Marks(&flags)));
        }
        let mut first: Option<(u64, u16, Asked)> = None;
        for &(sector, nr_sectors) in offer.ranges {
            for (bio, operation) in tracker.owners(sector, nr_sectors) {
                let (submitter, asked) = (operation.submitter, &operation.asked);
                if asked.op != offer.op {
                    continue;
                }
                judge_operation(bio, asked, flags, has_fua)?;
                let (other, of_other, before) = *first.get_or_insert((bio, submitter, *asked));
                if other != bio && (is_alone(asked, &tracker.limits) || is_alone(&before, &tracker.limits)) {
                    return Err(format!("is made of operations {other} and {bio}, and one of them must stay alone"));
                }
                if asked.priority != before.priority {
                    return Err(format!("is made of operations {other} and {bio}, whose priorities differ"));
                }
                let are_certain = self.moves.is_certain(submitter) && self.moves.is_certain(of_other);
                if asked.group != before.group && are_certain {
                    return Err(format!("is made of operations {other} and {bio}, whose groups differ"));
                }
            }
        }
        Ok(())
    }
}

/// Checks that a request and another one that joins it are alike, and that both may merge.
fn merged(into: RqId, info: &Info, tracker: &Tracker) -> Verdict {
    let Some(host) = tracker.info(into) else { return Ok(()) };
    let agree = |info: &Info| (info.op, info.priority, info.merge_key);
    let are_alone = host.merge == MergeLevel::Never || info.merge == MergeLevel::Never;
    if agree(host) == agree(info) && !are_alone {
        return Ok(());
    }
    let what = format!(
        "{} ({:?}) joined {}, {} ({:?}), and they are not alike or must stay alone",
        FastRequest(info),
        info.merge,
        Request(into),
        FastRequest(host),
        host.merge
    );
    Err(Violation::new(RULE, what).request(into))
}

/// Whether the operation never shares a request with another one.
const fn is_alone(asked: &Asked, limits: &Limits) -> bool {
    let Flags { nomerge, fua, preflush, .. } = asked.flags;
    nomerge || preflush && limits.write_cache || fua && (limits.write_cache || limits.fua)
}

/// Checks that the request asks for what the operation asks for.
fn judge_operation(bio: u64, asked: &Asked, flags: Flags, passes_fua: bool) -> Result<(), String> {
    let wanted = (asked.flags.nowait, asked.flags.polled, asked.flags.nounmap, asked.flags.fua && passes_fua);
    if wanted == (flags.nowait, flags.polled, flags.nounmap, flags.fua) {
        Ok(())
    } else {
        Err(format!("has the flags '{}', and operation {bio} has '{}'", Marks(&flags), Marks(&asked.flags)))
    }
}

impl Checker for MergeLimits {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        self.moves.see(event, tracker);
        match *event {
            Event::Merged { into, info, .. } => merged(into, &info, tracker),
            Event::Absorbed { into, absorbed } => {
                tracker.info(absorbed).map_or(Ok(()), |info| merged(into, info, tracker))
            }
            Event::Offered { rq, op, flags, sector, nr_sectors, segments, .. } => {
                let ranges = tracker.offer(rq).map_or(&[][..], |offer| &offer.ranges);
                self.offered(Offer { rq, op, flags, sector, nr_sectors, ranges, segments }, tracker)
            }
            _ => Ok(()),
        }
    }
}
