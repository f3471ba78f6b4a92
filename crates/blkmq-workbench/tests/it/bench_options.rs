//! What each option of a job does, on virtual time. Each test is red if the line that obeys its option is taken out.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blkmq::driver::{Batch, Driver, Topology, spec};
use blkmq::{Bio, Buffer, Class, Client, IoPriority, Limits, Op, Status, Time};
use blkmq_workbench::bench::{Bench, BenchError, ClockKind, Control, JobOutcome, Outcome, Setup};
use blkmq_workbench::job::{BlockSize, ByDirection, Direction, Distribution, Extent, Job, Operations, Order, Verify};

/// A device on which each request takes 10 us, 64 at a time.
pub(crate) const TIMED: &str = "null,irqmode=2,completion_nsec=10us,hw_queue_depth=64,poll_queues=0,size=1G";

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const RANDOM: Order = Order::Random { every: 1 };
pub(crate) const SEQUENTIAL: Order = Order::Sequential { skip: 0 };

pub(crate) fn job(operations: Operations, order: Order) -> Job {
    Job { operations, order, norandommap: true, ..Job::new("tested") }
}

pub(crate) fn reads() -> Job {
    job(Operations::Only(Direction::Read), RANDOM)
}

pub(crate) fn writes() -> Job {
    job(Operations::Only(Direction::Write), SEQUENTIAL)
}

pub(crate) fn depth(iodepth: u32, job: Job) -> Job {
    Job { iodepth, iodepth_low: iodepth, ..job }
}

/// Like [`depth`], with `batch` requests in each submission and in each wait for completions.
pub(crate) fn batched(iodepth: u32, batch: u32, job: Job) -> Job {
    Job {
        iodepth_batch_submit: batch,
        iodepth_batch_complete_min: batch,
        iodepth_batch_complete_max: batch,
        ..depth(iodepth, job)
    }
}

pub(crate) fn timed(runtime: Duration, job: Job) -> Job {
    Job { time_based: true, runtime: Some(runtime), ..job }
}

pub(crate) fn verified(job: Job) -> Job {
    Job { verify: Some(Verify::Crc32c), ..job }
}

pub(crate) fn area(bytes: u64, job: Job) -> Job {
    Job { size: Some(Extent::Bytes(bytes)), ..job }
}

pub(crate) fn setup(clock: ClockKind) -> Setup {
    Setup { scheduler: Some("none".into()), clock, ..Setup::new(TIMED) }
}

pub(crate) fn open(device: &str) -> Arc<dyn Driver> {
    spec::open(device).expect("the device is well described")
}

pub(crate) fn run_on(driver: &Arc<dyn Driver>, jobs: &[Job], clock: ClockKind) -> Outcome {
    let mut bench = Bench::over(Arc::clone(driver), jobs, &setup(clock)).expect("the jobs fit the device");
    bench.run(&Control::default()).expect("the jobs run")
}

fn run_over(driver: &Arc<dyn Driver>, jobs: &[Job]) -> Outcome {
    run_on(driver, jobs, ClockKind::Virtual)
}

pub(crate) fn outcome(job: Job) -> JobOutcome {
    run_over(&open(TIMED), &[job]).jobs.remove(0)
}

pub(crate) fn ios(job: &JobOutcome, direction: Direction) -> u64 {
    job.direction(direction).ios
}

/// A device that keeps its data and a list of what it did. Each request takes a microsecond of virtual time.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) blocks: Mutex<HashMap<u64, Vec<u8>>>,
    pub(crate) done: Mutex<Vec<Done>>,
    /// Writes to this sector are lost.
    pub(crate) loses: Option<u64>,
    pub(crate) trims: bool,
    pub(crate) has_cache: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) op: Op,
    pub(crate) sector: u64,
    pub(crate) nr_sectors: u64,
    pub(crate) time: Time,
    priority: IoPriority,
}

impl Driver for Recording {
    fn name(&self) -> &'static str {
        "recording"
    }

    fn limits(&self) -> Limits {
        Limits {
            capacity_sectors: 1 << 20,
            max_discard_sectors: if self.trims { 1 << 16 } else { 0 },
            write_cache: self.has_cache,
            ..Limits::default()
        }
    }

    fn topology(&self) -> Topology {
        Topology::new(1, 64)
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, now: Time) {
        let mut blocks = self.blocks.lock().expect("no holder panics");
        let mut done = self.done.lock().expect("no holder panics");
        while let Some(mut rq) = batch.next_request() {
            let (op, sector, nr_sectors) = (rq.op(), rq.sector(), u64::from(rq.nr_sectors()));
            let priority = rq.priority();
            done.push(Done { op, sector, nr_sectors, time: now, priority });
            let mut at = sector;
            for mut segment in rq.segments() {
                for place in (0..segment.len()).step_by(512) {
                    match op {
                        Op::Write if self.loses == Some(at) => {}
                        Op::Write => {
                            let mut block = vec![0; 512];
                            segment.copy_to(place, &mut block);
                            blocks.insert(at, block);
                        }
                        _ => segment.copy_from(place, blocks.get(&at).map_or(&[0; 512][..], |block| block)),
                    }
                    at += 1;
                }
            }
            batch.finish(rq, Status::Ok);
        }
    }
}

