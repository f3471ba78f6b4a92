//! Everything at once: eight submitters, two threads that change the queue under them, devices that fail, time out and
//! give requests back. Nothing is lost, doubled, or completed with another operation's data, and the counts balance.
//!
//! `BLKMQ_SEED` repeats the random choices of a run, though not the timing of its threads. `BLKMQ_OPERATIONS` makes it
//! longer.

use crate::common::control::disturb;
use crate::common::queue_with;
use crate::common::random::{Random, operations, seed};
use crate::common::worker::Load;
use blkmq::{Accounting, Status};

/// A device, slots per submitter, and how operations may fail on it.
struct Device(&'static str, u16, &'static [Status]);

const DEVICES: &[Device] = &[
    Device("null,memory_backed=1,discard=1,size=64M,irqmode=1,submit_queues=1,hw_queue_depth=64", 64, &[]),
    Device("null,memory_backed=1,discard=1,size=64M,irqmode=2,completion_nsec=20000,hw_queue_depth=4", 256, &[]),
    Device(
        "null,memory_backed=1,discard=1,size=64M,irqmode=0,submit_queues=3,poll_queues=2,hw_queue_depth=1,max_sectors=8",
        64,
        &[],
    ),
    Device("null,memory_backed=1,size=64M,cache_size=1,fua=0,irqmode=1,submit_queues=2,hw_queue_depth=2", 64, &[]),
    Device("null,memory_backed=1,size=64M,cache_size=1,fua=1,irqmode=0,hw_queue_depth=8,requeue=1,10,0,-1", 64, &[]),
    Device(
        "null,memory_backed=1,size=64M,irqmode=2,submit_queues=4,badblocks=700-701,hw_queue_depth=8",
        64,
        &[Status::Medium],
    ),
    Device("null,irqmode=0,submit_queues=4,hw_queue_depth=2", 64, &[]),
    Device("null,irqmode=1,submit_queues=2,read_queues=2,poll_queues=2,hw_queue_depth=1,requeue=1,5,0,-1", 64, &[]),
    Device("null,irqmode=2,completion_nsec=1000,hw_queue_depth=32,max_sectors=16", 256, &[]),
    Device("ram,size=64M", 64, &[]),
];

const FAULTY: &[Device] = &[
    Device(
        "null,memory_backed=1,size=64M,irqmode=1,hw_queue_depth=8,timeout=1,1,0,-1,requeue=1,5,0,-1",
        64,
        &[Status::Timeout],
    ),
    Device(
        "null,memory_backed=1,size=64M,cache_size=1,fua=0,submit_queues=2,hw_queue_depth=2,timeout=1,1,0,-1",
        64,
        &[Status::Timeout],
    ),
    Device("null,irqmode=0,submit_queues=3,hw_queue_depth=4,timeout=1,1,0,-1,requeue=1,5,0,-1", 64, &[Status::Timeout]),
];

/// Runs a load on each device under each scheduler. The devices take turns in how requests in flight are counted.
fn run(devices: &[Device], io_timeout_ms: u32) {
    let random = Random(seed());
    let accountings = [Accounting::PerThread, Accounting::Shared].into_iter().cycle();
    for (Device(spec, slots, failures), accounting) in devices.iter().zip(accountings) {
        for scheduler in blkmq::scheduler_names() {
            eprintln!("{spec} {scheduler} {accounting:?}");
            let q = queue_with(spec, scheduler, *slots, io_timeout_ms, accounting);
            let mut load = Load::new(&q, operations(10_000)).with_failures(failures);
            load.has_data = spec.contains("memory_backed=1") || spec.starts_with("ram");
            load.leaves = 200;
            load.changes = 200;
            let counts = load.run(&random, 2, disturb);
            assert!(failures.iter().all(|failure| counts.by_status.contains_key(failure)), "{counts:?}");
        }
    }
}

#[test]
fn nothing_is_lost_doubled_or_mixed_up() {
    run(DEVICES, u32::MAX);
}

#[test]
fn nothing_is_lost_when_the_device_fails_to_answer() {
    run(FAULTY, 10);
}
