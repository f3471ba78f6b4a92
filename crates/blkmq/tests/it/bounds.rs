//! How much a thread does for other threads before it goes back to its own work, and which thread does the rest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{assert_balanced, queue};
use crate::device::front::Front;
use crate::device::{Drive, Notified, Recorder, join, read, reap, write};
use blkmq::driver::NextEvent;
use blkmq::{Client, Flags, Locking, RequestQueue, RqId, Status, Submitter};

/// The product's bound: how many requests a thread does for other threads in one go, and how often it looks for more to
/// issue.
const SHARE: u16 = 64;

type Meanwhile = Box<dyn FnMut() + Send>;

struct Quick {
    /// How many more requests are finished only when the device is polled.
    slow: AtomicU64,
    held: Mutex<Vec<RqId>>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

/// A device that finishes requests at once, except the first ones. While the device gets requests, it calls a function
/// of the test.
fn quick(nr_tags: u16, slow: u16) -> Arc<Front<Quick>> {
    let state = Quick { slow: AtomicU64::new(slow.into()), held: Mutex::default(), meanwhile: Mutex::default() };
    Arc::new(Front {
        queue_rqs: |front, _, batch, _| {
            let Quick { slow, held, meanwhile } = &front.state;
            while let Some(rq) = batch.next_request() {
                if slow.try_update(Ordering::Relaxed, Ordering::Relaxed, |slow| slow.checked_sub(1)).is_ok() {
                    held.lock().expect("nobody panicked").push(batch.start(rq));
                } else {
                    batch.finish(rq, Status::Ok);
                }
            }
            // The function may submit, which may come back here.
            if let Ok(mut meanwhile) = meanwhile.try_lock()
                && let Some(meanwhile) = &mut *meanwhile
            {
                meanwhile();
            }
        },
        poll: |front, _, done, _| {
            for id in front.state.held.lock().expect("nobody panicked").drain(..) {
                done.complete(id, Status::Ok).expect("each request finishes once");
            }
        },
        next_event: |_, _| NextEvent::Unknown,
        ..Front::new(Recorder::of_depth(nr_tags), state)
    })
}

/// Submits a read that touches no other read of the same `place`, and passes it on.
fn pass_on(submitter: &mut Submitter, place: u64) {
    submitter.submit_now(read(place * 16, 1));
}

/// Red if a drainer that leaves the rest of an issue list does not say so: the last request of the other submitter then
/// never starts. That submitter appends each time that the device gets something, so the drainer would never come to an
/// end.
#[test]
fn what_a_drainer_leaves_is_issued_by_who_polls() {
    for locking in Locking::ALL {
        // More tags than requests that the drainer issues before it leaves.
        let device = quick(2 * SHARE, 0);
        let builder = RequestQueue::builder(device.clone()).scheduler("mq-deadline").locking(locking);
        let q = builder.bypass(false).build().expect("the device is good");
        let mut drainer = q.submitter(&Client::new("drainer")).expect("there is a place");
        let other = Arc::new(Mutex::new(q.submitter(&Client::new("other")).expect("there is a place")));
        let nr_submitted = Arc::new(AtomicU64::new(0));
        *device.state.meanwhile.lock().unwrap() = Some({
            let (other, nr_submitted) = (Arc::clone(&other), Arc::clone(&nr_submitted));
            Box::new(move || {
                let place = nr_submitted.fetch_add(1, Ordering::Relaxed) + 1;
                pass_on(&mut other.lock().unwrap(), place);
            })
        });
        pass_on(&mut drainer, 0);
        *device.state.meanwhile.lock().unwrap() = None;
        let nr_submitted = nr_submitted.load(Ordering::Relaxed);
        assert!(nr_submitted >= SHARE.into(), "{locking}: it leaves too early, after {nr_submitted}");
        let mut other = other.lock().unwrap();
        let done: usize = (0..3).map(|_| reap(&mut other).len()).sum();
        // A thread that appends also drains what was left, so that the test ends.
        pass_on(&mut drainer, nr_submitted + 1);
        assert_eq!(done as u64, nr_submitted, "{locking}");
        assert_eq!(reap(&mut drainer).len(), 2);
    }
}

/// Red if a thread that has done its share leaves the rest without waking the sleeper. The first thread polls, gets
/// tags back, and takes many requests of the second submitter to the device, but not the request of the third behind
/// them. The second submitter has nothing to wait for any more, and the third sleeps.
#[test]
fn who_has_done_its_share_wakes_who_sleeps() {
    for locking in Locking::ALL {
        let builder = RequestQueue::builder(quick(SHARE, SHARE)).scheduler("mq-deadline").locking(locking);
        let q = builder.bypass(false).build().expect("the device is good");
        q.change_knob("nr_requests", "256").expect("it is a good number").wait().expect("it is");
        let join = || join(&q);
        let (mut first, mut second, mut third) = (join(), join(), join());
        let (share, all) = (u64::from(SHARE), 2 * u64::from(SHARE));
        for place in 0..all {
            second.submit(read(place * 16, 1)).expect("there are slots");
        }
        second.flush_plug();
        pass_on(&mut third, all);
        let bell = Notified::set(&mut third);
        assert_eq!(bell.since_last(), 0);
        first.poll();
        let done = std::iter::from_fn(|| second.reap()).count() as u64;
        assert!(done >= share, "{locking}: {done}");
        assert!(bell.since_last() > 0, "{locking}: the third sleeps forever");
        assert_eq!(reap(&mut third).len(), 1, "{locking}");
        assert_eq!(reap(&mut second).len() as u64, all - done);
    }
}

/// Red if a thread that stops after its share does not say that it left a flush step, which became ready by what it
/// completed. That thread has nothing outstanding, so it need not come again, and the thread that waits for the step
/// finds nothing to do.
#[test]
fn a_flush_step_goes_on_although_the_thread_that_made_it_ready_has_done_its_share() {
    // The driver refuses the flush at first. So the other thread issues the flush together with as many requests as its
    // share.
    let q = queue("null,irqmode=0,memory_backed=1,cache_size=1,fua=0,hw_queue_depth=128,requeue=1,100,0,1", "none");
    let (mut waiting, mut busy) = (join(&q), join(&q));
    waiting.submit_now(write(0, 1).with_flags(Flags { preflush: true, ..Flags::default() }));
    let quiesce = q.quiesce();
    for number in 0..SHARE.into() {
        busy.submit(read(8000 + number * 80, 1)).expect("there are slots");
    }
    busy.flush_plug();
    drop(quiesce);
    busy.poll();
    assert_eq!(std::iter::from_fn(|| busy.reap()).count(), SHARE.into());
    // Polls more often than necessary.
    let nr_over: usize = (0..100).map(|_| reap(&mut waiting).len()).sum();
    if nr_over == 0 {
        // The submitter would wait forever when it is dropped.
        std::mem::forget(waiting);
        panic!("the write waits: {}", q.dump());
    }
    assert_balanced(&q);
}
