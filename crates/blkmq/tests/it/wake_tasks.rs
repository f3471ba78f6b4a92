//! Tasks that end while they are woken.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use crate::device::{ONE_QUEUE, Recorder, read};
use blkmq::driver::{Batch, Done, Driver, Topology};
use blkmq::future::{AsyncSubmitter, Operation};
use blkmq::{Client, Limits, RequestQueue, Status, Time};

/// Refuses what it is offered while it is told to.
#[derive(Debug)]
struct Refuses {
    inner: Arc<Recorder>,
    refuses: AtomicBool,
}

impl Driver for Refuses {
    fn name(&self) -> &'static str {
        "refuses"
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn topology(&self) -> Topology {
        self.inner.topology()
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        if !self.refuses.load(Ordering::Relaxed) {
            self.inner.queue_rqs(hctx, batch, now);
        } else if let Some(rq) = batch.next_request() {
            batch.refuse(rq);
        }
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        self.inner.poll(hctx, done, now);
    }
}

/// A task that nothing keeps but its waker.
#[derive(Debug, Default)]
struct Forlorn {
    operation: Mutex<Option<Operation>>,
    has_ended: Arc<AtomicBool>,
}

impl Wake for Forlorn {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Forlorn {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// Red (the test does not end) if a future that is polled wakes other tasks while it holds a submitter: the waker is
/// the last thing that keeps the other task, and dropping that task's operation takes its submitter. The operation is
/// one of the same submitter, and one of another submitter of the queue.
#[test]
fn a_task_that_ends_as_it_is_woken_may_drop_its_operation() {
    for is_same in [true, false] {
        let inner = Recorder::new(Limits { capacity_sectors: 1 << 20, ..Limits::default() }, ONE_QUEUE);
        let device = Arc::new(Refuses { inner: inner.clone(), refuses: AtomicBool::new(false) });
        let q = RequestQueue::builder(device.clone()).scheduler("none").build().expect("the queue is good");
        let join = || AsyncSubmitter::new(q.submitter(&Client::new("test")).expect("there is room for two threads"));
        let polled = join();
        let theirs = if is_same { polled.clone() } else { join() };
        let task = Arc::new(Forlorn::default());
        let has_ended = task.has_ended.clone();
        let mut operation = theirs.submit(read(0, 8)).expect("there are slots");
        let waker = Waker::from(task.clone());
        assert!(Pin::new(&mut operation).poll(&mut Context::from_waker(&waker)).is_pending());
        *task.operation.lock().unwrap() = Some(operation);
        drop((task, waker));
        assert!(!has_ended.load(Ordering::Relaxed), "its waker keeps it");

        // The refusal is news for every task of the queue.
        device.refuses.store(true, Ordering::Relaxed);
        let mut operation = polled.submit(read(100, 8)).expect("there are slots");
        assert!(Pin::new(&mut operation).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(has_ended.load(Ordering::Relaxed), "nothing keeps it when it has been woken");

        device.refuses.store(false, Ordering::Relaxed);
        inner.finish_oldest(Status::Ok);
        while Pin::new(&mut operation).poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            if inner.nr_held() > 0 {
                inner.finish_oldest(Status::Ok);
            }
        }
    }
}

/// Panics when it is woken.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("this panic is the test's own");
    }
}

/// Red if the panic of another task's waker passes through a future that is polled: what this future has resolved to
/// would be lost, and the wakers behind the one that panics.
#[test]
fn a_waker_that_panics_ends_no_other_task() {
    let inner = Recorder::new(Limits { capacity_sectors: 1 << 20, ..Limits::default() }, ONE_QUEUE);
    let device = Arc::new(Refuses { inner: inner.clone(), refuses: AtomicBool::new(false) });
    let q = RequestQueue::builder(device.clone()).scheduler("none").build().expect("the queue is good");
    let join = || AsyncSubmitter::new(q.submitter(&Client::new("test")).expect("there is room for two threads"));
    let (polled, theirs) = (join(), join());
    let task = Arc::new(Forlorn::default());
    let wakers = [Waker::from(Arc::new(Panics)), Waker::from(task.clone())];
    let mut waiting: Vec<Operation> = Vec::new();
    for (number, waker) in wakers.iter().enumerate() {
        let mut operation = theirs.submit(read(number as u64 * 100, 8)).expect("there are slots");
        assert!(Pin::new(&mut operation).poll(&mut Context::from_waker(waker)).is_pending());
        waiting.push(operation);
    }
    device.refuses.store(true, Ordering::Relaxed);
    let mut operation = polled.submit(read(1000, 8)).expect("there are slots");
    let mut poll = || Pin::new(&mut operation).poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending(), "the refusal is news for both tasks, and one of them panics");
    drop(wakers);
    assert_eq!(Arc::strong_count(&task), 1, "the other one was woken too, so nothing keeps its waker");
    device.refuses.store(false, Ordering::Relaxed);
    let mut polls = 0;
    while poll().is_pending() {
        assert!(polls < 100, "the device has {} requests: {}", inner.nr_held(), q.dump());
        polls += 1;
        while inner.nr_held() > 0 {
            inner.finish_oldest(Status::Ok);
        }
    }
}