impl Recording {
    pub(crate) fn run(self, jobs: &[Job]) -> (Outcome, Vec<Done>) {
        let recording = Arc::new(self);
        let driver: Arc<dyn Driver> = recording.clone();
        let outcome = run_over(&driver, jobs);
        let done = recording.done.lock().expect("no holder panics").clone();
        (outcome, done)
    }
}

/// What a job did, in order.
pub(crate) fn done(job: Job) -> Vec<Done> {
    let trims = job.operations.includes(Direction::Trim);
    let (outcome, done) = Recording { trims, has_cache: true, ..Recording::default() }.run(&[job]);
    assert_eq!(outcome.error(), None);
    done
}

fn sectors(job: Job) -> Vec<u64> {
    done(job).iter().map(|done| done.sector).collect()
}

#[test]
fn nothing_of_the_ramp_is_counted() {
    let short = outcome(Job { ramp_time: SECOND, number_ios: Some(10), ..reads() });
    let ramped = timed(SECOND, Job { ramp_time: SECOND / 2, ..depth(8, reads()) });
    let mut bench = Bench::over(open(TIMED), &[ramped], &setup(ClockKind::Virtual)).expect("it fits");
    let outcome = bench.run(&Control::default()).expect("it runs");
    let job = &outcome.jobs[0];
    // Operations that complete at the moment at which the ramp ends may count.
    assert!((800_000..800_008).contains(&job.ios()), "{}", job.ios());
    assert_eq!((job.runtime_ns, outcome.elapsed_ns), (1_000_000_000, 1_500_000_000));
    assert_eq!(job.direction(Direction::Read).latency.count(), job.ios());
    assert_eq!(bench.queue().counters().completed, 1_200_000, "the queue did what was not counted");
    assert!((800_000..800_008).contains(&outcome.layer.stats.completed), "{:?}", outcome.layer.stats);
    assert_eq!((short.ios(), short.runtime_ns), (0, 0), "it ended before anything was to be counted");
}

#[test]
fn a_start_can_be_late() {
    let late = Job { startdelay: 20 * MS..=20 * MS, number_ios: Some(5), ..reads() };
    assert_eq!(done(late)[0].time, Time(20_000_000));
    let some = Job { startdelay: MS..=100 * MS, number_ios: Some(1), numjobs: 50, ..reads() };
    let times: Vec<u64> = done(some).iter().map(|done| done.time.0).collect();
    assert!(times.iter().all(|time| (1_000_000..=100_000_000).contains(time)), "{times:?}");
    assert!(times[10] > 5_000_000 && times[40] < 95_000_000 && times[40] - times[10] > 20_000_000, "{times:?}");
}

#[test]
fn a_mixture_has_its_shares() {
    for read_percent in [0, 30, 70, 100] {
        let mixed = outcome(Job { number_ios: Some(20_000), ..job(Operations::ReadWrite { read_percent }, RANDOM) });
        let share = ios(&mixed, Direction::Read) as f64 / 200.0;
        assert!((share - f64::from(read_percent)).abs() < 2.0, "{share} % of {read_percent} %");
        assert_eq!(mixed.ios(), 20_000);
    }
    // Reads and writes each go through the area by themselves.
    let both = done(Job { number_ios: Some(100), ..job(Operations::ReadWrite { read_percent: 50 }, SEQUENTIAL) });
    for op in [Op::Read, Op::Write] {
        let sectors: Vec<u64> = both.iter().filter(|done| done.op == op).map(|done| done.sector).collect();
        assert!(sectors.len() > 30 && sectors.iter().copied().eq((0..).step_by(8).take(sectors.len())), "{sectors:?}");
    }
}

