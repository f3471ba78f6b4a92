//! The output of a run in the form of fio's JSON (version 3.33), so that programs that read fio's results can read
//! ours. What has no name in fio is under the key `blkmq`.

mod json;
mod numbers;

use std::time::SystemTime;

use serde::Serialize;

use self::json::{Json, object};
use self::numbers::{Detail, Series, buckets, latencies, shares};
use crate::bench::{DirectionOutcome, JobOutcome, Latency, LayerOutcome, Outcome, Sample};
use crate::job::Job;

/// The subject of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
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
pub struct Document(Json);

/// The percentiles of waits.
const WAIT_PERCENTS: [f64; 3] = [50.0, 99.0, 99.9];

/// fio's names of the numbers of operations that are outstanding, submitted or completed together.
const LEVELS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
const BATCHES: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

impl Document {
    /// The output for `outcome` of `jobs`. Groups that are reported as one are one element. With `bins`, the histograms
    /// of latencies are next to their percentiles, as in fio's format `json+`.
    #[must_use]
    pub fn new(global: &[(String, String)], jobs: &[Job], outcome: &Outcome, subject: Subject, bins: bool) -> Self {
        let now = jiff::Timestamp::try_from(SystemTime::now()).unwrap_or_default();
        let elapsed = outcome.elapsed_ns.div_ceil(1_000_000_000);
        let sections = reported(jobs, outcome).iter().map(|report| section(report, elapsed, bins)).collect();
        Self(object! {
            "fio version": concat!("fio-3.33 (blkmq-", env!("CARGO_PKG_VERSION"), ")"),
            "timestamp": now.as_second(),
            "timestamp_ms": now.as_millisecond(),
            "time": now.strftime("%a %b %e %H:%M:%S %Y").to_string(),
            "global options": Json::object(global.to_vec()),
            "jobs": Json::Array(sections),
            "blkmq": layer(outcome, subject),
        })
    }
}

/// What only blkmq has.
fn layer(outcome: &Outcome, subject: Subject) -> Json {
    let LayerOutcome { requests, merges, stats, .. } = outcome.layer;
    object! {
        "device": subject.device,
        "scheduler": subject.scheduler,
        "locking": subject.locking,
        "bypass": subject.bypass,
        "stamps": subject.stamps,
        "requests": requests,
        "merges": merges,
        "merges_plug": stats.merges_plug,
        "merges_insert": stats.merges_insert,
        "dispatch_batches": stats.dispatch_batches,
        "batch_size_mean": outcome.layer.batch_size_mean(),
        "bypassed": stats.bypassed,
        "staged": stats.staged,
        "holds": stats.holds,
        "dispatched": stats.dispatched,
        "dispatched_fast": stats.dispatched_fast,
        "contended": stats.contended,
        "trylock_failed": stats.trylock_failed,
        "wakeups": Json::object(stats.wakeups.by_cause()),
        "gate": object! { "opened": stats.gate.opened, "shut": stats.gate.shut, "shut_ns": stats.gate.shut_ns },
        "wait_share": outcome.layer.wait_share(),
        "cpu_ns_per_request": outcome.layer.cpu_ns_per_request(),
    }
    .with("waits", waits(outcome))
}

