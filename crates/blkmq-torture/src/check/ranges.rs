//! The counts of each range of sectors match what happened in the range. The counts are compared whenever the queue has
//! drained, from one such moment to the next. A request belongs to the range in which it began when it came in. A range
//! that keeps its name keeps its counts. A range with a new name begins at zero, also if another range was there
//! before.

use blkmq_sched::{Op, RqId};
use blkmq_virtual::{DiskStats, Limits};

use super::super::event::{Control, Event, Phase, RangeCount, Stamp};
use super::super::text::Request;
use super::offers::{Offers, Stage};
use super::table::Table;
use super::{Checker, Facts, Violation};

const RULE: &str = "ranges";

/// A range, and the requests that ended in it since the last look, with their sectors: reads, writes, discards.
#[derive(Debug, Clone, Copy)]
struct Range {
    count: RangeCount,
    ended: [u64; 3],
    sectors: [u64; 3],
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Ranges {
    limits: Limits,
    ranges: Vec<Range>,
    /// The first sector of each request when it came in.
    places: Table<u64>,
    offers: Offers,
    /// Whether requests are counted. `None`: this changed since the last look.
    iostats: Option<bool>,
    knob: bool,
}

impl Ranges {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            limits: facts.limits,
            ranges: Vec::new(),
            places: Table::new(),
            offers: Offers::new(),
            iostats: Some(true),
            knob: true,
        }
    }

    fn came_in(&mut self, rq: RqId, sector: u64) {
        let entry = self.places.entry(rq);
        if entry.as_ref().is_none_or(|(id, _)| *id != rq) {
            *entry = Some((rq, sector));
        }
    }

    fn acted(&mut self, event: &Event<'_>, rq: RqId) {
        let Some((offer, _)) = self.offers.see(event) else { return };
        let group = match offer.op {
            Op::Read => 0,
            Op::Write | Op::WriteZeroes => 1,
            Op::Discard => 2,
            Op::Flush => return,
        };
        let Some(&sector) = self.places.get(rq) else { return };
        let within = |range: &&mut Range| (range.count.first..range.count.end).contains(&sector);
        if let Some(range) = self.ranges.iter_mut().find(within) {
            range.ended[group] += 1;
            range.sectors[group] += offer.ranges.iter().map(|range| u64::from(range.1)).sum::<u64>();
        }
    }

    fn counted(&mut self, counts: &[RangeCount]) -> Result<(), Violation> {
        for now in counts {
            let before = self.ranges.iter().find(|range| range.count.name == now.name);
            let verdict = match (before, self.iostats) {
                (Some(before), Some(is_on)) => judge(before, &now.stat, is_on, self.limits.write_cache),
                (None, _) if now.stat != DiskStats::default() => Err(format!("{}, and it is a new range", now.stat)),
                _ => Ok(()),
            };
            let drained = verdict.map_err(|what| Violation::new(RULE, what)).and_then(|()| self.judge_drained(now));
            drained.map_err(|violation| {
                let what =
                    format!("the queue has drained, and of {}..{} it counted {}", now.first, now.end, violation.what);
                Violation { what, ..violation }
            })?;
        }
        self.ranges.clear();
        self.ranges.extend(counts.iter().map(|count| Range { count: *count, ended: [0; 3], sectors: [0; 3] }));
        self.iostats = Some(self.knob);
        Ok(())
    }
}

