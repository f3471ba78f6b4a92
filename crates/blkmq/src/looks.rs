//! What a thread does before it sleeps until its device has something for it: it looks again.
//!
//! To be woken takes longer than many a device does. A thread lets others have the processor once and looks again;
//! where the last wait was short, it goes on so for as long as a short wait lasts. Where others keep the processor for
//! longer than that is worth, they are not let in for a while: who sleeps is woken before them.
//!
//! Threads that share a device and processors take turns. The time of others is no time of looking, and if they bring
//! something it is not in vain: else each would take the others for somebody who just keeps the processor, and all
//! would sleep, and be woken, for each request.

use blkmq_sched::Time;

use crate::clock::Clock;

/// A wait that takes less is a short one, in nanoseconds, without the turns of others. A thread that looks in vain has
/// lost as much.
const SHORT: u64 = 100_000;

/// What it is worth to find a completion without being woken for it, in nanoseconds.
const WORTH: u64 = 50_000;

/// No more completions than this are counted for others who keep the processor: what is more has come from other
/// processors. With [`WORTH`] it makes 2.5 ms, and who computes keeps the processor for 3 ms.
const MOST: u32 = 50;

/// Nobody had the processor who gave it back after so many nanoseconds: to let somebody in takes longer.
const ALONE: u64 = 2_000;

/// Turns of others in one wait before this thread sleeps.
const TURNS: u32 = 16;

/// For how many times as long as others have kept the processor in vain they are not let in: no more than a sixteenth
/// of the time is lost to them, whoever they are.
const REST: u64 = 16;

/// A time, and how many requests the device had brought by then, wrapping.
#[derive(Debug, Clone, Copy)]
struct Moment {
    time: Time,
    brought: u32,
}

/// A wait in which nothing was there at once.
#[derive(Debug)]
struct Wait {
    since: Time,
    /// When others were let in, if they were, and for how many nanoseconds.
    yielded: Option<(Moment, u64)>,
    /// Turns of others, and how many nanoseconds they took.
    turns: u32,
    turns_ns: u64,
}

impl Wait {
    fn new(since: Time) -> Self {
        Self { since, yielded: None, turns: 0, turns_ns: 0 }
    }

    /// Whether it is a short one up to now.
    fn is_short(&self, now: Time) -> bool {
        now.since(self.since).saturating_sub(self.turns_ns) < SHORT
    }
}

/// The looks of one thread.
#[derive(Debug)]
pub(crate) struct Looks {
    /// Not the queue's, which may go from tick to tick.
    clock: Clock,
    /// The last wait was a short one.
    was_short: bool,
    wait: Option<Wait>,
    /// Before this nobody is let in.
    rest: Time,
}

impl Default for Looks {
    fn default() -> Self {
        Self { clock: Clock::real(), was_short: false, wait: None, rest: Time(0) }
    }
}

impl Looks {
    /// A wait begins.
    pub(crate) fn begin(&mut self) {
        self.wait = None;
    }

    /// Nothing has come yet. `brought` is how many requests the device has brought so far, whosever they were,
    /// wrapping. Returns whether to let others have the processor and look again, rather than sleep.
    ///
    /// COST: a clock reading, and for the caller a line that who polls writes.
    pub(crate) fn again(&mut self, brought: u32) -> bool {
        self.again_at(Moment { time: self.clock.now(), brought })
    }

    /// Others have had the processor.
    ///
    /// COST: a clock reading.
    pub(crate) fn note_yield(&mut self) {
        self.note_yield_at(self.clock.now());
    }

    /// The wait is over, and something has come.
    ///
    /// COST: a clock reading and a line that who polls writes, but neither if it was over at once.
    pub(crate) fn end(&mut self, brought: impl FnOnce() -> u32) {
        if self.wait.is_some() {
            self.end_at(Moment { time: self.clock.now(), brought: brought() });
        }
    }

    /// The wait is over, and nothing has come.
    pub(crate) fn give_up(&mut self) {
        self.was_short &= self.wait.is_none();
    }

    fn again_at(&mut self, now: Moment) -> bool {
        let is_first = self.wait.is_none();
        let mut wait = self.wait.take().unwrap_or_else(|| Wait::new(now.time));
        let was_turn = self.judge(&mut wait, now.brought);
        let is_soon = self.was_short && wait.is_short(now.time);
        let looks = (is_first || is_soon || was_turn) && wait.turns < TURNS && now.time >= self.rest;
        wait.yielded = looks.then_some((now, 0));
        self.wait = Some(wait);
        looks
    }

    fn note_yield_at(&mut self, now: Time) {
        if let Some(Wait { yielded: Some((start, took)), .. }) = &mut self.wait {
            *took = now.since(start.time);
        }
    }

    fn end_at(&mut self, now: Moment) {
        if let Some(mut wait) = self.wait.take() {
            self.judge(&mut wait, now.brought);
            self.was_short = wait.is_short(now.time);
        }
    }

    /// Others have had the processor, if they were let in, and this thread has polled since. Returns whether the device
    /// has brought something in a turn of theirs.
    fn judge(&mut self, wait: &mut Wait, brought: u32) -> bool {
        let Some((start, took)) = wait.yielded.take() else { return false };
        let brought = brought.wrapping_sub(start.brought);
        if took > WORTH * u64::from(brought.clamp(1, MOST)) {
            self.rest = start.time.after(took + REST.saturating_mul(took));
        }
        let was_turn = took > ALONE;
        if was_turn {
            wait.turns += 1;
            wait.turns_ns += took;
        }
        was_turn && brought > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ns: u64, brought: u32) -> Moment {
        Moment { time: Time(ns), brought }
    }

