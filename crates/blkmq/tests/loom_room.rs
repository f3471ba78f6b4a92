//! Models of room that comes while somebody finds none: either the last look finds it, or the ticket becomes stale.
#![cfg(loom)]

mod model;

use blkmq::room::Room;
use blkmq::sync::atomic::{AtomicUsize, Ordering};
use blkmq::sync::{Arc, thread};
use blkmq::word::Word;
use model::{fails_without, holds};

struct Queue {
    word: Word,
    room: Room,
    /// Places that are free. Relaxed, so that only the fences order it.
    places: AtomicUsize,
}

impl Queue {
    fn make_room(&self) -> bool {
        self.places.fetch_add(1, Ordering::Relaxed);
        self.word.completed_fence();
        self.room.came()
    }

    fn take(&self) -> bool {
        self.places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |places| places.checked_sub(1)).is_ok()
    }
}

/// One thread wants a place, twice if it was told after the first look in vain, while `makers` make one each.
fn want(makers: usize) {
    let queue = Arc::new(Queue { word: Word::new(), room: Room::new(), places: AtomicUsize::new(0) });
    let threads: Vec<_> = (0..makers)
        .map(|_| {
            let queue = queue.clone();
            thread::spawn(move || queue.make_room())
        })
        .collect();
    let mut ticket = queue.room.want();
    queue.word.wait_fence();
    let mut has_one = queue.take();
    if !has_one && queue.room.is_stale(ticket) {
        ticket = queue.room.want();
        queue.word.wait_fence();
        has_one = queue.take();
    }
    let told = threads.into_iter().map(|thread| thread.join().expect("the thread ran to its end"));
    let is_told = told.fold(false, |any, told| any | told);
    if !has_one {
        assert!(queue.room.is_stale(ticket), "there is room, and nobody will say so");
        assert!(is_told, "nobody wakes");
    }
}

#[test]
fn who_finds_no_room_is_told_of_it() {
    holds(|| want(1));
}

#[test]
fn who_asks_again_is_told_of_later_room() {
    holds(|| want(2));
}

#[test]
fn the_fences_are_needed() {
    fails_without("word.wait_fence", || want(1));
    fails_without("word.completed_fence", || want(1));
}
