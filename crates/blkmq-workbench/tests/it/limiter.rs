//! A queue that bounds the work with its device, on models, on virtual time: the whole path of a request, with requests
//! that bypass the scheduler and without.

use blkmq::sched::limiter::Phase;
use blkmq::{Locking, Op};
use blkmq_workbench::bench::{Bench, ClockKind, Control, Outcome, Setup};
use blkmq_workbench::job::Direction;
use blkmq_workbench::{JobFile, Mode, System};

/// A reader of 500 blocks a second beside 128 writes of one block.
const FLOOD: &str = include_str!("../../jobs/flood-blocks.fio");

/// Eight clients that read a block at a time, and two clients that always have 64 requests outstanding.
const EIGHT: &str = "
[global]
ioengine=io_uring
direct=1
norandommap
thread
time_based
runtime=2
ramp_time=2
rw=randread
bs=4k
iodepth=1
[client-1]
[client-2]
[client-3]
[client-4]
[client-5]
[client-6]
[client-7]
[client-8]
[flood-1]
rw=randwrite
iodepth=64
[flood-2]
rw=randwrite
iodepth=64
";

/// The queue in front of a device, after the flood has run, and what came of it.
fn flood(device: &str, setup: Setup, usec: i64) -> (Bench, Outcome) {
    run(FLOOD, &["ramp_time=3"], device, setup, usec)
}

fn run(jobs: &str, options: &[&str], device: &str, setup: Setup, usec: i64) -> (Bench, Outcome) {
    let jobs = JobFile::parse("flood", jobs, options, Mode::Strict, &System).expect("it is a job file").jobs;
    let mut setup = Setup { clock: ClockKind::Virtual, ..setup };
    setup.device = device.to_owned();
    setup.settings.push(("wbt_lat_usec".to_owned(), usec.to_string()));
    let mut bench = Bench::new(&jobs, &setup).expect("the jobs fit the device");
    let outcome = bench.run(&Control::default()).expect("the jobs run");
    (bench, outcome)
}

fn setup(scheduler: &str) -> Setup {
    Setup { scheduler: Some(scheduler.into()), ..Setup::new("null") }
}

/// The latency in microseconds that 999 of 1000 reads keep to, and the writers' MB/s.
fn reader_and_writers(outcome: &Outcome) -> (f64, f64) {
    assert_eq!(outcome.error(), None);
    let (reader, writers) = outcome.jobs.split_first().expect("there is a reader");
    let written = writers.iter().map(|job| job.direction(Direction::Write).bandwidth(job.runtime_ns));
    (reader.direction(Direction::Read).latency.percentile(99.9) as f64 / 1e3, written.sum::<f64>() / 1e6)
}

/// Red if requests are not held back, if they are held back for longer than need be, or if the limiter is not told what
/// completes, whether or not requests may bypass the scheduler.
#[test]
fn on_a_volume_the_reader_is_quick_and_the_writers_lose_nothing() {
    let (slow, all) = reader_and_writers(&flood("cloud", setup("none"), 0).1);
    assert!(slow > 3000.0, "without a limiter a read takes {slow} us");
    let (best, of_best) = reader_and_writers(&flood("cloud,hw_queue_depth=26", setup("mq-deadline"), 0).1);
    println!("none {slow:.0} us {all:.0} MB/s, depth 26 {best:.0} us {of_best:.0} MB/s");
    for (locking, bypass) in [(Locking::Single, false), (Locking::Combining, true)] {
        let setup = Setup { locking, bypass: Some(bypass), ..setup("mq-deadline") };
        let (bench, outcome) = flood("cloud", setup, -1);
        let (p999, written) = reader_and_writers(&outcome);
        let limiter = bench.queue().limiter().expect("the queue has a limiter");
        println!("{locking} bypass {bypass}: {p999:.0} us {written:.0} MB/s");
        assert!(p999 <= 500.0, "{locking}, bypass {bypass}: {p999} us");
        assert!(written >= of_best - 0.02 * all, "{locking}, bypass {bypass}: {written} MB/s of {all}");
        let ceiling = limiter.limiter.ceiling(Op::Write, 8).expect("a ceiling was found") as f64;
        assert!((ceiling / 275e3 - 1.0).abs() < 0.05, "{locking}, bypass {bypass}: {ceiling} requests a second");
        assert_eq!((limiter.in_flight_ns, limiter.held_back), (0, 0), "nothing is left when all is over");
    }
}

