//! When a job submits its operations: rates, pauses and flushes. On virtual time, unless a test says otherwise. The
//! expected numbers are fio 3.33's for the same job.

use std::time::Duration;

use blkmq::Op;
use blkmq_workbench::bench::{Bench, ClockKind, Control, Setup};
use blkmq_workbench::job::{BlockSize, ByDirection, Direction, Extent, Job, Operations, RateProcess};

use crate::bench_options::{Done, MS, RANDOM, Recording, SECOND, depth, done, ios, job, outcome, reads, timed, writes};

#[test]
fn a_rate_is_kept() {
    let capped = |rate_iops, rate| timed(SECOND, Job { rate_iops, rate, ..depth(4, reads()) });
    let iops = outcome(capped(ByDirection::all(Some(1000)), ByDirection::all(None)));
    assert!((999..=1001).contains(&iops.ios()), "{} of 1000 a second", iops.ios());
    let bytes = outcome(capped(ByDirection::all(None), ByDirection::all(Some(4 << 20))));
    assert!((1023..=1025).contains(&bytes.ios()), "{} of 1024 a second", bytes.ios());
    let samples = bytes.direction(Direction::Read).samples.iter().take(10).map(|sample| sample.ios);
    assert!(samples.clone().all(|ios| (101..=104).contains(&ios)), "{:?}", samples.collect::<Vec<_>>());
    // A direction with a cap holds up no other direction, with or without a cap; instead the mixture changes.
    let both = |read, write| {
        let mixed = Job { operations: Operations::ReadWrite { read_percent: 75 }, ..reads() };
        let rate_iops = ByDirection { read, write, trim: None };
        let mixed = outcome(timed(SECOND, Job { rate_iops, ..mixed }));
        (ios(&mixed, Direction::Read), ios(&mixed, Direction::Write))
    };
    let (read, write) = both(None, Some(100));
    assert!((99..=101).contains(&write) && (99_890..=99_910).contains(&read), "{read} reads, {write} writes");
    let (read, write) = both(Some(400), Some(200));
    assert!((399..=401).contains(&read) && (199..=201).contains(&write), "{read} reads, {write} writes");
}

#[test]
fn a_poisson_process_has_exponential_distances() {
    let paced =
        |rate_process| Job { rate_process, rate_iops: ByDirection::all(Some(1000)), number_ios: Some(5000), ..reads() };
    let distances = |rate_process| {
        let times: Vec<u64> = done(paced(rate_process)).iter().map(|done| done.time.0).collect();
        times.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e6).collect::<Vec<_>>()
    };
    assert!(distances(RateProcess::Linear).iter().all(|distance| (distance - 1.0).abs() < 0.01));
    let distances = distances(RateProcess::Poisson);
    let mean = distances.iter().sum::<f64>() / distances.len() as f64;
    let deviation =
        (distances.iter().map(|distance| (distance - mean).powi(2)).sum::<f64>() / distances.len() as f64).sqrt();
    let long = distances.iter().filter(|distance| **distance > 2.0).count() as f64 / distances.len() as f64;
    // Mean and standard deviation are equal, and a share of e^-2 is longer than twice the mean.
    assert!((mean - 1.0).abs() < 0.05 && (deviation - 1.0).abs() < 0.07, "mean {mean}, deviation {deviation}");
    assert!((long - (-2.0_f64).exp()).abs() < 0.02, "{long}");
}

#[test]
fn a_job_thinks_between_blocks() {
    let thinking = |blocks, issue, iodepth| {
        let job =
            Job { thinktime: MS, thinktime_blocks: blocks, thinktime_blocks_issue: issue, ..depth(iodepth, reads()) };
        outcome(timed(SECOND, job)).ios()
    };
    // 10 us each, then a millisecond.
    assert_eq!(thinking(1, false, 1), 991);
    assert_eq!(thinking(10, false, 1), 9100);
    assert_eq!(thinking(10, true, 1), 9100);
    // Ten operations at a time take as long as one.
    assert_eq!(thinking(10, true, 10), 9910);
    let by_time = Job { thinktime: MS, thinktime_iotime: 9 * MS, thinktime_blocks: u64::MAX, ..reads() };
    let ios = outcome(timed(SECOND, by_time)).ios();
    assert!((89_900..=90_100).contains(&ios), "{ios} in nine tenths of a second");
    // A job makes up for think time, unless `rate_ignore_thinktime` says otherwise.
    let made_up = |rate_ignore_thinktime| {
        let rate_iops = ByDirection::all(Some(1000));
        let job = Job { rate_iops, rate_ignore_thinktime, thinktime: 50 * MS, thinktime_blocks: 100, ..reads() };
        outcome(timed(SECOND, job)).ios()
    };
    assert!((951..=1001).contains(&made_up(false)), "{}", made_up(false));
    assert!((650..=701).contains(&made_up(true)), "{}", made_up(true));
}

