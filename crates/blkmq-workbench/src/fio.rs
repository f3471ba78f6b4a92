//! The output of a run in the form of fio's JSON (version 3.33), so that programs that read fio's results can read
//! ours. What has no name in fio is under the key `blkmq`.

mod numbers;

use std::collections::BTreeMap;
use std::time::SystemTime;

use blkmq::GateCounts;
use serde::{Serialize, Serializer};

use self::numbers::{Detail, Latency, Series, Shares, buckets};
use crate::bench::{DirectionOutcome, JobOutcome, LayerOutcome, Outcome, Sample};
use crate::job::{Direction, Job};

/// The subject of a load.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// The device's spec.
    pub device: String,
    /// The scheduler.
    pub scheduler: String,
    /// How threads shared the scheduler.
    pub locking: String,
    /// Whether requests might bypass the scheduler.
    pub bypass: bool,
    /// Where the time stamps of requests came from: `exact` (as for the requests of applications), `coarse`, `virtual`
    /// or `none`.
    pub stamps: &'static str,
}

/// The whole of fio's output.
#[derive(Debug, Serialize)]
pub struct Document {
    #[serde(rename = "fio version")]
    version: &'static str,
    timestamp: i64,
    timestamp_ms: i64,
    time: String,
    #[serde(rename = "global options")]
    global_options: Options,
    jobs: Vec<Section>,
    blkmq: Layer,
}

/// What only blkmq has.
#[derive(Debug, Serialize)]
struct Layer {
    #[serde(flatten)]
    subject: Subject,
    requests: u64,
    merges: u64,
    merges_plug: u64,
    merges_insert: u64,
    dispatch_batches: u64,
    batch_size_mean: f64,
    bypassed: u64,
    staged: u64,
    holds: u64,
    dispatched: u64,
    dispatched_fast: u64,
    contended: u64,
    trylock_failed: u64,
    wakeups: BTreeMap<&'static str, u64>,
    gate: Gate,
    wait_share: f64,
    cpu_ns_per_request: f64,
    /// Present only if the waits were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<LayerWaits>,
}

/// The gate through which requests pass the scheduler by.
#[derive(Debug, Serialize)]
struct Gate {
    opened: u64,
    shut: u64,
    shut_ns: u64,
}

impl From<GateCounts> for Gate {
    fn from(GateCounts { opened, shut, shut_ns }: GateCounts) -> Self {
        Self { opened, shut, shut_ns }
    }
}

/// How long threads waited for the scheduler's lock, and how long requests waited until another thread inserted them.
#[derive(Debug, Serialize)]
struct LayerWaits {
    lock_ns: Latency,
    staged_ns: Latency,
}

/// The percentiles of waits.
const WAIT_PERCENTS: [f64; 3] = [50.0, 99.0, 99.9];

/// Names and values, as the job file has them.
#[derive(Debug)]
struct Options(Vec<(String, String)>);

