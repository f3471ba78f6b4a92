//! A paced reader beside a flood, on the device as it is and as it is proposed.
//!
//! Each way of putting a queue in front of the device is a [`Case`], a column of the table. Another way is one more.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use blkmq::Op;
use blkmq::sched::limiter::Limiter;
use blkmq_workbench::bench::{Control, JobOutcome};
use blkmq_workbench::job::{Direction, Job};
use indicatif::ProgressBar;
use serde::Serialize;

use super::ground::{Front, Ground};
use super::load;
use crate::schedulers::bounds_for_shares;
use blkmq_program::Failure;
use blkmq_program::render::size;

/// The flood: so many threads, with so many operations outstanding each.
const THREADS: u32 = 4;
const EACH: u32 = 128;
/// How long an operation of a flood is.
const SIZES: [u64; 2] = [4096, 64 << 10];
/// The most reads a second that the reader wants, and the most of the device's ceiling.
const MOST_READS: f64 = 1000.0;
const MOST_PART: f64 = 0.05;
/// How many reads of the reader are wanted.
const READS: f64 = 1500.0;
/// The most operations that are computed of a model.
const MOST_IOS: f64 = 300_000.0;
/// Each try of a limiter takes some 0.3 s, or as long as 1000 operations take. It is given so many seconds, and on a
/// model, where time costs little, as long as so many operations take.
const FINDS: f64 = 3.0;
const FINDS_MODEL: f64 = 1.2;
const FINDS_IOS: f64 = 5000.0;

/// A way to put a queue in front of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) front: Front,
    /// Whether the case may be proposed.
    pub(super) is_proposed: bool,
}

/// What the reader and the flood get. Latencies are the reader's, in nanoseconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Beside {
    pub(super) case: String,
    pub(super) scheduler: String,
    #[serde(skip)]
    pub(super) is_proposed: bool,
    /// Whether the limiter has a target for reads.
    #[serde(skip)]
    pub(super) has_target: bool,
    pub(super) reads: u64,
    pub(super) reads_per_second: f64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) p99_9_ns: u64,
    pub(super) flood_iops: f64,
    pub(super) flood_bytes_per_second: f64,
    /// The measurements of the queue's limiter, if it has one.
    pub(super) limiter: Option<LimiterFound>,
}

/// The measurements of a limiter under a flood.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LimiterFound {
    pub(super) phase: &'static str,
    /// What the device does at most of the flood's operations. `None` if nothing had to be found, as reads were fast
    /// enough.
    pub(super) ceiling_iops: Option<f64>,
    pub(super) ceiling_bytes_per_second: Option<f64>,
    pub(super) ceilings_measured: u64,
    /// The work that the device may have, in nanoseconds. `None` if it is not bounded.
    pub(super) bound_ns: Option<u64>,
    /// What reads may take in the device on average.
    pub(super) target_ns: Option<u64>,
}

impl LimiterFound {
    /// What this limiter found of operations of so many bytes.
    fn of(limiter: &Limiter, op: Op, bytes: u64) -> Self {
        let sectors = u32::try_from(bytes / 512).unwrap_or(u32::MAX);
        let ceilings_measured = limiter.times_measured();
        let ceiling_iops = (ceilings_measured > 0).then(|| 1e9 / f64::from(limiter.cost(op, sectors)));
        Self {
            phase: limiter.phase().name(),
            ceiling_iops,
            ceiling_bytes_per_second: ceiling_iops.map(|iops| iops * bytes as f64),
            ceilings_measured,
            bound_ns: limiter.bound(),
            target_ns: limiter.target_ns(),
        }
    }
}

/// A reader beside one flood, in each case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Flood {
    pub(super) way: &'static str,
    /// Bytes of an operation of the flood.
    pub(super) bytes: u64,
    pub(super) reads_wanted: u64,
    /// What the device transfers at most by operations in the flood's direction, as the sweep found: by small ones if
    /// the flood's are small, else by large ones.
    pub(super) swept_bytes_per_second: Option<f64>,
    pub(super) cases: Vec<Beside>,
}

impl Flood {
    pub(super) fn name(&self) -> String {
        format!("{} of {}", self.way, size(self.bytes))
    }

    pub(super) fn as_it_is(&self) -> Option<&Beside> {
        self.cases.iter().find(|beside| !beside.is_proposed)
    }

    /// The results of the scheduler of this name, with a limiter that has a target or at the proposed depth.
    pub(super) fn case(&self, scheduler: &str, has_target: bool) -> Option<&Beside> {
        let is_it =
            |beside: &&Beside| beside.is_proposed && beside.scheduler == scheduler && beside.has_target == has_target;
        self.cases.iter().find(is_it)
    }

    /// The results of a scheduler that bounds the work with the device by itself, at the device's own depth.
    pub(super) fn for_shares(&self) -> Option<&Beside> {
        self.cases.iter().find(|beside| beside.case == beside.scheduler && bounds_for_shares(&beside.scheduler))
    }
}

/// How the reader and the floods are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) ground: &'a Ground,
    /// The flood writes.
    pub(super) writes: bool,
    /// What the device reads at most, in operations a second.
    pub(super) read_ceiling: f64,
    /// What it transfers at most in the flood's direction, by small and by large operations.
    pub(super) swept: [Option<f64>; 2],
    /// How long the device is faster than later.
    pub(super) burst: Duration,
}

