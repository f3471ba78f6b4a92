//! The policy of idle threads. By default a thread without work sleeps in the kernel, where its device, its client or
//! another thread wakes it. One policy serves all kinds of threads:
//!
//! - A *submitter* sleeps as soon as a poll has found nothing. A device works while the thread sleeps, and its event
//!   costs one wake-up. Polling meanwhile would take a processor for as long as the device takes.
//! - A *thread of the bench* waits as submitters do. Only if there is a processor for each thread of the run, the
//!   thread wakes shortly before a time at which the device is known to complete something.
//! - A *background thread* sleeps at once, as submitters do.
//! - A *connection of a server* spins first, if that pays. It waits for a client, which is a thread that sleeps as well
//!   until it has its answer. So each request takes two wake-ups, one behind the other.
//!
//! A **poll** yields the processor (sched_yield(2)), and then checks for work. Polls are a bet: they save a wake-up if
//! work arrives soon, and are wasted otherwise.
//!
//! # The costs
//!
//! *A sleep* costs the time from the event to the moment at which the thread runs again, and processor time for the
//! system calls and the switch. On a processor that is busy this takes some 2 us. On one that has gone to sleep it
//! takes longer, and on a virtual processor that sleeps as well it may take 50 us. The program measures it: two
//! threads, each bound to a processor of its own, wake each other through descriptors, and the median counts. It is
//! measured when a thread first considers polling, and again every 10 s while threads do. The largest of these times
//! counts, up to 100 us: processors that are busy are quick to wake, so a measurement at a busy time says nothing about
//! quiet times. Until it is known, no thread polls.
//!
//! *A poll* costs the time of the yield and of the check, as read from the clock. The time of a yield while no other
//! thread wants the processor is measured too: if a yield takes more than four times as long, other threads had a turn.
//!
//! # When polls pay
//!
//! A thread that polls for as long as a wake-up takes, and then sleeps, pays at most twice what the better of the two
//! would have cost, whatever comes. The thread waits for another thread, which may have to be woken itself before it
//! answers. So the limit is two wake-ups. A thread polls only if its last wait was that short; if it slept through the
//! last wait, its own wake-up is a part of that wait. So a thread of which nothing is known sleeps, and so does one
//! that waits for a slow client.
//!
//! The turns of other threads on this processor are not polling: this thread could not have done anything in them.
//! Otherwise threads that take turns at a processor would sleep because of each other, and each of them would have to
//! be woken for each request.
//!
//! # The cost of spurious polls
//!
//! Polls are spurious if the thread sleeps after all. Then the time of all polls of the wait, the yields included, is
//! charged to the thread, and to all threads of the program together. For each nanosecond that is charged, the thread
//! does not poll for 32 ns, and all threads do not poll for 32 ns divided by the number of processors. So spurious
//! polls take at most 1/32 of a processor's time for each thread, and at most 1/32 of the processors for the program,
//! however many threads it has. The bound holds whatever other programs do: the time is measured by the clock, so time
//! that others take from a polling thread only makes it poll less. A thread that sleeps is charged nothing and does
//! nothing: a server's idle connections cost nothing, however many they are.
//!
//! A program that computes takes the processor from a thread that yields for a whole slice of the scheduler, which is
//! most of a millisecond at least. The thread would have got the processor earlier had it slept: the kernel prefers a
//! thread that wakes. So what a turn takes beyond 250 us is charged to the thread too. After a slice of 3 ms the thread
//! does not yield for some 80 ms, and sleeps instead.
//!
//! A poll that finds something is no longer than two wake-ups, and saves one. It is not charged. Nor can it keep a
//! computing program from the processor: each poll offers the processor to it.

// Time, atomics and the threads that measure are the machine's in every build: nothing here is a part of a protocol.
// Where a build has other threads, the costs are never known, so no thread polls.
mod budget;
mod costs;
#[cfg(all(feature = "eventfd", not(any(loom, virtual_cpus, miri))))]
mod measure;

use std::sync::OnceLock;
use std::time::Instant;

use self::budget::{Budget, charged};
use self::costs::{Costs, of_machine};
use crate::platform::thread;

/// Spurious polls may take one part in so many of a thread's time.
const SHARE: u64 = 32;

/// Nanoseconds. A turn of other threads that takes no longer than this costs nothing. Threads that take turns at a
/// processor have it for some 10 us each. A thread that computes has it for a slice of the scheduler, for 700 us at
/// least. The limit lies between the two.
const TURN: u64 = 250_000;

