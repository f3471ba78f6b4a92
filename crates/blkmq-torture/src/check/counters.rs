//! The counters of a queue count what happened. The counters are compared whenever the queue has drained and is frozen.
//! The statistics are compared from one such moment to the next.
//!
//! An operation in a plug has been submitted but is not counted yet, and an operation that is over may not have been
//! reaped. So a count that does not follow from the device's events is held between two bounds. The bounds meet when no
//! operation is outstanding.

use blkmq_sched::{Op, RqId};
use blkmq_virtual::{DiskStats, Locking, QueueCounters, Status};

use super::super::event::{Action, Asked, Control, Counts, Event, Phase, Stamp};
use super::super::settings::{chooses_in_batches, takes_all};
use super::book::Book;
use super::flushing::Flushing;
use super::offers::Offers;
use super::parts::parts;
use super::table::{Table, grown};
use super::{Checker, Facts, Violation};

const RULE: &str = "counters";

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

#[derive(Debug)]
struct Operation {
    submitter: u16,
    asked: Asked,
    nr_parts: u64,
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
    facts: Facts,
    operations: Book<Operation>,
    outstanding: Parts,
    offers: Offers,
    flushing: Flushing,
    /// Requests that came into the scheduler, each with the value that it came into, or bypassed it.
    came: Table<u16>,
    seen: Seen,
    has_scheduler: bool,
    locking: Locking,
    has_combined: bool,
    /// The CPU that chose last, by value of the scheduler.
    choosers: Vec<Option<u16>>,
    /// Whether the statistics count requests. `None`: this changed since the counts were last compared.
    iostats: Option<bool>,
    /// The value of the knob `iostats`.
    knob: bool,
    last: Moment,
}

