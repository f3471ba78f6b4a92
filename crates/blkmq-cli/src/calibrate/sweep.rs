//! One load after the other on the device, at many depths.
//!
//! A depth is measured by several short runs, until their rates agree. The device is not opened anew between them, and
//! depths go down from the full one: so what a device saved up while it idled is used up before its ceiling is
//! measured, and depths below the knee, at which it may save up again, do not reach the ceiling anyway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blkmq_workbench::Spread;
use blkmq_workbench::bench::{Bench, Control, Latency, Outcome, Sample};
use blkmq_workbench::job::Job;
use indicatif::ProgressBar;
use serde::Serialize;

use super::burst::Early;
use super::ground::{Front, Ground};
use super::knee::{self, Knee, Point};
use super::load::{Load, Way};
use blkmq_program::Failure;

/// What was found of a load.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Swept {
    #[serde(flatten)]
    pub(super) load: Load,
    /// The device's first seconds under this load, at its full depth.
    pub(super) early: Option<Early>,
    /// The highest rate of any depth. `None` if the sweep was stopped early.
    pub(super) ceiling_iops: Option<f64>,
    pub(super) ceiling_bytes_per_second: Option<f64>,
    pub(super) knee: Option<Knee>,
    /// What was measured, by depth.
    pub(super) points: Vec<Point>,
}

/// How long the runs of a depth are, and how many there are.
#[derive(Debug, Clone, Copy)]
struct Lengths {
    /// A run lasts this long, but a shorter time if it does `most_ios` in it, and a longer one until it does
    /// `least_ios`, up to `most`.
    usual: Duration,
    least_ios: f64,
    most_ios: f64,
    most: Duration,
    /// What is not measured at the beginning of a run: a device may have saved something up since the run before.
    least_ramp: Duration,
    /// Runs of a depth.
    runs: usize,
    /// The most runs of a depth, if the rates of its runs do not agree.
    most_runs: usize,
    /// Rates agree if the standard error of their mean is at most this part of it.
    error: f64,
}

impl Lengths {
    fn of(ground: &Ground, load: &Load, care: Care) -> Self {
        let is_fine = care == Care::Near;
        let ms = Duration::from_millis;
        if !ground.is_model {
            // One run of each depth in each pass.
            let (usual, most, least_ramp) = (ms(80), ms(500), ms(30));
            return Self { usual, least_ios: 50.0, most_ios: 1e9, most, least_ramp, runs: 1, most_runs: 1, error: 0.0 };
        }
        // What a device does by itself after writes comes in stretches, over which rates must be averaged.
        let (usual, most_ios, runs, most_runs) = match (load.way, is_fine) {
            (Way::Read, _) => (ms(60), 20_000.0, 2, 8),
            (_, false) => (ms(120), 60_000.0, 5, 10),
            (_, true) => (ms(120), 60_000.0, 8, 24),
        };
        let (most, least_ramp) = (ms(30_000), ms(15));
        Self { usual, least_ios: 300.0, most_ios, most, least_ramp, runs, most_runs, error: 0.01 }
    }

    /// What is measured, and what comes before it, of a run that does so many operations a second. Both are longer than
    /// what is outstanding at the beginning takes.
    fn run(&self, depth: u32, iops: f64) -> (Duration, Duration) {
        let time = |ios: f64| Duration::from_secs_f64((ios / iops.max(1e-3)).min(1e6));
        let outstanding = time(f64::from(depth));
        let length = self.usual.min(time(self.most_ios)).max(time(self.least_ios)).max(3 * outstanding).min(self.most);
        (length, self.least_ramp.min(time(self.most_ios)).max(length / 3).max(2 * outstanding).min(self.most))
    }
}

/// How carefully a depth is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Care {
    /// In the first pass.
    Far,
    /// Near the knee.
    Near,
    /// The highest rate, which of many noisy rates is one that came out too high.
    Ceiling,
}

/// Nothing orders requests while a device is swept.
const ALONE: Front = Front { depth: None, scheduler: Some("none"), has_limiter: false };

/// How long a device is written to at least, until it is in its lasting state.
const SETTLE: Duration = Duration::from_millis(300);

/// The most depths that are measured once more because their rate was the highest.
const TOPS: usize = 4;

