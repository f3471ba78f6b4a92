//! A driver that does not say when it completes requests is polled.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::device::front::Front;
use crate::device::{Recorder, join, virtual_queue};
use blkmq::driver::{NextEvent, POLL_PERIOD};
use blkmq::{Bio, Buffer, RequestQueue, RqId, Status, Time};

/// Nanoseconds that the device takes for a request.
const TAKES: u64 = 5_000_000;

#[derive(Debug, Default)]
struct Simple {
    started: Mutex<Vec<(RqId, Time)>>,
    polls: AtomicU32,
}

/// A driver as one writes it first: it starts requests, and `poll` completes those that are over.
fn simple() -> Arc<Front<Simple>> {
    Arc::new(Front {
        queue_rqs: |front, _, batch, now| {
            let mut started = front.state.started.lock().expect("no holder panics");
            while let Some(rq) = batch.next_request() {
                started.push((batch.start(rq), now.after(TAKES)));
            }
        },
        poll: |front, _, done, now| {
            front.state.polls.fetch_add(1, Ordering::Relaxed);
            let mut started = front.state.started.lock().expect("no holder panics");
            for (id, _) in started.extract_if(.., |(_, due)| *due <= now) {
                done.complete(id, Status::Ok).expect("it was started");
            }
        },
        next_event: |_, _| NextEvent::Unknown,
        ..Front::new(Recorder::of_depth(64), Simple::default())
    })
}

/// Red if the device is not polled while it has a request: the request then takes 30 seconds, until the timeout scan.
/// Red too if it is polled all the time.
#[test]
fn a_submitter_polls_in_periods_while_a_request_is_in_flight() {
    let device = simple();
    let (q, _) = virtual_queue(device.clone(), |q| q);
    let mut submitter = join(&q);
    submitter.submit(Bio::read(0, Buffer::zeroed(4096))).unwrap();
    assert!(submitter.wait(1, None).is_ready());
    let completion = submitter.reap().expect("it is over");
    let took = completion.completed.since(completion.issued);
    let period = POLL_PERIOD.as_nanos() as u64;
    assert!((TAKES..=TAKES + period).contains(&took), "it took {took} ns");
    let polls = device.state.polls.load(Ordering::Relaxed);
    assert!(u64::from(polls) <= TAKES / period + 3, "{polls} polls");
}

/// Hangs if background threads do not poll in periods: their plan is then the timeout scan, in an hour. Red if they
/// poll although nothing is in flight. A slow machine polls less often, never more.
#[test]
fn background_threads_poll_in_periods_while_a_request_is_in_flight_and_rest_then() {
    let device = simple();
    let q = RequestQueue::builder(device.clone()).io_timeout_ms(3_600_000).build().unwrap();
    let _background = q.start_threads(1).unwrap();
    let mut submitter = join(&q);
    for _ in 0..3 {
        submitter.submit(Bio::read(0, Buffer::zeroed(4096))).unwrap();
        assert!(submitter.wait(1, None).is_ready());
        assert!(submitter.reap().is_some_and(|completion| completion.status.is_ok()));
    }
    let before = device.state.polls.load(Ordering::Relaxed);
    thread::sleep(Duration::from_millis(60));
    let polls = device.state.polls.load(Ordering::Relaxed) - before;
    assert!(polls <= 5, "{polls} polls of a device that has nothing to do");
}
