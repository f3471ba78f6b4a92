//! Models of closing a queue against its submitters: after the wait no thread is inside, and a thread that enters later
//! turns back.

use crate::model::{Exclusive, fail, fail_without, holds, join, spawn};
use blkmq_sync::grace::Activity;
use blkmq_sync::tags::{Hint, Tags};
use blkmq_sync::word::{Flag, Word};
use blkmq_sync::{Arc, thread};

struct Queue {
    word: Word,
    activity: Activity,
    tags: Tags,
    guarded: Exclusive,
}

impl Queue {
    fn new() -> Arc<Self> {
        let guarded = Exclusive::default();
        Arc::new(Self { word: Word::default(), activity: Activity::default(), tags: Tags::new(2, 1), guarded })
    }

    /// What a submitter does with everything that a freeze protects; nothing while frozen.
    fn submit(&self) {
        self.activity.enter();
        if !self.word.load().is_frozen() {
            self.guarded.touch();
        }
        self.activity.leave();
    }

    fn freeze(&self) {
        assert!(!self.word.close(Flag::Frozen).is_frozen());
        let seen = self.activity.observe();
        while !self.activity.has_left(seen) {
            thread::yield_now();
        }
    }
}

/// A submitter enters twice; the freezer changes what is protected, between freezing and unfreezing.
fn freeze() {
    let queue = Queue::new();
    let submitter = spawn(&queue, move |queue| (0..2).for_each(|_| queue.submit()));
    queue.freeze();
    queue.guarded.touch();
    queue.word.open(Flag::Frozen);
    join(submitter);
    assert!(!queue.activity.is_active());
}

/// As `freeze`, with a freezer that does not wait.
fn freeze_without_waiting() {
    let queue = Queue::new();
    let submitter = spawn(&queue, move |queue| queue.submit());
    queue.word.close(Flag::Frozen);
    queue.guarded.touch();
    join(submitter);
}

/// A request keeps its tag after the submitter has left; the freezer waits for both and then resizes the map.
fn resize(wait_for_submitter: bool) {
    let queue = Queue::new();
    let submitter = spawn(&queue, move |queue| {
        let mut hint = Hint::default();
        queue.activity.enter();
        let tag = if queue.word.load().is_frozen() { None } else { queue.tags.get(&mut hint) };
        queue.activity.leave();
        if let Some(tag) = tag {
            queue.guarded.touch();
            queue.tags.put(tag, &mut hint);
        }
    });
    if wait_for_submitter {
        queue.freeze();
    } else {
        queue.word.close(Flag::Frozen);
    }
    while queue.tags.weight() > 0 {
        thread::yield_now();
    }
    queue.guarded.touch();
    queue.tags.resize(2);
    assert_eq!(queue.tags.depth(), 2);
    join(submitter);
}

#[test]
fn nobody_is_inside_a_frozen_queue() {
    holds(freeze);
}

#[test]
fn a_frozen_queue_without_tags_can_be_resized() {
    holds(|| resize(true));
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[
        ("grace.enter_fence", freeze),
        ("word.close_fence", freeze),
        ("grace.leave", freeze),
        ("grace.enter", freeze),
        ("grace.observe", freeze),
        ("word.open", freeze),
        ("word.load", freeze),
    ]);
}

#[test]
fn each_broken_variant_fails() {
    fail(&[
        ("the_freezer_has_to_wait", freeze_without_waiting),
        ("the_tags_alone_do_not_show_who_is_about_to_take_one", || resize(false)),
    ]);
}
