//! The scheduler and its knobs change while I/O runs.

use crate::common::control;
use crate::common::queue;
use crate::common::random::{Random, operations, seed};
use crate::common::worker::Load;

use blkmq::driver::spec::open;
use blkmq::{Clock, QueueError, RequestQueue};

/// As block/005 of blktests. Red if something is lost when the scheduler changes under load.
#[test]
fn switching_schedulers_under_load_loses_nothing() {
    let random = Random::new(seed());
    for device in ["submit_queues=1,hw_queue_depth=8", "submit_queues=4,hw_queue_depth=2,irqmode=2"] {
        let q = queue(&format!("null,memory_backed=1,discard=1,size=64M,{device}"), "none");
        let load = Load { changes: 500, ..Load::new(&q, operations(10_000)).with_data() };
        load.run(&random, 2, |q, random| {
            let name = if random.one_in(2) { "none" } else { "mq-deadline" };
            q.change_scheduler(name).unwrap().wait().unwrap();
        });
    }
}

#[test]
fn knobs_change_under_load() {
    let random = Random::new(seed());
    let q = queue("null,memory_backed=1,discard=1,size=64M,hw_queue_depth=4", "mq-deadline");
    Load::new(&q, operations(10_000)).with_data().run(&random, 2, |q, random| {
        control::set_knob(q, random);
        let level = random.below(3).to_string();
        q.set_knob("nomerges", &level).unwrap();
    });
}

/// Red if a limiter is taken by a queue that has nothing to hold requests back in, or whose clock cannot measure a
/// read, or if a refused value stays.
#[test]
fn a_limiter_is_refused_where_it_could_not_work() {
    let built = |scheduler: &str, clock, usec| {
        let device = open("null,irqmode=0").expect("the spec is good");
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
