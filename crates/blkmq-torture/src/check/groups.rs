//! Reads, writes and discards are counted separately. Each group counts as many requests and merges as there were
//! operations, and as much time as these operations took, by the times of their completions. The flushes of the device
//! are counted with at least the time that the device says. The checker compares the two whenever the queue has
//! drained, from the beginning until an operator turns the statistics off.
//!
//! A request lasts as long as one of its operations. So the time of a group is at most the sum over its operations. For
//! each merge the sum may lack one operation, at most the longest.

use blkmq_sched::{Op, RqId, Time};
use blkmq_virtual::{DiskStats, Limits, Status};

use super::super::event::{Action, Asked, Control, Event, Phase, Stamp, Times};
use super::book::Book;
use super::parts::parts;
use super::table::Table;
use super::{Checker, Facts, Violation};

const RULE: &str = "groups";

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

#[derive(Debug)]
struct Operation {
    submitter: u16,
    asked: Asked,
    nr_parts: u64,
    /// The earliest time at which the queue may have begun to count the operation.
    since: Time,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Groups {
    limits: Limits,
    operations: Book<Operation>,
    groups: [Group; 3],
    /// Flushes of the device that took a while: when each was offered, and when it was due.
    flushes: Table<(Time, Option<Time>)>,
    flush_ns: u64,
    /// Whether the statistics have been on all the time.
    is_on: bool,
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
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            limits: facts.limits,
            operations: Book::new(),
            groups: [Group::default(); 3],
            flushes: Table::new(),
            flush_ns: 0,
            is_on: true,
        }
    }

    fn submitted(&mut self, now: Time, submitter: u16, bio: u64, asked: Asked, pieces: &[usize]) {
        let Ok(nr_parts) = parts(&self.limits, &asked, pieces) else { return };
        if asked.op == Op::Flush && !self.limits.write_cache {
            return;
        }
        // The time of a plug counts from the first operation in it, and that operation is outstanding too.
        let since = self.operations.iter().next().map_or(now, |(_, oldest)| oldest.since.min(now));
        self.operations.begin(bio, Operation { submitter, asked, nr_parts, since });
    }

    fn reaped(&mut self, now: Time, bio: u64, status: Status, times: Times) {
        let Some(Operation { asked, nr_parts, .. }) = self.operations.end(bio) else { return };
        let Times { submitted, completed, .. } = times;
        let flushes = asked.op == Op::Flush || asked.flags.preflush || asked.flags.fua;
        // The flush machine may end the operation later than the device ends the data.
        let end = if flushes && self.limits.write_cache { now } else { completed };
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

    /// Called when the result of an operation is never told.
    fn dropped(&mut self, now: Time, bio: u64) {
        let Some(Operation { asked, nr_parts, since, .. }) = self.operations.end(bio) else { return };
        let group = &mut self.groups[group(asked.op)];
        group.uncertain += nr_parts;
        group.most_ns += nr_parts * now.since(since);
    }

    fn flush_acted(&mut self, rq: RqId, action: Action) {
        let Some((offered, due)) = self.flushes.get_mut(rq) else { return };
        match action {
            Action::Started { due: when } => *due = when,
            Action::Completed(_) => self.flush_ns += due.take().map_or(0, |due| due.since(*offered)),
            _ => *due = None,
        }
    }

    fn counted(&self, now: Time, stat: &DiskStats) -> Result<(), String> {
        let mut groups = self.groups;
        for (_, Operation { asked, nr_parts, since, .. }) in self.operations.iter() {
            // The operation may be over and not reaped.
            let group = &mut groups[group(asked.op)];
            group.uncertain += nr_parts;
            group.most_ns += nr_parts * now.since(*since);
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
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            _ if !self.is_on => {}
            Event::Submitted { submitter, bio, asked, pieces } => {
                self.submitted(at.time, submitter, bio, asked, pieces);
            }
            Event::Rejected { bio, .. } => _ = self.operations.end(bio),
            Event::Reaped { bio, status, times, .. } => self.reaped(at.time, bio, status, times),
            Event::HandedBack { bio, .. } => self.dropped(at.time, bio),
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|operation| operation.submitter == submitter);
                theirs.into_iter().for_each(|bio| self.dropped(at.time, bio));
            }
            // The flush has begun by now, although the thread that offers it may have looked at the clock before that.
            Event::Offered { rq, op: Op::Flush, .. } => *self.flushes.entry(rq) = Some((rq, (at.time, None))),
            Event::Acted { rq, action } => self.flush_acted(rq, action),
            Event::Changed { control: Control::QueueKnob("iostats", _), phase: Phase::Begun } => self.is_on = false,
            Event::Counted(counts) => {
                return self
                    .counted(at.time, &counts.stat)
                    .map_err(|what| Violation::new(RULE, format!("the queue has drained and counted {what}")));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_virtual::Flags;

    use super::super::testing::*;
    use super::*;

    fn told() -> Told<Groups> {
        Told::new(Groups::new(&FACTS))
    }

    /// Tells that an operation is over after this many milliseconds.
    fn over(told: &mut Told<Groups>, bio: u64, op: Op, ms: u64) {
        over_at(told, bio, op, 0, ms);
    }

    fn over_at(told: &mut Told<Groups>, bio: u64, op: Op, begun_ms: u64, over_ms: u64) {
        told.now = over_ms * MS;
        let times = Times { submitted: Time(begun_ms * MS), issued: Time(1), completed: Time(over_ms * MS) };
        let (submitter, id) = (1, id(1, bio, 0));
        told.good(submitted(bio, asked(op, 0, 8)));
        told.good(Event::Reaped { submitter, bio, id, status: Status::Ok, times, data: &[] });
    }

    fn tell(told: &mut Told<Groups>, stat: DiskStats) -> Result<(), Violation> {
        told.tell(Event::Counted(&super::super::super::event::Counts { stat, ..counts(0) }))
    }

    fn good(told: &mut Told<Groups>, stat: DiskStats) {
        assert_eq!(tell(told, stat), Ok(()), "{stat}");
    }

    fn bad(told: &mut Told<Groups>, stat: DiskStats, says: &str) {
        let what = tell(told, stat).expect_err("the checker reports it").what;
        assert!(what.contains(says), "{what}");
    }

    #[test]
    fn each_group_has_its_own_time_and_number() {
        let mut told = told();
        over(&mut told, 1, Op::Read, 10);
        over(&mut told, 2, Op::Write, 30);
        let stat = DiskStats { read_ios: 1, read_ticks: 10, write_ios: 1, write_ticks: 30, ..DiskStats::default() };
        good(&mut told, stat);
        bad(
            &mut told,
            DiskStats { read_ticks: 30, write_ticks: 10, ..stat },
            "30 ms of reads, and they took 10 to 10 ms",
        );
        bad(&mut told, DiskStats { read_ticks: 8, ..stat }, "8 ms of reads");
        bad(&mut told, DiskStats { write_ticks: 32, ..stat }, "32 ms of writes");
        bad(&mut told, DiskStats { read_ios: 2, ..stat }, "2 reads and 0 merges of them, and there were 1 to 1");
        bad(&mut told, DiskStats { write_merges: 1, ..stat }, "1 writes and 1 merges");
        bad(&mut told, DiskStats { discard_ios: 1, ..stat }, "1 discards");
        let moved = DiskStats { read_ios: 0, read_ticks: 0, discard_ios: 1, discard_ticks: 10, ..stat };
        bad(&mut told, moved, "0 reads and 0 merges");
    }

    #[test]
    fn what_merged_lasts_as_long_as_one_of_it() {
        let mut told = told();
        (1..=3).for_each(|bio| over(&mut told, bio, Op::Discard, 10 * bio));
        let stat =
            |ticks| DiskStats { discard_ios: 2, discard_merges: 1, discard_ticks: ticks, ..DiskStats::default() };
        good(&mut told, stat(50));
        good(&mut told, stat(30));
        bad(&mut told, stat(28), "28 ms of discards, and they took 30 to 60 ms");
        bad(&mut told, stat(61), "61 ms");
    }

    #[test]
    fn what_was_over_before_it_began_counts_less_than_nothing_or_nothing() {
        let mut told = told();
        over_at(&mut told, 1, Op::Read, 3, 10);
        over_at(&mut told, 2, Op::Read, 12, 10);
        let stat = |ticks| DiskStats { read_ios: 2, read_ticks: ticks, ..DiskStats::default() };
        good(&mut told, stat(5));
        good(&mut told, stat(7));
        bad(&mut told, stat(4), "4 ms of reads, and they took 5 to 7 ms");
        bad(&mut told, stat(8), "8 ms");
    }

    #[test]
    fn what_nobody_knows_may_have_been_counted() {
        let mut told = told();
        over(&mut told, 1, Op::Read, 10);
        let flags = Flags { nowait: true, ..Flags::NONE };
        told.good(submitted(2, Asked { flags, ..asked(Op::Read, 0, 8) })).good(reaped(2, id(1, 2, 0), Status::Again));
        told.good(submitted(3, asked(Op::Read, 0, 8)));
        told.now += 5 * MS;
        for last in [Event::HandedBack { submitter: 1, bio: 3 }, Event::Left { submitter: 1, hands_back: true }] {
            good(&mut told, DiskStats { read_ios: 1, read_ticks: 10, ..DiskStats::default() });
            good(&mut told, DiskStats { read_ios: 3, read_ticks: 15, ..DiskStats::default() });
            bad(&mut told, DiskStats { read_ios: 4, read_ticks: 15, ..DiskStats::default() }, "there were 1 to 3");
            bad(&mut told, DiskStats { read_ios: 3, read_ticks: 16, ..DiskStats::default() }, "16 ms");
            told.good(last);
        }
    }

    #[test]
    fn flushes_take_as_long_as_the_device_works() {
        let mut told = told();
        let rq = id(0, 0, 0);
        told.good(offered(rq, Op::Flush, 0, 0, &[])).good(acted(rq, Action::Started { due: Some(Time(7 * MS)) }));
        told.good(completed(rq, Status::Ok));
        bad(&mut told, DiskStats { flush_ios: 1, flush_ticks: 5, ..DiskStats::default() }, "5 ms of flushes");
        good(&mut told, DiskStats { flush_ios: 1, flush_ticks: 7, ..DiskStats::default() });
        told.good(changed(Control::QueueKnob("iostats", 0), Phase::Begun));
        good(&mut told, DiskStats { read_ios: 1, ..DiskStats::default() });
    }
}
