//! Jobs on virtual time, where every number is exact, and on threads, where only sums are exact.

use std::time::Duration;

use blkmq_workbench::bench::{Bench, BenchError, ClockKind, Control, Outcome, Setup, Stamps, thread_cpu_ns};
use blkmq_workbench::job::{BlockSize, ByDirection, Direction, Extent, Job, Operations, Order};

use crate::bench_options::{self, MS, RANDOM, SECOND, SEQUENTIAL, batched, timed};

/// A device on which each request takes 100 us, 64 at a time.
const TIMED: &str = "null,irqmode=2,completion_nsec=100us,hw_queue_depth=64,poll_queues=0,size=1G";

fn job(direction: Direction, order: Order) -> Job {
    bench_options::job(Operations::Only(direction), order)
}

fn setup(device: &str, scheduler: &str, clock: ClockKind) -> Setup {
    Setup { scheduler: Some(scheduler.into()), clock, ..Setup::new(device) }
}

fn run(jobs: &[Job], setup: &Setup) -> Outcome {
    let mut bench = Bench::new(jobs, setup).expect("the jobs fit the device");
    bench.run(&Control::default()).expect("the jobs run")
}

fn on_virtual_time(jobs: &[Job]) -> Outcome {
    run(jobs, &setup(TIMED, "none", ClockKind::Virtual))
}

/// The jobs of published measurements, for `numjobs` threads.
fn published(numjobs: u32, runtime: Duration) -> [Job; 4] {
    let each = |job: Job| Job { numjobs, ..timed(runtime, job) };
    let quick = blkmq_workbench::job::Measure { lat: false, clat: false, slat: false };
    let scaling = Job {
        bs: ByDirection::all(BlockSize::Fixed(512)),
        measure: quick,
        ..batched(4, 4, job(Direction::Read, RANDOM))
    };
    let scaling = Job { blockalign: ByDirection::all(512), ..scaling };
    let batch = Job { iodepth_batch_submit: 8, norandommap: false, ..batched(32, 8, job(Direction::Write, RANDOM)) };
    let accounting = Job { measure: quick, ..job(Direction::Read, RANDOM) };
    let merge = Job {
        size: Some(Extent::Bytes(1 << 20)),
        offset_increment: Extent::Bytes(2 << 20),
        ..batched(32, 1, job(Direction::Write, SEQUENTIAL))
    };
    [each(scaling), each(batch), each(accounting), each(merge)]
}

#[test]
fn one_at_a_time_takes_its_time() {
    let outcome = on_virtual_time(&[timed(SECOND, job(Direction::Read, RANDOM))]);
    let [job] = &outcome.jobs[..] else { panic!("one thread, not {}", outcome.jobs.len()) };
    let reads = job.direction(Direction::Read);
    assert_eq!((reads.ios, reads.bytes, job.ios()), (10_000, 40_960_000, 10_000));
    assert_eq!((job.runtime_ns, outcome.elapsed_ns), (1_000_000_000, 1_000_000_000));
    assert_eq!((reads.latency.min(), reads.latency.max()), (100_000, 100_000));
    assert_eq!((reads.iops(job.runtime_ns), reads.bandwidth(job.runtime_ns)), (10_000.0, 40_960_000.0));
    let samples: Vec<_> = reads.samples.iter().map(|sample| sample.ios).collect();
    assert_eq!(samples.len(), 10);
    assert_eq!(samples.iter().sum::<u64>(), 10_000);
    assert!(samples.iter().all(|ios| (999..=1001).contains(ios)), "{samples:?}");
    assert_eq!(outcome.layer.requests, 10_000);
}

#[test]
fn as_many_are_outstanding_as_the_job_says_and_never_more() {
    for (iodepth, batch) in [(1, 1), (4, 4), (32, 8), (7, 3), (32, 1), (64, 64)] {
        let outcome = on_virtual_time(&[timed(SECOND / 10, batched(iodepth, batch, job(Direction::Read, RANDOM)))]);
        let job = &outcome.jobs[0];
        // The device takes up to 64 at once, each for 100 us. A job that waits for several completions leaves places
        // unused meanwhile.
        let whole = if iodepth % batch == 0 { iodepth } else { iodepth - 1 };
        let ios = u64::from(whole) * 1000;
        assert!((ios..=ios + 7).contains(&job.ios()), "iodepth {iodepth}, batch {batch}: {}", job.ios());
        let beyond = &job.depth_level.levels()[iodepth.ilog2() as usize + 1..];
        assert!(beyond.iter().all(|count| *count == 0), "{iodepth}: {:?}", job.depth_level);
        assert_eq!(job.depth_level.total(), job.ios());
        let beyond = &job.depth_submit.levels()[batch.ilog2() as usize + 1..];
        assert!(beyond.iter().all(|count| *count == 0), "{batch}: {:?}", job.depth_submit);
    }
}