impl Serialize for Options {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// One element of `jobs`: a thread, or all threads of a group.
#[derive(Debug, Serialize)]
struct Section {
    jobname: String,
    groupid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    desc: Option<String>,
    error: i32,
    eta: u64,
    elapsed: u64,
    #[serde(rename = "job options")]
    options: Options,
    read: Way,
    write: Way,
    trim: Way,
    sync: Sync,
    job_runtime: u64,
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
    majf: u64,
    minf: u64,
    iodepth_level: Shares,
    iodepth_submit: Shares,
    iodepth_complete: Shares,
    latency_ns: Shares,
    latency_us: Shares,
    latency_ms: Shares,
    latency_depth: u32,
    latency_target: u64,
    latency_percentile: f64,
    latency_window: u64,
}

/// What was done in one direction. Bandwidths are KiB per second unless they say bytes, times are milliseconds.
#[derive(Debug, Serialize)]
struct Way {
    io_bytes: u64,
    io_kbytes: u64,
    bw_bytes: u64,
    bw: u64,
    iops: f64,
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    drop_ios: u64,
    slat_ns: Latency,
    clat_ns: Latency,
    lat_ns: Latency,
    bw_min: u64,
    bw_max: u64,
    bw_agg: f64,
    bw_mean: f64,
    bw_dev: f64,
    bw_samples: u64,
    iops_min: u64,
    iops_max: u64,
    iops_mean: f64,
    iops_stddev: f64,
    iops_samples: u64,
}

/// Flushes.
#[derive(Debug, Serialize)]
struct Sync {
    total_ios: u64,
    lat_ns: Latency,
}

/// fio's names of the numbers of operations that are outstanding, submitted or completed together.
const LEVELS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
const BATCHES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

impl Document {
    /// The output for `outcome` of `jobs`. Groups that are reported as one are one element. With `bins`, the histograms
    /// of latencies are next to their percentiles, as in fio's format `json+`.
    #[must_use]
    pub fn new(global: &[(String, String)], jobs: &[Job], outcome: &Outcome, subject: Subject, bins: bool) -> Self {
        let now = jiff::Timestamp::try_from(SystemTime::now()).unwrap_or_default();
        let LayerOutcome { requests, merges, stats, .. } = outcome.layer;
        let elapsed = outcome.elapsed_ns.div_ceil(1_000_000_000);
        Self {
            version: concat!("fio-3.33 (blkmq-", env!("CARGO_PKG_VERSION"), ")"),
            timestamp: now.as_second(),
            timestamp_ms: now.as_millisecond(),
            time: now.strftime("%a %b %e %H:%M:%S %Y").to_string(),
            global_options: Options(global.to_vec()),
            jobs: reported(jobs, outcome).iter().map(|report| Section::new(report, elapsed, bins)).collect(),
            blkmq: Layer {
                subject,
                requests,
                merges,
                merges_plug: stats.merges_plug,
                merges_insert: stats.merges_insert,
                dispatch_batches: stats.dispatch_batches,
                batch_size_mean: outcome.layer.batch_size_mean(),
                bypassed: stats.bypassed,
                staged: stats.staged,
                holds: stats.holds,
                dispatched: stats.dispatched,
                dispatched_fast: stats.dispatched_fast,
                contended: stats.contended,
                trylock_failed: stats.trylock_failed,
                wakeups: stats.wakeups.by_cause().into(),
                gate: stats.gate.into(),
                wait_share: outcome.layer.wait_share(),
                cpu_ns_per_request: outcome.layer.cpu_ns_per_request(),
                waits: waits_of(outcome),
            },
        }
    }
}

/// The waits, if any were measured and took place.
fn waits_of(outcome: &Outcome) -> Option<LayerWaits> {
    let waits = outcome.waits();
    let any = waits.lock.count() + waits.staged.count() > 0;
    let times = |waits| Latency::new(waits, Detail { percents: Some(&WAIT_PERCENTS), bins: false });
    any.then(|| LayerWaits { lock_ns: times(&waits.lock), staged_ns: times(&waits.staged) })
}

/// What is reported as one: a thread, or all threads of a group.
#[derive(Debug)]
pub struct Reported<'a> {
    /// The job; if there are several, the first one.
    pub job: &'a Job,
    /// What the job did; if there are several, the sum.
    pub done: JobOutcome,
    /// How long its threads ran, all together, in nanoseconds.
    pub threads_ns: u64,
}

/// Each thread's outcome with its job; those of a group that is to be reported as one are added up.
#[must_use]
pub fn reported<'a>(jobs: &'a [Job], outcome: &Outcome) -> Vec<Reported<'a>> {
    let mut rows: Vec<Reported<'_>> = Vec::new();
    for done in &outcome.jobs {
        let job = &jobs[done.job];
        let same =
            |row: &&mut Reported<'_>| row.job.group_reporting && job.group_reporting && row.done.group == done.group;
        match rows.iter_mut().find(same) {
            Some(row) => {
                row.done.add(done);
                row.threads_ns += done.runtime_ns;
            }
            None => rows.push(Reported { job, done: done.clone(), threads_ns: done.runtime_ns }),
        }
    }
    rows
}

