//! Variants of a load that run in turn in one process, so that drift of the machine changes all of them alike.
//!
//! A program that brings a scheduler of its own compares it with others in this way:
//!
//! ```
//! use std::sync::{Arc, atomic::AtomicBool};
//! use std::time::Duration;
//!
//! use blkmq_sched::MqDeadline;
//! use blkmq_workbench::Job;
//! use blkmq_workbench::bench::{Bench, ClockKind, SchedulerSource, Setup};
//! use blkmq_workbench::compare::{self, Variant};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // In place of `MqDeadline` stands the scheduler that is to be judged.
//! let own = SchedulerSource::own(|| Box::new(MqDeadline::new()));
//! let jobs = [Job::new("reader")];
//! let mut variants = Vec::new();
//! for (name, scheduler) in [("mq-deadline", "mq-deadline".into()), ("own", own)] {
//!     let setup = Setup { scheduler: Some(scheduler), clock: ClockKind::Virtual, ..Setup::new("hdd") };
//!     variants.push(Variant::new(name, &jobs, Bench::new(&jobs, &setup)?));
//! }
//! let turns = compare::once(&mut variants, Duration::from_secs(1), &Arc::new(AtomicBool::new(false)), &mut || ())?;
//! assert_eq!(turns.spread(0), turns.spread(1), "they are the same scheduler");
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::bench::{Bench, BenchError, Control, JobOutcome, Latency, LayerOutcome, Stamps};
use crate::{Job, Turns};

/// How many slices may end without a completion before the device counts as too slow for slices of this length.
const TRIES: usize = 5;

/// A variant that runs in turn.
#[derive(Debug)]
pub struct Variant {
    /// The variant's name, for errors.
    name: String,
    /// Number of stages that its jobs run in, one after the other.
    nr_stages: usize,
    bench: Bench,
    /// The sum of all its slices.
    layer: LayerOutcome,
    /// What each job did, in the order of the file.
    jobs: Vec<JobSlices>,
}

/// What a job (all its threads together) did in each slice, in the order of the slices.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct JobSlices {
    /// The job's name.
    pub name: String,
    /// Operations per second.
    pub rates: Vec<f64>,
    /// The median of its latencies, in nanoseconds. Not a number if none was measured. An operation that was
    /// outstanding at the end of a slice counts in that slice.
    pub p50_ns: Vec<f64>,
    /// The latency that 99 of 100 operations did not exceed, in the same form.
    pub p99_ns: Vec<f64>,
}

/// Why variants could not be compared. Each kind names the variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// The jobs cannot run.
    #[error("{0}: {1}")]
    Bench(String, #[source] BenchError),
    /// The device failed an operation of a job.
    #[error("{0}: {1}")]
    Failed(String, String),
    /// No operation completed within a slice of this length, several times, so there is no rate.
    #[error("{0}: no operation completed within {1:?}; give the slices a longer time")]
    Nothing(String, Duration),
    /// The comparison was stopped before there was a result.
    #[error("{0}: interrupted before its end")]
    Stopped(String),
}

impl Variant {
    /// Makes a variant of a bench and the jobs that it was made for.
    #[must_use]
    pub fn new(name: impl Into<String>, jobs: &[Job], bench: Bench) -> Self {
        let nr_stages = 1 + jobs.iter().skip(1).filter(|job| job.stonewall).count();
        let jobs = jobs.iter().map(|job| JobSlices { name: job.name.clone(), ..JobSlices::default() }).collect();
        Self { name: name.into(), nr_stages, bench, layer: LayerOutcome::default(), jobs }
    }

    /// What the variant runs on.
    #[must_use]
    pub fn bench(&self) -> &Bench {
        &self.bench
    }

    /// What the block layer did in all slices together.
    #[must_use]
    pub fn layer(&self) -> &LayerOutcome {
        &self.layer
    }

    /// What each job did, in the order in which the jobs were given.
    #[must_use]
    pub fn jobs(&self) -> &[JobSlices] {
        &self.jobs
    }