impl Setting<'_> {
    /// Reads a second that the reader wants.
    fn rate(&self) -> u64 {
        (self.read_ceiling * MOST_PART).clamp(1.0, MOST_READS) as u64
    }

    fn length(&self) -> Duration {
        let wanted = READS / self.rate() as f64;
        // A model computes some 500,000 operations in a second.
        let most = if self.ground.is_model { (MOST_IOS / self.read_ceiling.max(1.0)).min(300.0) } else { 3.0 };
        Duration::from_secs_f64(wanted.min(most))
    }

    /// The time that a limiter gets for its measurements.
    fn finds(&self) -> Duration {
        let of_model = (FINDS_IOS / self.read_ceiling.max(1.0)).clamp(FINDS_MODEL, 30.0);
        Duration::from_secs_f64(if self.ground.is_model { of_model } else { FINDS })
    }

    /// `number` says which run this is.
    fn jobs(&self, bytes: u64, number: u64, finds_bound: bool) -> Result<Vec<Job>, Failure> {
        let (rate, block) = (self.rate(), self.ground.block.max(4096));
        let way = if self.writes { "randwrite" } else { "randread" };
        let flood: String = (1..=THREADS).map(|number| format!("[flood-{number}]\nbs={bytes}\nrw={way}\n")).collect();
        let text = format!(
            "[global]\nioengine=io_uring\ndirect=1\nnorandommap\nthread\niodepth={EACH}\n\
             [reader]\nrw=randread\nbs={block}\niodepth=1\nrate_iops={rate}\n{flood}"
        );
        let mut jobs = load::parse(&text)?;
        // What the device saves up while nothing happens is used up first.
        let ramp = self.burst + if finds_bound { self.finds() } else { self.length() / 20 };
        for job in &mut jobs {
            job.ramp_time = ramp;
            if !self.ground.is_model {
                // Each run has places of its own, so that no run finds in a cache what the one before it read. A model
                // has no cache, and there the runs differ in nothing but the case.
                job.seed = Some(number);
            }
        }
        Ok(jobs)
    }

    /// Runs one flood in one case. `None` if it was stopped.
    fn run(&self, (bytes, number): (u64, u64), case: &Case, stop: &Arc<AtomicBool>) -> Result<Option<Beside>, Failure> {
        let finds_bound = case.front.has_limiter || case.front.scheduler.is_some_and(bounds_for_shares);
        let jobs = self.jobs(bytes, number, finds_bound)?;
        let mut bench = self.ground.bench(case.front, &jobs)?;
        let control = Control { runtime: Some(self.length()), stop: Arc::clone(stop), ..Control::default() };
        let outcome = bench.run(&control).map_err(|error| self.ground.failure(&error))?;
        if let Some(error) = outcome.error() {
            return Err(Failure::Running(format!("{}: {error}", self.ground.device())));
        }
        let Some((reader, flood)) = outcome.jobs.split_first().filter(|_| !outcome.stopped) else { return Ok(None) };
        let read = reader.direction(Direction::Read);
        let direction = if self.writes { Direction::Write } else { Direction::Read };
        let rate = |job: &JobOutcome| job.direction(direction).iops(job.runtime_ns);
        let flood_iops = flood.iter().map(rate).sum();
        let op = if self.writes { Op::Write } else { Op::Read };
        let limiter = bench.queue().limiter().map(|info| LimiterFound::of(&info.limiter, op, bytes));
        Ok(Some(Beside {
            case: case.name.clone(),
            scheduler: bench.queue().scheduler().to_owned(),
            is_proposed: case.is_proposed,
            has_target: case.front.has_limiter,
            reads: read.ios,
            reads_per_second: read.iops(reader.runtime_ns),
            p50_ns: read.latency.percentile(50.0),
            p99_ns: read.latency.percentile(99.0),
            p99_9_ns: read.latency.percentile(99.9),
            flood_iops,
            flood_bytes_per_second: flood_iops * bytes as f64,
            limiter,
        }))
    }

    /// All floods in all cases, as far as they come before they are stopped.
    pub(super) fn measure(
        &self,
        cases: &[Case],
        stop: &Arc<AtomicBool>,
        bar: &ProgressBar,
    ) -> Result<Vec<Flood>, Failure> {
        let way = if self.writes { "writes" } else { "reads" };
        let (mut floods, mut number) = (Vec::new(), 0);
        let sizes = SIZES.into_iter().zip(self.swept);
        for (bytes, swept_bytes_per_second) in sizes.filter(|(bytes, _)| bytes.is_multiple_of(self.ground.block)) {
            let mut flood = Flood { way, bytes, reads_wanted: self.rate(), swept_bytes_per_second, cases: Vec::new() };
            for case in cases {
                bar.set_message(format!("a reader beside {}, {}", flood.name(), case.name));
                number += 1;
                let Some(beside) = self.run((bytes, number), case, stop)? else {
                    floods.push(flood);
                    return Ok(floods);
                };
                bar.inc(1);
                flood.cases.push(beside);
            }
            floods.push(flood);
        }
        Ok(floods)
    }
}