/// Red if the scheduler is not told of the slice: then some of eight clients gets less than nine tenths of what it
/// would have with the floods held to their tenths of the ceiling by hand. Without a limiter it gets a fifth of that.
#[test]
fn eight_clients_get_what_they_would_beside_floods_that_are_held_by_hand() {
    let worst = |jobs: &str, scheduler, usec| {
        let (_, outcome) = run(jobs, &[], "cloud", setup(scheduler), usec);
        assert_eq!(outcome.error(), None);
        let rates =
            outcome.jobs[..8].iter().map(|job| job.direction(Direction::Read).bandwidth(job.runtime_ns) / 4096.0);
        let worst = rates.fold(f64::INFINITY, f64::min);
        println!("{scheduler} wbt_lat_usec {usec}: {worst:.0} reads/s");
        worst
    };
    let by_hand = worst(&EIGHT.replace("iodepth=64", "iodepth=64\nrate_iops=27500"), "none", 0);
    let [without, with] = [0, -1].map(|usec| worst(EIGHT, "bfq", usec));
    assert!(with >= 0.9 * by_hand && without < 0.5 * by_hand, "{without} and {with} reads/s of {by_hand}");
}

/// Red if requests that bypass the scheduler do not teach the limiter, or if it does anything on a device that takes
/// the same time for any number.
#[test]
fn on_a_device_without_a_ceiling_the_limiter_stays_open_and_requests_pass() {
    let device = "null,irqmode=2,completion_nsec=100us,hw_queue_depth=256,poll_queues=0";
    let rates = [0, -1].map(|usec| {
        let (bench, outcome) = flood(device, setup("mq-deadline"), usec);
        let passed = bench.queue().counters().bypassed;
        let phase = bench.queue().limiter().map(|limiter| limiter.limiter.phase());
        assert_eq!(phase, (usec != 0).then_some(Phase::Open));
        (reader_and_writers(&outcome), passed)
    });
    assert_eq!(rates[0], rates[1]);
    assert!(rates[0].1 > 100_000, "requests pass: {rates:?}");
}

/// Red if a limiter is made where nothing can wait, or one stays when its scheduler goes, or its value is lost.
#[test]
fn a_limiter_belongs_to_a_scheduler_that_orders_the_whole_queue() {
    let q = blkmq::RequestQueue::builder(blkmq::driver::spec::open("null").expect("there is such a device"))
        .scheduler("mq-deadline")
        .wbt_lat_usec(-1)
        .build()
        .expect("the device is good");
    let set = |name: &str, value: &str| q.change_knob(name, value).and_then(blkmq::Change::wait);
    assert_eq!(q.knob("wbt_lat_usec").as_deref(), Ok("-1"));
    assert!(q.limiter().is_some());
    for scheduler in ["none", "kyber"] {
        set("scheduler", scheduler).expect("there is such a scheduler");
        assert_eq!((q.knob("wbt_lat_usec").as_deref(), q.limiter().is_none()), (Ok("0"), true), "{scheduler}");
        let refused = set("wbt_lat_usec", "500").expect_err("nothing can wait").to_string();
        assert!(refused.ends_with(&format!("and the scheduler is {scheduler}")), "{refused}");
    }
    set("scheduler", "bfq").expect("there is such a scheduler");
    assert_eq!((q.knob("wbt_lat_usec").as_deref(), q.limiter().is_some()), (Ok("-1"), true));
    set("wbt_lat_usec", "500").expect("bfq orders the whole queue");
    assert_eq!(q.limiter().and_then(|limiter| limiter.limiter.target_ns()), Some(500_000));
    for bad in ["-2", "60000001", "x"] {
        let refused = set("wbt_lat_usec", bad).expect_err("it is no such value").to_string();
        assert!(refused.starts_with("wbt_lat_usec: "), "{refused}");
    }
    set("wbt_lat_usec", "0").expect("it is a value");
    assert!(q.limiter().is_none());
    let device = blkmq::driver::spec::open("null").expect("there is such a device");
    let refused = blkmq::RequestQueue::builder(device).scheduler("none").wbt_lat_usec(-1).build();
    assert!(refused.expect_err("nothing can wait").to_string().contains("the scheduler is none"));
}
