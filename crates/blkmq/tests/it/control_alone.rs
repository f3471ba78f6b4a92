//! While a change is made, no other thread is at the device: no other change is made, and no thread polls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;

use crate::device::front::Front;
use crate::device::{ONE_QUEUE, Recorder, join, write};
use blkmq::driver::Topology;
use blkmq::{RequestQueue, Status};

/// How often the device yields to other threads while it changes.
const SLOW: u32 = 200;

/// What a device of this test has, and what disturbed it.
#[derive(Debug, Default)]
struct Changing {
    nr_queues: AtomicU16,
    is_changing: AtomicBool,
    was_disturbed: AtomicBool,
}

impl Changing {
    fn note(&self, is_bad: bool) {
        self.was_disturbed.fetch_or(is_bad, Ordering::SeqCst);
    }

    fn is_gone(&self, hctx: u16) -> bool {
        hctx >= self.nr_queues.load(Ordering::SeqCst)
    }
}

/// A queue in front of a device that takes long to change. The device notes calls that come meanwhile, and calls for
/// hardware queues that it no longer has.
fn slow() -> (Arc<Front<Changing>>, RequestQueue) {
    let state = Changing { nr_queues: AtomicU16::new(1), ..Changing::default() };
    let device = Arc::new(Front::<Changing> {
        set_topology: |Front { state, .. }, topology| {
            state.note(state.is_changing.swap(true, Ordering::SeqCst));
            state.nr_queues.store(topology.default_queues, Ordering::SeqCst);
            (0..SLOW).for_each(|_| thread::yield_now());
            state.is_changing.store(false, Ordering::SeqCst);
            Ok(())
        },
        queue_rqs: |Front { state, .. }, hctx, batch, _| {
            state.note(state.is_gone(hctx));
            batch.finish_all(Status::Ok);
        },
        poll: |Front { state, .. }, hctx, _, _| {
            state.note(state.is_changing.load(Ordering::SeqCst) || state.is_gone(hctx));
        },
        ..Front::new(Recorder::of_depth(64), state)
    });
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
    assert!(!device.state.was_disturbed.load(Ordering::SeqCst), "two changes at once");
}

#[test]
fn nobody_polls_a_device_that_changes() {
    let (device, q) = slow();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            let mut submitter = join(&q);
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
    assert!(!device.state.was_disturbed.load(Ordering::SeqCst), "the device was polled while it changed");
}