impl Parts {
    fn of(operation: &Operation, write_cache: bool) -> Self {
        let Operation { asked: Asked { op, flags, .. }, nr_parts, .. } = operation;
        let number = |is_one: bool| if is_one { *nr_parts } else { 0 };
        let flushing = *op == Op::Flush || flags.preflush && write_cache;
        Self { all: *nr_parts, nowait: number(flags.nowait), flushing: number(flushing) }
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
            facts: facts.clone(),
            operations: Book::new(),
            outstanding: Parts::default(),
            offers: Offers::new(),
            flushing: Flushing::new(facts.limits),
            came: Table::new(),
            seen: Seen::default(),
            has_scheduler: false,
            locking: facts.locking,
            has_combined: takes_all(facts.locking),
            choosers: Vec::new(),
            iostats: Some(true),
            knob: true,
            last: Moment::default(),
        }
    }

    fn submitted(&mut self, submitter: u16, bio: u64, asked: Asked, pieces: &[usize]) {
        let Ok(nr_parts) = parts(&self.facts.limits, &asked, pieces) else { return };
        // Without a cache a flush is over before it enters the queue.
        if asked.op == Op::Flush && !self.facts.limits.write_cache {
            return;
        }
        let operation = Operation { submitter, asked, nr_parts };
        self.outstanding.add(Parts::of(&operation, self.facts.limits.write_cache));
        self.operations.begin(bio, operation);
    }

    fn end_of(&mut self, bio: u64) -> Option<(Operation, Parts)> {
        let operation = self.operations.end(bio)?;
        let parts = Parts::of(&operation, self.facts.limits.write_cache);
        self.outstanding.take(parts);
        Some((operation, parts))
    }

    fn reaped(&mut self, bio: u64, status: Status) {
        let Some((operation, parts)) = self.end_of(bio) else { return };
        let seen = &mut self.seen;
        seen.over += parts.all;
        if !status.is_ok() {
            seen.failed += 1;
            seen.failed_parts += parts.all;
        }
        // If an operation was cut, some parts may have been refused although the first error came from another part.
        let was_cut = operation.asked.flags.nowait && parts.all > 1;
        if status == Status::Again || (was_cut && !status.is_ok()) {
            seen.refused_parts += parts.all;
        }
        if status == Status::Again {
            return;
        }
        if operation.asked.op == Op::Flush {
            seen.flushes += 1;
        } else if !status.is_ok() {
            seen.unwritten_parts += parts.flushing;
        }
    }

    fn dropped(&mut self, bio: u64) {
        if let Some((_, parts)) = self.end_of(bio) {
            self.seen.dropped.add(parts);
        }
    }

    fn chosen(&mut self, cpu: u16, rq: RqId) {
        if !chooses_in_batches(self.locking) {
            self.seen.chosen += 1;
            self.choosers.clear();
            return;
        }
        self.seen.chosen_in_batches += 1;
        // Two holds in a row may be of the same CPU, so only a change of the CPU surely begins another hold.
        let value = self.came.get(rq).copied().unwrap_or(0);
        let before = grown(&mut self.choosers, value, || None).replace(cpu);
        self.seen.batches += u64::from(before != Some(cpu));
    }

    fn acted(&mut self, event: &Event<'_>, action: Action) {
        if let Action::Started { .. } | Action::FinishedAtOnce(_) | Action::GivenBack = action {
            self.seen.taken += 1;
            self.seen.unordered += u64::from(!self.has_scheduler);
        }
        match action {
            Action::GivenBack => self.seen.given_back += 1,
            Action::GaveUp => self.seen.given_up += 1,
            _ => {}
        }
        if let Some((offer, _)) = self.offers.see(event) {
            let group = match offer.op {
                Op::Read => 0,
                Op::Write | Op::WriteZeroes => 1,
                Op::Discard => 2,
                Op::Flush => 3,
            };
            self.seen.ended[group] += 1;
            self.seen.sectors[group] += offer.ranges.iter().map(|range| u64::from(range.1)).sum::<u64>();
        }
    }

    fn counted(&mut self, at: Stamp, counts: &Counts) -> Result<(), Violation> {
        let Counts { stats, stat, inflight, .. } = *counts;
        if inflight != [0; 2] {
            let what = format!("the queue has drained, and says that the device has {inflight:?} requests");
            return Err(Violation::new(RULE, what));
        }
        let Self { seen, outstanding, has_combined, .. } = *self;
        let now = Moment { stats, stat, seen, outstanding, has_combined };
        let verdict = now.judge_operations().and_then(|()| now.judge_requests());
        let verdict = verdict.and_then(|()| now.judge_times(at.time.0)).and_then(|()| match self.iostats {
            Some(true) => now.judge_statistics(&self.last),
            Some(false) => now.judge_silence(&self.last),
            None => Ok(()),
        });
        verdict.map_err(|what| Violation::new(RULE, format!("the queue has drained and counted {what}")))?;
        (self.last, self.iostats) = (now, Some(self.knob));
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
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        self.flushing.see(event);
        match *event {
            Event::Submitted { submitter, bio, asked, pieces } => self.submitted(submitter, bio, asked, pieces),
            Event::Rejected { bio, .. } => _ = self.end_of(bio),
            Event::Reaped { bio, status, .. } => self.reaped(bio, status),
            Event::HandedBack { bio, .. } => self.dropped(bio),
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|operation| operation.submitter == submitter);
                theirs.into_iter().for_each(|bio| self.dropped(bio));
            }
            Event::Installed { scheduler } => {
                self.has_scheduler = scheduler.is_some();
                self.choosers.clear();
            }
            Event::Merged { .. } => {
                self.seen.merged += 1;
                self.seen.arrived += u64::from(takes_all(self.locking));
            }
            Event::Absorbed { .. } => self.seen.merged += 1,
            Event::Inserted { value, rq, .. } => {
                *self.came.entry(rq) = Some((rq, value));
                self.seen.arrived += u64::from(takes_all(self.locking));
            }
            Event::Chosen { rq, .. } => self.chosen(at.cpu, rq),
            Event::Offered { rq, sector, data, .. } => {
                if self.has_scheduler && self.came.get(rq).is_none() && !self.flushing.takes(rq, sector, data) {
                    *self.came.entry(rq) = Some((rq, 0));
                    self.seen.passed += 1;
                }
                self.offers.see(event);
            }
            Event::Changed { control: Control::Locking(locking), phase: Phase::Done } => {
                self.locking = locking;
                self.has_combined |= takes_all(locking);
            }
            Event::Acted { action, .. } => self.acted(event, action),
            Event::Changed { control: Control::QueueKnob("iostats", value), phase } => match phase {
                Phase::Begun => self.iostats = None,
                Phase::Done => self.knob = value != 0,
                Phase::Refused => {}
            },
            Event::Counted(counts) => return self.counted(at, counts),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::MergeHow;
    use blkmq_virtual::Flags;

    use super::super::testing::*;
    use super::*;

    /// A read of 8 sectors as one request, and the counts after it.
    fn one_read() -> (Told<Counters>, Counts) {
        let mut told = Told::new(Counters::new(&FACTS));
        let rq = id(1, 0, 0);
        told.good(Event::Installed { scheduler: Some("mq-deadline") }).good(submitted(1, asked(Op::Read, 0, 8)));
        told.good(inserted(rq, info(Op::Read, 0, 8), 0)).good(chosen(rq, 0)).good(offered(rq, Op::Read, 0, 8, &[]));
        told.good(started(rq)).good(completed(rq, Status::Ok)).good(reaped(1, rq, Status::Ok));
        let mut counts = counts(0);
        counts.stats.dispatch_batches = 1;
        counts.stats = QueueCounters { entered: 1, completed: 1, issued: 1, dispatched: 1, ..counts.stats };
        counts.stat = DiskStats { read_ios: 1, read_sectors: 8, ..counts.stat };
        (told, counts)
    }

    fn bad(change: impl FnOnce(&mut Counts), says: &str) {
        let (mut told, mut counts) = one_read();
        change(&mut counts);
        told.bad(Event::Counted(&counts), says);
    }

    #[test]
    fn what_happened_is_counted_once() {
        let (mut told, counts) = one_read();
        told.good(Event::Counted(&counts)).good(Event::Counted(&counts));
        for count in [0, 2] {
            bad(|counts| counts.stats.completed = count, &format!("completed={count}, and there were 1"));
            bad(|counts| counts.stats.issued = count, "issued");
            bad(|counts| counts.stats.dispatched = count, "dispatched and dispatched_fast");
            bad(|counts| counts.stats.dispatch_batches = count, "dispatch_batches");
            bad(|counts| counts.stat.read_ios = count, "read_ios");
            bad(|counts| counts.stat.read_sectors = count, "read_sectors");
        }
        bad(|counts| counts.stats.entered = 2, "entered=2");
        bad(|counts| counts.stats.errors = 1, "errors=1");
        bad(|counts| counts.stats.merges_plug = 1, "merges_plug=1");
        bad(|counts| counts.stats.merges_insert = 1, "merges_insert=1");
        bad(|counts| counts.stats.requeued = 1, "requeued=1");
        bad(|counts| counts.stats.timeouts = 1, "timeouts=1");
        bad(|counts| counts.stat.write_ios = 1, "write_ios=1");
        bad(|counts| counts.stat.write_sectors = 1, "write_sectors=1");
        bad(|counts| counts.stat.discard_ios = 1, "discard_ios=1");
        bad(|counts| counts.stat.flush_ios = 1, "flush_ios=1");
        bad(|counts| counts.stat.read_merges = 1, "ios and merges=2");
        bad(|counts| counts.stat.in_flight = 1, "in_flight=1");
        bad(|counts| counts.inflight = [0, 1], "has [0, 1] requests");
        bad(|counts| counts.stat.read_ticks = 1, "time_in_queue=0");
        bad(|counts| counts.stat.io_ticks = 1, "io_ticks=1");
    }

    #[test]
    fn what_passes_the_scheduler_is_counted() {
        let (mut told, mut counts) = one_read();
        let rq = id(1, 0, 1);
        told.good(submitted(2, asked(Op::Read, 0, 8))).good(offered(rq, Op::Read, 0, 8, &[]));
        // A request counts once, however often it is offered.
        told.good(acted(rq, Action::GivenBack)).good(offered(rq, Op::Read, 0, 8, &[])).good(started(rq));
        told.good(completed(rq, Status::Ok)).good(reaped(2, rq, Status::Ok));
        counts.stats = QueueCounters { entered: 2, completed: 2, issued: 3, requeued: 1, ..counts.stats };
        counts.stat = DiskStats { read_ios: 2, read_sectors: 16, ..counts.stat };
        told.bad(Event::Counted(&counts), "bypassed=0, and there were 1");
        counts.stats.bypassed = 1;
        told.good(Event::Counted(&counts));
        bad(|counts| counts.stats.bypassed = 1, "bypassed=1, and there were 0");
    }

    #[test]
    fn batches_and_what_was_left_are_counted() {
        let come = |told: &mut Told<Counters>, counts: &mut Counts, slot: u64| {
            let rq = id(1, slot, 1);
            told.good(submitted(2 + slot, asked(Op::Read, 0, 8))).good(inserted(rq, info(Op::Read, 0, 8), 0));
            told.good(chosen(rq, 0)).good(offered(rq, Op::Read, 0, 8, &[])).good(started(rq));
            told.good(completed(rq, Status::Ok)).good(reaped(2 + slot, rq, Status::Ok));
            let Counts { stats, stat, .. } = counts;
            (stats.entered, stats.completed, stats.issued) = (stats.entered + 1, stats.completed + 1, stats.issued + 1);
            stats.dispatched_fast += 1;
            (stat.read_ios, stat.read_sectors) = (stat.read_ios + 1, stat.read_sectors + 8);
        };
        let (mut told, mut counts) = one_read();
        told.good(changed(Control::Locking(Locking::Batch), Phase::Done));
        (0..3).for_each(|slot| come(&mut told, &mut counts, slot));
        told.cpu = 1;
        come(&mut told, &mut counts, 3);
        // One request under the locking single. Then three by one CPU and one by another CPU.
        for (batches, is_right) in [(2, false), (3, true), (5, true), (6, false)] {
            counts.stats.dispatch_batches = batches;
            assert_eq!(told.tell(Event::Counted(&counts)).is_ok(), is_right, "{batches} batches");
        }
        counts.stats = QueueCounters { dispatch_batches: 3, staged: 1, ..counts.stats };
        told.bad(Event::Counted(&counts), "staged=1, and there were 0");
        told.good(changed(Control::Locking(Locking::Combining), Phase::Done));
        come(&mut told, &mut counts, 4);
        told.good(Event::Counted(&counts));
        counts.stats.staged = 2;
        told.bad(Event::Counted(&counts), "staged=2, and there were 0 to 1");
    }

    #[test]
    fn errors_and_retries_are_counted() {
        let (mut told, mut counts) = one_read();
        let (rq, other) = (id(1, 0, 1), id(1, 1, 1));
        told.good(Event::Installed { scheduler: None });
        told.good(submitted(2, asked(Op::Discard, 0, 8))).good(offered(rq, Op::Discard, 0, 8, &[]));
        told.good(acted(rq, Action::Refused)).good(offered(rq, Op::Discard, 0, 8, &[]));
        told.good(acted(rq, Action::GivenBack)).good(offered(rq, Op::Discard, 0, 8, &[])).good(started(rq));
        told.good(acted(rq, Action::GaveUp)).good(reaped(2, rq, Status::Timeout));
        told.good(submitted(3, asked(Op::Discard, 8, 8))).good(offered(other, Op::Discard, 8, 8, &[]));
        told.good(acted(other, Action::FinishedAtOnce(Status::Medium))).good(reaped(3, other, Status::Medium));
        counts.stats = QueueCounters { entered: 3, completed: 3, issued: 4, requeued: 1, timeouts: 1, ..counts.stats };
        counts.stat = DiskStats { discard_ios: 2, discard_sectors: 16, ..counts.stat };
        told.bad(Event::Counted(&counts), "errors=0, and there were 2");
        counts.stats.errors = 2;
        told.good(Event::Counted(&counts));
    }

    #[test]
    fn what_joins_another_is_counted_as_merged() {
        let (mut told, mut counts) = one_read();
        let rq = id(1, 0, 1);
        // Two requests in the scheduler. A third operation had joined the second one in the plug.
        told.good(submitted(2, asked(Op::Read, 0, 4))).good(submitted(3, asked(Op::Read, 4, 4)));
        told.good(submitted(4, asked(Op::Read, 8, 4))).good(inserted(rq, info(Op::Read, 0, 4), 0));
        told.good(Event::Merged { into: rq, info: info(Op::Read, 4, 8), how: MergeHow::Back }).good(chosen(rq, 0));
        told.good(offered(rq, Op::Read, 0, 12, &[])).good(acted(rq, Action::FinishedAtOnce(Status::Ok)));
        counts.stats =
            QueueCounters { entered: 4, completed: 4, issued: 2, dispatched: 2, dispatch_batches: 2, ..counts.stats };
        counts.stat = DiskStats { read_ios: 2, read_sectors: 20, read_merges: 2, ..counts.stat };
        counts.stats.merges_insert = 1;
        // Not reaped yet, so it is not known how many of the operations left the plug.
        told.good(Event::Counted(&Counts { stats: QueueCounters { merges_plug: 1, ..counts.stats }, ..counts }));
        for bio in 2..5 {
            told.good(reaped(bio, rq, Status::Ok));
        }
        told.bad(Event::Counted(&counts), "merges_plug=0, and there were 1");
    }

    #[test]
    fn flushes_and_what_must_not_wait_are_no_requests() {
        let (mut told, mut counts) = one_read();
        let flush = id(0, 0, 0);
        told.good(submitted(2, asked(Op::Flush, 0, 0))).good(offered(flush, Op::Flush, 0, 0, &[]));
        told.good(acted(flush, Action::FinishedAtOnce(Status::Ok))).good(reaped(2, id(1, 1, 0), Status::Ok));
        let flags = Flags { nowait: true, ..Flags::NONE };
        told.good(submitted(3, Asked { flags, ..asked(Op::Write, 0, 8) }));
        told.good(reaped(3, id(1, 2, 0), Status::Again));
        counts.stats = QueueCounters { entered: 3, completed: 3, issued: 2, errors: 1, ..counts.stats };
        counts.stat = DiskStats { write_ios: 1, ..counts.stat };
        told.bad(Event::Counted(&counts), "flush_ios=0, and there were 1");
        counts.stat.flush_ios += 1;
        told.good(Event::Counted(&counts));
    }

    #[test]
    fn of_an_operation_that_was_cut_some_parts_may_have_had_to_wait() {
        let (mut told, mut counts) = one_read();
        let flags = Flags { nowait: true, ..Flags::NONE };
        told.good(submitted(2, Asked { flags, ..asked(Op::Write, 0, 64) }));
        told.good(offered(id(1, 0, 1), Op::Write, 0, 16, &[])).good(completed(id(1, 0, 1), Status::Medium));
        told.good(reaped(2, id(1, 0, 1), Status::Medium));
        // The other three were refused, each as a request of its own or after it joined another in the plug. So no more
        // than these can have joined.
        counts.stats =
            QueueCounters { entered: 5, completed: 5, errors: 4, merges_plug: 4, bypassed: 1, ..counts.stats };
        counts.stat = DiskStats { write_ios: 1, write_sectors: 16, ..counts.stat };
        told.bad(Event::Counted(&counts), "merges_plug=4, and there were 0 to 3");
        counts.stats.merges_plug = 0;
        told.good(Event::Counted(&counts));
    }

    #[test]
    fn the_statistics_are_silent_while_they_are_off() {
        let knob = |value, phase| changed(Control::QueueKnob("iostats", value), phase);
        let (mut told, mut counts) = one_read();
        // The statistics were on for a part of the time, so it is not known what they counted.
        counts.stat = DiskStats::default();
        told.good(knob(0, Phase::Begun)).good(knob(0, Phase::Done)).good(Event::Counted(&counts));
        told.good(Event::Counted(&counts));
        counts.stat.read_ios = 1;
        told.bad(Event::Counted(&counts), "while iostats was 0");
        told.good(knob(1, Phase::Begun)).good(knob(1, Phase::Done)).good(Event::Counted(&counts));
        counts.stat.read_ios = 2;
        told.bad(Event::Counted(&counts), "read_ios=1, and there were 0");
    }
}
