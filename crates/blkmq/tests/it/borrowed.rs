//! A device that reads and writes memory by itself keeps the memory until it gives it back, whatever a driver in front
//! of the device says.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::device::front::Front;
use crate::device::{Recorder, virtual_queue};
use blkmq::driver::{BorrowedRequest, TimeoutAction};
use blkmq::{Bio, Buffer, Client, RqId, Status};

/// A driver in front of a device that borrows requests. The driver reports requests as over before they are.
#[derive(Debug, Default)]
struct Hasty {
    borrowed: Mutex<Vec<BorrowedRequest>>,
    /// The device gives the requests back.
    goes_on: AtomicBool,
    /// The request that the driver completes.
    target: Mutex<Option<RqId>>,
    /// How often it was asked whether it gives a request up.
    overdue: AtomicU32,
    /// Completions that were refused.
    refused: AtomicU32,
}

fn hasty() -> Arc<Front<Hasty>> {
    Arc::new(Front {
        queue_rqs: |front, _, batch, _| {
            while let Some(rq) = batch.next_request() {
                front.state.borrowed.lock().expect("no test panics with the lock").push(batch.borrow(rq));
            }
        },
        poll: |Front { state, .. }, _, done, _| {
            if state.goes_on.load(Ordering::Relaxed) {
                let mut borrowed = state.borrowed.lock().expect("no test panics with the lock");
                borrowed.drain(..).for_each(|rq| done.give_back(rq, Status::Ok));
            }
            let target = *state.target.lock().expect("no test panics with the lock");
            if target.is_some_and(|id| done.complete(id, Status::Ok).is_err()) {
                state.refused.fetch_add(1, Ordering::Relaxed);
            }
        },
        timeout: |front, _, _, _| {
            front.state.overdue.fetch_add(1, Ordering::Relaxed);
            TimeoutAction::Done
        },
        ..Front::new(Recorder::of_depth(4), Hasty::default())
    })
}

/// Red if a borrowed request can be completed by its id, or given up.
#[test]
fn a_loan_ends_when_it_is_given_back_and_not_before() {
    let driver = hasty();
    let (q, clock) = virtual_queue(driver.clone(), |q| q.scheduler("none"));
    let mut submitter = q.submitter(&Client::new("lender")).expect("there is room");
    let id = submitter.submit(Bio::read(0, Buffer::zeroed(512))).expect("there is a slot");
    *driver.state.target.lock().expect("no test panics with the lock") = Some(id);
    submitter.flush_plug();
    for _ in 0..10 {
        clock.advance(60_000_000_000);
        assert!(!submitter.poll());
    }
    assert!(driver.state.refused.load(Ordering::Relaxed) >= 10);
    assert!(driver.state.overdue.load(Ordering::Relaxed) > 0, "nobody asked whether it is given up");
    driver.state.goes_on.store(true, Ordering::Relaxed);
    assert!(submitter.poll());
    assert_eq!(submitter.reap().expect("it is over").status, Status::Ok);
}
