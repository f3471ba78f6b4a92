//! How many requests there may be: tags and `nr_requests`.

mod common;

use blkmq::driver::spec;
use blkmq::{Bio, Buffer, Client, Clock, QueueError, RequestQueue, VirtualClock};
use common::random::{Random, operations, seed};
use common::worker::Load;
use common::{control, queue};

/// The twin of blktests block/020.
#[test]
fn one_tag_is_enough_for_each_scheduler() {
    let random = Random::new(seed());
    for scheduler in ["none", "mq-deadline"] {
        for irqmode in 0..3 {
            for cache in ["", ",cache_size=1,fua=0"] {
                let device = format!(
                    "null,memory_backed=1,size=64M,irqmode={irqmode},completion_nsec=1000,poll_queues=0,\
                     hw_queue_depth=1{cache}"
                );
                let q = queue(&device, scheduler);
                Load { sleeps: 90, ..Load::new(&q, operations(2_000)).with_data() }.run(&random, 0, control::quiesce);
            }
        }
    }
}

/// The twin of blktests block/021.
#[test]
fn nr_requests_changes_under_load() {
    let random = Random::new(seed());
    for scheduler in ["none", "mq-deadline"] {
        let q = queue("null,memory_backed=1,size=64M,submit_queues=2,hw_queue_depth=16", scheduler);
        let load = Load { changes: 500, ..Load::new(&q, operations(10_000)).with_data() };
        load.run(&random, 2, |q, random| {
            let nr_requests = 1 + random.below(24) as u32;
            match q.set_nr_requests(nr_requests).unwrap().wait() {
                Ok(()) => {}
                Err(QueueError::BadValue(_)) => assert!(nr_requests > 16),
                Err(error) => panic!("{error}"),
            }
        });
    }
}

/// The smallest `nr_requests`: almost everybody's plug is held back almost always. Red if those who sleep over a plug
/// are not woken when there is room.
#[test]
fn one_request_at_a_time_is_enough() {
    let random = Random::new(seed());
    for scheduler in ["none", "mq-deadline"] {
        for device in ["irqmode=0", "irqmode=1", "irqmode=1,submit_queues=2", "irqmode=0,submit_queues=3"] {
            let q = queue(&format!("null,memory_backed=1,size=64M,hw_queue_depth=4,{device}"), scheduler);
            q.set_nr_requests(1).unwrap().wait().unwrap();
            Load { sleeps: 95, ..Load::new(&q, operations(3_000)).with_data() }.run(&random, 0, control::quiesce);
        }
    }
}

/// The twin of blktests block/017.
#[test]
fn tags_in_flight_equal_what_the_driver_has() {
    for scheduler in ["none", "mq-deadline"] {
        let clock = VirtualClock::new();
        let driver = spec::open("null,irqmode=2,completion_nsec=1000,poll_queues=0,hw_queue_depth=8").unwrap();
        let builder = RequestQueue::builder(driver).clock(Clock::Virtual(clock.clone())).scheduler(scheduler);
        let q = builder.build().unwrap();
        let mut submitter = q.submitter(&Client::new("test")).unwrap();
        for number in 0..20_u32 {
            assert_eq!(q.in_flight(), number.min(8), "{scheduler}");
            submitter.submit(Bio::read(u64::from(number) * 80, Buffer::zeroed(512))).unwrap();
            submitter.flush_plug();
            clock.advance(1);
            let mut shown = String::new();
            q.driver().show(&mut shown).unwrap();
            assert!(shown.contains(&format!("pending={}", q.in_flight())), "{shown} {}", q.in_flight());
        }
        let mut completed = 0;
        while submitter.nr_outstanding() > 0 {
            submitter.wait(None);
            completed += std::iter::from_fn(|| submitter.reap()).count() as u32;
            assert_eq!(q.in_flight(), (20 - completed).min(8), "{scheduler}");
        }
        assert_eq!(completed, 20);
    }
}

#[test]
fn nr_requests_has_bounds() {
    let q = queue("null,hw_queue_depth=16", "mq-deadline");
    for (value, is_good) in [("0", false), ("1", true), ("2048", true), ("2049", false), ("-1", false), ("many", false)]
    {
        let result = q.set_knob("nr_requests", value).and_then(blkmq::Change::wait);
        assert_eq!(result.is_ok(), is_good, "{value}: {result:?}");
    }
    assert_eq!(q.knob("nr_requests").unwrap(), "2048");
}
