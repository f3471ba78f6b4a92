//! A device that reads and writes memory by itself keeps the memory until it gives it back, whatever a driver in front
//! of the device says.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use blkmq::driver::{Batch, BorrowedRequest, Done, Driver, TimeoutAction, Topology};
use blkmq::{Bio, Buffer, Client, Clock, Limits, RequestQueue, RqId, Status, Time, VirtualClock};

/// A device that borrows requests, and keeps them until the test lets it go on.
#[derive(Debug, Default)]
struct Device {
    borrowed: Mutex<Vec<BorrowedRequest>>,
    goes_on: AtomicBool,
}

/// A driver in front of that device, which reports requests as over before they are.
#[derive(Debug, Default)]
struct Hasty {
    device: Device,
    /// The request that it completes.
    target: Mutex<Option<RqId>>,
    /// How often it was asked whether it gives a request up.
    overdue: AtomicU32,
    /// Completions that were refused.
    refused: AtomicU32,
}

impl Device {
    fn queue_rqs(&self, batch: &mut Batch<'_>) {
        while let Some(rq) = batch.next_request() {
            self.borrowed.lock().expect("no test panics with the lock").push(batch.borrow(rq));
        }
    }

    fn poll(&self, done: &mut Done<'_>) {
        if self.goes_on.load(Ordering::Relaxed) {
            let mut borrowed = self.borrowed.lock().expect("no test panics with the lock");
            borrowed.drain(..).for_each(|borrowed| done.give_back(borrowed, Status::Ok));
        }
    }
}

impl Driver for Hasty {
    fn name(&self) -> &'static str {
        "hasty"
    }

    fn limits(&self) -> Limits {
        Limits { capacity_sectors: 1 << 20, ..Limits::default() }
    }

    fn topology(&self) -> Topology {
        Topology::new(1, 4)
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        self.device.queue_rqs(batch);
    }

    fn poll(&self, _hctx: u16, done: &mut Done<'_>, _now: Time) {
        self.device.poll(done);
        let target = *self.target.lock().expect("no test panics with the lock");
        if target.is_some_and(|id| done.complete(id, Status::Ok).is_err()) {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn timeout(&self, _hctx: u16, _id: RqId, _now: Time) -> TimeoutAction {
        self.overdue.fetch_add(1, Ordering::Relaxed);
        TimeoutAction::Done
    }
}

/// Red if a borrowed request can be completed by its id, or given up.
#[test]
fn a_loan_ends_when_it_is_given_back_and_not_before() {
    let driver = Arc::new(Hasty::default());
    let clock = VirtualClock::new();
    let q = RequestQueue::builder(driver.clone()).scheduler("none").clock(Clock::Virtual(clock.clone()));
    let q = q.build().expect("the device is good");
    let mut submitter = q.submitter(&Client::new("lender")).expect("there is room");
    let id = submitter.submit(Bio::read(0, Buffer::zeroed(512))).expect("there is a slot");
    *driver.target.lock().expect("no test panics with the lock") = Some(id);
    submitter.flush_plug();
    for _ in 0..10 {
        clock.advance(60_000_000_000);
        assert!(!submitter.poll());
    }
    assert!(driver.refused.load(Ordering::Relaxed) >= 10);
    assert!(driver.overdue.load(Ordering::Relaxed) > 0, "nobody asked whether it is given up");
    driver.device.goes_on.store(true, Ordering::Relaxed);
    assert!(submitter.poll());
    assert_eq!(submitter.reap().expect("it is over").status, Status::Ok);
}
