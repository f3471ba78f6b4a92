//! Reads, writes and discards are counted separately. Each group counts as many requests and merges as there were
//! operations, and as much time as these operations took, by the times of their completions. The flushes of the device
//! are counted with at least the time that the device says. The checker compares the two whenever the queue has
//! drained, from the beginning until an operator turns the statistics off.
//!
//! A request lasts as long as one of its operations. So the time of a group is at most the sum over its operations. For
//! each merge the sum may lack one operation, at most the longest.

use blkmq_sched::{Op, RqId, Time};
use blkmq_virtual::{DiskStats, Status};

use super::super::event::{Action, Event, Stamp, Times};
use super::book::Book;
use super::table::Table;
use super::tracker::{Operation, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "groups";

const MS: u64 = 1_000_000;

/// Counts of the operations of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Group {
    /// Parts of operations that are over and that were certainly counted; and parts that may have been counted.
    over: u64,
    uncertain: u64,
    /// The time that the operations took, in ns: the most; the least, if none merged; the longest of one operation.
    most_ns: u64,
    /// This number may be negative. An operation may be submitted after the thread that completed it looked at the
    /// clock, because the queue sums up the times of a batch.
    least_ns: i64,
    longest_ns: u64,
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The earliest time at which the queue may have begun to count each operation.
    since: Book<Time>,
    groups: [Group; 3],
    /// Flushes of the device that took a while: when each was offered, and when it was due.
    flushes: Table<(Time, Option<Time>)>,
    flush_ns: u64,
}

/// The group of an operation. An operation that only flushes is a write.
const fn group(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write | Op::WriteZeroes | Op::Flush => 1,
        Op::Discard => 2,
    }
}

impl Groups {
    fn reaped(&mut self, now: Time, operation: &Operation, status: Status, times: Times, write_cache: bool) {
        let &Operation { ref asked, nr_parts, .. } = operation;
        let Times { submitted, completed, .. } = times;
        let flushes = asked.op == Op::Flush || asked.flags.preflush || asked.flags.fua;
        // The flush machine may end the operation later than the device ends the data.
        let end = if flushes && write_cache { now } else { completed };
        let ns = end.since(submitted);
        let group = &mut self.groups[group(asked.op)];
        group.most_ns += nr_parts * ns;
        // If an operation that must not wait was cut, some parts may have been refused although the first error came
        // from another part.
        let was_refused = status == Status::Again || asked.flags.nowait && nr_parts > 1 && !status.is_ok();
        *(if was_refused { &mut group.uncertain } else { &mut group.over }) += nr_parts;
        if nr_parts == 1 && !was_refused {
            group.least_ns += completed.0.cast_signed() - submitted.0.cast_signed();
            group.longest_ns = group.longest_ns.max(ns);
        }
    }

    fn flush_acted(&mut self, rq: RqId, action: Action) {
        let Some((offered, due)) = self.flushes.get_mut(rq) else { return };
        match action {
            Action::Started { due: when } => *due = when,
            Action::Completed(_) => self.flush_ns += due.take().map_or(0, |due| due.since(*offered)),
            _ => *due = None,
        }
    }

    fn counted(&self, now: Time, stat: &DiskStats, tracker: &Tracker) -> Result<(), String> {
        let mut groups = self.groups;
        for (operation, since) in self.since.iter().filter_map(|(bio, since)| Some((tracker.operation(bio)?, since))) {
            // The operation may be over and not reaped.
            groups[group(operation.asked.op)].add_uncertain(operation.nr_parts, now.since(*since));
        }
        groups[0].judge("reads", stat.read_ios, stat.read_merges, stat.read_ticks)?;
        groups[1].judge("writes", stat.write_ios, stat.write_merges, stat.write_ticks)?;
        groups[2].judge("discards", stat.discard_ios, stat.discard_merges, stat.discard_ticks)?;
        if (stat.flush_ticks + 1) * MS < self.flush_ns {
            let least = self.flush_ns / MS;
            return Err(format!("{} ms of flushes, and they took {least} ms at least", stat.flush_ticks));
        }
        Ok(())
    }
}

impl Group {
    /// Adds an operation whose result is not known.
    const fn add_uncertain(&mut self, nr_parts: u64, ns: u64) {
        self.uncertain += nr_parts;
        self.most_ns += nr_parts * ns;
    }

    fn judge(&self, name: &str, ios: u64, merges: u64, ticks: u64) -> Result<(), String> {
        let &Self { over, uncertain, most_ns, least_ns, longest_ns } = self;
        if !(over..=over + uncertain).contains(&(ios + merges)) {
            let most = over + uncertain;
            return Err(format!("{ios} {name} and {merges} merges of them, and there were {over} to {most}"));
        }
        let least_ns = u64::try_from(least_ns).unwrap_or(0).saturating_sub(merges.saturating_mul(longest_ns));
        if ticks * MS > most_ns || (ticks + 1) * MS <= least_ns {
            let (least, most) = (least_ns / MS, most_ns / MS);
            return Err(format!("{ticks} ms of {name}, and they took {least} to {most} ms"));
        }
        Ok(())
    }
}

impl Checker for Groups {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        // An operator has turned the statistics off or on.
        if tracker.iostats_since(0).is_none() {
            return Ok(());
        }
        for bio in &tracker.ending {
            let (Some(since), Some(operation)) = (self.since.end(*bio), tracker.operation(*bio)) else { continue };
            match *event {
                Event::Reaped { status, times, .. } => {
                    self.reaped(at.time, operation, status, times, tracker.limits.write_cache);
                }
                Event::Rejected { .. } => {}
                _ => {
                    let ns = at.time.since(since);
                    self.groups[group(operation.asked.op)].add_uncertain(operation.nr_parts, ns);
                }
            }
        }
        match *event {
            Event::Submitted { bio, asked, .. } => {
                let is_counted = asked.op != Op::Flush || tracker.limits.write_cache;
                if is_counted && tracker.operation(bio).is_some_and(Operation::is_valid) {
                    // The time of a plug counts from the first operation in it, and that operation is outstanding too.
                    let since = self.since.iter().next().map_or(at.time, |(_, oldest)| at.time.min(*oldest));
                    self.since.begin(bio, since);
                }
            }
            // The flush has begun by now, although the thread that offers it may have looked at the clock before that.
            Event::Offered { rq, op: Op::Flush, .. } => *self.flushes.entry(rq) = Some((rq, (at.time, None))),
            Event::Acted { rq, action } => self.flush_acted(rq, action),
            Event::Counted(counts) => {
                return self
                    .counted(at.time, &counts.stat, tracker)
                    .map_err(|what| Violation::new(RULE, format!("the queue has drained and counted {what}")));
            }
            _ => {}
        }
        Ok(())
    }
}
