//! A submitter that finds nothing sleeps at once where its device wakes it, however quick the device was before.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::device::front::Front;
use crate::device::{Recorder, join, read};
use blkmq::driver::NextEvent;
use blkmq::event::EventFd;
use blkmq::{Notify, RequestQueue, RqId, Status};

struct Quick {
    fd: EventFd,
    /// The request that the device has, and how often it was polled since.
    held: Mutex<Option<(RqId, u32)>>,
    polls: AtomicU32,
    sleeps: AtomicU32,
}

/// A device with a descriptor, which is ready again as soon as a thread asks for it. A thread does that before it
/// sleeps. The device completes a request at the second poll. It counts the polls, and how often it was asked.
fn quick() -> Arc<Front<Quick>> {
    let fd = EventFd::new().expect("there are descriptors");
    let state = Quick { fd, held: Mutex::default(), polls: AtomicU32::new(0), sleeps: AtomicU32::new(0) };
    Arc::new(Front {
        queue_rqs: |Front { state, .. }, _, batch, _| {
            while let Some(rq) = batch.next_request() {
                *state.held.lock().expect("no test panics with the lock") = Some((batch.start(rq), 0));
            }
        },
        poll: |Front { state, .. }, _, done, _| {
            state.polls.fetch_add(1, Ordering::Relaxed);
            state.fd.drain();
            let mut held = state.held.lock().expect("no test panics with the lock");
            if let Some((_, polls)) = &mut *held {
                *polls += 1;
            }
            if let Some((id, _)) = held.take_if(|(_, polls)| *polls == 2) {
                done.complete(id, Status::Ok).expect("nobody gave it up");
            }
        },
        next_event: |_, _| NextEvent::Never,
        ready_fd: |Front { state, .. }, _| {
            state.sleeps.fetch_add(1, Ordering::Relaxed);
            state.fd.notify();
            Some(state.fd.as_fd())
        },
        ..Front::new(Recorder::of_depth(64), state)
    })
}

/// Red if [`blkmq::Submitter::wait`] polls, or yields and polls, before it sleeps.
#[test]
fn a_submitter_sleeps_as_soon_as_it_finds_nothing() {
    let device = quick();
    let q = RequestQueue::builder(device.clone()).build().expect("the queue is good");
    let mut submitter = join(&q);
    let counts = || [&device.state.polls, &device.state.sleeps].map(|count| count.load(Ordering::Relaxed));
    for round in 0..1000 {
        let before = counts();
        submitter.submit(read(0, 1)).expect("there is a slot");
        assert!(submitter.wait(1, None).is_ready());
        let after = counts();
        assert_eq!([after[0] - before[0], after[1] - before[1]], [2, 1], "polls and sleeps in round {round}");
        assert!(submitter.reap().expect("it is over").status.is_ok());
    }
}
