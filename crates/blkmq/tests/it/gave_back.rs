//! What a driver gave back while another thread was in the driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use crate::device::front::Front;
use crate::device::{Recorder, read, reap};
use blkmq::{Client, Locking, RequestQueue, RqId, Status};

/// Reads of this sector are given back while the device is busy, and finished at once otherwise.
const GIVEN_BACK: u64 = 0;
/// Reads of this sector are started, and over when the test says so.
const STARTED: u64 = 1000;
/// A call with a read of this sector waits in the middle for the test, and starts the read.
const WAITS: u64 = 2000;

struct Busy {
    is_busy: AtomicBool,
    ends: AtomicBool,
    started: Mutex<Vec<RqId>>,
    begin: Barrier,
    end: Barrier,
}

/// A device with two tags, so that the third request waits for one.
fn device() -> Arc<Front<Busy>> {
    let state = Busy {
        is_busy: AtomicBool::new(false),
        ends: AtomicBool::new(false),
        started: Mutex::default(),
        begin: Barrier::new(2),
        end: Barrier::new(2),
    };
    Arc::new(Front {
        is_concurrent: true,
        queue_rqs: |Front { state, .. }, _, batch, _| {
            while let Some(rq) = batch.next_request() {
                match rq.sector() {
                    GIVEN_BACK if state.is_busy.load(Ordering::Relaxed) => batch.requeue(rq),
                    GIVEN_BACK => batch.finish(rq, Status::Ok),
                    sector => {
                        if sector == WAITS {
                            state.begin.wait();
                            state.end.wait();
                        }
                        state.started.lock().expect("no call panics").push(batch.start(rq));
                    }
                }
            }
        },
        poll: |Front { state, .. }, _, done, _| {
            if state.ends.load(Ordering::Relaxed) {
                let started = std::mem::take(&mut *state.started.lock().expect("no call panics"));
                started.into_iter().for_each(|id| done.complete(id, Status::Ok).expect("each request finishes once"));
            }
        },
        ..Front::new(Recorder::of_depth(2), state)
    })
}

/// Red if a call that gave nothing back takes away the mark of a request that was given back meanwhile: the request is
/// not tried when its submitter polls, only when something else completes.
#[test]
fn a_request_that_was_given_back_is_tried_at_each_poll() {
    let driver = device();
    let builder = RequestQueue::builder(driver.clone()).scheduler("mq-deadline").locking(Locking::Combining);
    let q = builder.build().expect("the queue is good");
    let [mut waits, mut other, mut given_back] =
        ["waits", "other", "given back"].map(|name| q.submitter(&Client::new(name)).unwrap());
    // Until requests may bypass the scheduler. Then two threads can be in the driver at once.
    while q.counters().bypassed == 0 {
        given_back.submit(read(GIVEN_BACK, 8)).expect("there are slots");
        assert_eq!(reap(&mut given_back).len(), 1);
    }
    driver.state.is_busy.store(true, Ordering::Relaxed);
    let thread = thread::spawn(move || {
        waits.submit(read(WAITS, 8)).expect("there are slots");
        waits.poll();
        waits
    });
    driver.state.begin.wait();
    for (submitter, sector) in [(&mut other, STARTED), (&mut given_back, GIVEN_BACK)] {
        submitter.submit(read(sector, 8)).expect("there are slots");
        submitter.poll();
    }
    // Brings the tag for which the last request waits, so this thread is the one to which it is given back.
    driver.state.ends.store(true, Ordering::Relaxed);
    assert_eq!(reap(&mut other).len(), 1);
    driver.state.ends.store(false, Ordering::Relaxed);
    assert_eq!(q.counters().requeued, 1, "{}", q.dump());
    driver.state.end.wait();
    let mut waits = thread.join().expect("nothing panics there");
    driver.state.is_busy.store(false, Ordering::Relaxed);
    let over = reap(&mut given_back).len();
    driver.state.ends.store(true, Ordering::Relaxed);
    assert_eq!(reap(&mut waits).len(), 1);
    assert_eq!(over, 1, "{}", q.dump());
}