    /// A wait of so long from `start` on, in which each look takes `step` and the device brings `others` requests
    /// meanwhile. Returns how many looks it was worth.
    fn wait_beside(looks: &mut Looks, step: u64, others: u32, start: u64, took: u64) -> u64 {
        looks.begin();
        let moment = |look: u64| at(start + look * step, others * look as u32);
        let nr_looks = (0..took / step).take_while(|look| {
            let again = looks.again_at(moment(*look));
            looks.note_yield_at(Time(start + (look + 1) * step));
            again
        });
        let nr_looks = nr_looks.count() as u64;
        looks.end_at(at(start + took, others * (took / step) as u32 + 1));
        nr_looks
    }

    /// A wait of a thread that has a processor of its own, and looks every 2 us.
    fn wait(looks: &mut Looks, start: u64, took: u64) -> u64 {
        wait_beside(looks, ALONE, 0, start, took)
    }

    /// Red if a thread looks for a device that has nothing for ever, or whatever the device has been like.
    #[test]
    fn a_device_is_looked_for_if_it_was_quick_and_for_no_longer_than_that() {
        let mut looks = Looks::default();
        assert_eq!(wait(&mut looks, 0, 50_000), 1, "nobody knows what it does");
        assert_eq!(wait(&mut looks, 0, 50_000), 25, "it was quick");
        assert_eq!(wait(&mut looks, 0, 1_000_000), 50, "and then it was not");
        assert_eq!(wait(&mut looks, 0, 1_000_000), 1);
        assert_eq!(wait(&mut looks, 0, 50_000), 1);
        assert_eq!(wait(&mut looks, 0, 50_000), 25, "it was again");
    }

    /// Red if threads that take turns at a processor sleep for each other, or one whose request is slow looks for as
    /// long as others have turns.
    #[test]
    fn the_turns_of_others_are_no_waiting() {
        let mut looks = Looks::default();
        assert_eq!(wait_beside(&mut looks, 20_000, 1, 0, 300_000), 15, "the first look finds that there are others");
        assert_eq!(wait_beside(&mut looks, 20_000, 1, 0, 10_000_000), u64::from(TURNS));
        assert_eq!(wait_beside(&mut looks, 20_000, 0, 0, 300_000), 1, "they bring nothing, and the device was slow");
        wait(&mut looks, 0, 50_000);
        assert_eq!(wait_beside(&mut looks, 20_000, 0, 0, 300_000), 15, "it was quick");
    }

    /// Red if what the device brings for others counts where they have processors of their own: this thread would keep
    /// its own for as long as a slow device takes, if it has enough to do.
    #[test]
    fn what_is_brought_by_whom_this_thread_does_not_let_in_is_nothing_to_it() {
        let mut looks = Looks::default();
        for _ in 0..3 {
            assert_eq!(wait_beside(&mut looks, ALONE, 10, 0, 1_500_000), 1);
        }
        wait(&mut looks, 0, 50_000);
        assert_eq!(wait_beside(&mut looks, ALONE, 10, 0, 1_500_000), 50);
    }

    /// Red if what was there at once counts as a wait: then the device is never found to be slow.
    #[test]
    fn what_was_there_at_once_says_nothing_of_waits() {
        let mut looks = Looks::default();
        wait(&mut looks, 0, 1_000_000);
        looks.begin();
        looks.end(|| 1);
        assert_eq!(wait(&mut looks, 0, 50_000), 1);
        looks.begin();
        looks.end(|| 1);
        assert_eq!(wait(&mut looks, 0, 50_000), 25);
    }

    /// Red if who waits for less than a short wait lasts, again and again, never sleeps.
    #[test]
    fn what_did_not_come_in_time_was_not_quick() {
        let mut looks = Looks::default();
        wait(&mut looks, 0, 50_000);
        assert_eq!(wait(&mut looks, 0, 50_000), 25);
        looks.begin();
        looks.give_up();
        assert_eq!(wait(&mut looks, 0, 50_000), 25, "it was not waited for");
        looks.begin();
        looks.again_at(at(0, 0));
        looks.give_up();
        assert_eq!(wait(&mut looks, 0, 50_000), 1);
    }

    /// Red if others are let in again and again who keep the processor, or those are not whose requests the device
    /// brings meanwhile.
    #[test]
    fn who_keeps_the_processor_for_long_is_not_let_in_for_a_while() {
        for (took, brought, is_let_in) in [
            (WORTH, 0, true),
            (WORTH, 1, true),
            (WORTH + 1, 1, false),
            (10 * WORTH, 10, true),
            (51 * WORTH, 100, false),
        ] {
            let mut looks = Looks { was_short: true, ..Looks::default() };
            looks.begin();
            // The count may be anywhere.
            assert!(looks.again_at(at(0, u32::MAX)));
            looks.note_yield_at(Time(took));
            looks.end_at(at(took, u32::MAX.wrapping_add(brought)));
            looks.was_short = true;
            assert_eq!(wait(&mut looks, took, 50_000) > 0, is_let_in, "{brought} in {took} ns");
            assert_eq!(wait(&mut looks, took + REST * took, 50_000), 25, "it is tried again");
        }
    }
}
