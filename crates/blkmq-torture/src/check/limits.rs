//! Requests keep to the limits of the device. Operations that may not share a request do not: operations that must stay
//! alone, operations of different groups or priorities, and operations of which only one must not wait.

use std::collections::BTreeMap;

use blkmq_sched::{Info, MergeLevel, Op, RqId};
use blkmq_virtual::{Flags, Limits};

use super::super::event::{Asked, Event, Stamp};
use super::super::text::{FastRequest, Marks, Request, name};
use super::book::Book;
use super::moves::Moves;
use super::parts::{most_sectors, parts};
use super::table::{Table, is_flush};
use super::{Checker, Facts, Violation};

const RULE: &str = "limits";

const SECTOR: u64 = 512;

/// This module's checker.
#[derive(Debug)]
pub(super) struct MergeLimits {
    limits: Limits,
    /// Operations that are not over; and those other than reads, by their first sector.
    operations: Book<(u16, Asked)>,
    moves: Moves,
    places: BTreeMap<u64, u64>,
    /// Requests in the scheduler, with the data that they had when they came in.
    infos: Table<Info>,
}

/// A request that a device is offered.
#[derive(Debug, Clone, Copy)]
struct Offer<'a> {
    rq: RqId,
    op: Op,
    flags: Flags,
    sector: u64,
    nr_sectors: u32,
    ranges: &'a [(u64, u32)],
    segments: &'a [usize],
}

impl MergeLimits {
    pub(super) fn new(facts: &Facts) -> Self {
        let limits = facts.limits;
        Self { limits, operations: Book::new(), moves: Moves::default(), places: BTreeMap::new(), infos: Table::new() }
    }

    fn submitted(&mut self, submitter: u16, bio: u64, asked: Asked, pieces: &[usize]) {
        if parts(&self.limits, &asked, pieces).is_ok() && !matches!(asked.op, Op::Read | Op::Flush) {
            self.operations.begin(bio, (submitter, asked));
            self.places.insert(asked.sector, bio);
        }
    }

    fn end_of(&mut self, bio: u64) {
        if let Some((_, asked)) = self.operations.end(bio) {
            self.places.remove(&asked.sector);
        }
    }

    fn offered(&self, offer: Offer<'_>) -> Result<(), Violation> {
        let verdict = if offer.op == Op::Flush {
            self.judge_flush(&offer)
        } else {
            self.judge_size(&offer)
                .and_then(|()| self.judge_ranges(&offer))
                .and_then(|()| self.judge_data(&offer))
                .and_then(|()| self.judge_flags(&offer))
        };
        verdict.map_err(|what| {
            let Offer { rq, op, sector, nr_sectors, .. } = offer;
            Violation::new(RULE, format!("{}, a {} of {sector}+{nr_sectors}, {what}", Request(rq), name(op)))
                .request(rq)
        })
    }

    fn judge_flush(&self, offer: &Offer<'_>) -> Result<(), String> {
        if !is_flush(offer.rq) || !self.limits.write_cache {
            return Err("is for no operation, or the device has no cache".into());
        }
        if offer.nr_sectors > 0 || !offer.segments.is_empty() || offer.ranges.iter().any(|range| range.1 > 0) {
            return Err("has sectors".into());
        }
        Ok(())
    }

    fn judge_size(&self, offer: &Offer<'_>) -> Result<(), String> {
        let (block, nr_sectors) = (u64::from(self.limits.logical_block_size) / SECTOR, u64::from(offer.nr_sectors));
        let most = most_sectors(&self.limits, offer.op);
        if nr_sectors == 0 || nr_sectors > most {
            return Err(format!("is larger than {most}, or empty"));
        }
        if !offer.sector.is_multiple_of(block) || !nr_sectors.is_multiple_of(block) {
            return Err(format!("is not of whole blocks of {block}"));
        }
        Ok(())
    }

