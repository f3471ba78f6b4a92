//! Models of the gate, through which requests bypass the scheduler while nothing waits.
//!
//! The models call the functions of `word`, `liveness` and `staging` that the product calls. The product's other
//! modules are not compiled by loom. The models restate the order in which these modules call the functions: from
//! `dispatcher/pass.rs` and `queue/ordered/gate.rs` the order of `pass`, `turn_back` and `shut_gate`, with the read of
//! the counts; from `locking/combining.rs` the order of the combiner; from `dispatcher/complete.rs` what follows the
//! tags. In the product the scheduler also has a lock. The models have none.
//!
//! Opening the gate publishes what was dispatched before, so that in the product a request that passes comes after it
//! on the issue list. loom takes the exchanges of one word in the order in which it runs them, so it cannot show a list
//! in the wrong order. The model uses instead a place that one thread at a time may touch: it shows that what was done
//! before is published.

// The `Arc` of std: loom's own count is one more step to be tried in every order.
use std::sync::Arc;

use crate::model::{Exclusive, fail, fail_without, holds, join, spawn};
use blkmq_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use blkmq_sync::liveness::Liveness;
use blkmq_sync::stack::{Chain, NIL};
use blkmq_sync::staging::{Round, Staging};
use blkmq_sync::tags::{Hint, Tag, Tags};
use blkmq_sync::word::{Gate, Word};

const GATE: Gate = Gate::new(1, false, None);

/// How a thread differs from the product, to break the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A thread that passes counts what it takes along after the second look.
    CountsLate,
    /// A thread that shuts the gate reads the counts before it shuts the gate.
    ReadsEarly,
    /// A thread that turns back keeps its request to itself.
    TurnsBackForGood,
}

/// The gate and what has passed.
struct Counted {
    word: Word,
    /// How many requests of the one thread that passes have passed.
    passed: AtomicUsize,
    broken: Broken,
}

impl Counted {
    /// Returns whether the thread passed.
    fn pass(&self) -> bool {
        let Some(gate) = self.word.load().gate() else { return false };
        let count = || self.passed.store(1, Ordering::Relaxed);
        if self.broken != Broken::CountsLate {
            return self.word.pass(gate, count);
        }
        let passes = self.word.pass(gate, || ());
        if passes {
            count();
        }
        passes
    }

    /// Shuts the gate. Returns how many had passed.
    fn shut(&self) -> usize {
        let early = if self.broken == Broken::ReadsEarly { Some(self.passed.load(Ordering::Relaxed)) } else { None };
        self.word.shut_gate();
        early.unwrap_or_else(|| self.passed.load(Ordering::Relaxed))
    }
}

/// One thread passes while another shuts the gate `times` times, and opens it in between.
fn counted(times: usize, broken: Broken) {
    let queue = Arc::new(Counted { word: Word::default(), passed: AtomicUsize::new(0), broken });
    queue.word.open_gate(GATE);
    let passer = spawn(&queue, move |queue| queue.pass());
    let mut passed = queue.shut();
    for _ in 1..times {
        queue.word.open_gate(GATE);
        passed = queue.shut();
    }
    if join(passer) {
        assert_eq!(passed, 1, "passed uncounted");
    }
}

fn counted_once() {
    counted(1, Broken::Nothing);
}

/// A scheduler, one tag, and two requests.
struct Tagged {
    staging: Staging,
    live: Liveness,
    tags: Tags,
    links: [AtomicU32; 2],
    scheduler: Exclusive,
    /// Requests in the scheduler. Relaxed, so that only the staging orders it.
    waiting: AtomicUsize,
    broken: Broken,
}

impl Tagged {
    fn link(&self, slot: u32) -> &AtomicU32 {
        &self.links[slot as usize]
    }

    /// Submits a request that passes if it may.
    fn submit(&self, slot: u32) {
        match self.pass() {
            Some(true) => (),
            Some(false) if self.broken == Broken::TurnsBackForGood => (),
            _ => self.insert(slot),
        }
    }

