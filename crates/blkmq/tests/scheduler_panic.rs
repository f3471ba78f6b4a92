//! A scheduler that panics ends the thread that called it, and nothing else.

mod device;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use blkmq::{Client, Limits, Locking, Measures, RequestQueue, Status, Submitter};
use blkmq_sched::{Info, InsertAt, RqId, Scheduler, Time};
use device::{ONE_QUEUE, Recorder, read, reap};

/// First come, first served. Panics at the insertion and at the choice whose number the test has set.
#[derive(Debug)]
struct Stumbles {
    waiting: Vec<RqId>,
    /// How many insertions and choices there are before the one that panics.
    left: Arc<[AtomicU32; 2]>,
}

impl Stumbles {
    fn step(&self, kind: usize) {
        assert_ne!(self.left[kind].fetch_sub(1, Ordering::Relaxed), 0, "this panic is the test's own");
    }
}

impl Scheduler for Stumbles {
    fn name(&self) -> &'static str {
        "stumbles"
    }

    fn reserve(&mut self, capacity: usize) {
        self.waiting.reserve(capacity.saturating_sub(self.waiting.len()));
    }

    fn insert(&mut self, rq: RqId, _info: &Info, _at: InsertAt, _now: Time) {
        self.step(0);
        self.waiting.push(rq);
    }

    fn dispatch(&mut self, _now: Time) -> Option<RqId> {
        if self.waiting.is_empty() {
            return None;
        }
        self.step(1);
        Some(self.waiting.remove(0))
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// No step of this kind panics for a long time.
const NEVER: u32 = 1 << 30;

/// Polls until the submitter has got one completion. Fails if that takes more polls than it can.
fn expect_one(submitter: &mut Submitter, device: &Recorder, what: &str) {
    let mut reaped = Vec::new();
    for _ in 0..20 {
        while device.nr_held() > 0 {
            device.finish_oldest(Status::Ok);
        }
        reaped.extend(reap(submitter));
    }
    assert_eq!(reaped.len(), 1, "{what}: the other submitter's request is over: {}", submitter.queue().dump());
    assert_eq!(reaped[0].status, Status::Ok);
}

/// Red (the last lines fail) if the thread whose scheduler panicked stays the holder: other threads leave their
/// requests with it for ever.
#[test]
fn other_submitters_go_on_when_a_scheduler_has_panicked() {
    let measures = Measures { dispatch: true, buckets: false, merges: false };
    for locking in Locking::ALL.into_iter().chain([Locking::Staged(measures)]) {
        for (kind, what) in ["insertion", "choice"].into_iter().enumerate() {
            let device = Recorder::new(Limits { capacity_sectors: 1 << 20, ..Limits::default() }, ONE_QUEUE);
            let left = Arc::new([AtomicU32::new(NEVER), AtomicU32::new(NEVER)]);
            let scheduler = Box::new(Stumbles { waiting: Vec::new(), left: left.clone() });
            let builder = RequestQueue::builder(device.clone()).scheduler(scheduler).locking(locking).bypass(false);
            let q = builder.build().expect("the queue is good");
            let [mut stumbling, mut other] =
                ["stumbling", "other"].map(|name| q.submitter(&Client::new(name)).unwrap());
            left[kind].store(0, Ordering::Relaxed);
            let panics = thread::spawn(move || {
                stumbling.submit(read(0, 8)).expect("there are slots");
                stumbling.poll();
            });
            panics.join().expect_err("the scheduler panics");
            left[kind].store(NEVER, Ordering::Relaxed);
            other.submit(read(100, 8)).expect("there are slots");
            expect_one(&mut other, &device, &format!("{locking}, {what}"));
        }
    }
}

/// Red if a scheduler that panics while requests are tried again that found no room takes all of them with it, or if
/// the count of those that wait is wrong afterwards (an assertion fails).
#[test]
fn what_waits_for_room_stays_when_a_scheduler_panics() {
    let device = Recorder::new(Limits { capacity_sectors: 1 << 20, ..Limits::default() }, ONE_QUEUE);
    let left = Arc::new([AtomicU32::new(NEVER), AtomicU32::new(NEVER)]);
    let scheduler = Box::new(Stumbles { waiting: Vec::new(), left: left.clone() });
    let builder = RequestQueue::builder(device.clone()).scheduler(scheduler).bypass(false).nr_requests(4);
    let q = builder.build().expect("the queue is good");
    q.stage_all();
    let [mut stumbling, mut other] = ["stumbling", "other"].map(|name| q.submitter(&Client::new(name)).unwrap());
    for number in 0..10 {
        other.submit(read(number * 100, 8)).expect("there are slots");
    }
    other.poll();
    assert_eq!(device.nr_held(), 4, "six wait for room: {}", q.dump());
    left[0].store(0, Ordering::Relaxed);
    device.finish_oldest(Status::Ok);
    thread::spawn(move || stumbling.poll()).join().expect_err("the scheduler panics: there is room for one");
    left[0].store(NEVER, Ordering::Relaxed);
    let mut reaped = Vec::new();
    for _ in 0..20 {
        while device.nr_held() > 0 {
            device.finish_oldest(Status::Ok);
        }
        reaped.extend(reap(&mut other));
    }
    // The request that was being inserted is lost, and its submitter would wait for it.
    std::mem::forget(other);
    assert_eq!(reaped.len(), 9, "{}", q.dump());
}
