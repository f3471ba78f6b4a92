//! Which threads a thread wakes while it gives requests to the driver, and when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use blkmq::driver::{Batch, Driver, NextEvent, Topology, spec};
use blkmq::{Client, Limits, Notify, RequestQueue, Status, Time};

use crate::device::{ONE_QUEUE, Recorder, reap, write};

fn limits() -> Limits {
    spec::open("null,size=64M").expect("the spec is good").limits()
}

/// A driver that refuses everything, or gives it back, until a time. From then on it finishes what it gets.
#[derive(Debug)]
struct Busy {
    until: Time,
    gives_back: bool,
    asked: AtomicU64,
}

impl Driver for Busy {
    fn name(&self) -> &'static str {
        "busy"
    }
    fn limits(&self) -> Limits {
        limits()
    }
    fn topology(&self) -> Topology {
        ONE_QUEUE
    }
    fn next_event(&self, _: u16) -> NextEvent {
        NextEvent::Never
    }
    fn queue_rqs(&self, _: u16, batch: &mut Batch<'_>, now: Time) {
        if now < self.until {
            self.asked.fetch_add(1, Ordering::Relaxed);
        }
        while let Some(rq) = batch.next_request() {
            match (now < self.until, self.gives_back) {
                (false, _) => batch.finish(rq, Status::Ok),
                (true, false) => batch.refuse(rq),
                (true, true) => batch.requeue(rq),
            }
        }
    }
}

/// Red if a refusal wakes threads that already wait for the same device: they would ask at once and wake each other,
/// thousands of times. Each thread asks the device every 3 ms, and on a slow machine less often.
#[test]
fn threads_that_wait_for_a_busy_device_do_not_keep_each_other_awake() {
    for (gives_back, scheduler) in [(false, "none"), (false, "mq-deadline"), (true, "none"), (true, "mq-deadline")] {
        let device = Arc::new(Busy { until: Time(150_000_000), gives_back, asked: AtomicU64::new(0) });
        let q = RequestQueue::builder(device.clone()).scheduler(scheduler).build().unwrap();
        thread::scope(|scope| {
            for number in 0..4 {
                let mut submitter = q.submitter(&Client::new("test")).unwrap();
                scope.spawn(move || {
                    submitter.submit(write(number * 100, 1)).unwrap();
                    while submitter.nr_outstanding() > 0 {
                        submitter.wait(1, None);
                        while submitter.reap().is_some() {}
                    }
                });
            }
        });
        let asked = device.asked.load(Ordering::Relaxed);
        assert!(asked <= 500, "{scheduler}, gives back {gives_back}: it was asked {asked} times in 150 ms");
    }
}

/// Makes a third thread issue while it is notified. The third thread gets through only if the notifying thread has let
/// go of the issue list.
struct Issues {
    ask: Mutex<mpsc::Sender<()>>,
    answer: Mutex<mpsc::Receiver<usize>>,
    was_free: AtomicBool,
    /// There is a third thread to ask. Before that, the submitter is told of what it may have missed.
    is_there: AtomicBool,
}

impl Notify for Issues {
    fn notify(&self) {
        if !self.is_there.load(Ordering::Relaxed) {
            return;
        }
        // Only once: the third thread answers one question.
        if self.ask.lock().expect("nobody panicked").send(()).is_ok()
            && let Ok(nr_held) = self.answer.lock().expect("nobody panicked").recv()
        {
            self.was_free.store(nr_held == 2, Ordering::Relaxed);
        }
    }
}

#[test]
fn nobody_is_notified_under_the_issue_lock() {
    let driver = Recorder::new(limits(), ONE_QUEUE);
    let q = RequestQueue::builder(driver.clone()).scheduler("mq-deadline").build().unwrap();
    let client = Client::new("test");
    let mut asleep = q.submitter(&client).unwrap();
    let mut third = q.submitter(&client).unwrap();
    let mut issuer = q.submitter(&client).unwrap();
    // A quiescence leaves the request in the scheduler, for another thread to issue.
    let quiesce = q.quiesce();
    asleep.submit(write(0, 1)).unwrap();
    asleep.flush_plug();
    drop(quiesce);
    let (ask, asked) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    let notify = Arc::new(Issues {
        ask: Mutex::new(ask),
        answer: Mutex::new(answered),
        was_free: AtomicBool::new(false),
        is_there: AtomicBool::new(false),
    });
    asleep.set_notify(Some(notify.clone()));
    let seen = driver.clone();
    let third = thread::spawn(move || {
        asked.recv().unwrap();
        third.submit(write(100, 1)).unwrap();
        third.flush_plug();
        answer.send(seen.nr_held()).unwrap();
        third
    });
    notify.is_there.store(true, Ordering::Relaxed);
    issuer.poll();
    let mut third = third.join().unwrap();
    asleep.set_notify(None);
    assert!(notify.was_free.load(Ordering::Relaxed), "the third thread could not issue");
    driver.finish_oldest(Status::Ok);
    driver.finish_oldest(Status::Ok);
    assert_eq!(reap(&mut asleep).len() + reap(&mut third).len(), 2);
}
