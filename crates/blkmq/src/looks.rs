//! What a thread does before it sleeps until its device has something for it: it looks again.
//!
//! To be woken takes longer than many a device does. Where the last wait was short, the thread lets others have the processor and
//! looks again, for as long as a short wait lasts. Where others keep the processor for longer than that is worth, they are not let
//! in for a while: who sleeps is woken before them.

use blkmq_sched::Time;

use crate::clock::Clock;

/// A wait that takes less is a short one, in nanoseconds. A thread that looks in vain has lost as much.
const SHORT: u64 = 100_000;

/// What it is worth to find a completion without being woken for it, in nanoseconds.
const WORTH: u64 = 50_000;

/// For how many times as long as others have kept the processor in vain they are not let in: no more than a sixteenth of the time
/// is lost to them, whoever they are.
const REST: u64 = 16;

/// The looks of one thread.
#[derive(Debug)]
pub(crate) struct Looks {
    /// Not the queue's, which may go from tick to tick.
    clock: Clock,
    /// The last wait was a short one.
    was_short: bool,
    /// When this wait began, if nothing was there at once.
    since: Option<Time>,
    /// Since when others have the processor.
    yielded: Option<Time>,
    /// Before this nobody is let in.
    rest: Time,
}

impl Default for Looks {
    fn default() -> Self {
        Self { clock: Clock::real(), was_short: false, since: None, yielded: None, rest: Time(0) }
    }
}

impl Looks {
    /// A wait begins.
    pub(crate) fn begin(&mut self) {
        (self.since, self.yielded) = (None, None);
    }

    /// Nothing has come yet. Returns whether to let others have the processor and look again, rather than sleep.
    ///
    /// COST: a clock reading.
    pub(crate) fn again(&mut self) -> bool {
        self.again_at(self.clock.now())
    }

    /// The wait is over, and so many requests with it.
    ///
    /// COST: a clock reading, but none if it was over at once.
    pub(crate) fn end(&mut self, brought: usize) {
        if self.since.is_some() {
            self.end_at(self.clock.now(), brought);
        }
    }

    /// The wait is over, and nothing has come.
    pub(crate) fn give_up(&mut self) {
        self.was_short &= self.since.is_none();
    }

    fn again_at(&mut self, now: Time) -> bool {
        let since = *self.since.get_or_insert(now);
        self.note_yield(now, 1);
        let looks = self.was_short && now.since(since) < SHORT && now >= self.rest;
        self.yielded = looks.then_some(now);
        looks
    }

    fn end_at(&mut self, now: Time, brought: usize) {
        self.note_yield(now, brought);
        self.was_short = self.since.take().is_some_and(|since| now.since(since) < SHORT);
    }

    /// Others have had the processor until now, if they were let in.
    fn note_yield(&mut self, now: Time, brought: usize) {
        let Some(yielded) = self.yielded.take() else { return };
        let took = now.since(yielded);
        if took > WORTH * brought as u64 {
            self.rest = now.after(REST.saturating_mul(took));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait of so long from `start` on, in which each look takes 10 us. Returns how many looks it was worth.
    fn wait(looks: &mut Looks, start: u64, took: u64) -> u64 {
        looks.begin();
        let nr_looks = (0..took / 10_000).take_while(|look| looks.again_at(Time(start + look * 10_000))).count();
        // Who does not look sleeps.
        looks.yielded = looks.yielded.filter(|_| nr_looks as u64 == took / 10_000);
        looks.end_at(Time(start + took), 1);
        nr_looks as u64
    }

    /// Red if a thread looks for a device that has nothing for ever, or whatever the device has been like.
    #[test]
    fn a_device_is_looked_for_if_it_was_quick_and_for_no_longer_than_that() {
        let mut looks = Looks::default();
        assert_eq!(wait(&mut looks, 0, 50_000), 0, "nobody knows what it does");
        assert_eq!(wait(&mut looks, 0, 50_000), 5, "it was quick");
        assert_eq!(wait(&mut looks, 0, 1_000_000), 10, "and then it was not");
        assert_eq!(wait(&mut looks, 0, 1_000_000), 0);
        assert_eq!(wait(&mut looks, 0, 50_000), 0);
        assert_eq!(wait(&mut looks, 0, 50_000), 5, "it was again");
    }

    /// Red if what was there at once counts as a wait: then the device is never found to be slow.
    #[test]
    fn what_was_there_at_once_says_nothing_of_waits() {
        let mut looks = Looks::default();
        wait(&mut looks, 0, 1_000_000);
        looks.begin();
        looks.end(1);
        assert_eq!(wait(&mut looks, 0, 50_000), 0);
        looks.begin();
        looks.end(1);
        assert_eq!(wait(&mut looks, 0, 50_000), 5);
    }

    /// Red if who waits for less than a short wait lasts, again and again, never sleeps.
    #[test]
    fn what_did_not_come_in_time_was_not_quick() {
        let mut looks = Looks::default();
        wait(&mut looks, 0, 50_000);
        assert_eq!(wait(&mut looks, 0, 50_000), 5);
        looks.begin();
        looks.give_up();
        assert_eq!(wait(&mut looks, 0, 50_000), 5, "it was not waited for");
        looks.begin();
        looks.again_at(Time(0));
        looks.give_up();
        assert_eq!(wait(&mut looks, 0, 50_000), 0);
    }

    /// Red if others are let in again and again who keep the processor.
    #[test]
    fn who_keeps_the_processor_for_long_is_not_let_in_for_a_while() {
        for (took, brought, is_let_in) in [(WORTH, 1, true), (WORTH + 1, 1, false), (10 * WORTH, 10, true)] {
            let mut looks = Looks { was_short: true, ..Looks::default() };
            looks.begin();
            assert!(looks.again_at(Time(0)));
            looks.end_at(Time(took), brought);
            looks.was_short = true;
            assert_eq!(wait(&mut looks, took, 50_000) > 0, is_let_in, "{brought} in {took} ns");
            assert_eq!(wait(&mut looks, took + REST * took, 50_000), 5, "it is tried again");
        }
    }
}