    fn judge_ranges(&self, offer: &Offer<'_>) -> Result<(), String> {
        let Limits { capacity_sectors, max_discard_segments, boundary_sectors, .. } = self.limits;
        let whole = [(offer.sector, offer.nr_sectors)];
        let ranges = if offer.ranges.is_empty() { &whole } else { offer.ranges };
        let most = if offer.op == Op::Discard { usize::from(max_discard_segments.max(1)) } else { 1 };
        if ranges.len() > most {
            return Err(format!("has {} ranges, more than {most}", ranges.len()));
        }
        let sum: u64 = ranges.iter().map(|range| u64::from(range.1)).sum();
        if sum != u64::from(offer.nr_sectors) || ranges[0].0 != offer.sector {
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

    fn judge_data(&self, offer: &Offer<'_>) -> Result<(), String> {
        let has_data = matches!(offer.op, Op::Read | Op::Write);
        let bytes: u64 = offer.segments.iter().map(|segment| *segment as u64).sum();
        if bytes != if has_data { u64::from(offer.nr_sectors) * SECTOR } else { 0 } {
            return Err(format!("has {bytes} bytes of data"));
        }
        let Limits { max_segments, max_segment_size, logical_block_size, .. } = self.limits;
        let nr_segments: u64 =
            offer.segments.iter().map(|segment| (*segment as u64).div_ceil(max_segment_size.into())).sum();
        // A single block that is cut into more pieces than allowed is sent as it is.
        if nr_segments <= max_segments.into() || bytes == u64::from(logical_block_size) {
            return Ok(());
        }
        Err(format!("has {nr_segments} segments of at most {max_segment_size} bytes, more than {max_segments}"))
    }

    /// The operations in a request other than a read must ask for the same flags.
    fn judge_flags(&self, offer: &Offer<'_>) -> Result<(), String> {
        let has_fua = self.limits.fua;
        let flags = offer.flags;
        if flags.preflush || flags.fua && !(has_fua && offer.op != Op::Read) {
            return Err(format!("asks for what the device does not do:{}", Marks(&flags)));
        }
        let whole = [(offer.sector, offer.nr_sectors)];
        let ranges = if offer.ranges.is_empty() { &whole } else { offer.ranges };
        let mut first: Option<(u64, u16, Asked)> = None;
        for (sector, end) in ranges.iter().map(|range| (range.0, range.0 + u64::from(range.1))) {
            let from = self.places.range(..=sector).next_back().map_or(sector, |(first, _)| *first);
            for (_, bio) in self.places.range(from..end) {
                let Some((submitter, asked)) = self.operations.get(*bio) else { continue };
                if asked.sector + asked.nr_sectors <= sector || asked.op != offer.op {
                    continue;
                }
                judge_operation(*bio, asked, flags, has_fua)?;
                let (other, of_other, before) = *first.get_or_insert((*bio, *submitter, *asked));
                if other != *bio && (is_alone(asked, &self.limits) || is_alone(&before, &self.limits)) {
                    return Err(format!("is made of operations {other} and {bio}, and one of them must stay alone"));
                }
                if asked.priority != before.priority {
                    return Err(format!("is made of operations {other} and {bio}, whose priorities differ"));
                }
                let are_certain = self.moves.is_certain(*submitter) && self.moves.is_certain(of_other);
                if asked.group != before.group && are_certain {
                    return Err(format!("is made of operations {other} and {bio}, whose groups differ"));
                }
            }
        }
        Ok(())
    }

    fn merged(&self, into: RqId, info: &Info) -> Result<(), Violation> {
        let Some(host) = self.infos.get(into) else { return Ok(()) };
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
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        self.moves.see(event);
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => self.submitted(submitter, bio, asked, pieces),
            Event::Reaped { bio, .. } | Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => self.end_of(bio),
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|(owner, _)| *owner == submitter);
                theirs.into_iter().for_each(|bio| self.end_of(bio));
            }
            Event::Inserted { rq, info, .. } => *self.infos.entry(rq) = Some((rq, info)),
            Event::Merged { into, info, .. } => return self.merged(into, &info),
            Event::Absorbed { into, absorbed } => {
                if let Some(info) = self.infos.get(absorbed) {
                    return self.merged(into, info);
                }
            }
            Event::Offered { rq, op, flags, sector, nr_sectors, ranges, segments, .. } => {
                return self.offered(Offer { rq, op, flags, sector, nr_sectors, ranges, segments });
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::{ClientId, MergeHow, Time};
    use blkmq_virtual::IoPriority;

    use super::super::testing::*;
    use super::*;

    fn told() -> Told<MergeLimits> {
        Told::new(MergeLimits::new(&FACTS))
    }

    /// A request in one piece.
    fn offer(op: Op, sector: u64, nr_sectors: u32) -> Event<'static> {
        const SEGMENTS: [[usize; 1]; 40] = {
            let mut segments = [[0]; 40];
            let mut at = 0;
            while at < 40 {
                segments[at] = [at * 512];
                at += 1;
            }
            segments
        };
        let has_data = matches!(op, Op::Read | Op::Write);
        let segments: &[usize] = if has_data { &SEGMENTS[nr_sectors as usize] } else { &[] };
        let rq = if op == Op::Flush { id(0, 0, 0) } else { id(1, 0, 0) };
        Event::Offered {
            rq,
            hctx: 0,
            tag: 0,
            op,
            flags: Flags::NONE,
            sector,
            nr_sectors,
            ranges: &[],
            segments,
            data: &[],
            now: Time(0),
        }
    }

    fn with(event: Event<'static>, new: Flags) -> Event<'static> {
        let Event::Offered { rq, hctx, tag, op, sector, nr_sectors, ranges, segments, data, now, .. } = event else {
            return event;
        };
        Event::Offered { rq, hctx, tag, op, flags: new, sector, nr_sectors, ranges, segments, data, now }
    }

    fn of_ranges(nr_sectors: u32, ranges: &'static [(u64, u32)]) -> Event<'static> {
        let (flags, sector) = (Flags::NONE, ranges[0].0);
        let (segments, data) = (&[][..], &[][..]);
        Event::Offered {
            rq: id(1, 0, 0),
            hctx: 0,
            tag: 0,
            op: Op::Discard,
            flags,
            sector,
            nr_sectors,
            ranges,
            segments,
            data,
            now: Time(0),
        }
    }

    #[test]
    fn sizes_are_those_of_the_device() {
        told().good(offer(Op::Write, 0, 16)).bad(offer(Op::Write, 0, 17), "larger than 16");
        told().good(offer(Op::WriteZeroes, 0, 32)).bad(offer(Op::WriteZeroes, 0, 33), "larger than 32");
        told().bad(offer(Op::Read, 0, 0), "or empty").bad(offer(Op::Read, 1020, 8), "behind the end");
        let blocks = Limits { logical_block_size: 1024, ..FACTS.limits };
        let mut told = Told::new(MergeLimits::new(&Facts { limits: blocks, ..FACTS }));
        told.good(offer(Op::Read, 2, 4)).bad(offer(Op::Read, 1, 4), "whole blocks").bad(offer(Op::Read, 2, 3), "whole");
    }

    #[test]
    fn no_range_crosses_the_boundary() {
        told().good(offer(Op::Read, 56, 8)).bad(offer(Op::Read, 60, 8), "crosses a multiple of 64");
        told().good(of_ranges(16, &[(56, 8), (64, 8)])).bad(of_ranges(16, &[(0, 8), (60, 8)]), "crosses");
    }

    #[test]
    fn ranges_are_few_and_of_discards_only() {
        told().bad(of_ranges(24, &[(0, 8), (16, 8), (32, 8)]), "3 ranges, more than 2");
        told().bad(of_ranges(8, &[(0, 8), (16, 8)]), "is not what its ranges");
        let limits = Limits { max_discard_segments: 1, ..FACTS.limits };
        let mut told = Told::new(MergeLimits::new(&Facts { limits, ..FACTS }));
        told.good(of_ranges(8, &[(0, 8)])).bad(of_ranges(16, &[(0, 8), (16, 8)]), "2 ranges, more than 1");
    }

    #[test]
    fn segments_are_counted_as_the_device_takes_them() {
        let of = |nr_sectors, segments: &'static [usize]| {
            let (flags, ranges, data) = (Flags::NONE, &[][..], &[][..]);
            Event::Offered {
                rq: id(1, 0, 0),
                hctx: 0,
                tag: 0,
                op: Op::Write,
                flags,
                sector: 0,
                nr_sectors,
                ranges,
                segments,
                data,
                now: Time(0),
            }
        };
        told().good(of(4, &[512; 4])).bad(of(5, &[512; 5]), "5 segments");
        told().good(of(16, &[8192])).bad(of(12, &[4608, 512, 512, 512]), "5 segments of at most 4096");
        told().bad(of(4, &[512; 3]), "1536 bytes of data");
        let limits = Limits { logical_block_size: 4096, max_segments: 1, ..FACTS.limits };
        let mut told = Told::new(MergeLimits::new(&Facts { limits, ..FACTS }));
        told.good(of(8, &[512; 8])).bad(of(16, &[512; 16]), "16 segments");
    }

    #[test]
    fn flushes_are_the_queues_own_and_for_a_cache() {
        told().good(offer(Op::Flush, 0, 0)).bad(offer(Op::Flush, 0, 1), "has sectors");
        let limits = Limits { write_cache: false, ..FACTS.limits };
        let mut told = Told::new(MergeLimits::new(&Facts { limits, ..FACTS }));
        told.bad(offer(Op::Flush, 0, 0), "no cache");
    }

    #[test]
    fn a_request_has_the_flags_of_its_operations() {
        let (fua, nowait) = (Flags { fua: true, ..Flags::NONE }, Flags { nowait: true, ..Flags::NONE });
        let preflush = Flags { preflush: true, ..Flags::NONE };
        let write = |flags| submitted(1, Asked { flags, ..asked(Op::Write, 0, 8) });
        told()
            .good(write(nowait))
            .good(with(offer(Op::Write, 0, 8), nowait))
            .bad(offer(Op::Write, 0, 8), "operation 1 has");
        told().good(write(fua)).good(offer(Op::Write, 0, 8)).bad(with(offer(Op::Write, 0, 8), fua), "does not do");
        told()
            .good(write(preflush))
            .good(offer(Op::Write, 0, 8))
            .bad(with(offer(Op::Write, 0, 8), preflush), "does not do");
        let limits = Limits { fua: true, ..FACTS.limits };
        let mut told = Told::new(MergeLimits::new(&Facts { limits, ..FACTS }));
        told.good(write(fua)).good(with(offer(Op::Write, 0, 8), fua)).bad(offer(Op::Write, 0, 8), "operation 1 has");
        told.bad(with(offer(Op::Read, 0, 8), fua), "does not do");
        let uncached = Limits { write_cache: false, ..limits };
        let mut told = Told::new(MergeLimits::new(&Facts { limits: uncached, ..FACTS }));
        told.good(write(fua)).good(with(offer(Op::Write, 0, 8), fua)).bad(offer(Op::Write, 0, 8), "operation 1 has");
    }

    #[test]
    fn only_what_may_be_one_request_is() {
        let whole = offer(Op::Write, 0, 16);
        let write = |bio, sector, flags| submitted(bio, Asked { flags, ..asked(Op::Write, sector, 8) });
        told().good(write(1, 0, Flags::NONE)).good(write(2, 8, Flags::NONE)).good(whole);
        for alone in [Flags { nomerge: true, ..Flags::NONE }, Flags { preflush: true, ..Flags::NONE }] {
            told().good(write(1, 0, alone)).good(write(2, 8, Flags::NONE)).bad(whole, "must stay alone");
        }
        let limits = Limits { write_cache: false, ..FACTS.limits };
        let mut told = Told::new(MergeLimits::new(&Facts { limits, ..FACTS }));
        let fua = Flags { fua: true, ..Flags::NONE };
        told.good(write(1, 0, fua)).good(write(2, 8, Flags::NONE)).good(whole);
        let mut told = Told::new(MergeLimits::new(&Facts { limits: Limits { fua: true, ..limits }, ..FACTS }));
        told.good(write(1, 0, fua)).good(write(2, 8, fua)).bad(with(whole, fua), "must stay alone");
        let priority = IoPriority { level: 2, ..IoPriority::default() };
        let mut told = self::told();
        told.good(write(1, 0, Flags::NONE)).good(submitted(2, Asked { priority, ..asked(Op::Write, 8, 8) }));
        told.bad(whole, "whose priorities differ").good(reaped(2, id(1, 0, 0), blkmq_virtual::Status::Ok)).good(whole);
        let mut told = self::told();
        told.good(write(1, 0, Flags::NONE)).good(submitted(2, Asked { group: 1, ..asked(Op::Write, 8, 8) }));
        told.bad(whole, "whose groups differ");
    }

    #[test]
    fn in_the_scheduler_only_equals_join() {
        let (host, guest) = (info(Op::Write, 0, 8), info(Op::Write, 8, 8));
        let into = id(1, 0, 0);
        let merged = |info| Event::Merged { into, info, how: MergeHow::Back };
        let others = [
            Info { merge: MergeLevel::Never, ..guest },
            Info { merge_key: 1, ..guest },
            Info { op: Op::WriteZeroes, ..guest },
        ];
        let of_another = Info { client: ClientId(1), ..guest };
        for other in others {
            told()
                .good(inserted(into, host, 0))
                .good(merged(guest))
                .good(merged(of_another))
                .bad(merged(other), "not alike or must stay alone");
            let absorbed = Event::Absorbed { into, absorbed: id(1, 1, 0) };
            told().good(inserted(into, host, 0)).good(inserted(id(1, 1, 0), other, 0)).bad(absorbed, "not alike");
        }
    }
}
