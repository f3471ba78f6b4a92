//! Quiescing: the driver gets nothing. Everything that was submitted meanwhile stays queued, and goes on afterwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::common::control::quiesce;
use crate::common::random::{Random, operations, seed};
use crate::common::rounds::rounds;
use crate::common::worker::Load;
use crate::common::{assert_balanced, queue};
use blkmq::driver::{Batch, Done, Driver, NextEvent, Topology};
use blkmq::{Bio, Buffer, Client, Flags, Limits, RequestQueue, RqId, Status, Time};

/// Red if a submitter without a scheduler starts requests of a quiesced queue, or hands them to a driver that takes
/// concurrent calls: the driver would get them, or they would stay with the submitter until it submits again.
#[test]
fn what_is_submitted_to_a_quiesced_queue_goes_on_afterwards() {
    for device in ["null,irqmode=0", "null,irqmode=1", "null,irqmode=1,memory_backed=1,cache_size=1"] {
        for scheduler in blkmq::scheduler_names() {
            let q = queue(device, scheduler);
            let mut submitter = q.submitter(&Client::new("one")).unwrap();
            let mut other = q.submitter(&Client::new("other")).unwrap();
            let quiesce = q.quiesce();
            for number in 0..4 {
                submitter.submit(Bio::write(number * 80, Buffer::zeroed(512))).unwrap();
            }
            submitter.submit(Bio::flush()).unwrap();
            submitter.flush_plug();
            assert!(!other.poll());
            assert_eq!(q.counters().issued, 0, "{device} {scheduler}");
            drop(quiesce);
            // Another thread looks first, and may find that nothing was left.
            other.poll();
            while submitter.nr_outstanding() > 0 {
                submitter.wait(1, None);
                while submitter.reap().is_some() {}
            }
            assert_balanced(&q);
        }
    }
}

/// Red (hangs) if a thread that saw the queue quiesced goes to sleep without looking again whether it still is: the
/// thread that ended the quiescence saw no sleeper, and the requests wait for ever.
#[test]
fn sleepers_go_on_when_the_quiescence_ends() {
    let mut random = Random::new(seed());
    for (device, scheduler) in [
        ("null,irqmode=1,hw_queue_depth=1", "none"),
        ("null,irqmode=1,hw_queue_depth=1", "mq-deadline"),
        ("null,irqmode=0,submit_queues=2", "none"),
        ("null,irqmode=0,submit_queues=2", "mq-deadline"),
    ] {
        let q = queue(device, scheduler);
        for nr_threads in [1, 2] {
            rounds(&q, nr_threads, operations(5_000), &mut random, RequestQueue::quiesce, |thread, submitter| {
                for number in 0..2 {
                    let flags = Flags { nowait: number == 1, ..Flags::default() };
                    let bio = Bio::read(thread * 800 + number * 80, Buffer::zeroed(512));
                    submitter.submit(bio.with_flags(flags)).unwrap();
                }
            });
        }
        assert_balanced(&q);
    }
}

/// Red if the driver gets something of a quiesced queue under any load.
#[test]
fn a_quiesced_driver_is_left_alone_under_load() {
    let random = Random::new(seed());
    for device in ["null,irqmode=1,hw_queue_depth=2", "null,irqmode=0,submit_queues=2,hw_queue_depth=1"] {
        for scheduler in blkmq::scheduler_names() {
            let q = queue(device, scheduler);
            Load { sleeps: 100, ..Load::new(&q, operations(3_000)) }.run(&random, 3, quiesce);
        }
    }
}

/// A device with one request that is overdue from the beginning. The device counts how often it is asked for its next
/// event.
#[derive(Debug, Default)]
struct Overdue {
    held: Mutex<Option<RqId>>,
    asked: AtomicU64,
}

impl Overdue {
    fn held(&self) -> MutexGuard<'_, Option<RqId>> {
        self.held.lock().expect("no test goes on after a panic in the device")
    }
}

impl Driver for Overdue {
    fn name(&self) -> &'static str {
        "overdue"
    }
    fn limits(&self) -> Limits {
        Limits { capacity_sectors: 1000, ..Limits::default() }
    }
    fn topology(&self) -> Topology {
        Topology::new(1, 1)
    }
    fn queue_rqs(&self, _: u16, batch: &mut Batch<'_>, _: Time) {
        *self.held() = batch.next_request().map(|rq| batch.start(rq));
    }
    fn poll(&self, _: u16, done: &mut Done<'_>, _: Time) {
        if let Some(id) = self.held().take() {
            done.complete(id, Status::Ok).expect("it was started");
        }
    }
    fn next_event(&self, _: u16) -> NextEvent {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.held().is_some().then_some(Time(0)).into()
    }
}

/// Red if a background thread of a quiesced queue plans for what is due, although it can do nothing about it: it would
/// ask the device thousands of times. On a slow machine it asks less often.
#[test]
fn background_threads_rest_while_the_queue_is_quiesced() {
    let device = Arc::new(Overdue::default());
    let q = RequestQueue::builder(device.clone()).scheduler("none").build().unwrap();
    let mut submitter = q.submitter(&Client::new("one")).unwrap();
    submitter.submit(Bio::read(0, Buffer::zeroed(512))).unwrap();
    submitter.flush_plug();
    let quiesce = q.quiesce();
    let background = q.start_threads(2).unwrap();
    let before = device.asked.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(50));
    let asked = device.asked.load(Ordering::Relaxed) - before;
    assert!(asked <= 100, "they asked {asked} times in 50 ms");
    drop(quiesce);
    submitter.wait(1, None);
    assert!(submitter.reap().is_some());
    drop(background);
}