/// How long threads waited for the scheduler's lock, and requests until another thread inserted them, if any waits were
/// measured and took place.
fn waits(outcome: &Outcome) -> Option<Json> {
    let waits = outcome.waits();
    let times = |waits| latencies(waits, Detail { percents: Some(&WAIT_PERCENTS), bins: false });
    let any = waits.lock.count() + waits.staged.count() > 0;
    any.then(|| object! { "lock_ns": times(&waits.lock), "staged_ns": times(&waits.staged) })
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

/// One element of `jobs`: a thread, or all threads of a group.
fn section(report: &Reported<'_>, elapsed: u64, bins: bool) -> Json {
    let Reported { job, done, threads_ns } = report;
    let lasting = |ns: u64| if *threads_ns == 0 { 0.0 } else { 100.0 * ns as f64 / *threads_ns as f64 };
    let histograms = done.directions.each_ref().map(|direction| direction.latency.histogram());
    let [latency_ns, latency_us, latency_ms] = buckets(&histograms, done.ios());
    let percents = (job.clat_percentiles || job.lat_percentiles).then_some(&job.percentile_list[..]);
    let [read, write, trim] = done.directions.each_ref().map(|kind| direction(job, kind, done, bins));
    object! { "jobname": &*job.name, "groupid": done.group }.with("desc", job.description.clone()).and(object! {
        "error": i32::from(done.error.is_some()),
        "eta": 0,
        "elapsed": elapsed,
        "job options": Json::object(job.options.clone()),
        "read": read,
        "write": write,
        "trim": trim,
        "sync": object! {
            "total_ios": done.sync.ios,
            "lat_ns": latencies(&done.sync.latency, Detail { percents, bins }),
        },
        "job_runtime": ms(*threads_ns),
        "usr_cpu": lasting(done.usage.usr_ns),
        "sys_cpu": lasting(done.usage.sys_ns),
        "ctx": done.usage.switches,
        "majf": done.usage.major_faults,
        "minf": done.usage.minor_faults,
        "iodepth_level": shares(&LEVELS, &done.depth_level.levels(), done.depth_level.total()),
        "iodepth_submit": shares(&BATCHES, &done.depth_submit.batches(), done.depth_submit.total()),
        "iodepth_complete": shares(&BATCHES, &done.depth_complete.batches(), done.depth_complete.total()),
        "latency_ns": latency_ns,
        "latency_us": latency_us,
        "latency_ms": latency_ms,
        "latency_depth": job.iodepth,
        "latency_target": 0,
        "latency_percentile": 100.0,
        "latency_window": 0,
    })
}

/// What was done in one direction. Bandwidths are KiB per second unless they say bytes, times are milliseconds.
fn direction(job: &Job, direction: &DirectionOutcome, done: &JobOutcome, bins: bool) -> Json {
    let runtime_ns = if direction.ios == 0 { 0 } else { done.runtime_ns };
    let none = || latencies(&Latency::default(), Detail::default());
    let latency = |is_measured: bool, is_wanted: bool| {
        let percents = is_wanted.then_some(&job.percentile_list[..]);
        if is_measured { latencies(&direction.latency, Detail { percents, bins }) } else { none() }
    };
    let series = |of: fn(&Sample) -> f64| Series::new(&direction.samples.iter().map(of).collect::<Vec<_>>());
    let (bw, iops) = (series(|sample| sample.bandwidth() / 1024.0), series(Sample::iops));
    object! {
        "io_bytes": direction.bytes,
        "io_kbytes": direction.bytes >> 10,
        "bw_bytes": direction.bandwidth(runtime_ns) as u64,
        "bw": (direction.bandwidth(runtime_ns) / 1024.0) as u64,
        "iops": direction.iops(runtime_ns),
        "runtime": ms(runtime_ns),
        "total_ios": direction.ios,
        "short_ios": 0,
        "drop_ios": direction.errors,
        "slat_ns": none(),
        "clat_ns": latency(job.measure.clat, job.clat_percentiles),
        "lat_ns": latency(job.measure.lat, job.lat_percentiles),
        "bw_min": bw.min,
        "bw_max": bw.max,
        "bw_agg": if bw.nr == 0 { 0.0 } else { 100.0 },
        "bw_mean": bw.mean,
        "bw_dev": bw.deviation,
        "bw_samples": bw.nr,
        "iops_min": iops.min,
        "iops_max": iops.max,
        "iops_mean": iops.mean,
        "iops_stddev": iops.deviation,
        "iops_samples": iops.nr,
    }
}

fn ms(ns: u64) -> u64 {
    ns.div_ceil(1_000_000)
}
