//! Hardware queues that belong to one submitter each.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, ThreadId};

use crate::device::{read, reap};
use blkmq::driver::{Batch, Done, Driver, NextEvent, Topology, TopologyError, spec};
use blkmq::{Client, Limits, Locking, QueueError, RequestQueue, Status, Time};

/// A device whose hardware queues are owned. The device panics if a second thread calls for one queue, or one thread
/// for two.
struct Owned {
    inner: Arc<dyn Driver>,
    callers: Vec<Mutex<Option<ThreadId>>>,
    nr_issued: AtomicU64,
}

impl Owned {
    fn open(spec: &str, nr_queues: usize) -> Arc<Self> {
        let inner = spec::open(spec).expect("the spec is good");
        Arc::new(Self {
            inner,
            callers: (0..nr_queues).map(|_| Mutex::new(None)).collect(),
            nr_issued: AtomicU64::new(0),
        })
    }

    fn check(&self, hctx: u16) {
        let me = thread::current().id();
        let first = *self.callers[usize::from(hctx)].lock().expect("no call panicked").get_or_insert(me);
        assert_eq!(first, me, "hardware queue {hctx} belongs to another thread");
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned").finish_non_exhaustive()
    }
}

impl Driver for Owned {
    fn name(&self) -> &'static str {
        "owned"
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn topology(&self) -> Topology {
        self.inner.topology()
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        self.inner.set_topology(topology)
    }

    fn is_owned(&self) -> bool {
        true
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        self.check(hctx);
        let before = batch.len() as u64;
        self.inner.queue_rqs(hctx, batch, now);
        self.nr_issued.fetch_add(before - batch.len() as u64, Ordering::Relaxed);
    }

    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        self.check(hctx);
        self.inner.poll(hctx, done, now);
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        self.inner.next_event(hctx)
    }
}

const THREADS: u64 = 4;
const EACH: u64 = 3000;

/// Red if a request of an owned hardware queue is given to the device by a thread that does not own the queue, or does
/// not complete. Any thread may choose it, and half of the threads sleep while they wait. (The mutant `not-owner` of
/// the torture rig shows the same on virtual CPUs.)
#[test]
fn only_the_owner_calls_the_driver() {
    for locking in Locking::ALL {
        for scheduler in ["none", "mq-deadline"] {
            let device = Owned::open("null,irqmode=2,completion_nsec=20000,submit_queues=4,poll_queues=0", 4);
            let builder = RequestQueue::builder(device.clone()).scheduler(scheduler).locking(locking);
            let q = builder.bypass(locking == Locking::Batch).build().expect("the device is good");
            // A hardware queue whose owner has left would belong to the next thread that comes.
            let all_own = Arc::new(Barrier::new(THREADS as usize));
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let (q, all_own) = (q.clone(), Arc::clone(&all_own));
                    thread::spawn(move || submit_all(&q, &all_own, number))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("the thread came to its end"));
            assert_eq!(device.nr_issued.load(Ordering::Relaxed), THREADS * EACH, "{locking}, {scheduler}");
            assert_eq!((q.counters().completed, q.busy_tags()), (THREADS * EACH, 0), "{locking}, {scheduler}");
        }
    }
}

/// Submits and reaps, 16 operations at once. Requests do not touch each other, so none merge.
fn submit_all(q: &RequestQueue, all_own: &Barrier, number: u64) {
    let mut submitter = q.submitter(&Client::new("test")).expect("there is a hardware queue");
    all_own.wait();
    let (mut submitted, mut done) = (0, 0);
    while done < EACH {
        while submitted < EACH && submitted - done < 16 {
            submitter.submit(read((number * EACH + submitted) * 16, 1)).expect("there are slots");
            submitted += 1;
        }
        if number.is_multiple_of(2) {
            submitter.wait(1, None);
        } else {
            submitter.poll();
        }
        while let Some(completion) = submitter.reap() {
            assert_eq!(completion.status, Status::Ok);
            done += 1;
        }
    }
}

/// Red if there may be more submitters than hardware queues, or if a hardware queue is not free again when its owner
/// has left.
#[test]
fn there_are_as_many_submitters_as_hardware_queues() {
    let device = Owned::open("null,irqmode=0,submit_queues=3,poll_queues=2", 5);
    let q = RequestQueue::builder(device).build().expect("the device is good");
    let client = Client::new("test");
    let mut owners: Vec<_> = (0..2).map(|_| q.submitter(&client).expect("there is a hardware queue")).collect();
    let error = q.submitter(&client).map(drop).expect_err("of the type poll there are two");
    assert_eq!(
        error.to_string(),
        "the device's hardware queues, 2 of a type, each belong to a submitter already: open it with more of them, or as one \
         whose hardware queues are shared"
    );
    assert!(matches!(error, QueueError::NoHardwareQueue(2)));
    owners.remove(0);
    owners.push(q.submitter(&client).expect("one is free again"));
    for (at, owner) in owners.iter_mut().enumerate() {
        owner.submit(read(at as u64 * 8, 1)).expect("there are slots");
        assert_eq!(reap(owner).len(), 1);
    }
}

#[test]
fn nobody_loses_a_hardware_queue_to_a_change() {
    let device = Owned::open("null,irqmode=0,submit_queues=2,poll_queues=0", 4);
    let q = RequestQueue::builder(device).build().expect("the device is good");
    let client = Client::new("test");
    let owners: Vec<_> = (0..2).map(|_| q.submitter(&client).expect("there is a hardware queue")).collect();
    let change = |nr, read_queues| {
        let topology = Topology { default_queues: nr, read_queues, poll_queues: 0, depth: 64 };
        q.change_topology(topology).expect("the numbers make sense").wait()
    };
    for (nr, reads) in [(1, 0), (4, 1)] {
        let error = change(nr, reads).expect_err("the second submitter would have none");
        assert_eq!(
            error.to_string(),
            "submitters own hardware queues up to number 1 of each type, so there must be 2 of each"
        );
    }
    drop(owners);
    change(1, 0).expect("no submitter owns one");
    drop(q.submitter(&client).expect("there is one"));
    change(4, 0).expect("there may be more");
}

#[test]
fn nobody_else_polls_for_an_owner() {
    let device = Owned::open("null,irqmode=0,submit_queues=2,poll_queues=0", 2);
    let q = RequestQueue::builder(device).build().expect("the device is good");
    let error = q.start_threads(1).map(drop).expect_err("they would poll");
    assert!(error.to_string().starts_with("no background threads: "), "{error}");
    drop(q.start_threads(0).expect("none is asked for"));
}
