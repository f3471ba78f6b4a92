//! Models of room that comes while a thread finds none: either the thread's last look finds the room, or the ticket
//! becomes stale.

use crate::model::{fails, fails_without, holds};
use blkmq_sync::atomic::{AtomicUsize, Ordering};
use blkmq_sync::liveness::Liveness;
use blkmq_sync::{Arc, thread};

struct Queue {
    live: Liveness,
    /// Places that are free. Relaxed, so that only the fences order it.
    places: AtomicUsize,
}

impl Queue {
    /// Returns whether this thread wakes the sleepers.
    fn make_room(&self) -> bool {
        let mut wakes = false;
        self.places.fetch_add(1, Ordering::Relaxed);
        self.live.brought(|| wakes = true);
        wakes
    }

    fn take(&self) -> bool {
        self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |places| places.checked_sub(1)).is_ok()
    }
}

/// One thread wants a place, and asks a second time if its first ticket is stale. Meanwhile `makers` threads make one
/// place each. `looks_again`: false breaks the protocol.
fn want(makers: usize, looks_again: bool) {
    let queue = Arc::new(Queue { live: Liveness::new(), places: AtomicUsize::new(0) });
    let threads: Vec<_> = (0..makers)
        .map(|_| {
            let queue = queue.clone();
            thread::spawn(move || queue.make_room())
        })
        .collect();
    // A thread whose plug is held back counts as asleep.
    queue.live.sleepers.change(1);
    let (mut has_one, mut ticket) = queue.live.lack_room(|| looks_again && queue.take());
    if !has_one && queue.live.room.is_stale(ticket) {
        (has_one, ticket) = queue.live.lack_room(|| queue.take());
    }
    let told = threads.into_iter().map(|thread| thread.join().expect("the thread ran to its end"));
    let is_told = told.fold(false, |any, told| any | told);
    if !has_one {
        assert!(queue.live.room.is_stale(ticket), "there is room, and the thread will not be told");
        assert!(is_told, "no thread wakes it");
    }
}

/// Red if `Liveness::lack_room` does not try again, or if `Room::came` does not change the word: the thread would then
/// wait for ever.
#[test]
fn who_finds_no_room_is_told_of_it() {
    holds(|| want(1, true));
}

/// Red if the ticket of a second request for room is not fresh: `Room::want` must return the word as it is now.
#[test]
fn who_asks_again_is_told_of_later_room() {
    holds(|| want(2, true));
}

/// Red if the model passes without one of the fences, because it then does not reach the case for which they are there.
#[test]
fn the_fences_are_needed() {
    fails_without("liveness.room_fence", || want(1, true));
    fails_without("liveness.brought_fence", || want(1, true));
}

/// Red if the model passes although the thread does not try again after it has asked.
#[test]
fn the_second_try_is_needed() {
    fails(|| want(1, false));
}
