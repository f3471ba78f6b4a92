//! The queue counts its busy time: the time in which the device had a request, by the times of the completions.
//!
//! A thread that begins a request adds the time since the last look of any thread, if the queue was busy. The thread
//! sees that in sums of the counts of all threads. A sum may lag behind for as long as a thread is held up. So this
//! checker demands no more than a quarter of the true busy time, and only of long times.

use blkmq_sched::Time;

use super::super::event::{Event, Stamp, Times};
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "busy";

/// The queue counts its busy time in ticks of 2^20 ns.
const TICK_SHIFT: u32 = 20;

/// The number of ticks from which on the busy time is checked.
const LONG: u64 = 20;

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Busy {
    /// Ticks in which the device had a request since the last count: after the first number, up to the second.
    spans: Vec<(u64, u64)>,
    /// The event and the time of the last count, and the busy time that was counted then, in ms.
    event: u64,
    time: Time,
    counted: u64,
}

impl Busy {
    fn over(&mut self, Times { issued, completed, .. }: Times) {
        let (from, to) = (issued.0 >> TICK_SHIFT, completed.0 >> TICK_SHIFT);
        if issued > self.time && to > from {
            self.spans.push((from, to));
        }
    }

    /// The number of ticks in which the device had a request.
    fn ticks(&mut self) -> u64 {
        self.spans.sort_unstable();
        let (mut ticks, mut until) = (0, 0);
        for (from, to) in self.spans.drain(..) {
            ticks += to.saturating_sub(from.max(until));
            until = until.max(to);
        }
        ticks
    }

    fn counted(&mut self, now: Time, counted: u64, tracker: &Tracker) -> Verdict {
        let ticks = self.ticks();
        let grown = counted.saturating_sub(self.counted);
        let is_judged = tracker.iostats_since(self.event) == Some(true) && ticks > LONG;
        (self.event, self.time, self.counted) = (tracker.event, now, counted);
        let ms = (ticks << TICK_SHIFT) / 1_000_000;
        if !is_judged || grown >= ms / 4 {
            return Ok(());
        }
        let what = format!("io_ticks grew by {grown} ms, and something was at the device for {ms} ms of that time");
        Err(Violation::new(RULE, what))
    }
}

impl Checker for Busy {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Reaped { times, .. } => self.over(times),
            Event::Counted(counts) => return self.counted(at.time, counts.stat.io_ticks, tracker),
            _ => {}
        }
        Ok(())
    }
}