/// Measures loads on a device that stays open.
pub(super) struct Sweeper<'a> {
    ground: &'a Ground,
    bench: Bench,
    stop: &'a Arc<AtomicBool>,
    bar: &'a ProgressBar,
    /// How many runs there were: each has places of its own, so that no cache knows them.
    runs: u64,
}

/// What one run did.
#[derive(Debug, Default)]
struct Ran {
    iops: f64,
    latency: Latency,
    samples: Vec<Sample>,
}

impl Ran {
    /// Sums up all threads and directions.
    fn of(outcome: &Outcome, length: Duration) -> Self {
        let mut ran = Self::default();
        let mut ios = 0;
        for job in &outcome.jobs {
            ios += job.ios_in_time;
            for direction in &job.directions {
                ran.latency.add(&direction.latency);
                for (at, sample) in direction.samples.iter().enumerate() {
                    if ran.samples.len() == at {
                        ran.samples.push(Sample { end_ns: sample.end_ns, ns: sample.ns, ios: 0, bytes: 0 });
                    }
                    ran.samples[at].ios += sample.ios;
                    ran.samples[at].bytes += sample.bytes;
                }
            }
        }
        ran.iops = ios as f64 / length.as_secs_f64();
        ran
    }
}

impl<'a> Sweeper<'a> {
    /// Opens the device. `loads` are those that it will be measured with.
    pub(super) fn new(
        ground: &'a Ground,
        loads: &[Load],
        stop: &'a Arc<AtomicBool>,
        bar: &'a ProgressBar,
    ) -> Result<Self, Failure> {
        let full = u32::from(ground.depth) * u32::from(ground.queues);
        // The queue has room for the load that needs most.
        let most = loads.iter().max_by_key(|load| load.bytes);
        let jobs = most.map_or(Ok(Vec::new()), |load| load.jobs(full, ground.reach(), Duration::ZERO, 0))?;
        Ok(Self { ground, bench: ground.bench(ALONE, &jobs)?, stop, bar, runs: 0 })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Runs jobs. `None` if that was stopped.
    fn run(&self, jobs: &[Job], length: Duration) -> Result<Option<Ran>, Failure> {
        let control = Control { runtime: Some(length), stop: Arc::clone(self.stop), ..Control::default() };
        let outcome = self.bench.with_jobs(jobs).and_then(|mut bench| bench.run(&control));
        let outcome = outcome.map_err(|error| self.ground.failure(&error))?;
        if let Some(error) = outcome.error() {
            return Err(Failure::Running(format!("{}: {error}", self.ground.device())));
        }
        Ok((!outcome.stopped && !self.is_stopped()).then(|| Ran::of(&outcome, length)))
    }

    fn jobs(&mut self, load: &Load, depth: u32, ramp: Duration) -> Result<Vec<Job>, Failure> {
        self.runs += 1;
        Ok(load.jobs(depth, self.ground.reach(), ramp, self.runs)?)
    }

    /// Measures a load at all depths. What is there when it is stopped is returned.
    pub(super) fn sweep(&mut self, load: Load) -> Result<Swept, Failure> {
        let queues = u32::from(self.ground.queues);
        let full = u32::from(self.ground.depth) * queues;
        let mut swept = Swept {
            load,
            early: None,
            ceiling_iops: None,
            ceiling_bytes_per_second: None,
            knee: None,
            points: Vec::new(),
        };
        let Some((early, iops)) = self.begin(&load, full)? else { return Ok(swept) };
        let burst = early.as_ref().and_then(|early| early.burst).map(|burst| Duration::from_nanos(burst.ns));
        swept.early = early;
        if !self.settle(&load, full, burst)? {
            return Ok(swept);
        }
        let Some(points) = self.passes(&load, &knee::coarse(full, queues), iops, Care::Far)? else { return Ok(swept) };
        swept.points = points;
        if !self.settle(&load, full, burst)? {
            return Ok(swept);
        }
        let mut depths = knee::fine(&swept.points, queues);
        if !self.ground.is_model {
            // What else the machine does changes: so all that decides is measured in the same passes.
            depths.extend(knee::ceiling(&swept.points).map(|top| top.depth));
            depths.push(full);
            depths.sort_unstable_by(|a, b| b.cmp(a));
            depths.dedup();
        }
        let Some(fine) = self.passes(&load, &depths, iops, Care::Near)? else { return Ok(swept) };
        fine.iter().for_each(|point| swept.replace(*point));
        if !self.ground.is_model {
            swept.conclude(&fine);
            return Ok(swept);
        }
        let mut confirmed = Vec::new();
        while let Some(top) = knee::ceiling(&swept.points).filter(|top| !confirmed.contains(&top.depth)) {
            if confirmed.len() == TOPS {
                break;
            }
            if !self.settle(&load, full, burst)? {
                return Ok(swept);
            }
            let Some(points) = self.passes(&load, &[top.depth], top.iops, Care::Ceiling)? else { return Ok(swept) };
            confirmed.push(top.depth);
            points.iter().for_each(|point| swept.replace(*point));
        }
        let points = swept.points.clone();
        swept.conclude(&points);
        Ok(swept)
    }

    /// Brings the device into the state in which it is under lasting load: what it saved up meanwhile is used up, and
    /// its buffer for writes is full if the load writes. A mix alone may leave the buffer empty or full, as it finds
    /// it. Returns false if it was stopped.
    fn settle(&mut self, load: &Load, full: u32, burst: Option<Duration>) -> Result<bool, Failure> {
        let (load, length) = match (load.way, burst) {
            (Way::Read, None) => return Ok(true),
            (Way::Read, Some(burst)) => (*load, burst),
            _ => (Load { way: Way::Write, ..*load }, burst.unwrap_or_default().max(SETTLE)),
        };
        let jobs = self.jobs(&load, full, Duration::ZERO)?;
        Ok(self.run(&jobs, length)?.is_some())
    }

    /// The first seconds at the full depth, and the rate at their end.
    fn begin(&mut self, load: &Load, full: u32) -> Result<Option<(Option<Early>, f64)>, Failure> {
        self.bar.set_message(format!("{}, the first seconds", load.name()));
        // On virtual time a first look says how long can be computed.
        let jobs = self.jobs(load, full, Duration::ZERO)?;
        let length = if self.ground.is_model { self.model_length(&jobs)? } else { Some(Duration::from_secs(3)) };
        let Some(length) = length else { return Ok(None) };
        let Some(ran) = self.run(&jobs, length)? else { return Ok(None) };
        self.bar.inc(1);
        let early = Early::of(&ran.samples);
        let iops = early.as_ref().map_or(ran.iops, |early| early.later_iops);
        Ok(Some((early, iops)))
    }

    /// How long a model is watched: for about as many operations as are computed within a second or two.
    fn model_length(&self, jobs: &[Job]) -> Result<Option<Duration>, Failure> {
        const OPERATIONS: f64 = 300_000.0;
        const MOST: f64 = 60.0;
        // The look itself must not use up the credit, so it is taken on a device of its own.
        let control =
            Control { runtime: Some(Duration::from_millis(200)), stop: Arc::clone(self.stop), ..Control::default() };
        let mut bench = self.ground.bench(ALONE, jobs)?;
        let outcome = bench.run(&control).map_err(|error| self.ground.failure(&error))?;
        if outcome.stopped {
            return Ok(None);
        }
        let ran = Ran::of(&outcome, Duration::from_millis(200));
        let later = ran.samples.get(1).map_or(ran.iops, Sample::iops);
        Ok(Some(Duration::from_secs_f64((OPERATIONS / later.max(1.0)).clamp(0.5, MOST))))
    }

    /// These depths, from the highest down. `iops`: about how many operations a second are expected at first. On
    /// virtual time there is one pass. On a machine that does other things too there are several, so that what disturbs
    /// it for a second disturbs no depth more than others.
    fn passes(&mut self, load: &Load, depths: &[u32], iops: f64, care: Care) -> Result<Option<Vec<Point>>, Failure> {
        let passes = match (self.ground.is_model, care) {
            (true, _) => 1,
            (false, Care::Far) => 2,
            (false, _) => 7,
        };
        self.bar.inc_length(passes * depths.len() as u64);
        let mut all: Vec<Gathered> = depths.iter().map(|depth| Gathered::new(*depth, iops)).collect();
        for _ in 0..passes {
            let mut expected = None;
            for gathered in &mut all {
                gathered.expected = expected.unwrap_or(gathered.expected);
                if !self.gather(load, gathered, care)? {
                    return Ok(None);
                }
                // The depth that follows is not much slower. Later passes know better.
                expected = (gathered.rates.len() < 2 || self.ground.is_model).then_some(gathered.expected);
                self.bar.inc(1);
            }
        }
        Ok(Some(all.into_iter().map(|gathered| gathered.point(!self.ground.is_model)).collect()))
    }

    /// Runs one depth until its rates agree. Returns false if it was stopped.
    fn gather(&mut self, load: &Load, gathered: &mut Gathered, care: Care) -> Result<bool, Failure> {
        let depth = gathered.depth;
        self.bar.set_message(format!("{}, {depth} at once", load.name()));
        let mut lengths = Lengths::of(self.ground, load, care);
        if care == Care::Ceiling {
            (lengths.usual, lengths.least_ios, lengths.most_ios) =
                (3 * lengths.usual, 3.0 * lengths.least_ios, 3.0 * lengths.most_ios);
        }
        let mut rates: Vec<f64> = Vec::new();
        while rates.len() < lengths.runs || (rates.len() < lengths.most_runs && error(&rates) > lengths.error) {
            let (length, ramp) = lengths.run(depth, gathered.expected);
            let jobs = self.jobs(load, depth, ramp)?;
            let Some(ran) = self.run(&jobs, length)? else { return Ok(false) };
            gathered.latency.add(&ran.latency);
            gathered.expected = ran.iops;
            rates.push(ran.iops);
        }
        gathered.rates.extend(rates);
        Ok(true)
    }
}

/// What was measured of a depth.
struct Gathered {
    depth: u32,
    /// About how many operations a second are expected.
    expected: f64,
    rates: Vec<f64>,
    latency: Latency,
}

impl Gathered {
    fn new(depth: u32, expected: f64) -> Self {
        Self { depth, expected, rates: Vec::new(), latency: Latency::default() }
    }

