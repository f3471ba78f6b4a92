//! Models of closing a queue against its submitters: after the wait no thread is inside, and a thread that enters later
//! turns back.

use crate::model::{Exclusive, fails, fails_without, holds};
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
    let submitter = {
        let queue = queue.clone();
        thread::spawn(move || (0..2).for_each(|_| queue.submit()))
    };
    queue.freeze();
    queue.guarded.touch();
    queue.word.open(Flag::Frozen);
    submitter.join().expect("the thread ran to its end");
    assert!(!queue.activity.is_active());
}

/// As `freeze`, with a freezer that does not wait.
fn freeze_without_waiting() {
    let queue = Queue::new();
    let submitter = {
        let queue = queue.clone();
        thread::spawn(move || queue.submit())
    };
    queue.word.close(Flag::Frozen);
    queue.guarded.touch();
    submitter.join().expect("the thread ran to its end");
}

/// A request keeps its tag after the submitter has left; the freezer waits for both and then resizes the map.
fn resize(wait_for_submitter: bool) {
    let queue = Queue::new();
    let submitter = {
        let queue = queue.clone();
        thread::spawn(move || {
            let mut hint = Hint::default();
            queue.activity.enter();
            let tag = if queue.word.load().is_frozen() { None } else { queue.tags.get(&mut hint) };
            queue.activity.leave();
            if let Some(tag) = tag {
                queue.guarded.touch();
                queue.tags.put(tag, &mut hint);
            }
        })
    };
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
    submitter.join().expect("the thread ran to its end");
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
fn the_freezer_has_to_wait() {
    fails(freeze_without_waiting);
}

#[test]
fn the_tags_alone_do_not_show_who_is_about_to_take_one() {
    fails(|| resize(false));
}

#[test]
fn the_submitters_fence_is_needed() {
    fails_without("grace.enter_fence", freeze);
}

#[test]
fn the_freezers_fence_is_needed() {
    fails_without("word.close_fence", freeze);
}

#[test]
fn leave_needs_release() {
    fails_without("grace.leave", freeze);
}

#[test]
fn enter_needs_release() {
    fails_without("grace.enter", freeze);
}

#[test]
fn observe_needs_acquire() {
    fails_without("grace.observe", freeze);
}

#[test]
fn unfreeze_needs_release() {
    fails_without("word.open", freeze);
}

#[test]
fn load_needs_acquire() {
    fails_without("word.load", freeze);
}