/// How many operations a job does between its pauses, which are of a second.
fn bursts(job: Job) -> Vec<usize> {
    let times: Vec<u64> = done(Job { thinktime: SECOND, ..job }).iter().map(|done| done.time.0).collect();
    times.chunk_by(|one, next| next - one < 500_000_000).map(<[u64]>::len).collect()
}

/// Red before: operations that completed before a pause did not count towards the next one, so every pause let a whole
/// `iodepth` through, and `thinktime_blocks=1` at depth 256 was 256 blocks a pause.
#[test]
fn a_pause_follows_so_many_blocks_at_any_depth() {
    let first = |iodepth, blocks, issue, nr: usize| {
        let job = Job { thinktime_blocks: blocks, thinktime_blocks_issue: issue, ..depth(iodepth, reads()) };
        let mut all = bursts(Job { number_ios: Some(8000), ..job });
        all.truncate(nr);
        all
    };
    // By completions, the first burst also has the operations that were outstanding at the first pause.
    assert_eq!(first(1, 1, false, 4), [1; 4]);
    assert_eq!(first(16, 1, false, 4), [16, 1, 1, 1]);
    assert_eq!(first(256, 1, false, 4), [256, 1, 1, 1]);
    assert_eq!(first(16, 100, false, 4), [115, 100, 100, 100]);
    assert_eq!(first(256, 1000, false, 4), [1255, 1000, 1000, 1000]);
    // Fewer blocks than the depth: after a full burst the next pause is due at once.
    assert_eq!(first(256, 100, false, 5), [355, 1, 354, 1, 354]);
    for iodepth in [1, 16, 256] {
        assert_eq!(first(iodepth, 1, true, 4), [1; 4]);
        assert_eq!(first(iodepth, 100, true, 4), [100; 4]);
    }
}

/// Red if a pause by time switches off a pause by count that the job asks for too.
#[test]
fn pauses_by_time_and_by_count_are_due_at_the_earlier_one() {
    let by_both = Job { thinktime_iotime: 20 * SECOND, thinktime_blocks: 5, ..reads() };
    assert_eq!(bursts(Job { number_ios: Some(20), ..by_both }), [5; 4]);
}

/// Red if the first part of a pause is slept through as the rest is.
#[test]
fn a_job_can_compute_in_its_pauses() {
    let cpu_ns = |thinktime_spin| {
        let job = Job { thinktime: 20 * MS, thinktime_spin, number_ios: Some(5), ..reads() };
        let setup = Setup { clock: ClockKind::Real, ..Setup::new("null") };
        let mut bench = Bench::new(&[job], &setup).expect("the job fits the device");
        bench.run(&Control::default()).expect("the job runs").jobs[0].usage.cpu_ns
    };
    // Other threads may take some of the processor's time.
    let (sleeps, computes) = (cpu_ns(Duration::ZERO), cpu_ns(20 * MS));
    assert!(computes > 3 * sleeps + 10_000_000, "{computes} ns computing, {sleeps} ns sleeping");
}

/// Red before: each operation counted as one, whatever its length.
#[test]
fn a_rate_of_operations_is_one_of_bytes() {
    let mixed = |rate_process, rate_iops, rate| {
        let job =
            Job { bs: ByDirection::all(BlockSize::Range(4096..=65536)), rate_process, rate_iops, rate, ..reads() };
        let outcome = outcome(timed(10 * SECOND, Job { blockalign: ByDirection::all(4096), ..depth(16, job) }));
        (outcome.direction(Direction::Read).bytes, outcome.ios())
    };
    let (iops, none) = (ByDirection::all(Some(1000)), ByDirection::all(None));
    let (bytes, _) = mixed(RateProcess::Linear, iops, none);
    assert!(bytes.abs_diff(40_960_000) < 65536, "{bytes} bytes");
    // A Poisson process counts operations.
    for (rate_iops, rate) in [(iops, none), (none, ByDirection::all(Some(4_096_000)))] {
        let (_, ios) = mixed(RateProcess::Poisson, rate_iops, rate);
        assert!(ios.abs_diff(10_000) < 400, "{ios} operations");
    }
}

