//! Which threads a thread wakes while it gives requests to the driver, and when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use crate::device::front::Front;
use crate::device::{Drive, Recorder, join, reap, write};
use blkmq::{Client, Notify, RequestQueue, Status, Time};

struct Busy {
    until: Time,
    gives_back: bool,
    asked: AtomicU64,
}

/// A driver that refuses everything, or gives it back, until a time. From then on it finishes what it gets.
fn busy(until: Time, gives_back: bool) -> Arc<Front<Busy>> {
    Arc::new(Front {
        queue_rqs: |Front { state, .. }, _, batch, now| {
            if now < state.until {
                state.asked.fetch_add(1, Ordering::Relaxed);
            }
            while let Some(rq) = batch.next_request() {
                match (now < state.until, state.gives_back) {
                    (false, _) => batch.finish(rq, Status::Ok),
                    (true, false) => batch.refuse(rq),
                    (true, true) => batch.requeue(rq),
                }
            }
        },
        ..Front::new(Recorder::of_depth(64), Busy { until, gives_back, asked: AtomicU64::new(0) })
    })
}

/// Red if a refusal wakes threads that already wait for the same device: they would ask at once and wake each other,
/// thousands of times. Each thread asks the device every 3 ms, and on a slow machine less often.
#[test]
fn threads_that_wait_for_a_busy_device_do_not_keep_each_other_awake() {
    for (gives_back, scheduler) in [(false, "none"), (false, "mq-deadline"), (true, "none"), (true, "mq-deadline")] {
        let device = busy(Time(150_000_000), gives_back);
        let q = RequestQueue::builder(device.clone()).scheduler(scheduler).build().unwrap();
        thread::scope(|scope| {
            for number in 0..4 {
                let mut submitter = join(&q);
                scope.spawn(move || {
                    submitter.submit(write(number * 100, 1)).unwrap();
                    submitter.finish();
                });
            }
        });
        let asked = device.state.asked.load(Ordering::Relaxed);
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
    let driver = Recorder::of_depth(64);
    let q = RequestQueue::builder(driver.clone()).scheduler("mq-deadline").build().unwrap();
    let client = Client::new("test");
    let mut asleep = q.submitter(&client).unwrap();
    let mut third = q.submitter(&client).unwrap();
    let mut issuer = q.submitter(&client).unwrap();
    // A quiescence leaves the request in the scheduler, for another thread to issue.
    let quiesce = q.quiesce();
    asleep.submit_now(write(0, 1));
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
        third.submit_now(write(100, 1));
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