#[test]
fn the_outcome_is_what_the_queue_counted() {
    for scheduler in ["none", "mq-deadline"] {
        for clock in [ClockKind::Virtual, ClockKind::Real] {
            for job in published(3, 20 * MS) {
                let mut bench =
                    Bench::new(std::slice::from_ref(&job), &setup(TIMED, scheduler, clock)).expect("it fits");
                let before = bench.queue().counters();
                let outcome = bench.run(&Control::default()).expect("it runs");
                assert_eq!(outcome.error(), None);
                assert_eq!(outcome.jobs.len(), 3);
                let (stats, layer) = (bench.queue().counters(), outcome.layer);
                assert!(outcome.ios() > 0);
                assert_eq!((stats.entered, stats.completed), (outcome.ios(), outcome.ios()), "{scheduler}, {job:?}");
                assert_eq!(layer.stats, stats - before);
                assert_eq!(layer.requests + layer.merges, outcome.ios());
                let bytes = outcome.jobs.iter().flat_map(|job| &job.directions).map(|kind| kind.bytes).sum::<u64>();
                assert_eq!(bytes, outcome.ios() * job.bs.read.bounds().end());
            }
        }
    }
}

#[test]
fn on_virtual_time_the_same_jobs_do_the_same() {
    let setup = setup(TIMED, "mq-deadline", ClockKind::Virtual);
    for job in published(5, 5 * MS) {
        let without_cpu = |mut outcome: Outcome| {
            outcome.layer.cpu_ns = 0;
            outcome
        };
        let jobs = [job];
        assert_eq!(without_cpu(run(&jobs, &setup)), without_cpu(run(&jobs, &setup)));
    }
}

#[test]
fn jobs_end_at_their_size_and_loop() {
    let area = Job { size: Some(Extent::Bytes(1 << 20)), ..job(Direction::Write, SEQUENTIAL) };
    let ios = |job: Job| on_virtual_time(&[job]).jobs[0].ios();
    assert_eq!(ios(area.clone()), 256);
    assert_eq!(ios(Job { loops: 3, ..area.clone() }), 768);
    assert_eq!(ios(Job { io_size: Some(Extent::Bytes(8192)), ..area.clone() }), 2);
    assert_eq!(ios(Job { io_size: Some(Extent::Bytes(3 << 20)), ..area.clone() }), 768);
    assert_eq!(ios(Job { io_size: Some(Extent::Percent(25)), ..area.clone() }), 64, "a quarter of the size");
    assert_eq!(ios(Job { number_ios: Some(7), ..area.clone() }), 7);
    assert_eq!(ios(Job { number_ios: Some(7), loops: 2, ..area.clone() }), 14);
    assert_eq!(ios(Job { size: Some(Extent::Percent(1)), ..area.clone() }), 2621, "1 % of 1 GiB");
    assert_eq!(ios(Job { runtime: Some(10 * MS), ..area.clone() }), 100, "the time ends it before the size");
    assert_eq!(ios(Job { runtime: Some(SECOND), ..area.clone() }), 256, "the size ends it before the time");
    assert_eq!(ios(timed(SECOND, area)), 10_000, "passes begin anew");
}

/// The numbers are those of fio 3.33. Red before: each of these passes had one operation less.
#[test]
fn a_pass_ends_with_a_whole_operation() {
    let area = |operations, order| {
        let size = Some(Extent::Bytes((1 << 20) - 1024));
        Job { operations, order, size, ..job(Direction::Write, order) }
    };
    let ios = |job: Job| on_virtual_time(&[job]).jobs[0].ios();
    let (writes, in_order) = (Operations::Only(Direction::Write), SEQUENTIAL);
    assert_eq!(ios(area(Operations::ReadWrite { read_percent: 50 }, in_order)), 256);
    assert_eq!(ios(area(writes, RANDOM)), 256, "without a map");
    for order in [in_order, RANDOM] {
        assert_eq!(ios(Job { io_size: Some(Extent::Bytes(10_000)), ..area(writes, order) }), 3);
    }
    // No place is left for another one.
    assert_eq!(ios(area(writes, in_order)), 255);
    assert_eq!(ios(Job { norandommap: false, ..area(writes, RANDOM) }), 255);
}