impl Ranges {
    /// Checks that no request of the range is in the queue. If the count says that there are some, the violation names
    /// the requests that came in and whose end was not told.
    fn judge_drained(&self, now: &RangeCount) -> Result<(), Violation> {
        if now.stat.in_flight == 0 {
            return Ok(());
        }
        let is_open = |rq| self.offers.get(rq).is_none_or(|offer| offer.stage != Stage::Over);
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
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Inserted { rq, info, .. } => self.came_in(rq, info.sector),
            Event::Offered { rq, sector, .. } => {
                self.came_in(rq, sector);
                _ = self.offers.see(event);
            }
            Event::Acted { rq, .. } => self.acted(event, rq),
            Event::Changed { control: Control::QueueKnob("iostats", value), phase } => match phase {
                Phase::Begun => self.iostats = None,
                Phase::Done => self.knob = value != 0,
                Phase::Refused => {}
            },
            Event::CountedRanges(counts) => return self.counted(counts),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_virtual::Status;

    use super::super::testing::*;
    use super::*;

    const EMPTY: RangeCount = RangeCount { name: 3, first: 100, end: 200, stat: NOTHING };
    const NOTHING: DiskStats = DiskStats {
        read_ios: 0,
        read_merges: 0,
        read_sectors: 0,
        read_ticks: 0,
        write_ios: 0,
        write_merges: 0,
        write_sectors: 0,
        write_ticks: 0,
        in_flight: 0,
        io_ticks: 0,
        time_in_queue: 0,
        discard_ios: 0,
        discard_merges: 0,
        discard_sectors: 0,
        discard_ticks: 0,
        flush_ios: 0,
        flush_ticks: 0,
    };
    const READ: DiskStats = DiskStats { read_ios: 1, read_sectors: 8, ..NOTHING };

    fn told() -> Told<Ranges> {
        let mut told = Told::new(Ranges::new(&FACTS));
        told.good(Event::CountedRanges(&[EMPTY]));
        told
    }

    fn ends(told: &mut Told<Ranges>, rq: RqId, op: Op, sector: u64) {
        told.good(offered(rq, op, sector, 8, &[])).good(started(rq)).good(completed(rq, Status::Ok));
    }

    #[test]
    fn a_range_counts_what_begins_in_it() {
        for (sector, stat) in [(99, NOTHING), (100, READ), (199, READ), (200, NOTHING)] {
            let mut told = told();
            ends(&mut told, id(1, 0, 0), Op::Read, sector);
            let wrong = if stat == READ { NOTHING } else { READ };
            told.bad(Event::CountedRanges(&[RangeCount { stat: wrong, ..EMPTY }]), "of 100..200 it counted");
            told.good(Event::CountedRanges(&[RangeCount { stat, ..EMPTY }]));
        }
        let mut told = told();
        ends(&mut told, id(1, 0, 0), Op::Read, 100);
        let stat = DiskStats { read_sectors: 7, ..READ };
        told.bad(Event::CountedRanges(&[RangeCount { stat, ..EMPTY }]), "7 sectors of reads more, and there were 8");
        let stat = DiskStats { in_flight: 1, ..READ };
        told.good(inserted(id(1, 2, 5), info(Op::Read, 150, 8), 0));
        told.bad(Event::CountedRanges(&[RangeCount { stat, ..EMPTY }]), "1 in flight: of those that came in, request");
    }

    #[test]
    fn it_belongs_where_it_was_when_it_came_in() {
        let mut told = told();
        let rq = id(1, 0, 0);
        told.good(inserted(rq, info(Op::Read, 100, 8), 0));
        // Another request joined in front of it.
        ends(&mut told, rq, Op::Read, 92);
        told.good(Event::CountedRanges(&[RangeCount { stat: READ, ..EMPTY }]));
    }

    #[test]
    fn writes_that_waited_in_vain_count() {
        let write = DiskStats { write_ios: 2, write_sectors: 16, ..NOTHING };
        let mut told = told();
        ends(&mut told, id(1, 0, 0), Op::Write, 100);
        told.bad(Event::CountedRanges(&[EMPTY]), "0 writes more, and there were 1");
        told.good(Event::CountedRanges(&[RangeCount { stat: write, ..EMPTY }]));
        let limits = Limits { write_cache: false, ..FACTS.limits };
        let mut told = Told::new(Ranges::new(&Facts { limits, ..FACTS }));
        told.good(Event::CountedRanges(&[EMPTY]));
        ends(&mut told, id(1, 0, 0), Op::Write, 100);
        told.bad(Event::CountedRanges(&[RangeCount { stat: write, ..EMPTY }]), "2 writes more, and there were 1");
    }

    #[test]
    fn a_name_keeps_its_counts_and_another_begins_anew() {
        let mut told = told();
        ends(&mut told, id(1, 0, 0), Op::Read, 100);
        let moved = RangeCount { first: 0, end: 8, stat: READ, ..EMPTY };
        let another = RangeCount { name: 4, ..EMPTY };
        told.bad(Event::CountedRanges(&[moved, RangeCount { stat: READ, ..another }]), "it is a new range");
        told.good(Event::CountedRanges(&[moved, another]));
        told.bad(Event::CountedRanges(&[RangeCount { stat: NOTHING, ..moved }]), "more, and there were 0");
        ends(&mut told, id(1, 0, 1), Op::Read, 0);
        let stat = DiskStats { read_ios: 2, read_sectors: 16, ..NOTHING };
        told.good(Event::CountedRanges(&[RangeCount { stat, ..moved }]));
    }

    #[test]
    fn without_statistics_nothing_is_counted() {
        let knob = |value, phase| changed(Control::QueueKnob("iostats", value), phase);
        let mut told = told();
        ends(&mut told, id(1, 0, 0), Op::Read, 100);
        told.good(knob(0, Phase::Begun)).good(knob(0, Phase::Done)).good(Event::CountedRanges(&[EMPTY]));
        ends(&mut told, id(1, 0, 1), Op::Read, 100);
        told.bad(Event::CountedRanges(&[RangeCount { stat: READ, ..EMPTY }]), "1 reads more, and there were 0");
        told.good(Event::CountedRanges(&[EMPTY]));
    }
}
