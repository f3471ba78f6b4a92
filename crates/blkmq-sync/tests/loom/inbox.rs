//! Models of a list that only one thread, the owner, drains. What other threads append reaches the owner, even if it
//! sleeps.
//!
//! In models with an owner that sleeps only one other thread appends, and only once: `loom::deferrals` explains what
//! loom makes of a second word in the inbox.

use std::sync::Arc;

use crate::model::{Exclusive, fail, fail_without, holds, join, oldest_first, spawn};
use blkmq_sync::atomic::AtomicU32;
use blkmq_sync::handover::{Handover, Inbox};
use blkmq_sync::stack::Chain;
use blkmq_sync::wake::{Sleepers, Wake};

/// How a thread differs from the product, to break the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The owner takes the inbox's word only after it has drained.
    TakesLate,
    /// A thread that appends leaves its word in the inbox before it appends.
    LeavesEarly,
    /// The owner leaves the inbox out of its last look.
    SleepsBlindly,
}

struct Owned {
    list: Handover<()>,
    links: [AtomicU32; 2],
    slots: [Exclusive; 2],
    inbox: Inbox,
    sleepers: Sleepers,
    wake: Wake,
    broken: Broken,
}

impl Owned {
    fn new(broken: Broken) -> Arc<Self> {
        // The `Arc` of std: when a deadlock unwinds, loom's own aborts the process.
        Arc::new(Self {
            list: Handover::new(()),
            links: std::array::from_fn(|_| AtomicU32::new(77)),
            slots: Default::default(),
            inbox: Inbox::default(),
            sleepers: Sleepers::default(),
            wake: Wake::default(),
            broken,
        })
    }

    /// What a thread does after it has chosen a request for another thread's hardware queue:
    /// `Dispatcher::append_ready`, and the way past the drain in `Dispatcher::issue`. Returns whether the owner must be
    /// woken.
    fn bring(&self, slot: u32) -> bool {
        let append = || {
            self.slots[slot as usize].touch();
            self.list.append([slot], |slot| &self.links[slot as usize]);
        };
        if self.broken != Broken::LeavesEarly {
            append();
        }
        let is_news = self.inbox.leave();
        if self.broken == Broken::LeavesEarly {
            append();
        }
        is_news
    }

    /// What the owner does at a poll: `Dispatcher::drive_inside`. Returns how many slots it drained.
    fn poll(&self) -> usize {
        let has_word = if self.broken == Broken::TakesLate { self.inbox.is_full() } else { self.inbox.take() };
        let mut drained = 0;
        if has_word {
            let done = self.list.drain(100, |(), chain: Chain| {
                for slot in oldest_first(chain, |slot| &self.links[slot as usize]) {
                    self.slots[slot as usize].touch();
                    drained += 1;
                }
            });
            assert!(done);
        }
        if self.broken == Broken::TakesLate {
            let _ = self.inbox.take();
        }
        drained
    }

    /// Polls, and sleeps in turn until something has come.
    fn wait(&self) {
        while self.poll() == 0 {
            let ready = || self.broken != Broken::SleepsBlindly && self.inbox.is_full();
            // Nothing else wakes this thread: a sleep that goes on forever is a deadlock, which loom reports.
            self.sleepers.sleep(&self.wake, (), ready, || None);
        }
    }
}

/// One thread brings something and goes for good while the owner polls and falls asleep.
fn falling_asleep(broken: Broken) {
    let owned = Owned::new(broken);
    let other = spawn(&owned, move |owned| {
        if owned.bring(0) {
            owned.wake.wake();
        }
    });
    owned.wait();
    join(other);
}

/// Two threads bring something while the owner polls. A last poll finds what the other polls did not. No thread sleeps,
/// so none is woken: loom lets no other thread in between the inbox's word and the fence of the thread that wakes.
fn two_bringers(broken: Broken) {
    let owned = Owned::new(broken);
    let others = [0, 1].map(|slot| spawn(&owned, move |owned| _ = owned.bring(slot)));
    let mut drained = owned.poll();
    others.into_iter().for_each(join);
    drained += owned.poll();
    assert_eq!(drained, 2, "left behind");
}

#[test]
fn what_is_brought_reaches_an_owner_that_falls_asleep() {
    holds(|| falling_asleep(Broken::Nothing));
}

#[test]
fn what_two_bring_is_drained() {
    holds(|| two_bringers(Broken::Nothing));
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[
        ("wake.sleep_fence", || falling_asleep(Broken::Nothing)),
        ("wake.wake_fence", || falling_asleep(Broken::Nothing)),
        ("inbox.leave", || two_bringers(Broken::Nothing)),
    ]);
}

#[test]
fn each_broken_variant_fails() {
    fail(&[
        ("TakesLate", || two_bringers(Broken::TakesLate)),
        ("LeavesEarly", || two_bringers(Broken::LeavesEarly)),
        ("SleepsBlindly", || falling_asleep(Broken::SleepsBlindly)),
    ]);
}
