use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blkmq_sched::{DispatchContext, FastRequest, Info, InsertAt, RqId, Scheduler, Time};

use crate::RequestQueue;
use crate::driver::{Batch, Driver, Topology};
use crate::{Bio, Buffer, Client, Limits, Locking, Status, Submitter};

/// What happened to requests, by the places that they read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Through(Vec<u64>),
    /// So many were declined together.
    Declined(usize),
    Inserted(u64),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sectors between two places, so that no request touches another one.
const APART: u64 = 16;

/// First in, first out; but what it hands through goes in reverse. Declines so often at first.
#[derive(Debug)]
struct Noting {
    waiting: VecDeque<RqId>,
    declines: usize,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl Scheduler for Noting {
    fn name(&self) -> &'static str {
        "noting"
    }

    fn reserve(&mut self, capacity: usize) {
        self.waiting.reserve(capacity);
    }

    fn insert(&mut self, rq: RqId, info: &Info, _at: InsertAt, _now: Time) {
        locked(&self.steps).push(Step::Inserted(info.sector / APART));
        self.waiting.push_back(rq);
    }

    fn dispatch(&mut self, _context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        self.waiting.pop_front()
    }

    fn dispatch_fast(&mut self, fast_batch: &[FastRequest], _now: Time, order: &mut [u8]) -> bool {
        assert!(self.waiting.is_empty(), "a scheduler that has requests is not asked");
        if self.declines > 0 {
            self.declines -= 1;
            locked(&self.steps).push(Step::Declined(fast_batch.len()));
            return false;
        }
        (0..).zip(order.iter_mut().rev()).for_each(|(number, place)| *place = number);
        let places = fast_batch.iter().map(|request| request.info.sector / APART).collect();
        locked(&self.steps).push(Step::Through(places));
        true
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// A device that notes what each of its hardware queues gets, in order, and finishes it at once.
#[derive(Debug)]
struct Recording(Vec<Mutex<Vec<u64>>>);

impl Driver for Recording {
    fn name(&self) -> &'static str {
        "recording"
    }

    fn limits(&self) -> Limits {
        Limits { capacity_sectors: 1 << 30, ..Limits::default() }
    }

    fn topology(&self) -> Topology {
        Topology::new(self.0.len() as u16, 256)
    }

    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        while let Some(rq) = batch.next_request() {
            locked(&self.0[usize::from(hctx)]).push(rq.sector() / APART);
            batch.finish(rq, Status::Ok);
        }
    }
}

struct Rig {
    q: RequestQueue,
    device: Arc<Recording>,
    submitters: Vec<Submitter>,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl Rig {
    fn new(nr_submitters: usize, nr_hctxs: usize, declines: usize) -> Self {
        let device = Arc::new(Recording((0..nr_hctxs).map(|_| Mutex::default()).collect()));
        let steps = Arc::default();
        let scheduler = Noting { waiting: VecDeque::new(), declines, steps: Arc::clone(&steps) };
        let q = RequestQueue::builder(Arc::clone(&device) as Arc<dyn Driver>)
            .scheduler(Box::new(scheduler) as Box<dyn Scheduler>)
            .locking(Locking::Combining)
            .bypass(false)
            .build()
            .expect("the device is good");
        let submitters = (0..nr_submitters).map(|_| q.submitter(&Client::new("test")).expect("there is a place"));
        let submitters = submitters.collect();
        Self { q, device, submitters, steps }
    }

    fn submit(&mut self, submitter: usize, places: Range<u64>) {
        let mut bios: VecDeque<_> = places.map(|place| Bio::read(place * APART, Buffer::zeroed(512))).collect();
        self.submitters[submitter].submit_batch(&mut bios).expect("the reads are good");
        assert!(bios.is_empty(), "there is a slot for each");
    }

    /// The submitters leave reads with a combiner that does nothing for them and gives up.
    fn leave(&mut self, plugs: impl IntoIterator<Item = (usize, Range<u64>)>) {
        let q = Arc::clone(&self.q.0);
        let staging = &q.domain(0).staging;
        assert!(staging.try_hold().expect("no thread is at the scheduler").is_empty(), "nothing is left yet");
        plugs.into_iter().for_each(|(submitter, places)| self.submit(submitter, places));
        q.live.give_up(staging);
        q.defer(0);
    }

    /// What happened since this was asked last.
    fn steps(&self) -> Vec<Step> {
        std::mem::take(&mut locked(&self.steps))
    }

    /// A submitter polls. Returns what happened.
    fn poll(&mut self, submitter: usize) -> Vec<Step> {
        self.submitters[submitter].poll();
        self.steps()
    }

    /// All that was submitted is over, for each hardware queue in this order.
    fn end(mut self, expected: &[Vec<u64>]) {
        for submitter in &mut self.submitters {
            submitter.reap_all(|completion| assert!(completion.status.is_ok()));
            assert_eq!(submitter.nr_outstanding(), 0, "nothing is left behind");
        }
        let got: Vec<_> = self.device.0.iter().map(|got| locked(got).clone()).collect();
        assert_eq!(got, expected);
    }
}

fn inserted(places: impl IntoIterator<Item = u64>) -> Vec<Step> {
    places.into_iter().map(Step::Inserted).collect()
}

/// Red if requests that several submitters left for several hardware queues do not go together, if they are not shown
/// to the scheduler in the order in which they were left, or if a hardware queue gets its own in another order than the
/// scheduler's.
#[test]
fn published_requests_for_several_hardware_queues_keep_one_order() {
    let mut rig = Rig::new(3, 3, 0);
    rig.leave([(0, 0..2), (2, 2..4), (1, 4..5), (0, 5..6), (1, 6..8)]);
    assert_eq!(rig.poll(1), [Step::Through((0..8).collect())]);
    rig.end(&[vec![5, 1, 0], vec![7, 6, 4], vec![3, 2]]);
}

/// Red if a combiner does not hand through as many as its share is, if it leaves other ones than those that came last,
/// or if it inserts some of these, so that the next combiner cannot hand them through.
#[test]
fn a_holder_hands_through_its_share_and_leaves_the_rest_in_order() {
    let mut rig = Rig::new(3, 1, 0);
    rig.leave([(0, 0..20), (1, 20..50), (0, 50..60), (1, 60..80)]);
    assert_eq!(rig.poll(2), [Step::Through((0..64).collect())]);
    rig.leave([(0, 80..90)]);
    assert_eq!(rig.poll(2), [Step::Through((64..90).collect())]);
    rig.end(&[(0..64).rev().chain((64..90).rev()).collect()]);
}

/// Red if a combiner whose share is not a multiple of 64 stops within rounds: then the next ones can hand nothing
/// through, as long as there is always more.
#[test]
fn requests_behind_a_decline_are_dispatched() {
    let mut rig = Rig::new(4, 1, 1);
    rig.leave([(0, 0..32), (1, 32..64), (2, 64..96)]);
    rig.submit(3, 96..128);
    let by_turns = (0..32).flat_map(|place| [place, 32 + place]);
    let expected: Vec<_> = by_turns.chain(64..96).collect();
    assert_eq!(rig.steps(), [vec![Step::Declined(64)], inserted(expected.iter().copied())].concat());
    assert_eq!(rig.poll(3), [Step::Through((96..128).collect())]);
    rig.end(&[expected.into_iter().chain((96..128).rev()).collect()]);
}
