//! Models of what a thread leaves undone and goes: it reaches a thread that sleeps, and a thread that has polled and is
//! about to sleep.
//!
//! Something is left only once in each model, because of a limit of loom. A sleeper is found by a flag: the sleeper
//! stores the flag, and the thread that wakes the sleeper swaps it. On every machine nothing comes between a swap and
//! the value that it finds. loom does not know that. If one swap has met the end of a sleep, loom lets a swap during
//! the next sleep find what the first swap wrote, although the sleeper has stored something since. So loom reports lost
//! wake-ups where two threads leave something, or one thread does so twice, unless the sleeper swaps as well.

use std::sync::Arc;

use crate::model::{Exclusive, fail, fail_without, holds, join, spawn};
use blkmq_sync::atomic::{AtomicBool, Ordering};
use blkmq_sync::liveness::Liveness;
use blkmq_sync::wake::Wake;

/// How a thread differs from the product, to break the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A thread that polls reads the count after its look at the word.
    ReadsLate,
    /// A thread that sleeps leaves the count out of its last look.
    SleepsBlindly,
    /// A thread that leaves something wakes the sleepers, and does not count.
    OnlyWakes,
}

struct Queue {
    live: Liveness,
    wake: Wake,
    /// What is left.
    request: Exclusive,
    broken: Broken,
}

impl Queue {
    /// What a thread that has done its share does.
    fn leave(&self) {
        self.request.touch();
        if self.broken == Broken::OnlyWakes {
            self.live.word.set_waiting();
            self.live.wake(|| _ = self.wake.rouse());
        } else {
            self.live.defer(|| _ = self.wake.rouse());
        }
    }

    /// Polls, as `Dispatcher::drive_inside` does, and sleeps in turn until it finds what was left.
    fn wait(&self) {
        loop {
            let mut left = self.live.deferrals.read();
            let is_waiting = self.live.word.load().is_waiting();
            if self.broken == Broken::ReadsLate {
                left = self.live.deferrals.read();
            }
            if is_waiting {
                return self.request.touch();
            }
            let may_go_on = || self.broken != Broken::SleepsBlindly && self.live.deferrals.read() != left;
            // Nothing else wakes this thread: a sleep that goes on forever is a deadlock, which loom reports.
            self.live.sleepers.sleep(&self.wake, (), may_go_on, || None);
        }
    }
}

/// One thread leaves something and goes for good while another polls and falls asleep.
fn falling_asleep(broken: Broken) {
    // The `Arc` of std: when a deadlock unwinds, loom's own aborts the process.
    let queue =
        Arc::new(Queue { live: Liveness::default(), wake: Wake::default(), request: Exclusive::default(), broken });
    let publisher = spawn(&queue, move |queue| queue.leave());
    queue.wait();
    join(publisher);
}

fn unbroken() {
    falling_asleep(Broken::Nothing);
}

/// One of several threads that sleep, which a thread hands on to while another one has completed something for it.
struct Sleeper {
    live: Liveness,
    wake: Wake,
    has_completion: AtomicBool,
}

/// The thread that was woken to take on what was left sees it at its next poll, although its sleep may have ended for
/// its completion. Behind that poll it goes for good.
fn handed_on() {
    let queue =
        Arc::new(Sleeper { live: Liveness::default(), wake: Wake::default(), has_completion: AtomicBool::new(false) });
    let completer = spawn(&queue, move |queue| {
        queue.has_completion.store(true, Ordering::Relaxed);
        queue.wake.wake();
    });
    let sleeper = spawn(&queue, move |queue| {
        let has_completion = || queue.has_completion.load(Ordering::Relaxed);
        queue.live.sleepers.sleep(&queue.wake, (), has_completion, || None);
        queue.live.deferrals.read() == 1
    });
    let mut is_roused = false;
    queue.live.defer(|| is_roused = queue.wake.rouse_sleeper());
    join(completer);
    let takes_on = join(sleeper);
    assert!(takes_on || !is_roused, "it was counted on, and has gone");
}

#[test]
fn who_is_woken_to_take_on_what_was_left_finds_it() {
    holds(handed_on);
}

#[test]
fn who_falls_asleep_finds_what_was_left() {
    holds(unbroken);
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[
        ("wake.woken", handed_on),
        ("wake.last_look", unbroken),
        ("sleepers.any_fence", unbroken),
        ("wake.sleep_fence", unbroken),
        ("deferrals.count", unbroken),
        ("deferrals.read", unbroken),
    ]);
}

#[test]
fn each_broken_variant_fails() {
    fail(&[
        ("ReadsLate", || falling_asleep(Broken::ReadsLate)),
        ("SleepsBlindly", || falling_asleep(Broken::SleepsBlindly)),
        ("OnlyWakes", || falling_asleep(Broken::OnlyWakes)),
    ]);
}
