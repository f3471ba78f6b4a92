//! The counters of a queue count what happened. The counters are compared whenever the queue has drained and is frozen.
//! The statistics are compared from one such moment to the next.
//!
//! An operation in a plug has been submitted but is not counted yet, and an operation that is over may not have been
//! reaped. So a count that does not follow from the device's events is held between two bounds. The bounds meet when no
//! operation is outstanding.

use blkmq_sched::{Op, RqId};
use blkmq_virtual::{DiskStats, QueueCounters, Status};

use super::super::event::{Action, Asked, Control, Counts, Event, Phase, Stamp};
use super::super::settings::{dispatches_in_batches, takes_all};
use super::table::grown;
use super::tracker::{Operation, Tracker};
use super::{Checker, Facts, Verdict, Violation};

pub(super) const RULE: &str = "counters";

/// Numbers of parts of operations, by the reasons why the device may never see a request for them.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    all: u64,
    /// Parts of operations that must not wait.
    nowait: u64,
    /// Parts of operations that only flush, or that wait for a flush before their data.
    flushing: u64,
}

/// What was seen since the beginning.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Parts of operations that are over.
    over: u64,
    /// Operations that failed, and the parts of these operations.
    failed: u64,
    failed_parts: u64,
    /// How many of the failed parts belong to operations that would have had to wait, and how many belong to writes
    /// that waited for a flush and failed.
    refused_parts: u64,
    unwritten_parts: u64,
    /// Operations that only flushed.
    flushes: u64,
    /// Parts of operations whose result is never told.
    dropped: Parts,
    merged: u64,
    /// Requests that the scheduler chose under a locking that chooses one request in a hold (single or staged);
    /// requests that it chose under the other lockings; and the least number of holds in which it chose the latter.
    chosen: u64,
    chosen_in_batches: u64,
    batches: u64,
    /// Requests that never came into the scheduler, without those of the flush machine.
    passed: u64,
    /// Requests that came into the scheduler, or merged there, under a locking that takes all (`takes_all`).
    arrived: u64,
    /// Requests that the device took, and how many of them it took while no scheduler was in place.
    taken: u64,
    unordered: u64,
    given_back: u64,
    given_up: u64,
    /// Requests that the device ended, and their sectors, in four groups: reads; writes and writes of zeroes; discards;
    /// flushes.
    ended: [u64; 4],
    sectors: [u64; 4],
}

/// A moment at which the queue had drained.
#[derive(Debug, Clone, Copy, Default)]
struct Moment {
    stats: QueueCounters,
    stat: DiskStats,
    seen: Seen,
    outstanding: Parts,
    /// Whether the locking took all (`takes_all`) at some time before the moment.
    has_combined: bool,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Counters {
    outstanding: Parts,
    seen: Seen,
    has_combined: bool,
    /// The CPU that chose last, by value of the scheduler.
    choosers: Vec<Option<u16>>,
    /// The event at which the counts were last compared, and what they were.
    compared: u64,
    last: Moment,
}

/// The group in which the statistics count a request: reads; writes and writes of zeroes; discards; flushes.
pub(super) const fn group(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write | Op::WriteZeroes => 1,
        Op::Discard => 2,
        Op::Flush => 3,
    }
}

impl Parts {
    /// The parts of an operation, if the queue counts it. Without a cache a flush is over before it enters the queue.
    fn of(bio: u64, tracker: &Tracker) -> Option<(Self, &Asked)> {
        let Operation { asked, nr_parts, .. } = tracker.operation(bio)?;
        let Asked { op, flags, .. } = asked;
        let write_cache = tracker.limits.write_cache;
        let number = |is_one: bool| if is_one { *nr_parts } else { 0 };
        let flushing = number(*op == Op::Flush || flags.preflush && write_cache);
        let is_counted = *nr_parts > 0 && (*op != Op::Flush || write_cache);
        is_counted.then_some((Self { all: *nr_parts, nowait: number(flags.nowait), flushing }, asked))
    }

    const fn add(&mut self, other: Self) {
        self.all += other.all;
        self.nowait += other.nowait;
        self.flushing += other.flushing;
    }

    const fn take(&mut self, other: Self) {
        self.all -= other.all;
        self.nowait -= other.nowait;
        self.flushing -= other.flushing;
    }
}

