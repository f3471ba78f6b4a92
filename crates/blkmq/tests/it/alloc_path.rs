//! Nothing is allocated between submission and completion, whatever the way of a request.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::counting::allocations;
use crate::device::front::claiming;
use crate::device::{Recorder, join, open, virtual_queue};
use blkmq::driver::Driver;
use blkmq::{Bio, Buffer, Flags, Limits, QueueCounters, RequestQueue, Status, Submitter, scheduler_names};

/// How the operations of a round are submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    OneByOne,
    FlushedEach,
    Batch,
}

const ENTRIES: [Entry; 3] = [Entry::OneByOne, Entry::FlushedEach, Entry::Batch];

/// Passes `bios` through the queue and back into `bios`. Returns the number of allocations meanwhile.
fn allocated_in(submitter: &mut Submitter, bios: &mut VecDeque<Bio>, entry: Entry, waits: bool) -> u64 {
    let expected = bios.len();
    let mut back = VecDeque::with_capacity(expected);
    let before = allocations();
    match entry {
        Entry::Batch => assert_eq!(submitter.submit_batch(bios).expect("the operations are good"), expected),
        Entry::OneByOne | Entry::FlushedEach => {
            while let Some(bio) = bios.pop_front() {
                assert!(submitter.submit(bio).is_ok());
                if entry == Entry::FlushedEach {
                    submitter.flush_plug();
                }
            }
        }
    }
    while submitter.nr_outstanding() > 0 {
        _ = if waits { submitter.wait(1, None).is_ready() } else { submitter.poll() };
        while let Some(completion) = submitter.reap() {
            assert_eq!(completion.status, Status::Ok);
            back.push_back(completion.bio);
        }
    }
    let allocated = allocations() - before;
    assert_eq!(back.len(), expected);
    back.make_contiguous().sort_by_key(|bio| bio.user_data);
    *bios = back;
    allocated
}

/// Checks that after two rounds to warm up, ten rounds allocate nothing.
fn assert_allocation_free(q: &RequestQueue, make: impl Fn() -> Vec<Bio>, what: &str) {
    let mut submitter = join(q);
    let mut bios: VecDeque<Bio> =
        make().into_iter().enumerate().map(|(at, bio)| bio.with_user_data(at as u64)).collect();
    for entry in ENTRIES {
        for waits in [false, true] {
            for round in 0..12 {
                let allocated = allocated_in(&mut submitter, &mut bios, entry, waits);
                assert!(round < 2 || allocated == 0, "{what} {entry:?} waits {waits} round {round}: {allocated}");
            }
        }
    }
}

fn queue(driver: Arc<dyn Driver>, scheduler: &str) -> RequestQueue {
    RequestQueue::builder(driver).scheduler(scheduler).build().expect("the queue is good")
}

fn scattered(nr: u64) -> Vec<Bio> {
    let bio = |at: u64| match at % 3 {
        0 => Bio::write(at * 100, Buffer::zeroed(4096)),
        1 => Bio::read(at * 100, Buffer::zeroed(4096)),
        _ => Bio::read(at * 100, vec![Buffer::zeroed(512), Buffer::zeroed(1024)]),
    };
    (0..nr).map(bio).collect()
}

/// Contiguous writes, which merge in the plug.
fn contiguous(nr: u64) -> Vec<Bio> {
    (0..nr).map(|at| Bio::write(at * 8, Buffer::zeroed(4096))).collect()
}

/// Contiguous writes in an order in which no neighbours merge in the plug: every second one fills a gap.
fn interleaved(nr: u64) -> Vec<Bio> {
    let place = |at: u64| at / 8 * 8 + [0, 2, 4, 6, 1, 3, 5, 7][(at % 8) as usize];
    (0..nr).map(|at| Bio::write(place(at) * 8, Buffer::zeroed(4096))).collect()
}

fn flushing() -> Vec<Bio> {
    let write = |at: u64, flags| Bio::write(at * 100, Buffer::zeroed(4096)).with_flags(flags);
    let mut bios = Vec::new();
    for at in 0..10 {
        bios.push(write(3 * at, Flags { fua: true, ..Flags::default() }));
        bios.push(write(3 * at + 1, Flags { preflush: true, ..Flags::default() }));
        bios.push(write(3 * at + 2, Flags { fua: true, preflush: true, ..Flags::default() }));
        bios.push(Bio::flush());
        bios.push(Bio::read(at * 100, Buffer::zeroed(4096)));
    }
    bios
}

const DEVICES: [&str; 8] = [
    "null,irqmode=0",
    "null,irqmode=1,hw_queue_depth=8",
    "null,irqmode=2,completion_nsec=1000,hw_queue_depth=8",
    "null,irqmode=2,completion_nsec=1000,submit_queues=3,read_queues=2,hw_queue_depth=2",
    "null,irqmode=0,memory_backed=1,size=64M",
    "hdd,hw_queue_depth=8,rpm=100000,seek_track=0,seek_average=0,seek_full=0",
    "ssd,submit_queues=2,hw_queue_depth=8",
    "cloud,submit_queues=2,hw_queue_depth=8",
];

