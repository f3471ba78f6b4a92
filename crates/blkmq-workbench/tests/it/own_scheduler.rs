//! A program's own scheduler reaches the bench and the comparison: the example, judged.

#[path = "../../examples/own_scheduler.rs"]
#[allow(dead_code, reason = "the example's `main` has no caller here")]
mod example;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use blkmq::sched::{ClientId, Info, InsertAt, IoPriority, MergeLevel, Op, RqId, Scheduler, Time};
use blkmq_workbench::Job;
use blkmq_workbench::bench::{Bench, BenchError, ClockKind, SchedulerSource, Setup};
use blkmq_workbench::compare::{self, CompareError, Variant};

use example::{ShortestSeek, judge};

fn shortest_seek() -> SchedulerSource {
    SchedulerSource::own(|| Box::new(ShortestSeek::default()))
}

/// Red if the bench runs a scheduler of its own choice instead of the program's: both sides would then be equal.
#[test]
fn a_scheduler_of_ones_own_is_judged_against_linuxs() {
    let [linux, own] = judge(["mq-deadline".into(), shortest_seek()]).expect("the load runs");
    // With 128 reads at random places mq-deadline must jump to those that are due, which the shortest seek does not.
    assert!(own.rate > 1.05 * linux.rate, "{own:?} {linux:?}");
    let again = judge([shortest_seek(), "mq-deadline".into()]).expect("the load runs");
    assert_eq!(again, [own, linux], "virtual time gives the same numbers again, whichever runs first");
}

/// Red if the nearest request is looked for on one side only, or if what must go first does not.
#[test]
fn the_nearest_request_is_next_on_either_side() {
    let mut scheduler = ShortestSeek::default();
    let mut insert = |rq, sector, at| {
        let (op, priority, client) = (Op::Read, IoPriority::default(), ClientId::default());
        let merge = MergeLevel::Full;
        let info =
            Info { sector, nr_sectors: 8, nr_segments: 1, op, sync: true, priority, client, merge, ..Info::default() };
        scheduler.insert(RqId(rq), &info, at, Time(0));
    };
    for (rq, sector) in [(0, 100), (1, 1000), (2, 80), (3, 1), (4, 112)] {
        insert(rq, sector, InsertAt::Sorted);
    }
    insert(5, 5000, InsertAt::Head);
    let order: Vec<_> = std::iter::from_fn(|| scheduler.dispatch(&mut (), Time(0))).map(|rq| rq.0).collect();
    // Behind sector 9 comes 80, behind 88 come 100 and 112, and 1000 is left.
    assert_eq!(order, [5, 3, 2, 0, 4, 1]);
}

/// Red if queues that are built from one setup share a scheduler, or if a setup can be used once.
#[test]
fn each_queue_gets_a_scheduler_of_its_own() {
    let made = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&made);
    let own = SchedulerSource::own(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::new(ShortestSeek::default())
    });
    let setup = Setup { scheduler: Some(own), clock: ClockKind::Virtual, ..Setup::new("hdd") };
    let benches = [0, 1].map(|_| Bench::new(&[Job::new("reader")], &setup.clone()).expect("the jobs fit"));
    assert_eq!(benches.map(|bench| bench.queue().scheduler()), ["shortest-seek"; 2]);
    assert_eq!(made.load(Ordering::Relaxed), 2);
}

/// Red if an error does not name the variant, or if what the variant says is lost.
#[test]
fn a_comparison_says_which_variant_cannot_run() {
    let jobs = [Job { time_based: true, runtime: Some(Duration::from_secs(1)), ..Job::new("reader") }];
    let variant = |device: &str| {
        let setup = Setup { scheduler: Some("none".into()), clock: ClockKind::Virtual, ..Setup::new(device) };
        Variant::new(device, &jobs, Bench::new(&jobs, &setup).expect("the jobs fit"))
    };
    let once = |devices: [&str; 2], slice, stop| {
        compare::once(&mut devices.map(variant), slice, &Arc::new(AtomicBool::new(stop)), &mut || ())
    };
    let (second, instant) = (Duration::from_secs(1), Duration::from_nanos(1));
    let timeless = once(["hdd", "null,irqmode=0"], second, false).expect_err("time does not pass");
    assert_eq!(timeless, CompareError::Bench("null,irqmode=0".to_owned(), BenchError::Timeless));
    assert!(std::error::Error::source(&timeless).is_some());
    let nothing = once(["hdd", "hdd,rpm=5400"], instant, false).expect_err("nothing is as quick");
    assert_eq!(nothing, CompareError::Nothing("hdd".to_owned(), instant));
    let stopped = once(["hdd", "hdd,rpm=5400"], second, true).expect_err("it was stopped");
    assert_eq!(stopped, CompareError::Stopped("hdd".to_owned()));
}