/// Red if other jobs get a device that is as new, or a clock that begins anew; or if they may have more outstanding
/// than the queue has room for.
#[test]
fn other_jobs_find_the_device_as_the_first_left_it() {
    // Credit for 1000 operations, which is used up within the first second.
    let device = "cloud,iops=100,burst=10s,latency=100us,spread=0,hold=1ms";
    let reads = timed(SECOND, batched(8, 1, job(Direction::Read, RANDOM)));
    let mut first = Bench::new(std::slice::from_ref(&reads), &setup(device, "none", ClockKind::Virtual)).unwrap();
    let ios = |bench: &mut Bench| bench.run(&Control::default()).expect("the jobs run").ios();
    let begun = ios(&mut first);
    assert!((1000..1200).contains(&begun), "all that was saved up: {begun}");
    let fewer = batched(4, 1, reads.clone());
    let mut other = first.with_jobs(&[fewer]).expect("fewer fit");
    let gone = ios(&mut other);
    assert!((90..120).contains(&gone), "nothing is saved up: {gone}");
    let deeper = batched(9, 1, reads);
    assert!(matches!(first.with_jobs(&[deeper]), Err(BenchError::Job { .. })));
    assert!(matches!(first.with_jobs(&[]), Err(BenchError::NoJob)));
}

#[test]
fn what_the_end_finds_outstanding_is_not_in_time() {
    let in_time = |job: Job| {
        let outcome = on_virtual_time(&[job]);
        (outcome.jobs[0].ios_in_time, outcome.jobs[0].ios())
    };
    let read = || job(Direction::Read, RANDOM);
    assert_eq!(in_time(timed(10 * MS + MS / 20, batched(8, 1, read()))), (800, 808));
    assert_eq!(in_time(timed(10 * MS, Job { ramp_time: MS / 20, ..read() })), (100, 101));
    assert_eq!(in_time(timed(MS / 20, batched(8, 1, read()))), (0, 8));
    assert_eq!(in_time(Job { number_ios: Some(7), ..read() }), (7, 7));
}

#[test]
fn cpu_time_of_the_ramp_is_not_counted_on_virtual_time_either() {
    let job = Job { ramp_time: 10 * SECOND, ..timed(10 * MS, job(Direction::Read, RANDOM)) };
    let before = thread_cpu_ns();
    let outcome = on_virtual_time(&[job]);
    let (counted, all) = (outcome.layer.cpu_ns, thread_cpu_ns() - before);
    // One operation in a thousand came after the ramp.
    assert!(0 < counted && counted < all / 4, "{counted} of {all} ns");
}

#[test]
fn a_job_that_follows_a_stonewall_waits() {
    let area = Job { size: Some(Extent::Bytes(1 << 20)), ..job(Direction::Write, SEQUENTIAL) };
    let late = Job { startdelay: 10 * MS..=10 * MS, ..area.clone() };
    let walled = Job { stonewall: true, ..area.clone() };
    assert_eq!(on_virtual_time(&[area.clone(), area.clone()]).elapsed_ns, 25_600_000);
    assert_eq!(on_virtual_time(&[area.clone(), late]).elapsed_ns, 35_600_000);
    let outcome = on_virtual_time(&[area.clone(), walled, area]);
    assert_eq!((outcome.elapsed_ns, outcome.ios()), (51_200_000, 768));
}

#[test]
fn what_cannot_run_is_refused_with_a_reason() {
    let refused = |job: Job| {
        Bench::new(&[job], &setup(TIMED, "none", ClockKind::Virtual)).expect_err("it cannot run").to_string()
    };
    let read = || job(Direction::Read, RANDOM);
    let large = Job { size: Some(Extent::Bytes(2 << 30)), ..read() };
    assert_eq!(
        refused(large),
        "job tested: it would reach to byte 2147483648 of the device, which ends at byte 1073741824; see size, offset and \
         offset_increment"
    );
    let spread =
        Job { numjobs: 3, size: Some(Extent::Bytes(1 << 29)), offset_increment: Extent::Bytes(1 << 29), ..read() };
    assert!(refused(spread).starts_with("job tested: thread 3 of 3 would reach to byte 1610612736 of the device"));
    let bulky = Job { bs: ByDirection::all(BlockSize::Fixed(1 << 30)), ..batched(16384, 1, read()) };
    assert!(
        refused(bulky).starts_with("job tested: the buffers of all jobs take 17592186044416 bytes, and this machine")
    );
    assert!(refused(job(Direction::Trim, RANDOM)).starts_with("job tested: the device cannot trim"));
    let timeless = Bench::new(&[timed(SECOND, read())], &setup("null,irqmode=0", "none", ClockKind::Virtual));
    assert_eq!(timeless.expect("it fits").run(&Control::default()), Err(BenchError::Timeless));
}

