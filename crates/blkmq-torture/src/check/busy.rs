//! The queue counts its busy time: the time in which the device had a request, by the times of the completions.
//!
//! A thread that begins a request adds the time since the last look of any thread, if the queue was busy. The thread
//! sees that in sums of the counts of all threads. A sum may lag behind for as long as a thread is held up. So this
//! checker demands no more than a quarter of the true busy time, and only of long times.

use blkmq_sched::Time;

use super::super::event::{Control, Event, Phase, Stamp, Times};
use super::{Checker, Violation};

const RULE: &str = "busy";

/// The queue counts its busy time in ticks of 2^20 ns.
const TICK_SHIFT: u32 = 20;

/// The number of ticks from which on the busy time is checked.
const LONG: u64 = 20;

/// This module's checker.
#[derive(Debug)]
pub(super) struct Busy {
    /// Ticks in which the device had a request since the last look: after the first number, up to the second.
    spans: Vec<(u64, u64)>,
    /// The time of the last look, and the busy time that was counted then, in ms.
    looked: Time,
    counted: u64,
    /// Whether the queue counts its busy time. `None`: this changed since the last look.
    iostats: Option<bool>,
    knob: bool,
}

impl Busy {
    pub(super) const fn new() -> Self {
        Self { spans: Vec::new(), looked: Time(0), counted: 0, iostats: Some(true), knob: true }
    }

    fn over(&mut self, Times { issued, completed, .. }: Times) {
        let (from, to) = (issued.0 >> TICK_SHIFT, completed.0 >> TICK_SHIFT);
        if issued > self.looked && to > from {
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

    fn counted(&mut self, now: Time, counted: u64) -> Result<(), Violation> {
        let ticks = self.ticks();
        let grown = counted.saturating_sub(self.counted);
        let is_judged = self.iostats == Some(true) && ticks > LONG;
        (self.looked, self.counted, self.iostats) = (now, counted, Some(self.knob));
        let ms = (ticks << TICK_SHIFT) / 1_000_000;
        if !is_judged || grown >= ms / 4 {
            return Ok(());
        }
        let what = format!("io_ticks grew by {grown} ms, and something was at the device for {ms} ms of that time");
        Err(Violation::new(RULE, what))
    }
}

impl Checker for Busy {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Reaped { times, .. } => self.over(times),
            Event::Counted(counts) => return self.counted(at.time, counts.stat.io_ticks),
            Event::Changed { control: Control::QueueKnob("iostats", value), phase } => match phase {
                Phase::Begun => self.iostats = None,
                Phase::Done => self.knob = value != 0,
                Phase::Refused => {}
            },
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_virtual::{DiskStats, Status};

    use super::super::super::event::Counts;
    use super::super::testing::*;
    use super::*;

    const TICK: u64 = 1 << TICK_SHIFT;

    fn over(from: u64, to: u64) -> Event<'static> {
        let times = Times { submitted: Time(0), issued: Time(from * TICK + 1), completed: Time(to * TICK + 1) };
        Event::Reaped { submitter: 1, bio: 1, id: id(1, 0, 0), status: Status::Ok, times, data: &[] }
    }

    fn counts(io_ticks: u64) -> Counts {
        Counts { stat: DiskStats { io_ticks, ..DiskStats::default() }, ..super::super::testing::counts(0) }
    }

    #[test]
    fn a_long_busy_time_is_counted() {
        let mut told = Told::new(Busy::new());
        // 40 ticks, some of them in two spans.
        told.good(over(100, 120)).good(over(10, 25)).good(over(15, 30)).good(Event::Counted(&counts(10)));
        told.good(over(100, 120)).good(over(10, 25)).good(over(15, 30));
        told.bad(Event::Counted(&counts(19)), "io_ticks grew by 9 ms, and something was at the device for 41 ms");
        told.good(Event::Counted(&counts(19)));
        // A time too short to be checked.
        told.good(over(10, 30)).good(Event::Counted(&counts(19)));
    }

    #[test]
    fn what_was_over_before_the_last_look_is_not_new() {
        let mut told = Told::new(Busy::new());
        told.now = 200 * TICK;
        told.good(Event::Counted(&counts(50))).good(over(100, 150)).good(Event::Counted(&counts(50)));
        told.good(over(200, 250)).bad(Event::Counted(&counts(50)), "for 52 ms");
    }

    #[test]
    fn without_statistics_it_is_not() {
        let knob = |value, phase| changed(Control::QueueKnob("iostats", value), phase);
        let mut told = Told::new(Busy::new());
        told.good(knob(0, Phase::Begun)).good(knob(0, Phase::Done)).good(over(10, 50)).good(Event::Counted(&counts(0)));
        told.good(over(60, 90)).good(Event::Counted(&counts(0)));
        told.good(knob(1, Phase::Begun))
            .good(knob(1, Phase::Done))
            .good(over(110, 150))
            .good(Event::Counted(&counts(0)));
        told.good(over(160, 190)).bad(Event::Counted(&counts(0)), "for 31 ms");
    }
}
