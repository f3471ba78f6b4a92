//! Knobs that the queue refuses, and knobs that hold at once.

use crate::device::{join, open, virtual_queue};
use blkmq::{Bio, Buffer, Clock, QueueError, RequestQueue, Status};

/// Red if a limiter is taken by a queue that has nothing to hold requests back in, or whose clock cannot measure a
/// read, or if a refused value stays.
#[test]
fn a_limiter_is_refused_where_it_could_not_work() {
    let built = |scheduler: &str, clock, usec| {
        let device = open("null,irqmode=0");
        RequestQueue::builder(device).scheduler(scheduler).clock(clock).wbt_lat_usec(usec).build()
    };
    for scheduler in ["none", "kyber"] {
        let refused = |error| matches!(error, QueueError::NoLimiter { scheduler: named } if named == scheduler);
        assert!(built(scheduler, Clock::real(), -1).is_err_and(refused), "{scheduler}");
    }
    assert!(built("mq-deadline", Clock::coarse(), 2000).is_err_and(|error| matches!(error, QueueError::CoarseClock)));
    let q = built("mq-deadline", Clock::coarse(), 0).expect("nothing is measured");
    let change = q.change_knob("wbt_lat_usec", "-1").expect("the value is in range");
    let error = change.wait().expect_err("the clock is a coarse one");
    assert!(error.to_string().contains("the queue needs an exact clock"), "{error}");
    assert_eq!((q.knob("wbt_lat_usec"), q.limiter().is_none()), (Ok("0".to_owned()), true));
}

/// Red if a shorter timeout takes effect only at the scan that was planned for the longer one.
#[test]
fn a_shorter_io_timeout_holds_at_once() {
    for scheduler in blkmq::scheduler_names() {
        let (q, _) = virtual_queue(open("null,size=1M,timeout=1,100,0,-1"), |q| q.scheduler(scheduler));
        q.set_knob("io_timeout", "100").expect("the knob exists");
        let mut submitter = join(&q);
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