#[test]
fn an_error_of_the_device_ends_the_job_that_met_it() {
    let device = "null,irqmode=2,completion_nsec=100us,poll_queues=0,size=1M,badblocks=1024-1031";
    let area = |offset| Job {
        offset: Extent::Bytes(offset),
        size: Some(Extent::Bytes(512 << 10)),
        ..batched(8, 1, job(Direction::Read, SEQUENTIAL))
    };
    for clock in [ClockKind::Virtual, ClockKind::Real] {
        let outcome = run(&[area(0), area(512 << 10)], &setup(device, "none", clock));
        assert_eq!((outcome.jobs[0].ios(), &outcome.jobs[0].error), (128, &None));
        assert_eq!(outcome.error().as_deref(), Some("job tested: a read of 4096 bytes at byte 524288: medium error"));
        let failed = &outcome.jobs[1];
        assert_eq!(failed.direction(Direction::Read).errors, 1);
        assert!(failed.ios() < 128, "{} reads though one had failed", failed.ios());
    }
}

#[test]
fn a_stop_drains_and_ends_all_threads() {
    let jobs = [Job { numjobs: 4, ..timed(3600 * SECOND, batched(16, 4, job(Direction::Read, RANDOM))) }];
    let mut bench = Bench::new(&jobs, &setup(TIMED, "none", ClockKind::Real)).expect("it fits");
    let control = Control::default();
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            while control.progress.snapshot().ios < 1000 {
                std::thread::yield_now();
            }
            control.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        bench.run(&control).expect("it runs")
    });
    assert!(outcome.stopped && outcome.ios() >= 1000);
    let stats = bench.queue().counters();
    assert_eq!((stats.entered, stats.completed), (outcome.ios(), outcome.ios()));
    assert_eq!(control.progress.snapshot().running, 0);
}

#[test]
fn the_clock_is_coarse_only_where_nobody_needs_it() {
    let [plain, timed_writes, ..] = published(1, MS);
    let coarse = |job: &Job, device: &str, clock| {
        let setup = setup(device, "none", clock);
        Bench::new(std::slice::from_ref(job), &setup).expect("it fits").stamps() == Stamps::Coarse
    };
    let inline = "null,irqmode=0,size=1G";
    assert!(coarse(&plain, inline, ClockKind::Real));
    assert!(!coarse(&plain, inline, ClockKind::Exact) && !coarse(&plain, inline, ClockKind::Virtual));
    assert!(!coarse(&plain, TIMED, ClockKind::Real), "the device takes time");
    assert!(!coarse(&timed_writes, inline, ClockKind::Real), "latencies are measured");
    let settings = vec![("wbt_lat_usec".to_owned(), "-1".to_owned())];
    let windowed = Setup { settings, ..setup(inline, "mq-deadline", ClockKind::Real) };
    let bench = Bench::new(std::slice::from_ref(&plain), &windowed).expect("it fits");
    assert_eq!(bench.stamps(), Stamps::Exact, "a limiter measures latencies");
    let paced = Job { thinktime: MS, ..plain };
    assert!(!coarse(&paced, inline, ClockKind::Real), "the job pauses");
}

#[test]
fn on_threads_time_and_waiting_are_what_the_machine_says() {
    for device in ["null,irqmode=0,size=1G", "null,irqmode=2,completion_nsec=300us,poll_queues=0,size=1G"] {
        let [job, ..] = published(2, 30 * MS);
        let begun = std::time::Instant::now();
        let outcome = run(&[job], &setup(device, "mq-deadline", ClockKind::Real));
        let wall = begun.elapsed().as_nanos() as u64;
        assert!(outcome.elapsed_ns <= wall, "{} of {wall}", outcome.elapsed_ns);
        for job in &outcome.jobs {
            // A tick of the kernel takes at most 10 ms.
            assert!((20_000_000..=outcome.elapsed_ns).contains(&job.runtime_ns), "{}", job.runtime_ns);
            assert!(job.usage.cpu_ns > 0 && job.usage.cpu_ns <= wall);
            assert!(job.usage.usr_ns + job.usage.sys_ns <= wall + 20_000_000);
        }
        let layer = outcome.layer;
        assert_eq!(layer.cpu_ns, outcome.jobs.iter().map(|job| job.usage.cpu_ns).sum::<u64>());
        assert!((0.0..=1.0).contains(&layer.wait_share()), "{}", layer.wait_share());
        if device.contains("irqmode=2") {
            assert!(layer.wait_share() > 0.0, "most of the time nothing has completed");
        }
    }
}

