//! What a scheduler is worth to the clients behind it: the tests Q5 to Q13, each scheduler beside none.
//!
//! A scheduler is judged by what it promises ([`Promises`]): a row has a target only if the scheduler promises what the
//! row is about, and is a plain figure otherwise. Two things are asked of every scheduler: that it does not delay a
//! request that is alone (Q5), and that the device does not idle while requests wait (Q10).
//!
//! On a model each run is a world of its own on virtual time: it depends on the load, the device and the scheduler, and
//! on nothing else. So the rows are the same on every machine, and runs can be spread over threads. On a real device
//! the schedulers take turns.
//!
//! In the folder a `world` runs the clients of a `load` on a queue; `latency`, `shares`, `flood`, `deadlines`,
//! `startup`, `conservation`, `burst`, `isolation` and `order` are the tests, each of which measures and gives its
//! figures their targets. `interference` repeats a published table.
//!
//! A program judges a scheduler of its own like this:
//!
//! ```
//! use blkmq::driver::spec::Opener;
//! use blkmq_sched::MqDeadline;
//! use blkmq_workbench::bench::SchedulerSource;
//! use blkmq_workbench::judge::{Contestant, Promises, Settings, Site, judge};
//!
//! let site = Site::open("null,irqmode=2,completion_nsec=1ms", false, &Opener::SILENT)?;
//! let own = Contestant {
//!     name: "own".to_owned(),
//!     scheduler: SchedulerSource::own(|| Box::new(MqDeadline::new())),
//!     promises: Promises::MQ_DEADLINE,
//! };
//! let settings = Settings { tests: vec!["Q5"], ..Settings::default() };
//! let rows = judge(&site, &[own], &settings, &|_, _| ())?;
//! assert!(rows.iter().all(|row| row.pass != Some(false)));
//! # Ok::<(), blkmq_workbench::judge::JudgeError>(())
//! ```

mod burst;
mod client;
mod conservation;
mod deadlines;
mod error;
mod flood;
mod interference;
mod isolation;
mod journal;
mod latency;
mod load;
mod measuring;
mod order;
mod page;
mod promises;
mod row;
mod shares;
mod site;
mod startup;
mod verdict;
mod world;

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::bench::SchedulerSource;
use crate::buffers::BufferPool;
pub use error::JudgeError;
pub use interference::Interference;
use measuring::{Measuring, Test};
pub use page::sections;
pub use promises::{Deadlines, Knob, Order, Promises, QuickReads, Resource, Shares};
use row::Figure;
pub use row::{Row, Target};
pub use site::Site;
use site::Speed;
pub use verdict::{schedulers, verdict};

/// The tests, in the order of their rows.
const TESTS: [Test; 9] = [
    latency::TEST,
    shares::TEST,
    flood::TEST,
    deadlines::TEST,
    startup::TEST,
    conservation::TEST,
    burst::TEST,
    isolation::TEST,
    order::TEST,
];

/// The tests by their ids, `Q5` to `Q13`, each with what it is about.
#[must_use]
pub fn tests() -> Vec<(&'static str, &'static str)> {
    TESTS.iter().map(|test| (test.id, test.title)).collect()
}

/// A scheduler that is judged.
#[derive(Debug, Clone)]
pub struct Contestant {
    /// The name in rows.
    pub name: String,
    /// The scheduler.
    pub scheduler: SchedulerSource,
    /// What it is judged by.
    pub promises: Promises,
}

impl Contestant {
    /// A scheduler that blkmq has, by its name, judged by what it promises with its default knobs.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), scheduler: name.into(), promises: Promises::of(name) }
    }
}

/// How to judge.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The ids of the tests that are made; empty for all.
    pub tests: Vec<&'static str>,
    /// How long the tests take on a real device, without the starts of Q9, which last until the application has
    /// started. A model takes the virtual time that its figures need.
    pub runtime: Duration,
    /// Runs on a model end after this part of their operations: 1 for figures to rely on, more for a quick look.
    pub shorter: u64,
    /// Set to true to end the judgement without a result.
    pub stop: Arc<AtomicBool>,
}

