//! The knobs of mq-deadline are the kernel's, and every scheduler's keep their ranges.

use blkmq_sched::{
    Admission, Info, KnobError, Op, Outstanding, SCHEDULERS, Scheduler, Setting, Throttle, Unit, scheduler,
};

#[test]
fn names_units_defaults_and_ranges_are_linux_s() {
    let int_max = i64::from(i32::MAX);
    let expected = [
        ("read_expire", Unit::Milliseconds, Some(500), 0, int_max),
        ("write_expire", Unit::Milliseconds, Some(5000), 0, int_max),
        ("writes_starved", Unit::Count, Some(2), i64::from(i32::MIN), int_max),
        ("front_merges", Unit::Switch, Some(1), 0, 1),
        ("async_depth", Unit::Count, None, 1, int_max),
        ("fifo_batch", Unit::Count, Some(16), 0, int_max),
        ("prio_aging_expire", Unit::Milliseconds, Some(10_000), 0, int_max),
    ];
    let scheduler = scheduler("mq-deadline").unwrap();
    let knobs = scheduler.knobs();
    let actual: Vec<_> = knobs.iter().map(|knob| (knob.name, knob.unit, knob.default, knob.min, knob.max)).collect();
    assert_eq!(actual, expected);
    for knob in knobs {
        assert_eq!(scheduler.knob(knob.name), knob.default.or(Some(256)), "{}", knob.name);
    }
}

#[test]
fn every_value_of_a_range_is_kept_and_none_outside() {
    for description in SCHEDULERS {
        let mut scheduler = scheduler(description.name).unwrap();
        for knob in scheduler.knobs() {
            for value in [knob.min, knob.max, knob.min] {
                assert_eq!(scheduler.set_knob(knob.name, value), Ok(()));
                assert_eq!(scheduler.knob(knob.name), Some(value), "{}", knob.name);
            }
            for value in [knob.min - 1, knob.max + 1, i64::MIN, i64::MAX] {
                let error = KnobError::OutOfRange { name: knob.name, value, min: knob.min, max: knob.max };
                assert_eq!(scheduler.set_knob(knob.name, value), Err(error));
                assert_eq!(scheduler.knob(knob.name), Some(knob.min), "a refused value changes nothing");
            }
        }
        assert_eq!(scheduler.set_knob("fifo_batches", 1), Err(KnobError::Unknown));
        assert_eq!(scheduler.knob("fifo_batches"), None);
    }
}

#[test]
fn those_of_a_throttle_are_linux_s_too() {
    let expected = [
        ("read_lat_nsec", Unit::Nanoseconds, Some(2_000_000), 0, i64::MAX),
        ("write_lat_nsec", Unit::Nanoseconds, Some(10_000_000), 0, i64::MAX),
    ];
    let mut throttle = scheduler("kyber").unwrap().init_hctx().unwrap().throttle.expect("kyber takes tokens");
    let knobs = throttle.knobs();
    let actual: Vec<_> = knobs.iter().map(|knob| (knob.name, knob.unit, knob.default, knob.min, knob.max)).collect();
    assert_eq!(actual, expected);
    for knob in knobs {
        assert_eq!(throttle.knob(knob.name), knob.default, "{}", knob.name);
        for value in [knob.min, knob.max, 77] {
            assert_eq!(throttle.set_knob(knob.name, value), Ok(()));
            assert_eq!(throttle.knob(knob.name), Some(value), "{}", knob.name);
        }
        let error = KnobError::OutOfRange { name: knob.name, value: -1, min: 0, max: i64::MAX };
        assert_eq!(throttle.set_knob(knob.name, -1), Err(error));
        assert_eq!(throttle.knob(knob.name), Some(77), "a refused value changes nothing");
    }
    assert_eq!(throttle.set_knob("read_lat_usec", 1), Err(KnobError::Unknown));
    assert_eq!(throttle.knob("read_lat_usec"), None);
}

/// Beside how many other requests than reads the scheduler no longer admits a write. Reads it always admits.
fn bound(scheduler: &dyn Scheduler) -> u64 {
    let info = |op| Info { nr_sectors: 8, nr_segments: 1, op, ..Info::default() };
    let admits = |op, others| {
        scheduler.limit_depth(&info(op), Outstanding { others, nr_hctxs: 3, reserved: None }) != Admission::Refused
    };
    assert!(admits(Op::Read, u64::MAX));
    let others = (0..).find(|others| !admits(Op::Write, *others)).expect("there is a bound");
    assert_eq!(others % 3, 0, "each hardware queue counts");
    others / 3
}

/// Red if a depth that was set is scaled with the queue: from 65536 requests to 200 nothing would be left of 100.
#[test]
fn async_depth_is_nr_requests_unless_it_was_set() {
    let mut scheduler = scheduler("mq-deadline").unwrap();
    for nr_requests in [64, 65_536, 1] {
        scheduler.configure(Setting::NrRequests(nr_requests));
        assert_eq!(bound(&*scheduler), nr_requests.into());
        assert_eq!(scheduler.knob("async_depth"), Some(i64::from(nr_requests)));
    }
    scheduler.configure(Setting::NrRequests(0));
    assert_eq!(bound(&*scheduler), 1, "never none");
    scheduler.set_knob("async_depth", 100).unwrap();
    for nr_requests in [65_536, 200, 1] {
        scheduler.configure(Setting::NrRequests(nr_requests));
        assert_eq!((bound(&*scheduler), scheduler.knob("async_depth")), (100, Some(100)));
    }
}

#[test]
fn every_scheduler_is_described_under_its_name() {
    for description in SCHEDULERS {
        let scheduler = scheduler(description.name).expect("what is described exists");
        let throttle = scheduler.init_hctx().and_then(|parts| parts.throttle);
        let of_throttle = throttle.as_ref().map_or(&[][..], Throttle::knobs);
        assert_eq!(scheduler.name(), description.name);
        assert_eq!([scheduler.knobs(), of_throttle].concat(), description.knobs);
        assert!(scheduler.is_empty());
    }
    assert!(scheduler("deadline").is_none());
}