impl Counters {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            outstanding: Parts::default(),
            seen: Seen::default(),
            has_combined: takes_all(facts.locking),
            choosers: Vec::new(),
            compared: 0,
            last: Moment::default(),
        }
    }

    fn reaped(&mut self, parts: Parts, asked: &Asked, status: Status) {
        let seen = &mut self.seen;
        seen.over += parts.all;
        if !status.is_ok() {
            seen.failed += 1;
            seen.failed_parts += parts.all;
        }
        // If an operation was cut, some parts may have been refused although the first error came from another part.
        let was_cut = asked.flags.nowait && parts.all > 1;
        if status == Status::Again || (was_cut && !status.is_ok()) {
            seen.refused_parts += parts.all;
        }
        if status == Status::Again {
            return;
        }
        if asked.op == Op::Flush {
            seen.flushes += 1;
        } else if !status.is_ok() {
            seen.unwritten_parts += parts.flushing;
        }
    }

    fn chosen(&mut self, cpu: u16, rq: RqId, tracker: &Tracker) {
        if !dispatches_in_batches(tracker.locking) {
            self.seen.chosen += 1;
            self.choosers.clear();
            return;
        }
        self.seen.chosen_in_batches += 1;
        // Two holds in a row may be of the same CPU, so only a change of the CPU surely begins another hold.
        let value = tracker.arrival(rq).map_or(0, |arrival| arrival.value);
        let before = grown(&mut self.choosers, value, || None).replace(cpu);
        self.seen.batches += u64::from(before != Some(cpu));
    }

    fn acted(&mut self, action: Action, tracker: &Tracker) {
        if let Action::Started { .. } | Action::FinishedAtOnce(_) | Action::GivenBack = action {
            self.seen.taken += 1;
            self.seen.unordered += u64::from(tracker.scheduler.is_none());
        }
        match action {
            Action::GivenBack => self.seen.given_back += 1,
            Action::GaveUp => self.seen.given_up += 1,
            _ => {}
        }
        if let Some((_, offer, _)) = tracker.ended() {
            self.seen.ended[group(offer.op)] += 1;
            self.seen.sectors[group(offer.op)] += offer.nr_sectors();
        }
    }

    fn counted(&mut self, at: Stamp, counts: &Counts, tracker: &Tracker) -> Verdict {
        let Counts { stats, stat, inflight, .. } = *counts;
        if inflight != [0; 2] {
            let what = format!("the queue has drained, and says that the device has {inflight:?} requests");
            return Err(Violation::new(RULE, what));
        }
        let Self { seen, outstanding, has_combined, .. } = *self;
        let now = Moment { stats, stat, seen, outstanding, has_combined };
        let verdict = now.judge_operations().and_then(|()| now.judge_requests());
        let verdict = verdict.and_then(|()| now.judge_times(at.time.0)).and_then(|()| {
            match tracker.iostats_since(self.compared) {
                Some(true) => now.judge_statistics(&self.last),
                Some(false) => now.judge_silence(&self.last),
                None => Ok(()),
            }
        });
        verdict.map_err(|what| Violation::new(RULE, format!("the queue has drained and counted {what}")))?;
        (self.last, self.compared) = (now, tracker.event);
        Ok(())
    }
}

/// Checks that a count lies between two bounds, both included.
fn within(name: &str, count: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&count) {
        Ok(())
    } else if least == most {
        Err(format!("{name}={count}, and there were {least}"))
    } else {
        Err(format!("{name}={count}, and there were {least} to {most}"))
    }
}

impl Moment {
    /// Checks the counts of operations.
    fn judge_operations(&self) -> Result<(), String> {
        let Self { stats, seen, outstanding, .. } = self;
        let unknown = outstanding.all + seen.dropped.all;
        within("completed", stats.completed, seen.over, seen.over + unknown)?;
        // An operation that must not wait may enter and leave again while a thread reads the counters.
        within("entered", stats.entered, stats.completed, stats.completed + outstanding.nowait)?;
        within("errors", stats.errors, seen.failed, seen.failed_parts + unknown)?;
        within("in_flight", self.stat.in_flight, 0, outstanding.nowait)?;
        // Each part is a request of its own, or joined another request, in the plug or later.
        let [reads, writes, discards, _] = seen.ended;
        let requests = reads + writes + discards + seen.merged + seen.flushes;
        let unseen = seen.refused_parts + outstanding.nowait + seen.dropped.nowait;
        let unseen = unseen + seen.unwritten_parts + outstanding.flushing + seen.dropped.flushing;
        let least = stats.entered.saturating_sub(requests + unseen);
        within("merges_plug", stats.merges_plug, least, stats.entered.saturating_sub(requests) + unknown)
    }

    /// Checks the counts of requests.
    fn judge_requests(&self) -> Result<(), String> {
        let Self { stats, seen, .. } = self;
        within("merges_insert", stats.merges_insert, seen.merged, seen.merged)?;
        within("issued", stats.issued, seen.taken, seen.taken)?;
        within("requeued", stats.requeued, seen.given_back, seen.given_back)?;
        within("timeouts", stats.timeouts, seen.given_up, seen.given_up)?;
        within("bypassed", stats.bypassed, seen.passed, seen.passed)?;
        let unseen = seen.refused_parts + self.nowait();
        within("staged", stats.staged, 0, if self.has_combined { seen.arrived + unseen } else { 0 })?;
        let dispatched = seen.chosen + seen.chosen_in_batches;
        within("dispatched and dispatched_fast", stats.dispatched + stats.dispatched_fast, dispatched, dispatched)?;
        // There are at most as many batches as requests. Under single and staged each batch has one request.
        let most = dispatched + seen.unordered;
        within("dispatch_batches", stats.dispatch_batches, seen.chosen + seen.batches, most)
    }

