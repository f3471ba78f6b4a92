//! A driver that panics in a background thread ends that thread and nothing else.

mod device;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use blkmq::driver::{Batch, Done, Driver, Topology, spec};
use blkmq::{Limits, RequestQueue, Status, Time};

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
        while let Some(rq) = batch.next() {
            batch.finish(rq, Status::Ok);
        }
    }
    fn poll(&self, _: u16, _: &mut Done<'_>, _: Time) {
        assert!(self.0.swap(true, Ordering::Relaxed), "this panic is the test's own");
    }
}

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
