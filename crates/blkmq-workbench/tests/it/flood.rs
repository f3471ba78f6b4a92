//! A reader's latency under mq-deadline, beside a flood of writes, on the model of an SSD. On virtual time every figure
//! is the same each time. `docs/flood.md` shows the whole table.

use std::time::Duration;

use blkmq_workbench::bench::{Bench, ClockKind, Control, Setup};
use blkmq_workbench::job::Direction;
use blkmq_workbench::{JobFile, Mode, System};

const THREADS: &str = include_str!("../../jobs/flood.fio");
const DEEP: &str = include_str!("../../jobs/flood-deep.fio");

/// How long each flood runs. For most of this time the SSD collects garbage.
const RUNTIME: Duration = Duration::from_secs(1);

/// The reader's p99 in nanoseconds, and the writers' bytes a second.
fn flood(job: &str, device: &str, scheduler: &str, settings: &[(&str, &str)]) -> (u64, f64) {
    let file = JobFile::parse("flood", job, &[], Mode::Strict, &System).expect("the job is understood");
    let outstanding: u32 = file.jobs[1..].iter().map(|job| job.iodepth * job.numjobs).sum();
    assert!(outstanding >= 512, "{outstanding}");
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let setup = Setup { scheduler: Some(scheduler.into()), settings, clock: ClockKind::Virtual, ..Setup::new(device) };
    let mut bench = Bench::new(&file.jobs, &setup).expect("the jobs fit the device");
    let control = Control { runtime: Some(RUNTIME), ..Control::default() };
    let outcome = bench.run(&control).expect("the jobs run");
    let (reader, writers) = outcome.jobs.split_first().expect("there are jobs");
    let read = reader.direction(Direction::Read);
    assert!(read.ios > 30, "{} reads are too few for a p99", read.ios);
    let written = writers.iter().map(|job| job.direction(Direction::Write).bandwidth(job.runtime_ns)).sum();
    let p99 = read.latency.percentile(99.0);
    println!("{device} {scheduler}: {} reads, p99 {p99} ns; {:.0} MiB/s", read.ios, written / f64::from(1 << 20));
    (p99, written)
}

/// Red if the scheduler gets only Linux's 64 requests for this device and not everything that waits, or if mq-deadline
/// takes writes first: the reader then gets only two reads done.
#[test]
fn mq_deadline_keeps_a_reader_below_a_fifth_of_what_many_threads_make_of_it() {
    for seed in 0..3 {
        let device = format!("ssd,hw_queue_depth=32,seed={seed}");
        let (none, written) = flood(THREADS, &device, "none", &[]);
        let (kept, written_beside) = flood(THREADS, &device, "mq-deadline", &[]);
        assert!(5 * kept < none, "seed {seed}: {kept} ns, and {none} ns without a scheduler");
        assert!(written_beside > 0.9 * written, "seed {seed}: {written_beside} of {written}");
    }
}

/// Red if the reader gets room in the scheduler before the writers. Submitters take turns to get room. So with 64
/// requests, Linux's default for this device, mq-deadline helps as little as it did in measurements of Linux.
#[test]
fn without_room_for_the_flood_mq_deadline_has_nothing_to_choose_from() {
    let device = "ssd,hw_queue_depth=32";
    let (none, _) = flood(THREADS, device, "none", &[]);
    let (kept, _) = flood(THREADS, device, "mq-deadline", &[("nr_requests", "64")]);
    assert!(2 * kept > none, "{kept} ns, and {none} ns without a scheduler: docs/flood.md says otherwise");
}

/// Red if the software queues are emptied one after the other. Without a scheduler submitters take turns, so four
/// submitters cannot keep a fifth from the device, however many requests each of them has waiting.
#[test]
fn without_a_scheduler_submitters_take_turns() {
    let device = "ssd,hw_queue_depth=32";
    let (threads, _) = flood(THREADS, device, "none", &[]);
    let (deep, _) = flood(DEEP, device, "none", &[]);
    assert!(5 * deep < threads, "{deep} ns beside 4 threads, {threads} ns beside 128");
}