/// Red before: the options were refused.
#[test]
fn some_operations_have_a_priority_of_their_own() {
    let cmdprio = ByDirection::all(IoPriority { class: Class::RealTime, level: 3 });
    let job = Job { cmdprio, number_ios: Some(5000), ..job(Operations::ReadWrite { read_percent: 50 }, RANDOM) };
    let done = done(Job { cmdprio_percentage: ByDirection { read: 20, write: 0, trim: 0 }, ..job });
    let share = |op| {
        let of_op: Vec<_> = done.iter().filter(|done| done.op == op).collect();
        let urgent = of_op.iter().filter(|done| done.priority == cmdprio.read).count();
        urgent as f64 * 100.0 / of_op.len() as f64
    };
    assert!((share(Op::Read) - 20.0).abs() < 3.0, "{} %", share(Op::Read));
    assert!(share(Op::Write) < 0.1, "{} %", share(Op::Write));
}

#[test]
fn lengths_are_drawn_from_a_range_or_a_list() {
    let count = |bs: BlockSize| {
        let job =
            Job { bs: ByDirection::all(bs), blockalign: ByDirection::all(4096), number_ios: Some(8000), ..reads() };
        let mut counts: HashMap<u64, u64> = HashMap::new();
        done(job).iter().for_each(|done| *counts.entry(done.nr_sectors / 8).or_default() += 1);
        counts
    };
    let range = count(BlockSize::Range(4096..=32768));
    assert_eq!(range.len(), 8);
    assert!((1..=8).all(|blocks| (850..=1150).contains(&range[&blocks])), "{range:?}");
    let split = count(BlockSize::Split(vec![(4096, 60), (16384, 30), (65536, 10)]));
    assert_eq!(split.len(), 3);
    for (blocks, expected) in [(1, 4800_i64), (4, 2400), (16, 800)] {
        let got = split[&blocks].cast_signed();
        assert!((got - expected).abs() < 150, "{got} of {expected} with {blocks} blocks");
    }
}

#[test]
fn some_operations_of_a_random_job_follow_the_one_before() {
    let follow = |job: Job| {
        let done = done(Job { number_ios: Some(5000), ..job });
        let follows = done.windows(2).filter(|pair| pair[1].sector == pair[0].sector + 8).count();
        follows as f64 / 50.0
    };
    assert!(follow(reads()) < 1.0);
    let percent = follow(Job { percentage_random: ByDirection::all(30), ..reads() });
    assert!((percent - 70.0).abs() < 3.0, "{percent}");
    let run = follow(Job { order: Order::Random { every: 4 }, ..reads() });
    assert!((run - 75.0).abs() < 1.0, "{run}");
}

#[test]
fn a_sequential_job_wraps_and_skips() {
    let area = Job { size: Some(Extent::Bytes(32768)), offset: Extent::Bytes(4096), number_ios: Some(10), ..reads() };
    let order = |order, job: Job| sectors(Job { order, io_size: Some(Extent::Bytes(1 << 20)), ..job });
    assert_eq!(order(SEQUENTIAL, area.clone()), [8, 16, 24, 32, 40, 48, 56, 64, 8, 16]);
    assert_eq!(order(Order::Sequential { skip: 4096 }, area.clone()), [8, 24, 40, 56, 8, 24, 40, 56, 8, 24]);
    let holes = Job { order: Order::Sequential { skip: 4096 }, ..area.clone() };
    assert_eq!(sectors(holes.clone()), [8, 24, 40, 56], "a pass with holes ends with the area");
    assert_eq!(sectors(Job { loops: 2, number_ios: None, ..holes }), [8, 24, 40, 56, 8, 24, 40, 56]);
    assert_eq!(order(Order::Sequential { skip: -8192 }, area.clone()), [8, 64, 56, 48, 40, 32, 24, 16, 8, 64]);
    let apart = Job { offset_increment: Extent::Bytes(65536), numjobs: 3, number_ios: Some(1), ..area };
    assert_eq!(order(SEQUENTIAL, apart), [8, 136, 264]);
}

#[test]
fn a_random_map_visits_each_block_once_a_pass() {
    let area = Job { norandommap: false, size: Some(Extent::Bytes(4_000_000)), ..reads() };
    let blocks = 4_000_000 / 4096;
    let all = |sectors: &[u64]| {
        let set: HashSet<u64> = sectors.iter().copied().collect();
        set.len() == sectors.len() && set.len() == blocks
    };
    let once = sectors(area.clone());
    assert!(all(&once));
    let twice = sectors(Job { io_size: Some(Extent::Bytes(2 * blocks as u64 * 4096)), ..area.clone() });
    assert!(twice.len() == 2 * blocks && all(&twice[..blocks]) && all(&twice[blocks..]));
    assert_ne!(twice[..blocks], twice[blocks..], "a second pass has an order of its own");
    let looped = sectors(Job { loops: 2, ..area.clone() });
    assert_eq!(looped[..blocks], looped[blocks..], "a loop repeats the one before");
    assert!(!all(&sectors(Job { norandommap: true, ..area })), "without a map some blocks come twice");
}