    /// Returns whether the request passed, if the thread tried.
    fn pass(&self) -> Option<bool> {
        let gate = self.live.word.load().gate()?;
        let tag = self.tags.get(&mut Hint::default())?;
        if self.live.word.pass(gate, || ()) {
            self.complete(tag);
            return Some(true);
        }
        self.tags.put(tag, &mut Hint::default());
        self.live.fence_before_notify();
        Some(false)
    }

    fn insert(&self, slot: u32) {
        let link_of = |slot| self.link(slot);
        loop {
            if let Some(left) = self.staging.try_hold() {
                return self.work(left, 1);
            }
            if self.staging.publish([slot], link_of) {
                return;
            }
        }
    }

    fn work(&self, left: Chain, mut own: usize) {
        let mut tag = None;
        let round = |mut left: Chain| {
            self.scheduler.touch();
            while left.pop_newest(|slot| self.link(slot)).is_some() {
                own += 1;
            }
            self.waiting.fetch_add(std::mem::take(&mut own), Ordering::Relaxed);
            tag = tag.take().or_else(|| self.dispatch());
            self.live.settle(self.waiting.load(Ordering::Relaxed) > 0, || true);
            Round::DONE
        };
        assert!(self.staging.serve(left, round, Staging::give_up));
        if let Some(tag) = tag {
            self.complete(tag);
        }
    }

    fn dispatch(&self) -> Option<Tag> {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let waiter_present = self.live.waiter_present();
        let mut hint = Hint::default();
        let tag = self.tags.get(&mut hint);
        let tag = tag.or_else(|| self.live.prepare_to_wait_unless(waiter_present, || self.tags.get(&mut hint)))?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(tag)
    }

    fn complete(&self, tag: Tag) {
        self.tags.put(tag, &mut Hint::default());
        self.live.fence_before_notify();
        if self.live.word.load().is_waiting()
            && let Some(left) = self.staging.hold_or_kick()
        {
            self.work(left, 0);
        }
    }
}

/// One thread passes, or turns back, while another inserts a request that needs the same tag.
fn tagged(broken: Broken) {
    let queue = Arc::new(Tagged {
        staging: Staging::new("test.staging"),
        live: Liveness::default(),
        tags: Tags::new(1, 1),
        links: [NIL; 2].map(AtomicU32::new),
        scheduler: Exclusive::default(),
        waiting: AtomicUsize::new(0),
        broken,
    });
    queue.live.word.open_gate(GATE);
    let passer = spawn(&queue, move |queue| queue.submit(1));
    queue.insert(0);
    join(passer);
    assert!(queue.staging.try_hold().is_some_and(|left| left.is_empty()), "something is left");
    assert_eq!(queue.waiting.load(Ordering::Relaxed), 0, "forgotten");
}

fn tagged_unbroken() {
    tagged(Broken::Nothing);
}

/// A thread that passes comes after what was done before the gate was opened.
fn opened() {
    let shared = Arc::new((Word::default(), Exclusive::default()));
    let passer = spawn(&shared, move |shared| {
        if shared.0.load().gate().is_some() {
            shared.1.touch();
        }
    });
    shared.1.touch();
    shared.0.open_gate(GATE);
    join(passer);
}

#[test]
fn who_passes_is_counted_when_the_gate_is_shut() {
    holds(counted_once);
}

#[test]
fn who_passes_is_counted_when_the_gate_is_shut_again() {
    holds(|| counted(2, Broken::Nothing));
}

#[test]
fn who_lacks_the_tag_of_a_passer_is_not_forgotten() {
    holds(tagged_unbroken);
}

#[test]
fn who_passes_sees_what_was_done_before_the_gate_was_opened() {
    holds(opened);
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[
        ("word.open_gate", opened),
        ("word.pass_fence", counted_once),
        ("word.shut_fence", counted_once),
        ("word.second_look", counted_once),
        ("liveness.notify_fence", tagged_unbroken),
        ("liveness.wait_fence", tagged_unbroken),
    ]);
}

#[test]
fn each_broken_variant_fails() {
    fail(&[
        ("CountsLate", || counted(1, Broken::CountsLate)),
        ("ReadsEarly", || counted(1, Broken::ReadsEarly)),
        ("TurnsBackForGood", || tagged(Broken::TurnsBackForGood)),
    ]);
}
