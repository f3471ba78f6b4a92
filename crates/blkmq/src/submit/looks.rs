//! What a thread does before it sleeps until its device has something for it: it polls again.
//!
//! Waking a thread takes longer than many devices take for a request. So a thread yields the processor once to other
//! threads and then polls again: a look. If the thread's last wait was short, it goes on with looks for as long as a
//! short wait lasts.
//!
//! The other threads may keep the processor for longer than a saved wake-up is worth. Then this thread does not yield
//! to them for a while. The thread sleeps instead, because a thread that is woken gets the processor before the others.
//!
//! Threads that share a device and processors take turns. The time during which others have the processor does not
//! count as time of looking, and a turn in which the device completed something for the others is not in vain.
//! Otherwise each thread would take the others for threads that only keep the processor, and each of them would sleep
//! and be woken for each request.

use blkmq_sched::Time;

use crate::request::clock::Clock;

/// Nanoseconds: a wait that takes less than this, not counting the turns of others, is a short one. The limit is twice
/// what a wake-up takes ([`WORTH`]). A thread that looks in vain loses this much time.
const SHORT: u64 = 100_000;

/// Nanoseconds: how long others may keep the processor for each completion that the device brings meanwhile: what a
/// thread saves by finding a completion itself: to be woken takes some 50 us on a virtual processor that sleeps too.
const WORTH: u64 = 50_000;

/// The most completions that count for one turn of the others, so that a turn is worth 2.5 ms at most. A thread that
/// computes keeps the processor for some 3 ms. The turns of such a thread must count as too long, however many
/// completions other processors bring meanwhile.
const MOST: u32 = 50;

/// Nanoseconds: if the processor comes back within this time, no other thread had it. A switch to another thread and
/// back takes longer.
const ALONE: u64 = 2_000;

/// The most turns of others in one wait. After that this thread sleeps, so that it does not wait for a slow device for
/// as long as others have turns.
const TURNS: u32 = 16;

/// A factor: after others have kept the processor in vain, this thread does not yield for this many times as long as
/// they kept it. So this thread loses at most a sixteenth of the time to them.
const REST: u64 = 16;

/// A time, and how many completions the device had brought by that time. The count wraps.
#[derive(Debug, Clone, Copy)]
struct Moment {
    time: Time,
    brought: u32,
}

/// A wait that did not end at once.
#[derive(Debug)]
struct Wait {
    since: Time,
    /// When this thread yielded to others, if it did, and for how many nanoseconds they had the processor.
    yielded: Option<(Moment, u64)>,
    /// Turns of others, and how many nanoseconds they took together.
    turns: u32,
    turns_ns: u64,
}

impl Wait {
    fn new(since: Time) -> Self {
        Self { since, yielded: None, turns: 0, turns_ns: 0 }
    }

    /// Whether the wait is a short one up to now.
    fn is_short(&self, now: Time) -> bool {
        now.since(self.since).saturating_sub(self.turns_ns) < SHORT
    }
}

/// What one thread knows of its waits.
#[derive(Debug)]
pub(super) struct Looks {
    /// A clock of its own, because the queue's clock may go from tick to tick.
    clock: Clock,
    /// The last wait was a short one.
    was_short: bool,
    wait: Option<Wait>,
    /// This thread does not yield before this time.
    rest: Time,
}

impl Default for Looks {
    fn default() -> Self {
        Self { clock: Clock::real(), was_short: false, wait: None, rest: Time(0) }
    }
}

impl Looks {
    /// A wait begins.
    pub(super) fn begin(&mut self) {
        self.wait = None;
    }

    /// Called when nothing has come yet. `brought` is how many completions the device has brought so far, for any
    /// thread; the count wraps. If this function returns true, the caller yields the processor and polls again; if
    /// false, the caller sleeps.
    ///
    /// COST: a clock reading, and for the caller a load of a line that the polling threads write.
    pub(super) fn again(&mut self, brought: u32) -> bool {
        self.again_at(Moment { time: self.clock.now(), brought })
    }

    /// Called when others have had the processor.
    ///
    /// COST: a clock reading.
    pub(super) fn note_yield(&mut self) {
        debug_assert!(self.wait.as_ref().is_some_and(|wait| wait.yielded.is_some()), "others were let in");
        self.note_yield_at(self.clock.now());
    }

    /// Called when the wait is over and something has come.
    ///
    /// COST: a clock reading and a load of a line that the polling threads write; neither of them if the wait was over
    /// at once.
    pub(super) fn end(&mut self, brought: impl FnOnce() -> u32) {
        if self.wait.is_some() {
            self.end_at(Moment { time: self.clock.now(), brought: brought() });
        }
    }

    /// Called when the wait is over and nothing has come.
    pub(super) fn give_up(&mut self) {
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

    /// Called when this thread has polled after a yield, if it yielded. Returns whether others had a turn and the
    /// device brought something in it.
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

    /// A wait that takes `took` from `start` on. Each look takes `step`, and the device brings `others` requests
    /// meanwhile. Returns how often the thread looked.
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

    /// Red if a thread looks for ever for a device that has nothing, or looks without regard to how quick the device
    /// was before.
    #[test]
    fn a_device_is_looked_for_if_it_was_quick_and_for_no_longer_than_that() {
        let mut looks = Looks::default();
        assert_eq!(wait(&mut looks, 0, 50_000), 1, "the thread does not know the device yet");
        assert_eq!(wait(&mut looks, 0, 50_000), 25, "it was quick");
        assert_eq!(wait(&mut looks, 0, 1_000_000), 50, "and then it was not");
        assert_eq!(wait(&mut looks, 0, 1_000_000), 1);
        assert_eq!(wait(&mut looks, 0, 50_000), 1);
        assert_eq!(wait(&mut looks, 0, 50_000), 25, "it was again");
    }

    /// Red if threads that take turns at a processor sleep because of each other. Also red if a thread whose request is
    /// slow goes on with looks for as long as others have turns.
    #[test]
    fn the_turns_of_others_are_no_waiting() {
        let mut looks = Looks::default();
        assert_eq!(wait_beside(&mut looks, 20_000, 1, 0, 300_000), 15, "the first look finds that there are others");
        assert_eq!(wait_beside(&mut looks, 20_000, 1, 0, 10_000_000), u64::from(TURNS));
        assert_eq!(wait_beside(&mut looks, 20_000, 0, 0, 300_000), 1, "they bring nothing, and the device was slow");
        wait(&mut looks, 0, 50_000);
        assert_eq!(wait_beside(&mut looks, 20_000, 0, 0, 300_000), 15, "it was quick");
    }

    /// Red if what the device brings for others counts although the others have processors of their own. This thread
    /// would then keep its processor for as long as a slow device takes for this thread's request.
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

    /// Red if a thread that gives up again and again after less than a short wait never sleeps.
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

    /// Red if the thread yields again and again to others that keep the processor. Also red if it does not yield
    /// although the device completes the others' requests meanwhile.
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
            // The count wraps, so it may begin anywhere.
            assert!(looks.again_at(at(0, u32::MAX)));
            looks.note_yield_at(Time(took));
            looks.end_at(at(took, u32::MAX.wrapping_add(brought)));
            looks.was_short = true;
            assert_eq!(wait(&mut looks, took, 50_000) > 0, is_let_in, "{brought} in {took} ns");
            assert_eq!(wait(&mut looks, took + REST * took, 50_000), 25, "it is tried again");
        }
    }
}