    /// Operations per second in one slice; `None` if it was stopped. On the machine's clock a slice in which nothing
    /// completed is run again, up to [`TRIES`] times: other programs may have had the processors all the while.
    fn slice(&mut self, slice: Duration, stop: &Arc<AtomicBool>) -> Result<Option<f64>, CompareError> {
        let tries = if self.bench.stamps() == Stamps::Virtual { 1 } else { TRIES };
        for _ in 0..tries {
            match self.try_slice(slice, stop)? {
                Some(rate) if rate <= 0.0 => (),
                ended => return Ok(ended),
            }
        }
        Err(CompareError::Nothing(self.name.clone(), slice))
    }

    /// As [`slice`](Self::slice), once. A slice in which nothing completed is not recorded.
    fn try_slice(&mut self, slice: Duration, stop: &Arc<AtomicBool>) -> Result<Option<f64>, CompareError> {
        let control = Control { runtime: Some(slice), stop: Arc::clone(stop), ..Control::default() };
        let outcome = self.bench.run(&control).map_err(|error| CompareError::Bench(self.name.clone(), error))?;
        if let Some(error) = outcome.error() {
            return Err(CompareError::Failed(self.name.clone(), error));
        }
        if outcome.stopped {
            return Ok(None);
        }
        // The time at which the last thread notices the end is decided by the machine's scheduler. So the time of a
        // slice is the wanted one, and what completed after the end does not count: with few operations in a slice, the
        // ones that are outstanding then would decide the rate.
        let ios: u64 = outcome.jobs.iter().map(|job| job.ios_in_time).sum();
        let rate = ios as f64 / (slice.as_secs_f64() * self.nr_stages as f64);
        if rate <= 0.0 {
            return Ok(Some(0.0));
        }
        self.layer += outcome.layer;
        for (index, job) in self.jobs.iter_mut().enumerate() {
            job.record(outcome.jobs.iter().filter(|thread| thread.job == index), slice);
        }
        Ok(Some(rate))
    }
}

/// Runs slices of all variants until the ratio of each of `pairs` is resolved, or for this many rounds, or until `stop`
/// is set. At least two rounds are needed. `progress` is called after each slice.
///
/// # Errors
/// A variant cannot run, or did nothing in a slice; or `stop` was set before the second round had ended.
///
/// # Panics
/// There are fewer than two variants.
pub fn in_turn(
    variants: &mut [Variant],
    slice: Duration,
    rounds: usize,
    pairs: &[(usize, usize)],
    stop: &Arc<AtomicBool>,
    progress: &mut dyn FnMut(),
) -> Result<Turns, CompareError> {
    let mut turns = Turns::new(variants.len());
    'rounds: while turns.rounds() < rounds && !turns.are_resolved(pairs) {
        for _ in 0..2 * variants.len() {
            let variant = &mut variants[turns.next()];
            let Some(rate) = variant.slice(slice, stop)? else {
                if turns.rounds() < 2 {
                    return Err(CompareError::Stopped(variant.name.clone()));
                }
                break 'rounds;
            };
            turns.record(rate);
            progress();
        }
    }
    Ok(turns)
}

/// Runs one slice of each variant: on virtual time another one has the same result. `progress` is called after each
/// slice.
///
/// # Errors
/// A variant cannot run, or did nothing in its slice; or `stop` was set.
///
/// # Panics
/// There are fewer than two variants.
pub fn once(
    variants: &mut [Variant],
    slice: Duration,
    stop: &Arc<AtomicBool>,
    progress: &mut dyn FnMut(),
) -> Result<Turns, CompareError> {
    let mut turns = Turns::new(variants.len());
    for variant in variants {
        let rate = variant.slice(slice, stop)?;
        turns.record(rate.ok_or_else(|| CompareError::Stopped(variant.name.clone()))?);
        progress();
    }
    Ok(turns)
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
