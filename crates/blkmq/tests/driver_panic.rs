//! A driver that panics ends the thread that called it and nothing else.

mod device;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use blkmq::driver::{Batch, Done, Driver, Topology, spec};
use blkmq::{Bio, Buffer, Client, Limits, RequestQueue, Status, Time};

use device::ONE_QUEUE;

#[derive(Debug, Default)]
struct Panics(AtomicBool);

impl Driver for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }
    fn limits(&self) -> Limits {
        spec::open("null,size=64M").expect("the spec is good").limits()
    }
    fn topology(&self) -> Topology {
        ONE_QUEUE
    }
    fn queue_rqs(&self, _: u16, batch: &mut Batch<'_>, _: Time) {
        while let Some(rq) = batch.next_request() {
            batch.finish(rq, Status::Ok);
        }
    }
    fn poll(&self, _: u16, _: &mut Done<'_>, _: Time) {
        assert!(self.0.swap(true, Ordering::Relaxed), "this panic is the test's own");
    }
}

/// Red if the thread's place in the queue is not given back: submitters rely on it, and freezes wait for it.
#[test]
fn a_background_thread_that_panics_leaves_the_queue() {
    let device = Arc::new(Panics::default());
    let q = RequestQueue::builder(device.clone()).build().unwrap();
    let background = q.start_threads(1).unwrap();
    while !device.0.load(Ordering::Relaxed) {
        thread::yield_now();
    }
    drop(background);
    assert!(q.dump().contains(" background 0 "), "submitters still rely on it: {}", q.dump());
    assert!(q.freeze().poll(), "a freeze still waits for it");
}

/// Does nothing with the second request that it takes.
#[derive(Debug, Default)]
struct Forgetful(AtomicBool);

impl Driver for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }
    fn limits(&self) -> Limits {
        spec::open("null,size=64M").expect("the spec is good").limits()
    }
    fn topology(&self) -> Topology {
        ONE_QUEUE
    }
    fn queue_rqs(&self, _: u16, batch: &mut Batch<'_>, _: Time) {
        while let Some(rq) = batch.next_request() {
            if self.0.swap(true, Ordering::Relaxed) {
                continue;
            }
            batch.finish(rq, Status::Ok);
        }
    }
}

/// Red if a request that is dropped is forgotten without a word: its submitter waits for ever. Red too if the
/// submitter waits for it while it is dropped, or another one does not get on.
#[test]
fn a_driver_that_drops_a_request_panics_and_says_which() {
    let q = RequestQueue::builder(Arc::new(Forgetful::default())).scheduler("none").build().unwrap();
    let mut other = q.submitter(&Client::new("other")).unwrap();
    let submitting = q.clone();
    let submits = move || {
        let mut submitter = submitting.submitter(&Client::new("test")).unwrap();
        for sector in [0, 64] {
            submitter.submit(Bio::read(sector, Buffer::zeroed(4096))).unwrap();
            submitter.wait();
            assert!(submitter.reap().is_some_and(|completion| completion.status.is_ok()));
        }
    };
    let panic = thread::spawn(submits).join().expect_err("the driver drops a request");
    let said = panic.downcast_ref::<String>().expect("it says something");
    let named = "a request was dropped: hardware queue 0, tag ";
    assert!(said.starts_with(named) && said.contains(", Read of 8 sectors from sector 64; "), "{said}");
    assert!(said.contains("finish, start, lend, requeue or refuse"), "{said}");
    assert!(!other.wait(), "it has nothing outstanding");
    drop(other);
    let _new = q.submitter(&Client::new("new")).expect("the slots of the lost request are not given out again");
}