impl Section {
    fn new(report: &Reported<'_>, elapsed: u64, bins: bool) -> Self {
        let Reported { job, done, threads_ns } = report;
        let way = |direction| Way::new(job, done.direction(direction), done, bins);
        let lasting = |ns: u64| if *threads_ns == 0 { 0.0 } else { 100.0 * ns as f64 / *threads_ns as f64 };
        let total = done.ios();
        let histograms = done.directions.each_ref().map(|direction| direction.latency.histogram());
        let [latency_ns, latency_us, latency_ms] = buckets(&histograms, total);
        let percents = (job.clat_percentiles || job.lat_percentiles).then_some(&job.percentile_list[..]);
        Self {
            jobname: job.name.clone(),
            groupid: done.group,
            desc: job.description.clone(),
            error: i32::from(done.error.is_some()),
            eta: 0,
            elapsed,
            options: Options(job.options.clone()),
            read: way(Direction::Read),
            write: way(Direction::Write),
            trim: way(Direction::Trim),
            sync: Sync {
                total_ios: done.sync.ios,
                lat_ns: Latency::new(&done.sync.latency, Detail { percents, bins }),
            },
            job_runtime: ms(*threads_ns),
            usr_cpu: lasting(done.usage.usr_ns),
            sys_cpu: lasting(done.usage.sys_ns),
            ctx: done.usage.switches,
            majf: done.usage.major_faults,
            minf: done.usage.minor_faults,
            iodepth_level: Shares::new(&LEVELS, &done.depth_level.levels(), done.depth_level.total()),
            iodepth_submit: Shares::new(&BATCHES, &done.depth_submit.batches(), done.depth_submit.total()),
            iodepth_complete: Shares::new(&BATCHES, &done.depth_complete.batches(), done.depth_complete.total()),
            latency_ns,
            latency_us,
            latency_ms,
            latency_depth: job.iodepth,
            latency_target: 0,
            latency_percentile: 100.0,
            latency_window: 0,
        }
    }
}

impl Way {
    fn new(job: &Job, direction: &DirectionOutcome, done: &JobOutcome, bins: bool) -> Self {
        let runtime_ns = if direction.ios == 0 { 0 } else { done.runtime_ns };
        let percents = |wanted: bool| wanted.then_some(&job.percentile_list[..]);
        let latency = |measured: bool, wanted: bool| {
            let detail = Detail { percents: percents(wanted), bins };
            if measured { Latency::new(&direction.latency, detail) } else { Latency::none() }
        };
        let kib: Vec<f64> = direction.samples.iter().map(|sample| sample.bandwidth() / 1024.0).collect();
        let iops: Vec<f64> = direction.samples.iter().map(Sample::iops).collect();
        let (bw, iops) = (Series::new(&kib), Series::new(&iops));
        Self {
            io_bytes: direction.bytes,
            io_kbytes: direction.bytes >> 10,
            bw_bytes: direction.bandwidth(runtime_ns) as u64,
            bw: (direction.bandwidth(runtime_ns) / 1024.0) as u64,
            iops: direction.iops(runtime_ns),
            runtime: ms(runtime_ns),
            total_ios: direction.ios,
            short_ios: 0,
            drop_ios: direction.errors,
            slat_ns: Latency::none(),
            clat_ns: latency(job.measure.clat, job.clat_percentiles),
            lat_ns: latency(job.measure.lat, job.lat_percentiles),
            bw_min: bw.min,
            bw_max: bw.max,
            bw_agg: if bw.nr == 0 { 0.0 } else { 100.0 },
            bw_mean: bw.mean,
            bw_dev: bw.deviation,
            bw_samples: bw.nr,
            iops_min: iops.min,
            iops_max: iops.max,
            iops_mean: iops.mean,
            iops_stddev: iops.deviation,
            iops_samples: iops.nr,
        }
    }
}

fn ms(ns: u64) -> u64 {
    ns.div_ceil(1_000_000)
}
