//! Variants of a load that run in turn in one process.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use blkmq_workbench::bench::{Bench, Control, JobOutcome, Latency, LayerOutcome};
use blkmq_workbench::{Job, Spread, Turns};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::failure::Failure;
use crate::interrupt;

/// A variant that runs in turn.
#[derive(Debug)]
pub(crate) struct Variant {
    /// For errors.
    pub(crate) name: String,
    /// Number of stages that its jobs run in, one after the other.
    nr_stages: usize,
    pub(crate) bench: Bench,
    /// The sum of all its slices.
    pub(crate) layer: LayerOutcome,
    /// What each job did, in the order of the file.
    pub(crate) jobs: Vec<JobSlices>,
}

/// What a job (all its threads together) did in each slice, in the order of the slices.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobSlices {
    pub(crate) name: String,
    /// Operations per second.
    pub(crate) rates: Vec<f64>,
    /// The median of its latencies, in nanoseconds. Not a number if none was measured. An operation that was
    /// outstanding at the end of a slice counts in that slice.
    pub(crate) p50_ns: Vec<f64>,
    /// The latency that 99 of 100 operations did not exceed, in the same form.
    pub(crate) p99_ns: Vec<f64>,
}

impl Variant {
    pub(crate) fn new(name: String, jobs: &[Job], bench: Bench) -> Self {
        let nr_stages = 1 + jobs.iter().skip(1).filter(|job| job.stonewall).count();
        let jobs = jobs.iter().map(|job| JobSlices { name: job.name.clone(), ..JobSlices::default() }).collect();
        Self { name, nr_stages, bench, layer: LayerOutcome::default(), jobs }
    }
}

/// Runs slices of all variants until the ratio of each of `pairs` is resolved, or for this many rounds, or until `stop`
/// is set. At least two rounds are needed.
pub(crate) fn take(
    variants: &mut [Variant],
    slice: Duration,
    rounds: usize,
    pairs: &[(usize, usize)],
    stop: &Arc<AtomicBool>,
    bar: &ProgressBar,
) -> Result<Turns, Failure> {
    let mut turns = Turns::new(variants.len());
    'rounds: while turns.rounds() < rounds && !turns.are_resolved(pairs) {
        for _ in 0..2 * variants.len() {
            let variant = &mut variants[turns.next()];
            let Some(rate) = variant.slice(slice, stop)? else {
                if turns.rounds() < 2 {
                    return Err(interrupt::failure(&variant.name));
                }
                break 'rounds;
            };
            turns.record(rate);
            bar.inc(1);
        }
    }
    Ok(turns)
}

/// Runs one slice of each variant. On virtual time a further slice would give the same result.
pub(crate) fn once(
    variants: &mut [Variant],
    slice: Duration,
    stop: &Arc<AtomicBool>,
    bar: &ProgressBar,
) -> Result<Turns, Failure> {
    let mut turns = Turns::new(variants.len());
    for variant in variants {
        let rate = variant.slice(slice, stop)?;
        turns.record(rate.ok_or_else(|| interrupt::failure(&variant.name))?);
        bar.inc(1);
    }
    Ok(turns)
}

impl Variant {
    /// Operations per second in one slice; `None` if it was stopped.
    fn slice(&mut self, slice: Duration, stop: &Arc<AtomicBool>) -> Result<Option<f64>, Failure> {
        let control = Control { runtime: Some(slice), stop: Arc::clone(stop), ..Control::default() };
        let failed = |what: String| Failure::Running(format!("{}: {what}", self.name));
        let outcome = self.bench.run(&control).map_err(|error| failed(error.to_string()))?;
        if let Some(error) = outcome.error() {
            return Err(failed(error));
        }
        if outcome.stopped {
            return Ok(None);
        }
        // Only what completed within the slice counts, not what completed until the last thread noticed its end: how
        // late that is depends on the kernel's scheduler. And in a slice with few operations, those still outstanding
        // at its end would decide the rate.
        let ios: u64 = outcome.jobs.iter().map(|job| job.ios_in_time).sum();
        let rate = ios as f64 / (slice.as_secs_f64() * self.nr_stages as f64);
        if rate <= 0.0 {
            return Err(failed(format!("no operation completed within {slice:?}; give --runtime a longer time")));
        }
        self.layer += outcome.layer;
        for (index, job) in self.jobs.iter_mut().enumerate() {
            job.record(outcome.jobs.iter().filter(|thread| thread.job == index), slice);
        }
        Ok(Some(rate))
    }
}

impl JobSlices {
    /// Adds what the job's threads did in a slice.
    fn record<'a>(&mut self, threads: impl Iterator<Item = &'a JobOutcome>, slice: Duration) {
        let (mut ios, mut latency) = (0, Latency::default());
        for thread in threads {
            ios += thread.ios_in_time;
            thread.directions.iter().for_each(|direction| latency.add(&direction.latency));
        }
        let at = |percent| if latency.count() == 0 { f64::NAN } else { latency.percentile(percent) as f64 };
        self.rates.push(ios as f64 / slice.as_secs_f64());
        self.p50_ns.push(at(50.0));
        self.p99_ns.push(at(99.0));
    }
}

/// The rates of a variant's slices, for programs: operations per second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Rates {
    pub(crate) median: f64,
    pub(crate) lower_quartile: f64,
    pub(crate) upper_quartile: f64,
}

impl From<Spread> for Rates {
    fn from(Spread { median, lower, upper }: Spread) -> Self {
        Self { median, lower_quartile: lower, upper_quartile: upper }
    }
}