/// Red before: the first operation after a pause waited for its time once more.
#[test]
fn a_rate_that_ignores_pauses_goes_on_at_once() {
    let ignoring = |iops, thinktime_blocks| {
        let rate_iops = ByDirection::all(Some(iops));
        let job = Job { rate_iops, rate_ignore_thinktime: true, thinktime: 10 * MS, thinktime_blocks, ..reads() };
        outcome(timed(SECOND, job)).ios()
    };
    // One a pause; ten in 9 ms and a pause; and one in 20 ms and a pause, because none is due within the pause.
    assert!(ignoring(1000, 1).abs_diff(99) <= 2, "{}", ignoring(1000, 1));
    assert!(ignoring(1000, 10).abs_diff(526) <= 10, "{}", ignoring(1000, 10));
    assert!(ignoring(50, 1).abs_diff(34) <= 1, "{}", ignoring(50, 1));
}

fn flushes(done: &[Done]) -> usize {
    done.iter().filter(|done| done.op == Op::Flush).count()
}

/// Red before: of two options only the larger number counted.
#[test]
fn a_flush_is_due_at_a_multiple_of_either_option() {
    let both = Job { fsync: 4, fdatasync: 6, number_ios: Some(100), ..writes() };
    assert_eq!(flushes(&done(both)), 24 + 8);
}

/// Red before: a flush followed writes only. In a mixture fio flushes after reads too, while the number of writes stays
/// what it was.
#[test]
fn a_read_between_two_writes_is_flushed_after() {
    let mixed = job(Operations::ReadWrite { read_percent: 50 }, RANDOM);
    let done = done(Job { fsync: 1, number_ios: Some(100), ..mixed });
    let first = done.iter().position(|done| done.op == Op::Write).expect("a job of both directions writes");
    let others = done[first..].iter().filter(|done| done.op != Op::Flush).count();
    assert_eq!(flushes(&done), others - 1, "each but the last is followed by one");
}

/// Red if the flushes of a deep job are more or fewer than fio's by 3 %. fio flushes only if an operation has completed
/// since the last flush, so a job begins with a full depth of writes and one flush.
#[test]
fn a_deep_job_flushes_as_often_as_under_fio() {
    for (iodepth, every, expected) in [(1, 1, 4095), (16, 1, 4081), (16, 4, 1021), (256, 1, 3841), (256, 4, 961)] {
        let job = Job { fsync: every, size: Some(Extent::Bytes(16 << 20)), ..depth(iodepth, writes()) };
        let flushes = flushes(&done(job));
        assert!(flushes.abs_diff(expected) * 100 <= 3 * expected, "{flushes} of {expected} at depth {iodepth}");
    }
    // Operations that complete together allow for one flush. The job submits groups of twelve, for fio without the
    // flush (341 groups), here with it.
    let groups = Job { iodepth_batch_submit: 8, iodepth_low: 4, iodepth: 16, ..writes() };
    let flushes = flushes(&done(Job { fsync: 8, size: Some(Extent::Bytes(16 << 20)), ..groups }));
    assert_eq!(flushes, 4096 / 11);
}

#[test]
fn writes_are_flushed_every_so_often() {
    for job in [Job { fsync: 4, ..writes() }, Job { fdatasync: 4, ..writes() }] {
        let done = done(Job { number_ios: Some(20), ..job });
        let flushes: Vec<usize> = (0..done.len()).filter(|at| done[*at].op == Op::Flush).collect();
        assert_eq!(flushes, [4, 9, 14, 19], "{done:?}");
    }
    let (outcome, done) = Recording { has_cache: true, ..Recording::default() }.run(&[Job {
        end_fsync: true,
        number_ios: Some(3),
        ..writes()
    }]);
    assert_eq!(done.last().map(|done| done.op), Some(Op::Flush));
    assert_eq!((outcome.jobs[0].sync.ios, outcome.jobs[0].ios()), (1, 4));
}
