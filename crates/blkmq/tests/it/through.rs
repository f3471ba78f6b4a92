//! A request that was handed through the scheduler counts as if it had been inserted and chosen.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::device::front::Front;
use crate::device::{Recorder, open};
use blkmq::{Bio, Buffer, Client, Flags, Locking, RequestQueue, Status, Submitter, Time};
use blkmq_sched::{DispatchContext, FastRequest, Info, InsertAt, RqId, Scheduler};

/// Submits all in one batch, and polls for it a limited number of times. So the test fails, and does not hang, if a
/// request is held back forever.
fn pass(submitter: &mut Submitter, bios: &mut VecDeque<Bio>) -> usize {
    let expected = bios.len();
    assert_eq!(submitter.submit_batch(bios).expect("the operations are good"), expected);
    let mut over = 0;
    for _ in 0..10_000 {
        submitter.poll();
        over += submitter.reap_all(|completion| assert!(completion.status.is_ok()));
        if over == expected {
            break;
        }
    }
    over
}

fn writes(number: u64) -> VecDeque<Bio> {
    (0..number).rev().map(|place| Bio::write(place * 64, Buffer::zeroed(4096))).collect()
}

/// Red if writes that were handed through are not counted as having entered the scheduler. Such writes are counted when
/// they complete, so more would have completed than entered, and no write would ever find room below `async_depth`.
#[test]
fn writes_that_were_handed_through_leave_room_below_async_depth() {
    let q = RequestQueue::builder(open("null,irqmode=0,poll_queues=0"))
        .scheduler("mq-deadline")
        .locking(Locking::Combining)
        .bypass(false);
    let q = q.build().unwrap();
    let mut submitter = q.submitter(&Client::new("writer")).unwrap();
    for _ in 0..10 {
        assert_eq!(pass(&mut submitter, &mut writes(8)), 8);
    }
    q.change_knob("iosched/async_depth", "2").unwrap().wait().unwrap();
    let over = pass(&mut submitter, &mut writes(8));
    if over < 8 {
        // The submitter would wait for them when it is dropped.
        std::mem::forget(submitter);
    }
    assert_eq!(over, 8, "the others find no room");
    let stats = q.counters();
    assert_eq!(stats.issued, 88, "none of these merge");
    assert_eq!((stats.dispatched_fast, stats.dispatched), (80, 8), "each batch before the knob changed goes through");
}

/// Red if requests are handed through while another one waits in front of the scheduler.
#[test]
fn nothing_is_handed_through_past_what_the_driver_gave_back() {
    // A device that gives the first request back once, and notes the sectors of what it gets from then on.
    let device = Arc::new(Front::<(AtomicBool, Mutex<Vec<u64>>)> {
        queue_rqs: |front, _, batch, _| {
            let (has_given_back, got) = &front.state;
            while let Some(rq) = batch.next_request() {
                if has_given_back.swap(true, Ordering::Relaxed) {
                    got.lock().expect("no call panics").push(rq.sector());
                    batch.finish(rq, Status::Ok);
                } else {
                    batch.requeue(rq);
                }
            }
        },
        ..Front::new(Recorder::of_depth(32), Default::default())
    });
    let q = RequestQueue::builder(device.clone()).scheduler("mq-deadline");
    let q = q.locking(Locking::Combining).bypass(false).build().unwrap();
    let mut submitter = q.submitter(&Client::new("writer")).unwrap();
    // A request that is given back is tried again at the next look, which the second plug causes.
    submitter.submit_batch(&mut VecDeque::from([Bio::write(0, Buffer::zeroed(512))])).unwrap();
    submitter.submit_batch(&mut [4, 3, 2, 1].map(|place| Bio::write(place * 64, Buffer::zeroed(4096))).into()).unwrap();
    let mut over = 0;
    while over < 5 {
        submitter.poll();
        over += submitter.reap_all(|completion| assert!(completion.status.is_ok()));
    }
    assert_eq!(*device.state.1.lock().unwrap(), [0, 64, 128, 192, 256]);
}

/// First in, first out. Counts what it hands through.
#[derive(Debug, Default)]
struct Fifo {
    waiting: VecDeque<RqId>,
    through: Arc<AtomicUsize>,
}

impl Scheduler for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn reserve(&mut self, capacity: usize) {
        self.waiting.reserve(capacity);
    }

    fn insert(&mut self, rq: RqId, _info: &Info, _at: InsertAt, _now: Time) {
        self.waiting.push_back(rq);
    }

    fn dispatch(&mut self, _context: &mut dyn DispatchContext, _now: Time) -> Option<RqId> {
        self.waiting.pop_front()
    }

    fn dispatch_fast(&mut self, newcomers: &[FastRequest], _now: Time, order: &mut [u8]) -> bool {
        self.through.fetch_add(newcomers.len(), Ordering::Relaxed);
        (0..).zip(order).for_each(|(number, place)| *place = number);
        self.waiting.is_empty()
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Red if requests of several hardware queues do not go through together, if they do although one of the queues lacks
/// tags, if tags that were taken for nothing do not come back, or if a request gets a tag of another hardware queue
/// (the completer then finds a tag that is put back twice).
#[test]
fn requests_of_two_hardware_queues_go_through_together_if_both_have_tags() {
    let device = open("null,irqmode=0,submit_queues=1,poll_queues=1,hw_queue_depth=4");
    let through = Arc::new(AtomicUsize::new(0));
    let fifo = Fifo { through: Arc::clone(&through), ..Fifo::default() };
    let q = RequestQueue::builder(device).scheduler(Box::new(fifo) as Box<dyn Scheduler>);
    let q = q.locking(Locking::Combining).bypass(false).build().unwrap();
    let mut submitter = q.submitter(&Client::new("reader")).unwrap();
    // Which of the reads are polled, and whether there are tags for all.
    for (polled, has_tags) in [
        (&[true, false, true, false, false][..], true),
        (&[true, false, true, true, true, true], false),
        (&[false, false, false, false, false, true], false),
        (&[false, true, false, true, false, true, false, true], true),
    ] {
        for _ in 0..10 {
            let bio = |(place, polled): (u64, &bool)| {
                let bio = Bio::read(place * 64, Buffer::zeroed(4096));
                bio.with_flags(Flags { polled: *polled, ..Flags::NONE })
            };
            let before = through.load(Ordering::Relaxed);
            let over = pass(&mut submitter, &mut (0..).zip(polled).map(bio).collect());
            if over < polled.len() {
                // The submitter would wait for them when it is dropped.
                std::mem::forget(submitter);
                panic!("{over} of {polled:?}");
            }
            let expected = if has_tags { polled.len() } else { 0 };
            assert_eq!(through.load(Ordering::Relaxed) - before, expected, "{polled:?}");
            assert_eq!(q.busy_tags(), 0, "all tags are back");
        }
    }
}
