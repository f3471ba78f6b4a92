//! A scheduler of the application's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::common::ways::whole;
use crate::device::{Recorder, join, read, reap, write};
use blkmq::{QueueError, RequestQueue};
use blkmq_sched::{
    Admission, DispatchContext, Info, InsertAt, Merge, MergeLevel, Op, Outstanding, RqId, Scheduler, Time,
};

/// A scheduler that chooses the latest request first, as no scheduler of blkmq does, and counts how often it is asked
/// to merge. The third field, unless it is 0, bounds requests other than reads, and the test changes it. The test does
/// not compile if a scheduler must implement more than its name, its room, and what waits.
#[derive(Debug, Default)]
struct LatestFirst(Vec<RqId>, Arc<AtomicUsize>, Arc<AtomicU32>);

impl Scheduler for LatestFirst {
    fn name(&self) -> &'static str {
        "latest-first"
    }

    fn reserve(&mut self, capacity: usize) {
        self.0.reserve(capacity.saturating_sub(self.0.len()));
    }

    fn merge(&mut self, _info: &Info) -> Option<Merge> {
        self.1.fetch_add(1, Ordering::Relaxed);
        None
    }

    fn insert(&mut self, rq: RqId, _info: &Info, _at: InsertAt, _now: Time) {
        self.0.push(rq);
    }

    fn dispatch(&mut self, _context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn limit_depth(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        let depth = self.2.load(Ordering::Relaxed);
        Admission::fitting(depth == 0 || newcomer.op.is_read() || outstanding.is_below(depth))
    }
}

fn device() -> Arc<Recorder> {
    Recorder::of_depth(64)
}

/// Submits some reads in rising order while nothing goes to the device. Returns their sectors in the order in which the
/// device then gets them.
fn order(q: &RequestQueue, device: &Recorder) -> Vec<u64> {
    let mut submitter = join(q);
    let quiesce = q.quiesce();
    for sector in [0, 100, 200, 300] {
        submitter.submit(read(sector, 8)).expect("there is room for four requests");
    }
    submitter.flush_plug();
    drop(quiesce);
    reap(&mut submitter);
    let sectors = device.take_seen().iter().map(|seen| seen.sector).collect();
    device.finish_all(blkmq::Status::Ok);
    assert_eq!(reap(&mut submitter).len(), 4);
    sectors
}

#[test]
fn a_queue_changes_to_a_scheduler_of_ones_own_and_back() {
    let device = device();
    let q = RequestQueue::builder(device.clone()).scheduler("mq-deadline").build().unwrap();
    assert_eq!(order(&q, &device), [0, 100, 200, 300]);
    q.change_scheduler(Box::<LatestFirst>::default()).unwrap().wait().unwrap();
    assert_eq!(q.scheduler(), "latest-first");
    assert_eq!(order(&q, &device), [300, 200, 100, 0]);
    q.change_scheduler("mq-deadline").unwrap().wait().unwrap();
    assert_eq!(order(&q, &device), [0, 100, 200, 300]);
}

#[test]
fn a_scheduler_in_which_something_waits_is_refused() {
    let info =
        Info { nr_sectors: 8, nr_segments: 1, op: Op::Read, sync: true, merge: MergeLevel::Full, ..Info::default() };
    let used = || {
        let mut scheduler = Box::<LatestFirst>::default();
        scheduler.insert(RqId(1), &info, InsertAt::Sorted, Time(0));
        scheduler
    };
    let text = "a queue takes a scheduler in which nothing waits, not 'latest-first' with 1 requests";
    let expected = QueueError::SchedulerInUse { name: "latest-first", waiting: 1 };
    assert_eq!(expected.to_string(), text);
    assert_eq!(RequestQueue::builder(device()).scheduler(used()).build().unwrap_err(), expected);
    let q = RequestQueue::builder(device()).scheduler("none").build().unwrap();
    assert_eq!(q.change_scheduler(used()).unwrap_err(), expected);
    assert_eq!(q.scheduler(), "none");
}

/// Red if each poll tries the requests that found no room: with many futures on one submitter the cost would grow with
/// the square of their number.
#[test]
fn what_found_no_room_is_tried_again_when_there_may_be_some() {
    for way in whole() {
        let device = device();
        let tries = Arc::new(AtomicUsize::new(0));
        let scheduler = Box::new(LatestFirst(Vec::new(), tries.clone(), Arc::default()));
        let q = way.builder(device.clone()).scheduler(scheduler).nr_requests(128).build().unwrap();
        let mut submitter = join(&q);
        let tried = || tries.swap(0, Ordering::Relaxed);
        // 64 go to the device, and the scheduler takes 64.
        for sector in 0..200 {
            submitter.submit(read(sector * 100, 8)).unwrap();
        }
        // One poll tries the thread's share of what was staged.
        (0..4).for_each(|_| _ = submitter.poll());
        assert_eq!(device.nr_held(), 64, "{way}");
        assert!(tried() >= 128, "{way}");
        (0..10).for_each(|_| _ = submitter.poll());
        assert_eq!(tried(), 0, "{way}: there is no more room than before");
        // Room for one request.
        device.finish_oldest(blkmq::Status::Ok);
        submitter.poll();
        assert!(tried() > 0 && submitter.reap().is_some(), "{way}");
        assert_eq!(device.nr_held(), 64, "{way}");
        device.drain(&mut [&mut submitter]);
    }
}

/// Red if the result of trying one plug counts for the next plug.
#[test]
fn a_new_plug_is_tried_whatever_was_found_of_the_last_one() {
    for way in whole() {
        let device = device();
        let depth = Arc::new(AtomicU32::new(1));
        let scheduler = Box::new(LatestFirst(Vec::new(), Arc::default(), depth.clone()));
        let q = way.builder(device.clone()).scheduler(scheduler).build().unwrap();
        let mut submitter = join(&q);
        let mut go = |bio| {
            submitter.submit(bio).unwrap();
            submitter.poll();
            device.nr_held()
        };
        assert_eq!(go(write(0, 8)), 1, "{way}");
        assert_eq!(go(write(100, 8)), 1, "{way}");
        depth.store(3, Ordering::Relaxed);
        assert_eq!(go(read(200, 8)), 3, "{way}");
        assert_eq!(go(write(300, 8)), 4, "{way}");
        (0..4).for_each(|_| device.finish_oldest(blkmq::Status::Ok));
        assert_eq!(reap(&mut submitter).len(), 4, "{way}");
    }
}