#[test]
fn a_priority_goes_before_another() {
    let class = |class| {
        let priority = Some(blkmq::IoPriority { class, level: 0 });
        Job { priority, numjobs: 4, ..timed(SECOND / 10, batched(8, 1, job(Direction::Read, RANDOM))) }
    };
    let device = "null,irqmode=2,completion_nsec=100us,hw_queue_depth=1,poll_queues=0,size=1G";
    let jobs = [class(blkmq::Class::BestEffort), class(blkmq::Class::RealTime)];
    let settings = vec![("nr_requests".to_owned(), "256".to_owned())];
    let outcome = run(&jobs, &Setup { settings, ..setup(device, "mq-deadline", ClockKind::Virtual) });
    let ios = |jobs: &[blkmq_workbench::bench::JobOutcome]| jobs.iter().map(|job| job.ios()).sum::<u64>();
    let (low, high) = (ios(&outcome.jobs[..4]), ios(&outcome.jobs[4..]));
    assert!(high > 900 && low < 100, "{high} of high and {low} of low priority");
}

/// Red if the device does not hear how many threads the jobs have, so that each thread shares a ring with others; or if
/// jobs that run one after the other count together.
#[test]
fn each_thread_of_jobs_on_a_file_has_a_ring_of_its_own() {
    let folder = tempfile::tempdir().expect("the folder for temporary files is writable");
    let device = format!("file,path={},size=1M", folder.path().join("disk").display());
    let jobs = [1, 2].map(|numjobs| Job {
        numjobs,
        io_size: Some(Extent::Bytes(64 << 10)),
        size: Some(Extent::Bytes(64 << 10)),
        ..job(Direction::Read, RANDOM)
    });
    let mut bench = Bench::new(&jobs, &Setup::new(&device)).expect("the jobs fit the device");
    assert_eq!(bench.queue().driver().topology().default_queues, 3);
    let outcome = bench.run(&Control::default()).expect("the jobs run");
    let reads: Vec<_> = outcome.jobs.iter().map(|job| job.directions[0].ios).collect();
    assert_eq!(reads.iter().sum::<u64>(), 3 * 16, "{reads:?}");
    drop(bench);
    let staged = jobs.map(|job| Job { stonewall: true, ..job });
    let bench = Bench::new(&staged, &Setup::new(&device)).expect("the jobs fit the device");
    assert_eq!(bench.queue().driver().topology().default_queues, 2);
}

/// Red before: a flush completed at time 0, so each sync seemed to take no time.
#[test]
fn a_sync_takes_the_time_that_the_device_takes_for_it() {
    let cached = "null,irqmode=2,completion_nsec=100us,poll_queues=0,size=64M,memory_backed=1,cache_size=1";
    let writer = Job { fsync: 1, number_ios: Some(50), ..job(Direction::Write, RANDOM) };
    let syncs = |device| {
        let outcome = run(std::slice::from_ref(&writer), &setup(device, "none", ClockKind::Virtual));
        assert!((49..=50).contains(&outcome.jobs[0].sync.ios), "{:?}", outcome.jobs[0].sync);
        outcome.jobs[0].sync.clone()
    };
    let sync = syncs(cached);
    assert_eq!([sync.latency.min(), sync.latency.max()], [100_000; 2]);
    assert_eq!([sync.device.min(), sync.device.max()], [100_000; 2]);
    // A disk moves its head, and waits for the sector, before the data is durable.
    assert!(syncs("hdd").latency.percentile(50.0) > 1_000_000);
}

/// Red before: jobs ran on a file by a clock that stands still while the file works.
#[test]
fn real_storage_is_refused_on_virtual_time() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("virtual.img");
    let device = format!("file,path={},size=1M", path.display());
    let jobs = [Job { number_ios: Some(1), ..job(Direction::Read, RANDOM) }];
    let refused = |clock| Bench::new(&jobs, &setup(&device, "none", clock)).err();
    assert_eq!(refused(ClockKind::Virtual), Some(BenchError::RealTime));
    assert_eq!(refused(ClockKind::Real), None);
    std::fs::remove_file(path).expect("it was made");
}