impl Default for Settings {
    /// All tests, 10 minutes on a real device.
    fn default() -> Self {
        Self {
            tests: Vec::new(),
            runtime: Duration::from_secs(600),
            shorter: 1,
            stop: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// How often each scheduler has its turn at a test on a real device: once on the way forth and once on the way back, so
/// that a drift of the device changes all alike.
const TURNS: usize = 2;

/// Judges schedulers on a device. `progress` receives the number of finished measurements, and of all. The
/// rows are ordered by test, then as the contestants are, then by case. If it is stopped, the rows are those of the
/// tests that were measured before.
///
/// # Errors
/// The device or a scheduler cannot be used, an operation failed, or it was stopped before a test was measured.
///
/// # Panics
/// `shorter` is 0.
pub fn judge(
    site: &Site,
    contestants: &[Contestant],
    settings: &Settings,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Row>, JudgeError> {
    assert!(settings.shorter > 0, "runs are divided by a number above 0");
    let tests: Vec<&Test> =
        TESTS.iter().filter(|test| settings.tests.is_empty() || settings.tests.contains(&test.id)).collect();
    // Some tests compare what they measure with what they measure of none.
    let mut all = vec![Contestant::named("none")];
    all.extend(contestants.iter().filter(|contestant| contestant.name != "none").cloned());
    let judges_none = contestants.iter().any(|contestant| contestant.name == "none");
    let judging = Judging { site, settings, contestants: &all, judges_none, progress };
    let figures = if site.is_model() { judging.at_once(&tests)? } else { judging.in_turn(&tests)? };
    let mut rows = Vec::new();
    for (test, figures) in tests.iter().zip(figures) {
        let Some(figures) = figures else { continue };
        for contestant in contestants {
            let place = all.iter().position(|other| other.name == contestant.name).unwrap_or(0);
            let judged = (test.judge)(figures[place].clone(), &figures[0], &contestant.promises);
            rows.extend(judged.into_iter().map(|figure| figure.row(test.id, &contestant.name)));
        }
    }
    if rows.is_empty() { Err(JudgeError::Stopped) } else { Ok(rows) }
}

/// Measures the published interference table on a device, for each scheduler. The rows are ordered by background, then
/// as the contestants are. On a real device they take `runtime` in all. `progress` is called as by [`judge`].
///
/// # Errors
/// As of [`judge`].
pub fn interference(
    site: &Site,
    contestants: &[Contestant],
    settings: &Settings,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Interference>, JudgeError> {
    let judging = Judging { site, settings, contestants, judges_none: true, progress };
    let count = interference::NR_ROWS * contestants.len();
    let slice = (!site.is_model()).then(|| settings.runtime / (count as u32).max(1));
    if slice.is_some() {
        site.fill(&mut site.pool(), &settings.stop)?;
    }
    // None of these loads depends on the speed of the device.
    let on = |number: usize, pool: &mut BufferPool| {
        let mut on = judging.measuring(number % contestants.len(), Speed { iops: 1.0 }, slice, pool);
        interference::measure(number / contestants.len(), &mut on)
    };
    judging.spread(count, &on).into_iter().map(|measured| measured.unwrap_or(Err(JudgeError::Stopped))).collect()
}

/// The figures of each test, for each contestant. There are none of those that a test does not need. `None`: the test
/// was stopped.
type Figures = Vec<Option<Vec<Vec<Figure>>>>;

struct Judging<'a> {
    site: &'a Site,
    settings: &'a Settings,
    contestants: &'a [Contestant],
    /// Whether the first contestant, which is none, is judged too.
    judges_none: bool,
    progress: &'a (dyn Fn(usize, usize) + Sync),
}

impl Judging<'_> {
    /// The contestants of which a test needs figures.
    fn needed(&self, test: &Test) -> std::ops::Range<usize> {
        usize::from(!self.judges_none && !test.needs_none)..self.contestants.len()
    }

    /// All measurements on a model.
    fn at_once(&self, tests: &[&Test]) -> Result<Figures, JudgeError> {
        let speed = Speed::of(self.site, Duration::from_secs(60), &mut self.site.pool(), &self.settings.stop)?;
        let pairs = tests.iter().enumerate().flat_map(|(at, test)| self.needed(test).map(move |number| (at, number)));
        let pairs: Vec<(usize, usize)> = pairs.collect();
        let measure = |number: usize, pool: &mut BufferPool| {
            let (test, contestant) = pairs[number];
            (tests[test].measure)(&mut self.measuring(contestant, speed, None, pool))
        };
        let mut figures = vec![Some(vec![Vec::new(); self.contestants.len()]); tests.len()];
        for (&(test, contestant), measured) in pairs.iter().zip(self.spread(pairs.len(), &measure)) {
            match (measured, &mut figures[test]) {
                (Some(Ok(measured)), Some(figures)) => figures[contestant] = measured,
                (Some(Ok(_)), None) => (),
                (None | Some(Err(JudgeError::Stopped)), figures) => *figures = None,
                (Some(Err(error)), _) => return Err(error),
            }
        }
        Ok(figures)
    }

    /// Makes `count` measurements: on a model by several threads, otherwise one after the other. The result does not
    /// depend on which thread makes which. Behind one that fails, those that have not begun are left out.
    fn spread<T: Send>(
        &self,
        count: usize,
        measure: &(dyn Fn(usize, &mut BufferPool) -> Result<T, JudgeError> + Sync),
    ) -> Vec<Option<Result<T, JudgeError>>> {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let results: Mutex<Vec<Option<Result<T, JudgeError>>>> = Mutex::new((0..count).map(|_| None).collect());
        let work = || {
            let mut pool = self.site.pool();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return;
                }
                let measured = measure(number, &mut pool);
                // A judgement that has failed needs no further measurements.
                if measured.is_err() {
                    next.store(count, Ordering::Relaxed);
                }
                results.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(measured);
                (self.progress)(done.fetch_add(1, Ordering::Relaxed) + 1, count);
            }
        };
        let nr_threads =
            if self.site.is_model() { std::thread::available_parallelism() } else { Ok(NonZeroUsize::MIN) };
        let nr_threads = nr_threads.map_or(1, usize::from).min(count);
        std::thread::scope(|scope| {
            (0..nr_threads).for_each(|_| drop(scope.spawn(work)));
        });
        results.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// All measurements on a real device, one after the other. A figure is the mean of the turns.
    fn in_turn(&self, tests: &[&Test]) -> Result<Figures, JudgeError> {
        let mut pool = self.site.pool();
        let stop = &*self.settings.stop;
        self.site.fill(&mut pool, stop)?;
        let nr_turns = |test: &Test| TURNS * self.needed(test).len();
        let nr_runs = tests.iter().map(|test| test.nr_runs * nr_turns(test) as u32).sum::<u32>();
        let slice = self.settings.runtime / (nr_runs + 1);
        let speed = Speed::of(self.site, slice, &mut pool, stop)?;
        let (count, mut done) = (tests.iter().map(|test| nr_turns(test)).sum(), 0);
        let mut figures = Vec::new();
        for test in tests {
            let mut sums: Vec<Vec<Figure>> = vec![Vec::new(); self.contestants.len()];
            let forth = self.needed(test);
            for contestant in forth.clone().chain(forth.rev()) {
                let mut on = self.measuring(contestant, speed, Some(slice), &mut pool);
                match (test.measure)(&mut on) {
                    Ok(measured) => add(&mut sums[contestant], measured),
                    Err(JudgeError::Stopped) => {
                        figures.resize(tests.len(), None);
                        return Ok(figures);
                    }
                    Err(error) => return Err(error),
                }
                done += 1;
                (self.progress)(done, count);
            }
            figures.push(Some(sums));
        }
        Ok(figures)
    }

    fn measuring<'m>(
        &'m self,
        contestant: usize,
        speed: Speed,
        slice: Option<Duration>,
        pool: &'m mut BufferPool,
    ) -> Measuring<'m> {
        let Settings { shorter, stop, .. } = self.settings;
        let contestant = &self.contestants[contestant];
        Measuring { site: self.site, contestant, speed, slice, shorter: *shorter, pool, stop }
    }
}

/// Makes the figures of two turns those of both: the mean. The target is that of the first turn.
fn add(sums: &mut Vec<Figure>, turn: Vec<Figure>) {
    for figure in turn {
        match sums.iter_mut().find(|sum| sum.case == figure.case) {
            Some(sum) => sum.value = f64::midpoint(sum.value, figure.value),
            None => sums.push(figure),
        }
    }
}
