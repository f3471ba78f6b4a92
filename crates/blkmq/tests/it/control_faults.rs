//! Devices that do not answer, that give requests back, and that fail.

use crate::common::random::{Random, operations, seed};
use crate::common::worker::Load;
use crate::common::{control, queue, queue_with};
use blkmq::driver::spec;
use blkmq::{Bio, Buffer, Client, Clock, RequestQueue, Status, VirtualClock};

/// As block/014 of blktests. Red if a request is lost when half of them time out.
#[test]
fn half_of_the_requests_timing_out_all_complete() {
    let random = Random::new(seed());
    for scheduler in blkmq::scheduler_names() {
        for irqmode in 0..3 {
            let device = format!("null,memory_backed=1,size=64M,irqmode={irqmode},hw_queue_depth=16,timeout=1,50,0,-1");
            let q = queue_with(&device, scheduler, 64, 5);
            let load = Load::new(&q, operations(1_000)).with_data().with_failures(&[Status::Timeout]);
            let counts = load.run(&random, 0, control::quiesce);
            let timed_out = counts.by_status[&Status::Timeout];
            // One request may stand for several operations, and several parts of an operation may time out.
            assert!(timed_out > 0 && q.counters().timeouts > 0, "{counts:?} {:?}", q.counters());
            assert!(counts.by_status[&Status::Ok] > 0, "{counts:?}");
        }
    }
}

/// As block/015 of blktests. Red if requests that were given back are not tried again.
#[test]
fn requeued_requests_complete_under_each_scheduler() {
    let random = Random::new(seed());
    for scheduler in blkmq::scheduler_names() {
        for device in ["irqmode=1,hw_queue_depth=4", "irqmode=0,submit_queues=3,hw_queue_depth=2"] {
            let device = format!("null,memory_backed=1,size=64M,{device},requeue=1,10,0,-1");
            let q = queue(&device, scheduler);
            let counts = Load::new(&q, operations(5_000)).with_data().run(&random, 0, control::quiesce);
            assert!(q.counters().requeued > 0, "{:?}", q.counters());
            assert!(counts.by_status.keys().all(|status| matches!(status, Status::Ok | Status::Again)), "{counts:?}");
        }
    }
}

/// Red if an error reaches other operations than those of the request that met it.
#[test]
fn medium_errors_reach_the_operations_that_met_them() {
    let random = Random::new(seed());
    for scheduler in blkmq::scheduler_names() {
        let device = "null,memory_backed=1,size=64M,hw_queue_depth=4,max_sectors=16,badblocks=100-101";
        let q = queue(device, scheduler);
        let load = Load::new(&q, operations(10_000)).with_data().with_failures(&[Status::Medium]);
        let counts = load.run(&random, 0, control::quiesce);
        assert!(counts.by_status[&Status::Medium] > 0, "{counts:?}");
    }
}

/// Red if a shorter timeout takes effect only at the scan that was planned for the longer one.
#[test]
fn a_shorter_io_timeout_holds_at_once() {
    for scheduler in blkmq::scheduler_names() {
        let clock = Clock::Virtual(VirtualClock::new());
        let device = spec::open("null,size=1M,timeout=1,100,0,-1").expect("the spec is good");
        let q = RequestQueue::builder(device).scheduler(scheduler).clock(clock).build().expect("the queue is good");
        q.set_knob("io_timeout", "100").expect("the knob exists");
        let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
        submitter.submit(Bio::read(0, Buffer::zeroed(4096))).expect("there is a slot");
        let completion = loop {
            submitter.wait(1, None);
            if let Some(completion) = submitter.reap() {
                break completion;
            }
        };
        assert_eq!(completion.status, Status::Timeout);
        assert!(q.clock().now().0 <= 200_000_000, "{scheduler}: {} ns", q.clock().now().0);
    }
}
