use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::driver::spec;
use crate::{Bio, Buffer, Client, Flags, Locking, RequestQueue, Status, Submitter, Time, Wait};

/// How often the meter was read; each reading is a microsecond later than the one before.
static READINGS: AtomicU64 = AtomicU64::new(0);

fn meter() -> u64 {
    READINGS.fetch_add(1, Ordering::Relaxed) * 1000
}

static LOCK_WAITS: AtomicU64 = AtomicU64::new(0);

fn note_lock(wait: Wait, _: u64) {
    assert_eq!(wait, Wait::Lock);
    LOCK_WAITS.fetch_add(1, Ordering::Relaxed);
}

fn reap_all(submitter: &mut Submitter) {
    while submitter.nr_outstanding() > 0 {
        submitter.poll();
        submitter.reap_all(|completion| assert!(completion.status.is_ok()));
    }
}

/// A submitter of a queue under one lock, in front of a device that is quick.
fn under_one_lock(scheduler: &str) -> (RequestQueue, Submitter) {
    let builder = RequestQueue::builder(spec::open("null,irqmode=0").unwrap()).scheduler(scheduler);
    let q = builder.locking(Locking::Single).build().unwrap();
    let submitter = q.submitter(&Client::new("alone")).unwrap();
    (q, submitter)
}

/// Red if a wait is not counted, when a free lock is counted, and when the meter is read in another order.
#[test]
fn who_finds_the_lock_taken_counts_the_wait() {
    let driver = spec::open("null,irqmode=0").unwrap();
    let q = RequestQueue::builder(driver)
        .scheduler("mq-deadline")
        .locking(Locking::Single)
        .wait_meter(meter)
        .observe_waits(note_lock)
        .build()
        .unwrap();
    let mut submitter = q.submitter(&Client::new("waiter")).unwrap();
    let held = q.0.domains.whole.control();
    thread::scope(|scope| {
        let submitting = scope.spawn(move || {
            submitter.submit(Bio::read(0, Buffer::zeroed(4096))).unwrap();
            reap_all(&mut submitter);
        });
        while READINGS.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        drop(held);
        submitting.join().unwrap();
    });
    let stats = q.counters();
    assert_eq!((stats.contended, stats.lock_wait_ns, stats.dispatch_batches), (1, 1000, 1));
    assert_eq!(LOCK_WAITS.load(Ordering::Relaxed), 1);
}

#[test]
fn one_lock_dispatches_one_by_one_and_none_in_batches() {
    for (scheduler, batches) in [("mq-deadline", 4), ("none", 1)] {
        let (q, mut submitter) = under_one_lock(scheduler);
        for number in 0..4 {
            submitter.submit(Bio::read(number * 64, Buffer::zeroed(4096))).unwrap();
        }
        reap_all(&mut submitter);
        let stats = q.counters();
        assert_eq!((stats.issued, stats.dispatch_batches, stats.contended), (4, batches, 0), "{scheduler}");
    }
}

/// Red if a dispatcher keeps the tags of requests that another thread was faster to choose.
#[test]
fn tags_for_requests_that_have_gone_come_back() {
    let (q, mut submitter) = under_one_lock("mq-deadline");
    let quiesce = q.quiesce();
    submitter.submit(Bio::read(0, Buffer::zeroed(4096))).unwrap();
    submitter.flush_plug();
    assert_eq!(q.0.domains.whole.nr_waiting(), 1);
    // What a thread sees that read the count before other threads took five of six.
    q.0.domains.whole.set_nr_waiting(6);
    drop(quiesce);
    reap_all(&mut submitter);
    assert_eq!((q.counters().issued, q.0.hctxs.get(0).tags.weight()), (1, 0));
}

static WAITS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

fn count(wait: Wait, ns: u64) {
    assert!(ns < 3_600_000_000_000, "no time stamp of another kind was taken for the beginning");
    WAITS[usize::from(wait == Wait::Staged)].fetch_add(1, Ordering::Relaxed);
}

/// Red if a wait is told of twice, or not at all, and when the time of staging stays in the field in which the time
/// of issuing is expected.
#[test]
fn each_wait_is_told_of_once() {
    let builder = |locking| {
        let builder = RequestQueue::builder(spec::open("null,irqmode=0").unwrap()).scheduler("mq-deadline");
        builder.locking(locking).bypass(false).observe_waits(count)
    };
    let waits = || WAITS.each_ref().map(|waits| waits.swap(0, Ordering::Relaxed));
    let q = builder(Locking::Combining).stage_all().build().unwrap();
    q.change_knob("nr_requests", "4").unwrap().wait().unwrap();
    let mut submitter = q.submitter(&Client::new("staged")).unwrap();
    let quiesce = q.quiesce();
    for number in 0..5 {
        submitter.submit(Bio::read(number * 64, Buffer::zeroed(4096))).unwrap();
    }
    let nowait = Flags { nowait: true, ..Flags::NONE };
    submitter.submit(Bio::read(1000, Buffer::zeroed(4096)).with_flags(nowait)).unwrap();
    submitter.submit(Bio::flush()).unwrap();
    submitter.flush_plug();
    drop(quiesce);
    let (mut over, mut refused) = (0, 0);
    while submitter.nr_outstanding() > 0 {
        submitter.poll();
        over += submitter.reap_all(|completion| {
            let is_refused = completion.status == Status::Again;
            assert!(!is_refused || completion.issued == Time(0));
            refused += u32::from(is_refused);
        });
    }
    // The flush waits for nothing, and no scheduler is asked for it.
    assert_eq!((over, refused, waits()), (7, 1, [0, 6]));

    // `who_finds_the_lock_taken_counts_the_wait` tests a wait for a lock that another thread has.
    let q = builder(Locking::Single).build().unwrap();
    let mut submitter = q.submitter(&Client::new("alone")).unwrap();
    submitter.submit(Bio::read(0, Buffer::zeroed(4096))).unwrap();
    reap_all(&mut submitter);
    assert_eq!(waits(), [0, 0]);
}