    fn judge_times(&self, now: u64) -> Result<(), String> {
        let stat = &self.stat;
        let ticks = stat.read_ticks + stat.write_ticks + stat.discard_ticks + stat.flush_ticks;
        // Each of the four times is rounded down to whole milliseconds.
        within("time_in_queue", stat.time_in_queue, ticks, ticks + 3)?;
        within("io_ticks", stat.io_ticks, 0, now / 1_000_000)
    }

    /// Checks what the statistics have counted since `last`, while they were on.
    fn judge_statistics(&self, last: &Self) -> Result<(), String> {
        let (stat, before) = (&self.stat, &last.stat);
        let grown = |name: &str, count: u64, before: u64, group: [u64; 4], was: [u64; 4], at: usize| {
            let there_were = group[at] - was[at];
            within(name, count.wrapping_sub(before), there_were, there_were)
        };
        let (ended, ended_before) = (self.seen.ended, last.seen.ended);
        let (sectors, sectors_before) = (self.seen.sectors, last.seen.sectors);
        grown("read_ios", stat.read_ios, before.read_ios, ended, ended_before, 0)?;
        grown("flush_ios", stat.flush_ios, before.flush_ios, ended, ended_before, 3)?;
        grown("read_sectors", stat.read_sectors, before.read_sectors, sectors, sectors_before, 0)?;
        self.judge_flushing(last, 1, |stat| (stat.write_ios, stat.write_sectors))?;
        self.judge_flushing(last, 2, |stat| (stat.discard_ios, stat.discard_sectors))?;
        let requests = |stat: &DiskStats| {
            let ios = stat.read_ios + stat.write_ios + stat.discard_ios;
            ios + stat.read_merges + stat.write_merges + stat.discard_merges
        };
        let refused = self.seen.refused_parts - last.seen.refused_parts + self.nowait() + last.outstanding.nowait;
        let entered = self.stats.entered - last.stats.entered;
        within("ios and merges", requests(stat) - requests(before), entered.saturating_sub(refused), entered)
    }

    /// Parts that must not wait and whose result is not known.
    const fn nowait(&self) -> u64 {
        self.outstanding.nowait + self.seen.dropped.nowait
    }

    /// Checks the counts of one group. Operations that only flush count as writes. Writes and discards whose flush
    /// failed count too.
    fn judge_flushing(&self, last: &Self, group: usize, of: fn(&DiskStats) -> (u64, u64)) -> Result<(), String> {
        let name = ["read", "write", "discard"][group];
        let (seen, before) = (&self.seen, &last.seen);
        let (ended, sectors) = (seen.ended[group] - before.ended[group], seen.sectors[group] - before.sectors[group]);
        let flushing = self.outstanding.flushing + last.outstanding.flushing + seen.dropped.flushing;
        let flushed = seen.flushes - before.flushes + seen.unwritten_parts - before.unwritten_parts;
        let ((ios, nr_sectors), (ios_before, sectors_before)) = (of(&self.stat), of(&last.stat));
        within(&format!("{name}_ios"), ios - ios_before, ended, ended + flushed + flushing)?;
        let most = if flushed + flushing > 0 { u64::MAX } else { sectors };
        within(&format!("{name}_sectors"), nr_sectors - sectors_before, sectors, most)
    }

    /// Checks that the statistics counted nothing since `last`, while they were off.
    fn judge_silence(&self, last: &Self) -> Result<(), String> {
        let silent = |stat: &DiskStats| DiskStats { in_flight: 0, ..*stat };
        if silent(&self.stat) == silent(&last.stat) {
            return Ok(());
        }
        Err(format!("{}, and before: {}, while iostats was 0", self.stat, last.stat))
    }
}

impl Checker for Counters {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        for (parts, asked) in tracker.ending.iter().filter_map(|bio| Parts::of(*bio, tracker)) {
            self.outstanding.take(parts);
            match *event {
                Event::Reaped { status, .. } => self.reaped(parts, asked, status),
                Event::Rejected { .. } => {}
                _ => self.seen.dropped.add(parts),
            }
        }
        let takes_all = takes_all(tracker.locking);
        match *event {
            Event::Submitted { bio, .. } => {
                Parts::of(bio, tracker).into_iter().for_each(|(parts, _)| self.outstanding.add(parts));
            }
            Event::Installed { .. } => self.choosers.clear(),
            Event::Merged { .. } => {
                self.seen.merged += 1;
                self.seen.arrived += u64::from(takes_all);
            }
            Event::Absorbed { .. } => self.seen.merged += 1,
            Event::Inserted { .. } => self.seen.arrived += u64::from(takes_all),
            Event::Chosen { rq, .. } => self.chosen(at.cpu, rq, tracker),
            Event::Offered { .. } => self.seen.passed += u64::from(tracker.is_bypass),
            Event::Changed { control: Control::Locking(_), phase: Phase::Done } => self.has_combined |= takes_all,
            Event::Acted { action, .. } => self.acted(action, tracker),
            Event::Counted(counts) => return self.counted(at, counts, tracker),
            _ => {}
        }
        Ok(())
    }
}
