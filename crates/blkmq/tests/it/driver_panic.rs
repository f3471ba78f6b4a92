//! A driver that panics ends the thread that called it and nothing else.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::device::front::Front;
use crate::device::{Notified, ONE_QUEUE, Recorder, join};
use blkmq::driver::{Driver, NextEvent, Topology};
use blkmq::{Bio, Buffer, Client, RequestQueue, Status, Waited};

/// A device with no requests that panics when it is polled for the first time.
fn panics() -> Arc<Front<AtomicBool>> {
    Arc::new(Front {
        poll: |front, _, _, _| {
            assert!(front.state.swap(true, Ordering::Relaxed), "this panic is the test's own");
        },
        next_event: |_, _| NextEvent::Unknown,
        ..Front::new(Recorder::of_depth(64), AtomicBool::new(false))
    })
}

/// Red if the thread's place in the queue is not given back: submitters rely on it, and freezes wait for it. Red too
/// (the test does not end) if no submitter is told: those that sleep rely on the thread's plans.
#[test]
fn a_background_thread_that_panics_leaves_the_queue() {
    let device = panics();
    let q = RequestQueue::builder(device.clone()).build().unwrap();
    let mut submitter = join(&q);
    let told = Notified::set(&mut submitter);
    let background = q.start_threads(1).unwrap();
    while !device.state.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    while told.since_last() == 0 {
        thread::yield_now();
    }
    drop(background);
    assert!(q.dump().contains(" background 0\n"), "submitters still rely on it: {}", q.dump());
    assert!(q.freeze().poll(), "a freeze still waits for it");
}

/// Red if no other submitter is told: the thread may have been the one that was woken to take on what another one left.
#[test]
fn a_submitter_that_panics_in_its_poll_calls_the_others() {
    let q = RequestQueue::builder(panics()).build().unwrap();
    let mut other = q.submitter(&Client::new("other")).unwrap();
    let told = Notified::set(&mut other);
    assert_eq!(told.since_last(), 0);
    let mut submitter = join(&q);
    assert!(thread::spawn(move || submitter.poll()).join().is_err(), "the driver panics");
    assert!(told.since_last() > 0);
}

/// Red if a request that is dropped is forgotten without a word: its submitter waits forever. Red too if the
/// submitter waits for it while it is dropped, or another one does not get on.
#[test]
fn a_driver_that_drops_a_request_panics_and_says_which() {
    // Does nothing with the second request that it takes.
    let forgetful = Front::<AtomicBool> {
        queue_rqs: |front, _, batch, _| {
            while let Some(rq) = batch.next_request() {
                if !front.state.swap(true, Ordering::Relaxed) {
                    batch.finish(rq, Status::Ok);
                }
            }
        },
        ..Front::new(Recorder::of_depth(64), AtomicBool::new(false))
    };
    let q = RequestQueue::builder(Arc::new(forgetful)).scheduler("none").build().unwrap();
    let mut other = q.submitter(&Client::new("other")).unwrap();
    let submitting = q.clone();
    let submits = move || {
        let mut submitter = submitting.submitter(&Client::new("test")).unwrap();
        for sector in [0, 64] {
            submitter.submit(Bio::read(sector, Buffer::zeroed(4096))).unwrap();
            submitter.wait(1, None);
            assert!(submitter.reap().is_some_and(|completion| completion.status.is_ok()));
        }
    };
    let panic = thread::spawn(submits).join().expect_err("the driver drops a request");
    let said = panic.downcast_ref::<String>().expect("it says something");
    let named = "a request was dropped: hardware queue 0, tag ";
    assert!(said.starts_with(named) && said.contains(", Read of 8 sectors from sector 64; "), "{said}");
    assert!(said.contains("finish, start, borrow, requeue or refuse"), "{said}");
    assert_eq!(other.wait(1, None), Waited::Idle);
    drop(other);
    let _new = q.submitter(&Client::new("new")).expect("the slots of the lost request are not given out again");
}

