//! While a change is made, no other thread is at the device: no other change is made, and no thread polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;

use blkmq::driver::{Batch, Done, Driver, Topology, TopologyError, spec};
use blkmq::{Client, Limits, RequestQueue, Status, Time};

use crate::device::{ONE_QUEUE, write};

/// How often the device yields to other threads while it changes.
const SLOW: u32 = 200;

/// A device that takes long to change. The device notes calls that come meanwhile, and calls for hardware queues that
/// it no longer has.
#[derive(Debug, Default)]
struct Slow {
    nr_queues: AtomicU16,
    is_changing: AtomicBool,
    was_disturbed: AtomicBool,
}

impl Slow {
    fn note(&self, is_bad: bool) {
        self.was_disturbed.fetch_or(is_bad, Ordering::SeqCst);
    }
}

impl Driver for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn limits(&self) -> Limits {
        spec::open("null,size=64M").expect("the spec is good").limits()
    }
    fn topology(&self) -> Topology {
        ONE_QUEUE
    }
    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        self.note(self.is_changing.swap(true, Ordering::SeqCst));
        self.nr_queues.store(topology.default_queues, Ordering::SeqCst);
        (0..SLOW).for_each(|_| thread::yield_now());
        self.is_changing.store(false, Ordering::SeqCst);
        Ok(())
    }
    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, _: Time) {
        self.note(hctx >= self.nr_queues.load(Ordering::SeqCst));
        while let Some(rq) = batch.next_request() {
            batch.finish(rq, Status::Ok);
        }
    }
    fn poll(&self, hctx: u16, _: &mut Done<'_>, _: Time) {
        self.note(self.is_changing.load(Ordering::SeqCst) || hctx >= self.nr_queues.load(Ordering::SeqCst));
    }
}

fn slow() -> (Arc<Slow>, RequestQueue) {
    let device = Arc::new(Slow { nr_queues: AtomicU16::new(1), ..Slow::default() });
    let q = RequestQueue::builder(device.clone()).scheduler("none").build().expect("the queue is good");
    (device, q)
}

#[test]
fn two_changes_are_made_one_after_the_other() {
    let (device, q) = slow();
    thread::scope(|scope| {
        for first in [2, 3] {
            let q = &q;
            scope.spawn(move || {
                for round in 0..4 {
                    let topology = Topology { default_queues: first + round, ..ONE_QUEUE };
                    q.change_topology(topology).unwrap().wait().unwrap();
                }
            });
        }
    });
    assert!(!device.was_disturbed.load(Ordering::SeqCst), "two changes at once");
}

#[test]
fn nobody_polls_a_device_that_changes() {
    let (device, q) = slow();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            let mut submitter = q.submitter(&Client::new("test")).unwrap();
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let _ = submitter.submit(write(0, 1));
                    submitter.poll();
                    while submitter.reap().is_some() {}
                }
            });
        }
        for round in 0..6 {
            let topology = Topology { default_queues: 1 + 3 * (round % 2), ..ONE_QUEUE };
            q.change_topology(topology).unwrap().wait().unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(!device.was_disturbed.load(Ordering::SeqCst), "the device was polled while it changed");
}
