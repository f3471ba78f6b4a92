//! Tasks that end while they are woken.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use crate::device::front::Front;
use crate::device::{Recorder, join, read};
use blkmq::driver::NextEvent;
use blkmq::future::{AsyncSubmitter, Operation};
use blkmq::{RequestQueue, Status};

/// A device that refuses what it is offered while it is told to.
fn refusing(inner: &Arc<Recorder>) -> Arc<Front<AtomicBool>> {
    Arc::new(Front {
        queue_rqs: |front, hctx, batch, now| {
            if !front.state.load(Ordering::Relaxed) {
                front.inner.queue_rqs(hctx, batch, now);
            } else if let Some(rq) = batch.next_request() {
                batch.refuse(rq);
            }
        },
        next_event: |_, _| NextEvent::Unknown,
        ..Front::new(inner.clone(), AtomicBool::new(false))
    })
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
        let inner = Recorder::of_depth(64);
        let device = refusing(&inner);
        let q = RequestQueue::builder(device.clone()).scheduler("none").build().expect("the queue is good");
        let join = || AsyncSubmitter::new(join(&q));
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
        device.state.store(true, Ordering::Relaxed);
        let mut operation = polled.submit(read(100, 8)).expect("there are slots");
        assert!(Pin::new(&mut operation).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(has_ended.load(Ordering::Relaxed), "nothing keeps it when it has been woken");

        device.state.store(false, Ordering::Relaxed);
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
    let inner = Recorder::of_depth(64);
    let device = refusing(&inner);
    let q = RequestQueue::builder(device.clone()).scheduler("none").build().expect("the queue is good");
    let join = || AsyncSubmitter::new(join(&q));
    let (polled, theirs) = (join(), join());
    let task = Arc::new(Forlorn::default());
    let wakers = [Waker::from(Arc::new(Panics)), Waker::from(task.clone())];
    let mut waiting: Vec<Operation> = Vec::new();
    for (number, waker) in wakers.iter().enumerate() {
        let mut operation = theirs.submit(read(number as u64 * 100, 8)).expect("there are slots");
        assert!(Pin::new(&mut operation).poll(&mut Context::from_waker(waker)).is_pending());
        waiting.push(operation);
    }
    device.state.store(true, Ordering::Relaxed);
    let mut operation = polled.submit(read(1000, 8)).expect("there are slots");
    let mut poll = || Pin::new(&mut operation).poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll().is_pending(), "the refusal is news for both tasks, and one of them panics");
    drop(wakers);
    assert_eq!(Arc::strong_count(&task), 1, "the other one was woken too, so nothing keeps its waker");
    device.state.store(false, Ordering::Relaxed);
    let mut polls = 0;
    while poll().is_pending() {
        assert!(polls < 100, "the device has {} requests: {}", inner.nr_held(), q.dump());
        polls += 1;
        inner.finish_all(Status::Ok);
    }
}
