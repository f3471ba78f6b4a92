//! Tags and `nr_requests`: how many requests there may be.

use crate::common::queue;
use crate::device::{Drive, join, open, virtual_queue};
use blkmq::{Bio, Buffer, QueueError, RequestQueue};

#[test]
fn nr_requests_has_bounds() {
    let q = queue("null,hw_queue_depth=16", "mq-deadline");
    let values = [("0", false), ("1", true), ("65536", true), ("65537", false), ("-1", false), ("many", false)];
    for (value, is_good) in values {
        let result = q.change_knob("nr_requests", value).and_then(blkmq::Change::wait);
        assert_eq!(result.is_ok(), is_good, "{value}: {result:?}");
    }
    assert_eq!(q.knob("nr_requests").unwrap(), "65536");
}

/// Red if the depth of the device bounds how many requests wait. In Linux it does, because there a waiting request
/// holds a tag of its own.
#[test]
fn by_default_all_that_clients_have_outstanding_waits_in_the_scheduler() {
    const SLOTS: u16 = 2000;
    let device = "null,irqmode=2,completion_nsec=1000000,poll_queues=0,hw_queue_depth=8";
    let (q, _) = virtual_queue(open(device), |q| q.scheduler("mq-deadline").slots(SLOTS));
    let mut submitters: Vec<_> = (0..4).map(|_| join(&q)).collect();
    for (stripe, submitter) in (0_u64..).zip(&mut submitters) {
        for number in 0..u64::from(SLOTS) {
            submitter.submit(Bio::read(80 * (number * 4 + stripe), Buffer::zeroed(512))).unwrap();
        }
        submitter.flush_plug();
    }
    let waiting = 4 * u32::from(SLOTS) - q.busy_tags();
    assert_eq!(q.busy_tags(), 8);
    assert!(q.dump().contains(&format!("\nscheduler mq-deadline holds {waiting} ")), "{}", q.dump());
    for submitter in &mut submitters {
        submitter.finish();
    }
}

/// A queue in front of a device of depth 16, as the builder makes it.
fn built(scheduler: &str, nr_requests: u32) -> Result<RequestQueue, QueueError> {
    let builder = RequestQueue::builder(open("null,poll_queues=0,hw_queue_depth=16"));
    builder.scheduler(scheduler).nr_requests(nr_requests).build()
}

/// Red if the builder takes a number that the knob refuses.
#[test]
fn without_a_scheduler_the_builder_refuses_nr_requests_beyond_the_depth_as_the_knob_does() {
    let q = built("none", 16).expect("it is the depth");
    let refused = q.change_knob("nr_requests", "17").unwrap().wait().expect_err("it is beyond the depth");
    assert_eq!(refused.to_string(), "nr_requests: 17 is not within 1..16, the depth, without a scheduler");
    assert_eq!(built("none", 17).err(), Some(refused));
    assert_eq!(built("mq-deadline", 17).expect("tags do not bound a scheduler").knob("nr_requests").unwrap(), "17");
}

/// Red if the builder takes an `io_timeout` that the knob refuses.
#[test]
fn the_builder_refuses_an_io_timeout_of_zero_as_the_knob_does() {
    let q = built("none", 16).expect("it is the depth");
    let refused = q.set_knob("io_timeout", "0").expect_err("every request would be overdue at once");
    let device = open("null");
    assert_eq!(RequestQueue::builder(device).io_timeout_ms(0).build().err(), Some(refused));
}

/// Red if `nr_requests` is forgotten when the scheduler changes, or if it then no longer bounds the tags of a device
/// without a scheduler.
#[test]
fn nr_requests_that_was_asked_for_survives_a_change_of_scheduler() {
    let shown = |q: &RequestQueue| q.knob("nr_requests").unwrap();
    let change = |q: &RequestQueue, name| q.change_scheduler(name).unwrap().wait().unwrap();
    let built = |nr_requests| built("mq-deadline", nr_requests);
    let set = |nr_requests: u32| {
        let q = queue("null,poll_queues=0,hw_queue_depth=16", "mq-deadline");
        assert_eq!(shown(&q), "65536");
        q.change_knob("nr_requests", &nr_requests.to_string()).unwrap().wait().unwrap();
        q
    };
    for q in [built(100).unwrap(), set(100)] {
        assert_eq!((shown(&q), q.knob("iosched/async_depth")), ("100".to_owned(), Ok("100".to_owned())));
        change(&q, "none");
        assert_eq!(shown(&q), "16");
        change(&q, "mq-deadline");
        assert_eq!(shown(&q), "100");
    }
    let q = set(4);
    change(&q, "none");
    assert_eq!(shown(&q), "4");
    for bad in [0, 65_537] {
        let error = built(bad).expect_err("it is out of range").to_string();
        assert_eq!(error, format!("nr_requests: {bad} is not within 1..65536"));
    }
    let q = queue("null,poll_queues=0,hw_queue_depth=16", "none");
    change(&q, "mq-deadline");
    assert_eq!(shown(&q), "65536");
}

/// Red if a change that was refused says at the next look that it was made, or if the queue goes on while the handle of
/// a change lives, or does not go on afterwards.
#[test]
fn a_change_says_the_same_again_and_holds_the_queue_until_it_is_dropped() {
    let (q, _) = virtual_queue(open("null,hw_queue_depth=4"), |q| q.scheduler("none"));
    let mut submitter = join(&q);
    for (nr_requests, is_good) in [(2, true), (5, false)] {
        let mut change = q.change_knob("nr_requests", &nr_requests.to_string()).unwrap();
        submitter.submit_now(Bio::read(0, Buffer::zeroed(512)));
        let result = change.poll().expect("nothing was let in");
        assert_eq!(result.is_ok(), is_good, "{nr_requests}: {result:?}");
        assert_eq!(change.poll(), Some(result));
        let second = std::time::Duration::from_secs(1);
        assert!(
            !submitter.wait(1, Some(q.clock().after(second))).is_ready(),
            "{nr_requests}: the operation passed the freeze"
        );
        drop(change);
        assert!(
            submitter.wait(1, Some(q.clock().after(second))).is_ready(),
            "{nr_requests}: the operation is held back"
        );
        submitter.reap().expect("it is over").into_result().unwrap();
        assert_eq!(q.knob("nr_requests").as_deref(), Ok("2"));
    }
}
