//! Threads that another thread wakes are counted, by what they are woken for.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use crate::device::{Drive, Recorder, join, read, reap};
use blkmq::{Locking, RequestQueue, Status, Submitter, Wakeups};

fn queue(locking: Locking, depth: u16, nr_requests: u32) -> (Arc<Recorder>, RequestQueue) {
    let device = Recorder::of_depth(depth);
    let q = RequestQueue::builder(device.clone()).scheduler("mq-deadline").locking(locking).nr_requests(nr_requests);
    (device, q.build().expect("the queue is good"))
}

fn submit(submitter: &mut Submitter, sector: u64) {
    submitter.submit_now(read(sector, 8));
}

/// Starts a thread that waits for a read, and returns when the thread sleeps.
fn sleeper(device: &Recorder, q: &RequestQueue) -> JoinHandle<()> {
    device.take_plans();
    let mut submitter = join(q);
    let thread = thread::spawn(move || {
        submit(&mut submitter, 0);
        submitter.finish();
    });
    await_sleep(device);
    thread
}

/// Returns when the thread that waits sleeps again, or is about to: from here on it is to be woken.
fn await_sleep(device: &Recorder) {
    while device.take_plans() == 0 {
        thread::yield_now();
    }
}

/// Two submitters and one tag. Red if the second submitter's wake-ups, one when its request goes to the device and one
/// when it is over, are not counted, or are counted as something else.
#[test]
fn a_request_that_lacked_a_tag_wakes_its_thread_twice() {
    for locking in Locking::ALL {
        let (device, q) = queue(locking, 1, 256);
        let mut other = join(&q);
        submit(&mut other, 100);
        let thread = sleeper(&device, &q);
        assert_eq!((device.nr_held(), q.counters().wakeups), (1, Wakeups::default()), "{locking}");
        device.take_plans();
        device.finish_oldest(Status::Ok);
        assert_eq!(reap(&mut other).len(), 1);
        let started = Wakeups { started: 1, ..Wakeups::default() };
        assert_eq!((device.nr_held(), q.counters().wakeups), (1, started), "{locking}");
        await_sleep(&device);
        device.finish_oldest(Status::Ok);
        assert_eq!(reap(&mut other).len(), 0, "it is the other thread's");
        thread.join().expect("it has its read");
        assert_eq!(q.counters().wakeups, Wakeups { completed: 1, ..started }, "{locking}");
    }
}

/// Red if the end of a quiescence, which no submitter's thread brings about, is not counted, or if a thread that leaves
/// its request to others counts as such a change.
#[test]
fn a_change_and_a_request_that_is_left_are_told_apart() {
    let (device, q) = queue(Locking::Combining, 64, 256);
    let thread = sleeper(&device, &q);
    drop(q.quiesce());
    let changed = Wakeups { changed: 1, ..Wakeups::default() };
    assert_eq!(q.counters().wakeups, changed);
    await_sleep(&device);
    let quiesce = q.quiesce();
    let mut other = join(&q);
    submit(&mut other, 100);
    let left = q.counters().wakeups;
    // First the end, because a submitter that is dropped waits for its requests.
    drop(quiesce);
    while other.nr_outstanding() > 0 || !thread.is_finished() {
        if device.nr_held() > 0 {
            device.finish_oldest(Status::Ok);
        }
        reap(&mut other);
    }
    thread.join().expect("it has its read");
    assert_eq!(left, Wakeups { deferred: 1, ..changed });
}
