//! What is notified: when, under which locks, and what becomes of a panic there.

use std::sync::{Arc, Mutex};

use crate::device::{Notified, Recorder, read, reap};
use blkmq::{Client, Freeze, Notify, Quiesce, RequestQueue, Status, Submitter};

fn queue() -> (Arc<Recorder>, RequestQueue) {
    let device = Recorder::of_depth(64);
    let q = RequestQueue::builder(device.clone()).scheduler("mq-deadline").build().expect("the queue is good");
    (device, q)
}

fn submitters(q: &RequestQueue) -> [Submitter; 2] {
    ["first", "second"].map(|name| q.submitter(&Client::new(name)).expect("there is room for two threads"))
}

/// Panics whenever it is told.
#[derive(Debug)]
struct Panics;

impl Notify for Panics {
    fn notify(&self) {
        panic!("this panic is the test's own");
    }
}

/// Red if a panic of what is notified passes through the thread that completes: it has the other submitter's request,
/// and the tags of both, in its hands.
#[test]
fn a_notification_that_panics_loses_nothing() {
    let (device, q) = queue();
    let [mut panics, mut other] = submitters(&q);
    let mut completer = q.submitter(&Client::new("completer")).expect("there is room for three threads");
    panics.set_notify(Some(Arc::new(Panics)));
    for (number, submitter) in [&mut panics, &mut other].into_iter().enumerate() {
        submitter.submit(read(number as u64 * 100, 8)).expect("there are slots");
        submitter.poll();
    }
    device.finish_oldest(Status::Ok);
    device.finish_oldest(Status::Ok);
    completer.poll();
    for submitter in [&mut panics, &mut other] {
        assert!(submitter.reap().is_some_and(|completion| completion.status == Status::Ok), "{}", q.dump());
    }
    assert_eq!(q.busy_tags(), 0, "every tag is back: {}", q.dump());
}

/// Red if an operation that completed before the notification was set is not told: the thread would wait elsewhere for
/// news that has come. Red too if a thread without news is told.
#[test]
fn what_completed_before_the_notification_was_set_is_told() {
    let (device, q) = queue();
    let [mut early, mut completer] = submitters(&q);
    early.submit(read(0, 8)).expect("there are slots");
    early.poll();
    device.finish_oldest(Status::Ok);
    completer.poll();
    for (submitter, times) in [(&mut early, 1), (&mut completer, 0)] {
        let told = Notified::set(submitter);
        assert_eq!(told.since_last(), times);
    }
    // One that takes the place of another is told too, also of what a poll has brought and no reap has taken.
    early.poll();
    let told = Notified::set(&mut early);
    assert_eq!(told.since_last(), 1);
    assert_eq!(reap(&mut early).len(), 1);
}

/// Drops a submitter when it is told, as a task does that ends when it is woken.
#[derive(Default)]
struct Ends(Mutex<Option<Submitter>>);

impl Notify for Ends {
    fn notify(&self) {
        let ended = self.0.lock().expect("nothing panics under this lock").take();
        drop(ended);
    }
}

/// Red (the test does not end) if a freeze or a quiescence that ends notifies under the control lock, which a submitter
/// takes when it leaves.
#[test]
fn a_freeze_and_a_quiescence_end_before_they_notify() {
    let ways: [fn(&RequestQueue); 2] = [|q| drop(q.freeze()), |q| drop(q.quiesce())];
    for end in ways {
        let (_device, q) = queue();
        let [mut told, leaves] = submitters(&q);
        let ends = Arc::new(Ends(Mutex::new(Some(leaves))));
        told.set_notify(Some(ends.clone()));
        end(&q);
        assert!(ends.0.lock().unwrap().is_none(), "it was told, and the other submitter has left");
    }
}

/// Keeps a freeze or a quiescence until it is dropped.
struct Keeps {
    _freeze: Option<Freeze>,
    _quiesce: Option<Quiesce>,
}

impl Notify for Keeps {
    fn notify(&self) {}
}

/// Red (the test does not end) if what was notified before is dropped under the lock that telling takes.
#[test]
fn what_was_notified_before_may_wake_threads_when_it_is_dropped() {
    for is_freeze in [true, false] {
        let (_device, q) = queue();
        let [mut changes, _other] = submitters(&q);
        let (freeze, quiesce) = (is_freeze.then(|| q.freeze()), (!is_freeze).then(|| q.quiesce()));
        changes.set_notify(Some(Arc::new(Keeps { _freeze: freeze, _quiesce: quiesce })));
        let told = Notified::set(&mut changes);
        assert!(told.since_last() > 0, "the queue goes on, and this thread is told");
    }
}