/// A yield that takes longer than this many yields to no other thread has let another thread have the processor, for
/// that takes two switches. Up to this length, a yield counts as polling.
const SWITCHES: u64 = 4;

/// A wait with polls.
#[derive(Debug)]
struct Wait {
    since: u64,
    /// When something came, if the caller has said so before it knows how much.
    over: Option<u64>,
    /// When this thread last yielded.
    yielded: u64,
    /// Nanoseconds that others had the processor.
    turns_ns: u64,
    has_slept: bool,
}

impl Wait {
    /// Nanoseconds of the wait, without the turns of others.
    fn own(&self, now: u64) -> u64 {
        now.saturating_sub(self.since).saturating_sub(self.turns_ns)
    }
}

/// A thread's estimate of its waits, and its budget for polls. See the [module](self).
#[derive(Debug, Default)]
pub struct Idle {
    /// The last wait was a short one.
    was_short: bool,
    wait: Option<Wait>,
    /// When the thread has paid for its spurious polls.
    paid: u64,
}

/// The budget for polls of all threads of the program.
static ALL: Budget = Budget::new();

/// Nanoseconds since the first call.
fn now() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(ORIGIN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Idle {
    /// A thread that has not waited yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Called when there is nothing to do. If it returns true, other threads have had the processor, and the caller
    /// tries again. If it returns false, the caller sleeps.
    ///
    /// COST: two clock readings and a system call. To return false: one clock reading, and a write to a line of all
    /// threads if this thread has polled in this wait.
    pub fn poll(&mut self) -> bool {
        let start = now();
        let costs = of_machine(start);
        if !self.poll_at(start, costs, &ALL) {
            return false;
        }
        thread::yield_now();
        self.note_yield_at(now(), costs);
        true
    }

    /// Called when something has come, if the caller works on it before it calls [`end`](Self::end).
    ///
    /// COST: a clock reading if there was nothing before.
    pub fn arrive(&mut self) {
        if let Some(wait) = &mut self.wait {
            wait.over.get_or_insert_with(now);
        }
    }

    /// Called when the wait has ended with work.
    ///
    /// COST: a clock reading if there was nothing before.
    pub fn end(&mut self) {
        if self.wait.is_some() {
            let now = now();
            self.end_at(now, of_machine(now));
        }
    }

    /// Called when the wait has ended without work.
    ///
    /// COST: a clock reading if there was nothing before.
    pub fn give_up(&mut self) {
        if self.wait.is_some() {
            let now = now();
            self.give_up_at(now, of_machine(now), &ALL);
        }
    }

    fn poll_at(&mut self, now: u64, costs: Costs, all: &Budget) -> bool {
        let new = Wait { since: now, over: None, yielded: now, turns_ns: 0, has_slept: false };
        let wait = self.wait.get_or_insert(new);
        if wait.has_slept {
            return false;
        }
        let own = wait.own(now);
        let polls = self.was_short && own < 2 * costs.wake && now >= self.paid && all.allows(now);
        (wait.yielded, wait.has_slept) = (now, !polls);
        if !polls {
            self.lose(own, now, costs, all);
        }
        polls
    }

    fn note_yield_at(&mut self, now: u64, costs: Costs) {
        let Some(wait) = &mut self.wait else { return };
        let took = now.saturating_sub(wait.yielded);
        wait.turns_ns += took.saturating_sub(SWITCHES * costs.poll);
        if took > TURN {
            self.paid = charged(self.paid, now, (took - TURN).saturating_mul(SHARE));
        }
    }

    fn end_at(&mut self, now: u64, costs: Costs) {
        if let Some(wait) = self.wait.take() {
            let wakes = if wait.has_slept { 3 } else { 2 };
            self.was_short = wait.own(wait.over.unwrap_or(now)) < wakes * costs.wake;
        }
    }

    fn give_up_at(&mut self, now: u64, costs: Costs, all: &Budget) {
        if let Some(wait) = self.wait.take() {
            self.was_short = false;
            if !wait.has_slept {
                self.lose(wait.own(now), now, costs, all);
            }
        }
    }

    /// Charges the time of spurious polls.
    fn lose(&mut self, ns: u64, now: u64, costs: Costs, all: &Budget) {
        if ns > 0 {
            self.paid = charged(self.paid, now, ns.saturating_mul(SHARE));
            all.charge(now, ns.saturating_mul(SHARE) / costs.processors.max(1));
        }
    }
}

#[cfg(test)]
mod tests;