#[test]
fn the_seed_decides_the_sequence() {
    let area = Job { number_ios: Some(100), ..reads() };
    for norandommap in [true, false] {
        let with = |seed| sectors(Job { seed, norandommap, ..area.clone() });
        assert_eq!(with(Some(7)), with(Some(7)));
        assert_ne!(with(Some(7)), with(Some(8)));
        assert_ne!(with(None), with(None), "without a seed each run has its own");
    }
    let threads = sectors(Job { numjobs: 2, ..area });
    let of = |thread: usize| threads.iter().skip(thread).step_by(2).collect::<Vec<_>>();
    assert_ne!(of(0), of(1), "threads of a job differ");
}

#[test]
fn a_distribution_prefers_some_blocks() {
    let top = |random_distribution| {
        let job = Job {
            random_distribution,
            size: Some(Extent::Bytes(4_096_000)),
            io_size: Some(Extent::Bytes(1 << 30)),
            ..reads()
        };
        let mut counts: HashMap<u64, u64> = HashMap::new();
        sectors(Job { number_ios: Some(20_000), ..job })
            .iter()
            .for_each(|sector| *counts.entry(*sector).or_default() += 1);
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts[..100].iter().sum::<u64>() as f64 / 20_000.0
    };
    assert!(top(Distribution::Random) < 0.2);
    // The sum of 1/k for k up to 100, divided by that for k up to 1000.
    let zipf = top(Distribution::Zipf { theta: 0.999 });
    assert!((zipf - 5.19 / 7.49).abs() < 0.02, "{zipf}");
    let pareto = top(Distribution::Pareto { h: 0.1 });
    assert!((pareto - 0.9).abs() < 0.02, "{pareto}");
}

#[test]
fn blocks_are_trimmed() {
    let done = done(Job { number_ios: Some(6), ..job(Operations::TrimWrite, SEQUENTIAL) });
    let steps: Vec<(Op, u64)> = done.iter().map(|done| (done.op, done.sector)).collect();
    let [trim, write] = [Op::Discard, Op::Write];
    assert_eq!(steps, [(trim, 0), (write, 0), (trim, 8), (write, 8), (trim, 16), (write, 16)]);
}

/// Runs a job that verifies what it writes: each of its threads writes, and finds all of it.
pub(crate) fn reads_back(job: &Job) -> (Outcome, Vec<Done>) {
    let (outcome, done) = Recording { has_cache: true, ..Recording::default() }.run(std::slice::from_ref(job));
    assert_eq!(outcome.error(), None, "{job:?}");
    for thread in &outcome.jobs {
        assert!(ios(thread, Direction::Write) > 0 && ios(thread, Direction::Read) > 0, "{job:?}");
        assert_eq!(thread.verify_errors, 0);
    }
    (outcome, done)
}

#[test]
fn what_was_written_is_read_back_and_found() {
    let split = BlockSize::Split(vec![(4096, 50), (8192, 50)]);
    let jobs = [
        writes(),
        Job { norandommap: false, ..depth(16, Job { order: RANDOM, ..writes() }) },
        depth(16, Job { order: RANDOM, ..writes() }),
        depth(8, Job { order: RANDOM, verify_backlog: 16, verify_backlog_batch: 8, ..writes() }),
        depth(8, Job { order: RANDOM, bs: ByDirection::all(split), verify_interval: 512, ..writes() }),
        depth(32, Job { order: RANDOM, bs: ByDirection::all(BlockSize::Range(4096..=65536)), ..writes() }),
        depth(4, job(Operations::ReadWrite { read_percent: 50 }, RANDOM)),
        depth(4, Job { loops: 3, ..writes() }),
        depth(4, Job { numjobs: 3, order: RANDOM, ..writes() }),
    ];
    jobs.map(|job| verified(area(1 << 20, job))).iter().for_each(|job| _ = reads_back(job));
    let (outcome, done) = Recording::default().run(&[verified(area(1 << 20, writes()))]);
    assert_eq!((ios(&outcome.jobs[0], Direction::Write), ios(&outcome.jobs[0], Direction::Read)), (256, 256));
    assert!(done[..256].iter().all(|done| done.op == Op::Write) && done[256..].iter().all(|done| done.op == Op::Read));
}