    /// `is_disturbed`: the machine does other things too, which slow down some of the runs.
    fn point(mut self, is_disturbed: bool) -> Point {
        self.rates.sort_by(f64::total_cmp);
        let middle = Spread::new(&self.rates).filter(|_| is_disturbed).map(|spread| spread.median);
        let iops = middle.unwrap_or_else(|| mean(&self.rates));
        let at = |quarter: usize| self.rates[(self.rates.len() - 1) * quarter / 4];
        let spread = (at(3) - at(1)) / iops.max(f64::MIN_POSITIVE);
        let [p50_ns, p99_ns, p99_9_ns] = [50.0, 99.0, 99.9].map(|percent| self.latency.percentile(percent));
        Point { depth: self.depth, iops, spread, p50_ns, p99_ns, p99_9_ns }
    }
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// The standard error of the mean, as a part of the mean.
fn error(rates: &[f64]) -> f64 {
    let mean = mean(rates);
    let squares: f64 = rates.iter().map(|rate| (rate - mean).powi(2)).sum();
    (squares / (rates.len() * (rates.len() - 1)) as f64).sqrt() / mean.max(f64::MIN_POSITIVE)
}

impl Swept {
    /// Takes a better figure for a depth.
    fn replace(&mut self, point: Point) {
        self.points.retain(|other| other.depth != point.depth);
        self.points.push(point);
    }

    /// Says what follows from these points.
    fn conclude(&mut self, points: &[Point]) {
        self.points.sort_by_key(|point| point.depth);
        self.ceiling_iops = knee::ceiling(points).map(|top| top.iops);
        self.ceiling_bytes_per_second = self.ceiling_iops.map(|iops| iops * self.load.bytes as f64);
        self.knee = Knee::of(points);
        if let Some(knee) = &mut self.knee {
            knee.at_twice = self.points.iter().copied().find(|point| point.depth >= 2 * knee.depth);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_shrinks_as_rates_agree() {
        assert_eq!(error(&[5.0, 5.0, 5.0]), 0.0);
        assert!((error(&[9.0, 11.0]) - 0.1).abs() < 1e-9);
        assert!((error(&[9.0, 11.0, 9.0, 11.0]) - 0.0577).abs() < 1e-3);
    }
}
