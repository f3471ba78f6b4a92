//! A submitter that finds nothing sleeps at once where its device wakes it, however quick the device was before.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use blkmq::Notify;
use blkmq::driver::{Batch, Done, Driver, NextEvent, Topology};
use blkmq::event::EventFd;
use blkmq::{Bio, Buffer, Client, Limits, RequestQueue, RqId, Status, Time};

/// A device with a descriptor, which is ready again as soon as a thread asks for it. A thread does that before it
/// sleeps. The device completes a request at the second poll. It counts the polls, and how often it was asked.
#[derive(Debug)]
struct Device {
    fd: EventFd,
    /// The request that the device has, and how often it was polled since.
    held: Mutex<Option<(RqId, u32)>>,
    polls: AtomicU32,
    sleeps: AtomicU32,
}

impl Driver for Device {
    fn name(&self) -> &'static str {
        "quick"
    }

    fn limits(&self) -> Limits {
        Limits { capacity_sectors: 1 << 20, ..Limits::default() }
    }

    fn topology(&self) -> Topology {
        Topology::new(1, 64)
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        while let Some(rq) = batch.next_request() {
            *self.held.lock().expect("no test panics with the lock") = Some((batch.start(rq), 0));
        }
    }

    fn poll(&self, _hctx: u16, done: &mut Done<'_>, _now: Time) {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.fd.drain();
        let mut held = self.held.lock().expect("no test panics with the lock");
        if let Some((_, polls)) = &mut *held {
            *polls += 1;
        }
        if let Some((id, _)) = held.take_if(|(_, polls)| *polls == 2) {
            done.complete(id, Status::Ok).expect("nobody gave it up");
        }
    }

    fn next_event(&self, _hctx: u16) -> NextEvent {
        NextEvent::Never
    }

    fn ready_fd(&self, _hctx: u16) -> Option<BorrowedFd<'_>> {
        self.sleeps.fetch_add(1, Ordering::Relaxed);
        self.fd.notify();
        Some(self.fd.as_fd())
    }
}

/// Red if [`blkmq::Submitter::wait`] polls, or yields and polls, before it sleeps.
#[test]
fn a_submitter_sleeps_as_soon_as_it_finds_nothing() {
    let device = Arc::new(Device {
        fd: EventFd::new().expect("there are descriptors"),
        held: Mutex::default(),
        polls: AtomicU32::new(0),
        sleeps: AtomicU32::new(0),
    });
    let q = RequestQueue::builder(device.clone()).build().expect("the queue is good");
    let mut submitter = q.submitter(&Client::new("waits")).expect("there is room");
    let counts = || [&device.polls, &device.sleeps].map(|count| count.load(Ordering::Relaxed));
    for round in 0..1000 {
        let before = counts();
        submitter.submit(Bio::read(0, Buffer::zeroed(512))).expect("there is a slot");
        assert!(submitter.wait(1, None).is_ready());
        let after = counts();
        assert_eq!([after[0] - before[0], after[1] - before[1]], [2, 1], "polls and sleeps in round {round}");
        assert!(submitter.reap().expect("it is over").status.is_ok());
    }
}
