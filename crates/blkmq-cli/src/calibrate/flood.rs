//! A paced reader beside a flood, on the device as it is and as it is proposed.
//!
//! Each way of putting a queue in front of the device is a [`Case`], a column of the table. Another way is one more.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use blkmq_workbench::bench::{Control, JobOutcome};
use blkmq_workbench::job::{Direction, Job};
use indicatif::ProgressBar;
use serde::Serialize;

use super::ground::Ground;
use super::load;
use blkmq_program::Failure;
use blkmq_program::words::size;

/// The flood: so many threads, with so many operations outstanding each.
const THREADS: u32 = 4;
const EACH: u32 = 128;
/// How long an operation of a flood is.
const SIZES: [u64; 2] = [4096, 64 << 10];
/// The most reads a second that the reader wants, and the most of the device's ceiling.
const MOST_READS: f64 = 1000.0;
const MOST_PART: f64 = 0.05;
/// How many reads of the reader are wanted.
const READS: f64 = 2000.0;
/// The most operations that are computed of a model.
const MOST_IOS: f64 = 600_000.0;

/// A way to put a queue in front of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) name: String,
    /// `None`: the device's full depth.
    pub(super) depth: Option<u32>,
    /// `None`: the one that a server takes by default.
    pub(super) scheduler: Option<&'static str>,
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
    pub(super) reads: u64,
    pub(super) reads_per_second: f64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) p99_9_ns: u64,
    pub(super) flood_iops: f64,
    pub(super) flood_bytes_per_second: f64,
}

/// A reader beside one flood, in each case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Flood {
    pub(super) way: &'static str,
    /// Bytes of an operation of the flood.
    pub(super) bytes: u64,
    pub(super) reads_wanted: u64,
    pub(super) cases: Vec<Beside>,
}

impl Beside {
    /// Whether this is what the scheduler of this name would bring.
    pub(super) fn is_of(&self, scheduler: &str) -> bool {
        self.is_proposed && self.scheduler == scheduler
    }
}

impl Flood {
    pub(super) fn name(&self) -> String {
        format!("{} of {}", self.way, size(self.bytes))
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

    /// `number` says which run this is.
    fn jobs(&self, bytes: u64, number: u64) -> Result<Vec<Job>, Failure> {
        let (rate, block) = (self.rate(), self.ground.block.max(4096));
        let way = if self.writes { "randwrite" } else { "randread" };
        let flood: String = (1..=THREADS).map(|number| format!("[flood-{number}]\nbs={bytes}\nrw={way}\n")).collect();
        let text = format!(
            "[global]\nioengine=io_uring\ndirect=1\nnorandommap\nthread\niodepth={EACH}\n\
             [reader]\nrw=randread\nbs={block}\niodepth=1\nrate_iops={rate}\n{flood}"
        );
        let mut jobs = load::parse(&text)?;
        // What the device saves up while nothing happens is used up first.
        let ramp = self.burst + self.length() / 20;
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
        let jobs = self.jobs(bytes, number)?;
        let mut bench = self.ground.bench(case.depth, case.scheduler, &jobs)?;
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
        Ok(Some(Beside {
            case: case.name.clone(),
            scheduler: bench.queue().scheduler().to_owned(),
            is_proposed: case.is_proposed,
            reads: read.ios,
            reads_per_second: read.iops(reader.runtime_ns),
            p50_ns: read.latency.percentile(50.0),
            p99_ns: read.latency.percentile(99.0),
            p99_9_ns: read.latency.percentile(99.9),
            flood_iops,
            flood_bytes_per_second: flood_iops * bytes as f64,
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
        for bytes in SIZES.into_iter().filter(|bytes| bytes.is_multiple_of(self.ground.block)) {
            let mut flood = Flood { way, bytes, reads_wanted: self.rate(), cases: Vec::new() };
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
