//! The counts of each range of sectors match what happened in the range. The counts are compared whenever the queue has
//! drained, from one such moment to the next. A request belongs to the range in which it began when it came in. A range
//! that keeps its name keeps its counts. A range with a new name begins at zero, also if another range was there
//! before.

use blkmq_sched::RqId;
use blkmq_virtual::DiskStats;

use super::super::event::{Event, RangeCount, Stamp};
use super::super::text::Request;
use super::counters::group;
use super::table::Table;
use super::tracker::{Stage, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "ranges";

/// A range, and the requests that ended in it since the last look, with their sectors: reads, writes, discards.
#[derive(Debug, Clone, Copy)]
struct Range {
    count: RangeCount,
    ended: [u64; 3],
    sectors: [u64; 3],
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    ranges: Vec<Range>,
    /// The first sector of each request when it came in.
    places: Table<u64>,
    /// The event of the last comparison.
    compared: u64,
}

impl Ranges {
    fn came_in(&mut self, rq: RqId, sector: u64) {
        let entry = self.places.entry(rq);
        if entry.as_ref().is_none_or(|(id, _)| *id != rq) {
            *entry = Some((rq, sector));
        }
    }

    fn ended(&mut self, tracker: &Tracker) {
        let Some((rq, offer, _)) = tracker.ended() else { return };
        let group = group(offer.op);
        let Some(&sector) = self.places.get(rq) else { return };
        let within = |range: &&mut Range| (range.count.first..range.count.end).contains(&sector);
        if let Some(range) = self.ranges.iter_mut().find(within).filter(|_| group < 3) {
            range.ended[group] += 1;
            range.sectors[group] += offer.nr_sectors();
        }
    }

    fn counted(&mut self, counts: &[RangeCount], tracker: &Tracker) -> Verdict {
        for now in counts {
            let before = self.ranges.iter().find(|range| range.count.name == now.name);
            let verdict = match (before, tracker.iostats_since(self.compared)) {
                (Some(before), Some(is_on)) => judge(before, &now.stat, is_on, tracker.limits.write_cache),
                (None, _) if now.stat != DiskStats::default() => Err(format!("{}, and it is a new range", now.stat)),
                _ => Ok(()),
            };
            let drained =
                verdict.map_err(|what| Violation::new(RULE, what)).and_then(|()| self.judge_drained(now, tracker));
            drained.map_err(|violation| {
                let what =
                    format!("the queue has drained, and of {}..{} it counted {}", now.first, now.end, violation.what);
                Violation { what, ..violation }
            })?;
        }
        self.ranges.clear();
        self.ranges.extend(counts.iter().map(|count| Range { count: *count, ended: [0; 3], sectors: [0; 3] }));
        self.compared = tracker.event;
        Ok(())
    }

    /// Checks that no request of the range is in the queue. If the count says that there are some, the violation names
    /// the requests that came in and whose end was not told.
    fn judge_drained(&self, now: &RangeCount, tracker: &Tracker) -> Verdict {
        if now.stat.in_flight == 0 {
            return Ok(());
        }
        let is_open = |rq| tracker.offer(rq).is_none_or(|offer| offer.stage != Stage::Over);
        let there = self.places.iter().filter(|(_, sector)| (now.first..now.end).contains(sector));
        let open: Vec<RqId> = there.map(|(rq, _)| rq).filter(|rq| is_open(*rq)).take(8).collect();
        let names: Vec<String> = open.iter().map(|rq| Request(*rq).to_string()).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let what = format!(
            "{} in flight: of those that came in, {names} did not end or joined another; in all: {}",
            now.stat.in_flight, now.stat
        );
        Err(open.into_iter().fold(Violation::new(RULE, what), Violation::request))
    }
}

/// Compares what a range has counted since `before` with what ended in it.
fn judge(before: &Range, stat: &DiskStats, is_on: bool, write_cache: bool) -> Result<(), String> {
    let Range { count: RangeCount { stat: was, .. }, ended, sectors } = before;
    let counts = |stat: &DiskStats| {
        let ios = [stat.read_ios, stat.write_ios, stat.discard_ios];
        (ios, [stat.read_sectors, stat.write_sectors, stat.discard_sectors])
    };
    let ((ios, nr_sectors), (ios_before, sectors_before)) = (counts(stat), counts(was));
    for (group, name) in ["reads", "writes", "discards"].into_iter().enumerate() {
        let (least, least_sectors) = if is_on { (ended[group], sectors[group]) } else { (0, 0) };
        // A write that waited for a flush in vain counts, although no device saw it.
        let is_exact = group == 0 || !write_cache || !is_on;
        let most = |least: u64| if is_exact { least } else { u64::MAX };
        within(name, ios[group].wrapping_sub(ios_before[group]), least, most(least))?;
        let grown = nr_sectors[group].wrapping_sub(sectors_before[group]);
        within(&format!("sectors of {name}"), grown, least_sectors, most(least_sectors))?;
    }
    Ok(())
}

/// Checks that a count lies between two bounds.
fn within(name: &str, count: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&count) { Ok(()) } else { Err(format!("{count} {name} more, and there were {least}")) }
}

impl Checker for Ranges {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Inserted { rq, info, .. } => self.came_in(rq, info.sector),
            Event::Offered { rq, sector, .. } => self.came_in(rq, sector),
            Event::Acted { .. } => self.ended(tracker),
            Event::CountedRanges(counts) => return self.counted(counts, tracker),
            _ => {}
        }
        Ok(())
    }
}
