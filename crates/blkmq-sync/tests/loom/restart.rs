//! Models of the WAITING mark: a request that waits for a tag, or for the thread that dispatches, is never forgotten.

use crate::model::{Exclusive, fail, fail_without, holds, holds_within, join, spawn};
use blkmq_sync::atomic::{AtomicUsize, Ordering};
use blkmq_sync::liveness::Liveness;
use blkmq_sync::tags::{Hint, Tags};
use blkmq_sync::word::Word;
use blkmq_sync::{Arc, thread};

struct Queue {
    live: Liveness,
    tags: Tags,
    /// How many requests wait. Relaxed, so that only the word orders it.
    waiting: AtomicUsize,
    /// Whether a search that found no tag is repeated after WAITING was set. False breaks the protocol.
    try_again: bool,
}

impl Queue {
    fn new(depth: u32, try_again: bool) -> Arc<Self> {
        let tags = Tags::new(depth, depth);
        Arc::new(Self { live: Liveness::default(), tags, waiting: AtomicUsize::new(0), try_again })
    }

    fn submit(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.live.word.set_waiting();
        self.run();
    }

    /// Takes a request that waits, if there is one.
    fn take(&self) -> bool {
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| waiting.checked_sub(1)).is_ok()
    }

    /// Dispatches and completes until nothing waits or no tag is free.
    fn run(&self) {
        let mut hint = Hint::default();
        loop {
            let seen = self.live.word.load();
            if self.waiting.load(Ordering::Relaxed) == 0 {
                if !seen.is_waiting() || self.live.word.clear_waiting(seen) {
                    return;
                }
                thread::yield_now();
                continue;
            }
            let tag = self.tags.get(&mut hint);
            let tag = tag
                .or_else(|| self.live.prepare_to_wait(|| if self.try_again { self.tags.get(&mut hint) } else { None }));
            let Some(tag) = tag else { return };
            self.take();
            self.tags.put(tag, &mut hint);
            self.live.fence_before_notify();
            if !self.live.word.load().is_waiting() {
                return;
            }
        }
    }
}

/// Two threads submit one request each and share the only tag.
fn two_submitters() {
    let queue = Queue::new(1, true);
    let other = spawn(&queue, move |queue| queue.submit());
    queue.submit();
    join(other);
    assert_eq!(queue.waiting.load(Ordering::Relaxed), 0, "forgotten");
}

/// One thread completes the request that held the only tag while another thread wants the tag.
fn prepare_to_wait(try_again: bool) {
    let queue = Queue::new(1, try_again);
    let tag = queue.tags.get(&mut Hint::default()).expect("a tag is free");
    let submitter = spawn(&queue, move |queue| queue.submit());
    queue.tags.put(tag, &mut Hint::default());
    queue.live.fence_before_notify();
    if queue.live.word.load().is_waiting() {
        queue.run();
    }
    join(submitter);
    assert_eq!(queue.waiting.load(Ordering::Relaxed), 0, "forgotten");
}

/// Both tags are in `cleared`, so one thread that searches may find none while the other is folding both back.
fn folding() {
    let queue = Queue::new(2, true);
    let mut hint = Hint::default();
    let both = [0; 2].map(|_| queue.tags.get(&mut hint).expect("a tag is free"));
    queue.tags.put_batch(&both, &mut hint);
    let submitter = spawn(&queue, move |queue| queue.submit());
    queue.submit();
    join(submitter);
    assert_eq!(queue.waiting.load(Ordering::Relaxed), 0, "forgotten");
}

/// A submitter that finds WAITING set when it stages a request relies on the thread that will clear WAITING. A
/// submitter that finds WAITING clear works off what is staged, and clears WAITING with the word as it was before its
/// last look; or, broken, with the word as it was after that look.
fn staging(read_before_look: bool) {
    let shared = Arc::new((Word::default(), AtomicUsize::new(0), Exclusive::default()));
    fn stage((word, staged, worked): &(Word, AtomicUsize, Exclusive), read_before_look: bool) {
        staged.fetch_add(1, Ordering::Relaxed);
        if word.set_waiting().is_waiting() {
            return;
        }
        worked.touch();
        loop {
            let mut seen = word.load();
            staged.swap(0, Ordering::Relaxed);
            if !read_before_look {
                seen = word.load();
            }
            if word.clear_waiting(seen) {
                return;
            }
            thread::yield_now();
        }
    }
    let other = spawn(&shared, move |shared| stage(shared, read_before_look));
    stage(&shared, read_before_look);
    join(other);
    assert_eq!(shared.1.load(Ordering::Relaxed), 0, "forgotten");
}

/// A thread that reads a count with a staging in it sees what was staged. A thread that finds the word cleared sees
/// what the clearer did.
fn published() {
    let shared = Arc::new((Word::default(), Exclusive::default()));
    let stager = spawn(&shared, move |shared| {
        let (word, staged) = shared;
        staged.touch();
        word.set_waiting();
        let seen = word.load();
        if seen.waiting_seq() == 1 && !seen.is_waiting() {
            staged.touch();
        }
    });
    let (word, staged) = &*shared;
    let seen = word.load();
    if seen.waiting_seq() == 1 {
        staged.touch();
        assert!(word.clear_waiting(seen));
    }
    join(stager);
    let word = word.load();
    assert_eq!(word.is_waiting(), seen.waiting_seq() == 0);
}

#[test]
fn two_submitters_share_a_tag() {
    holds_within(2, two_submitters);
}

#[test]
fn a_completion_restarts_who_lacks_a_tag() {
    holds(|| prepare_to_wait(true));
}

#[test]
fn a_search_beside_a_fold_is_not_forgotten() {
    holds_within(2, folding);
}

#[test]
fn what_is_staged_is_worked_off_by_who_clears() {
    holds(|| staging(true));
}

#[test]
fn the_word_publishes_what_was_staged_and_what_was_cleared() {
    holds(published);
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[
        ("liveness.wait_fence", || prepare_to_wait(true)),
        ("liveness.notify_fence", || prepare_to_wait(true)),
        ("word.set_waiting", || staging(true)),
        ("word.set_waiting", published),
        ("word.load", published),
        ("word.clear_waiting", published),
    ]);
}

#[test]
fn each_broken_variant_fails() {
    fail(&[
        ("the_second_try_is_needed", || prepare_to_wait(false)),
        ("the_word_has_to_be_read_before_the_last_look", || staging(false)),
    ]);
}