#[test]
fn a_backlog_is_read_back_on_the_way() {
    let backlog = Job { verify_backlog: 16, verify_backlog_batch: 8, ..verified(area(1 << 20, writes())) };
    let (_, done) = Recording::default().run(&[backlog]);
    let ops: String = done.iter().map(|done| if done.op == Op::Write { 'w' } else { 'r' }).collect();
    let begin = "w".repeat(16) + &("r".repeat(8) + &"w".repeat(8)).repeat(30);
    assert_eq!(ops, begin + &"r".repeat(16), "all is read back, the rest in the end");
}

#[test]
fn time_does_not_end_what_is_to_be_read_back() {
    let driver = open("null,memory_backed=1,irqmode=2,completion_nsec=10us,poll_queues=0,size=1M");
    for bytes in [64 << 10, 1 << 20] {
        let job = verified(area(bytes, timed(MS * 6 / 5, writes())));
        let outcome = run_over(&driver, &[job]);
        assert_eq!(outcome.error(), None);
        let job = &outcome.jobs[0];
        assert_eq!(ios(job, Direction::Write), ios(job, Direction::Read), "an area of {bytes} bytes");
        assert!(ios(job, Direction::Write) >= 50, "{}", ios(job, Direction::Write));
        for direction in [Direction::Read, Direction::Write] {
            // One operation at a time, and each pass is read back before the next pass begins.
            let (ios, runtime_ns) = (ios(job, direction), job.direction(direction).runtime_ns);
            assert_eq!(runtime_ns, ios * 10_000, "{direction:?} in an area of {bytes} bytes");
        }
    }
}

#[test]
fn a_lost_write_is_found() {
    for fatal in [false, true] {
        let job = Job { verify_fatal: fatal, ..verified(area(1 << 20, writes())) };
        let (outcome, _) = Recording { loses: Some(84), ..Recording::default() }.run(&[job]);
        let job = &outcome.jobs[0];
        assert_eq!(job.verify_errors, 1);
        let expected =
            "job tested: the block at byte 40960 is not what was written: its content does not match its checksum";
        assert_eq!(outcome.error().as_deref(), Some(expected));
        assert_eq!(ios(job, Direction::Read) == 256, !fatal, "{}", ios(job, Direction::Read));
    }
}

#[test]
fn a_planted_corruption_is_found() {
    let driver = open("ram,size=1M");
    assert_eq!(run_over(&driver, &[verified(area(1 << 20, Job { do_verify: false, ..writes() }))]).error(), None);
    let check = [verified(area(1 << 20, job(Operations::Only(Direction::Read), SEQUENTIAL)))];
    assert_eq!(run_over(&driver, &check).error(), None);
    let mut bench = Bench::over(Arc::clone(&driver), &check, &setup(ClockKind::Virtual)).expect("it fits");
    let mut submitter = bench.queue().submitter(&Client::new("vandal")).expect("there is a place");
    submitter.submit(Bio::write(1003, Buffer::zeroed(512))).expect("it is a good operation");
    assert!(submitter.wait(1, None).is_ready() && submitter.reap().is_some_and(|done| done.status.is_ok()));
    drop(submitter);
    let outcome = bench.run(&Control::default()).expect("it runs");
    assert_eq!(outcome.jobs[0].verify_errors, 1);
    let expected =
        "job tested: the block at byte 512000 is not what was written: its content does not match its checksum";
    assert_eq!(outcome.error().as_deref(), Some(expected));
}

#[test]
fn a_device_that_forgets_cannot_be_verified() {
    let refused =
        Bench::new(&[verified(area(1 << 20, writes()))], &setup(ClockKind::Virtual)).expect_err("it keeps nothing");
    assert!(matches!(refused, BenchError::Job { .. }));
    assert!(
        refused.to_string().starts_with("job tested: verify needs a device that keeps what is written"),
        "{refused}"
    );
}

#[test]
fn the_least_number_of_completions_is_waited_for() {
    let most = |min, max| {
        let job = Job { iodepth_batch_complete_min: min, iodepth_batch_complete_max: max, ..depth(16, reads()) };
        let outcome = outcome(Job { number_ios: Some(1600), ..job });
        // At the end the job takes all completions that are left at once.
        outcome.depth_complete.levels().iter().rposition(|count| *count > 1)
    };
    assert_eq!(most(1, 1), Some(0));
    assert_eq!(most(8, 8), Some(3));
    assert_eq!(most(1, 16), Some(4), "all sixteen are over at once");
    let low = Job { iodepth: 16, iodepth_low: 4, iodepth_batch_submit: 16, number_ios: Some(1600), ..reads() };
    // The job submits again when four are outstanding, so twelve are submitted together after the first sixteen.
    assert_eq!(outcome(low).depth_submit.levels(), [0, 0, 0, 132, 1, 0, 0]);
}