/// A way of requests, devices on which they go that way, the requests, and what the counts show then.
type Case = (&'static str, &'static [&'static str], fn() -> Vec<Bio>, fn(QueueCounters) -> bool);

/// Red if requests allocate as they merge in the plug, are split, or come back from a driver that refuses them or gives
/// them back.
#[test]
fn nothing_is_allocated_whatever_becomes_of_a_request() {
    const SMALL: [&str; 2] = ["null,irqmode=0,max_sectors=8", "null,irqmode=2,completion_nsec=1000,max_sectors=8"];
    let large = || -> Vec<Bio> { (0..8).map(|at| Bio::write(at * 1000, Buffer::zeroed(20 * 4096))).collect() };
    let cases: [Case; 4] = [
        ("no merge", &DEVICES, || scattered(100), |stats| stats.merges_plug + stats.merges_insert == 0),
        ("merges in the plug", &DEVICES, || contiguous(100), |stats| stats.merges_plug > 500),
        ("splits", &SMALL, large, |stats| stats.issued > 8 * 20),
        (
            "requeues",
            &["null,irqmode=2,completion_nsec=1000,requeue=1,20,0,-1"],
            || scattered(100),
            |stats| stats.requeued > 0,
        ),
    ];
    for (case, devices, bios, is_so) in cases {
        for (scheduler, device) in scheduler_names().into_iter().flat_map(|of| devices.iter().map(move |on| (of, on))) {
            let q = queue(open(device), scheduler);
            assert_allocation_free(&q, bios, &format!("{case}: {scheduler} {device}"));
            assert!(is_so(q.counters()), "{case}: {scheduler} {device}: {:?}", q.counters());
        }
    }
}

#[test]
fn nothing_is_allocated_on_virtual_time() {
    for scheduler in scheduler_names() {
        let driver = open("null,irqmode=2,completion_nsec=500000,hw_queue_depth=4");
        let (q, _) = virtual_queue(driver, |q| q.scheduler(scheduler));
        let mut submitter = join(&q);
        let mut bios: VecDeque<Bio> = scattered(100).into();
        for round in 0..12 {
            let allocated = allocated_in(&mut submitter, &mut bios, Entry::OneByOne, true);
            assert!(round < 2 || allocated == 0, "{scheduler} round {round}: {allocated}");
        }
    }
}

#[test]
fn nothing_is_allocated_by_merges_in_the_scheduler() {
    for device in &DEVICES[..4] {
        let q = queue(open(device), "mq-deadline");
        q.change_knob("bypass", "0").unwrap().wait().expect("nothing is in flight");
        assert_allocation_free(&q, || interleaved(100), device);
        assert!(q.counters().merges_insert > 500, "{device}: {:?}", q.counters());
    }
}

/// Red if the flush machine allocates, on devices that claim to have a cache. A device with a real cache may allocate
/// itself.
#[test]
fn nothing_is_allocated_by_flushes() {
    for scheduler in scheduler_names() {
        for fua in [false, true] {
            for device in &DEVICES[..4] {
                let inner = open(device);
                let limits = Limits { write_cache: true, fua, ..inner.limits() };
                let q = queue(claiming(limits, inner), scheduler);
                assert_allocation_free(&q, flushing, &format!("{scheduler} fua {fua} {device}"));
            }
        }
        let q = queue(open("null,irqmode=2,memory_backed=1,cache_size=1,fua=1,size=64M"), scheduler);
        let durable = || {
            let fua = Flags { fua: true, preflush: true, ..Flags::default() };
            let writes = (0..20).map(|at| Bio::write(at * 100, Buffer::zeroed(4096)).with_flags(fua));
            writes.chain([Bio::flush(), Bio::flush()]).collect()
        };
        assert_allocation_free(&q, durable, &format!("{scheduler} cached null"));
    }
}

#[test]
fn nothing_is_allocated_when_threads_share_a_hardware_queue() {
    for scheduler in scheduler_names() {
        let q = queue(open("null,irqmode=2,completion_nsec=1000,hw_queue_depth=4"), scheduler);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_allocation_free(&q, || scattered(50), scheduler));
            }
        });
    }
}

/// Red if the count does not see what happens inside the device: this device allocates.
#[test]
fn a_driver_that_allocates_is_counted() {
    let device = Recorder::of_depth(64);
    let q = queue(device.clone(), "mq-deadline");
    let mut submitter = join(&q);
    let before = allocations();
    submitter.submit(crate::device::read(0, 8)).expect("there is a slot");
    let with_buffer = allocations() - before;
    submitter.flush_plug();
    assert!(allocations() - before > with_buffer);
    device.finish_oldest(Status::Ok);
    assert_eq!(crate::device::reap(&mut submitter).len(), 1);
}
