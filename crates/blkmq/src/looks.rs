//! What a thread does before it sleeps until its device has something for it: it looks again.
//!
//! To be woken takes longer than many a device does. Where the last wait was short, the thread lets others have the processor and
//! looks again, for as long as a short wait lasts. Where others keep the processor for longer than that is worth, they are not let
//! in for a while: who sleeps is woken before them.
//!
//! Threads that share a device and processors take turns. What the device brings meanwhile, whosever it is, is what that time is
//! worth: else each would take the others for somebody who keeps the processor in vain, and all would sleep, and be woken, for each
//! request.

use blkmq_sched::Time;

use crate::clock::Clock;

/// A wait that takes less for each request that the device brings meanwhile is a short one, in nanoseconds. A thread that looks in
/// vain has lost as much.
const SHORT: u64 = 100_000;

/// No more requests than this make a wait a short one: whose request alone is slow sleeps.
const MOST: u32 = 16;

/// What it is worth to find a completion without being woken for it, in nanoseconds.
const WORTH: u64 = 50_000;

/// For how many times as long as others have kept the processor in vain they are not let in: no more than a sixteenth of the time
/// is lost to them, whoever they are.
const REST: u64 = 16;

/// A time, and how many requests the device had brought by then, wrapping.
#[derive(Debug, Clone, Copy)]
struct Moment {
    time: Time,
    brought: u32,
}

impl Moment {
    /// Nanoseconds from `earlier` to this, and what came in between, at least 1.
    fn since(self, earlier: Self) -> (u64, u32) {
        (self.time.since(earlier.time), self.brought.wrapping_sub(earlier.brought).max(1))
    }

    /// Whether what began at `earlier` is a short wait up to now.
    fn is_soon_after(self, earlier: Self) -> bool {
        let (ns, brought) = self.since(earlier);
        ns < SHORT * u64::from(brought.min(MOST))
    }
}

/// The looks of one thread.
#[derive(Debug)]
pub(crate) struct Looks {
    /// Not the queue's, which may go from tick to tick.
    clock: Clock,
    /// The last wait was a short one.
    was_short: bool,
    /// When this wait began, if nothing was there at once.
    since: Option<Moment>,
    /// Since when others have the processor.
    yielded: Option<Moment>,
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

    /// Nothing has come yet. `brought` is how many requests the device has brought so far, whosever they were, wrapping. Returns
    /// whether to let others have the processor and look again, rather than sleep.
    ///
    /// COST: a clock reading, and for the caller a line that who polls writes.
    pub(crate) fn again(&mut self, brought: u32) -> bool {
        self.again_at(Moment { time: self.clock.now(), brought })
    }

    /// The wait is over, and something has come.
    ///
    /// COST: a clock reading and a line that who polls writes, but neither if it was over at once.
    pub(crate) fn end(&mut self, brought: impl FnOnce() -> u32) {
        if self.since.is_some() {
            self.end_at(Moment { time: self.clock.now(), brought: brought() });
        }
    }

    /// The wait is over, and nothing has come.
    pub(crate) fn give_up(&mut self) {
        self.was_short &= self.since.is_none();
    }

    fn again_at(&mut self, now: Moment) -> bool {
        let since = *self.since.get_or_insert(now);
        self.note_yield(now);
        let looks = self.was_short && now.is_soon_after(since) && now.time >= self.rest;
        self.yielded = looks.then_some(now);
        looks
    }

    fn end_at(&mut self, now: Moment) {
        self.note_yield(now);
        self.was_short = self.since.take().is_some_and(|since| now.is_soon_after(since));
    }

    /// Others have had the processor until now, if they were let in.
    fn note_yield(&mut self, now: Moment) {
        let Some(yielded) = self.yielded.take() else { return };
        let (took, brought) = now.since(yielded);
        if took > WORTH * u64::from(brought) {
            self.rest = now.time.after(REST.saturating_mul(took));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ns: u64, brought: u32) -> Moment {
        Moment { time: Time(ns), brought }
    }

    /// A wait of so long from `start` on, in which each look takes 10 us and the device brings what is waited for, and `others`
    /// beside it, evenly. Returns how many looks it was worth.
    fn wait_beside(looks: &mut Looks, others: u32, start: u64, took: u64) -> u64 {
        looks.begin();
        let brought = |after: u64| (u64::from(others) * after / took) as u32;
        let is_worth = |look: &u64| looks.again_at(at(start + look * 10_000, brought(look * 10_000)));
        let nr_looks = (0..took / 10_000).take_while(is_worth).count() as u64;
        // Who does not look sleeps.
        looks.yielded = looks.yielded.filter(|_| nr_looks == took / 10_000);
        looks.end_at(at(start + took, others + 1));
        nr_looks
    }

    fn wait(looks: &mut Looks, start: u64, took: u64) -> u64 {
        wait_beside(looks, 0, start, took)
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

    /// Red if a device that is quick for many is not for each of them, or one that is slow for one is looked for as long as it is
    /// quick for others.
    #[test]
    fn what_is_brought_for_others_says_that_the_device_is_quick() {
        let mut looks = Looks::default();
        assert_eq!(wait_beside(&mut looks, 7, 0, 210_000), 0);
        assert_eq!(wait_beside(&mut looks, 7, 0, 210_000), 21, "it was, for each request");
        assert_eq!(wait_beside(&mut looks, 1000, 0, 10_000_000), u64::from(MOST) * 10);
        assert_eq!(wait_beside(&mut looks, 1000, 0, 10_000_000), 0, "of these one was slow");
    }

    /// Red if what was there at once counts as a wait: then the device is never found to be slow.
    #[test]
    fn what_was_there_at_once_says_nothing_of_waits() {
        let mut looks = Looks::default();
        wait(&mut looks, 0, 1_000_000);
        looks.begin();
        looks.end(|| 1);
        assert_eq!(wait(&mut looks, 0, 50_000), 0);
        looks.begin();
        looks.end(|| 1);
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
        looks.again_at(at(0, 0));
        looks.give_up();
        assert_eq!(wait(&mut looks, 0, 50_000), 0);
    }

    /// Red if others are let in again and again who keep the processor, or those are not whose requests the device brings meanwhile.
    #[test]
    fn who_keeps_the_processor_for_long_is_not_let_in_for_a_while() {
        for (took, brought, is_let_in) in
            [(WORTH, 0, true), (WORTH, 1, true), (WORTH + 1, 1, false), (10 * WORTH, 10, true)]
        {
            let mut looks = Looks { was_short: true, ..Looks::default() };
            looks.begin();
            // The count may be anywhere.
            assert!(looks.again_at(at(0, u32::MAX)));
            looks.end_at(at(took, u32::MAX.wrapping_add(brought)));
            looks.was_short = true;
            assert_eq!(wait(&mut looks, took, 50_000) > 0, is_let_in, "{brought} in {took} ns");
            assert_eq!(wait(&mut looks, took + REST * took, 50_000), 5, "it is tried again");
        }
    }
}