/// A device that panics when it is offered requests for the first time, and finishes all that it is offered later.
fn stumbles(nr_hctxs: u16, is_concurrent: bool) -> Arc<dyn Driver> {
    let inner = Recorder::with(Topology { default_queues: nr_hctxs, ..ONE_QUEUE });
    Arc::new(Front::<AtomicBool> {
        is_concurrent,
        queue_rqs: |front, _, batch, _| {
            assert!(front.state.swap(true, Ordering::Relaxed), "this panic is the test's own");
            batch.finish_all(Status::Ok);
        },
        next_event: |_, _| NextEvent::Unknown,
        ..Front::new(inner, AtomicBool::new(false))
    })
}

/// Red if what the driver did not take before it panicked stays on an issue list without the mark of a stalled hardware
/// queue, or if no sleeper is told. With two hardware queues, the second one's requests were not even offered.
#[test]
fn what_the_panicking_thread_had_for_others_is_left_to_the_next_thread() {
    leaves_to_the_next_thread(1);
    leaves_to_the_next_thread(2);
}

fn leaves_to_the_next_thread(nr_hctxs: u16) {
    let driver = stumbles(nr_hctxs, false);
    let q = RequestQueue::builder(driver).scheduler("mq-deadline").build().expect("the queue is good");
    let told = Arc::new(Notified::default());
    let [mut stumbling, mut other] =
        ["stumbling", "other"].map(|name| q.submitter(&Client::new(name)).expect("there is room"));
    other.set_notify(Some(told.clone()));
    let quiesced = q.quiesce();
    for (submitter, sector) in [(&mut stumbling, 0), (&mut other, 64)] {
        submitter.submit(Bio::read(sector, Buffer::zeroed(4096))).expect("there are slots");
        submitter.poll();
    }
    drop(quiesced);
    told.since_last();
    let panics = thread::spawn(move || stumbling.poll()).join();
    panics.expect_err("the driver stumbles over both requests");
    assert!(told.since_last() > 0, "a submitter that sleeps is told");
    other.poll();
    let Some(completion) = other.reap() else {
        // Otherwise the submitter waits for its request when it is dropped.
        std::mem::forget(other);
        panic!("nothing is over: {}", q.dump());
    };
    assert_eq!(completion.status, Status::Ok);
    // One of them polls the first hardware queue.
    let mut more = ["third", "fourth"].map(|name| q.submitter(&Client::new(name)).expect("there is room"));
    more.iter_mut().for_each(|submitter| _ = submitter.poll());
    assert!(q.freeze().poll(), "both requests are over: {}", q.dump());
}

/// Red if a request that goes to a driver without the issue list is lost when that driver panics before it takes the
/// request: a freeze would wait for it forever.
#[test]
fn what_a_concurrent_driver_did_not_take_is_left_to_the_next_thread() {
    let q = RequestQueue::builder(stumbles(1, true)).scheduler("none").build().unwrap();
    let [mut stumbling, mut other] = ["stumbling", "other"].map(|name| q.submitter(&Client::new(name)).unwrap());
    stumbling.submit(Bio::read(0, Buffer::zeroed(4096))).unwrap();
    let panics = thread::spawn(move || stumbling.poll()).join();
    panics.expect_err("the driver stumbles over the request");
    assert!(!q.freeze().poll(), "the request is not over yet");
    other.poll();
    assert!(q.freeze().poll(), "the request is over: {}", q.dump());
}

/// Red if a thread whose driver panicked, and that caught the panic, may go on with the same submitter: its lists hold
/// what it was doing, and a freeze would take it for outside while it is inside.
#[test]
fn a_submitter_is_of_no_use_after_a_panic_that_was_caught() {
    let q = RequestQueue::builder(stumbles(1, false)).scheduler("none").build().unwrap();
    let mut submitter = join(&q);
    submitter.submit(Bio::read(0, Buffer::zeroed(4096))).unwrap();
    let mut poll = || catch_unwind(AssertUnwindSafe(|| submitter.poll())).expect_err("this poll panics");
    let said = poll();
    assert_eq!(said.downcast_ref(), Some(&"this panic is the test's own"));
    let said = poll();
    assert_eq!(said.downcast_ref(), Some(&"entered twice, or again after the driver panicked inside"));
}
