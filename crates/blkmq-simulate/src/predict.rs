//! What the model says of published rows.
//!
//! One set of constants serves all rows: the distances of a machine's profile, and the defaults of
//! [`Costs`](blkmq_vcpu::cache::Costs) and of [`Kernel`]. From a published row of one thread, which does not count,
//! comes the work that a benchmark does beside what is modelled. Where a benchmark is a part of Linux, the path
//! modelled is that of blkmq with a queued spinlock around its scheduler, or a section as long as was published of
//! the kernel's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use blkmq_vcpu::cache::{Distances, Picoseconds};
use blkmq_vcpu::{Cores, Kernel, LockKind, Random, Smt};
use blkmq_virtual::Accounting;

use crate::machine::BOTH_PERCENT;
use crate::primitives::{self, Operation, Rounds, Task};
use crate::profile::picoseconds;
use crate::published::{Counting, Counts, Job, Load, Machine, Profiled, Reason, Row, Section, Unit};
use crate::scaling::requests_per_s;
use crate::{Level, Profile, Setting};

/// How often a row is run whose threads are bound to CPUs: with few threads, and with more. Each run has a seed of its
/// own, and the median counts, so these are odd numbers.
const RUNS: [u64; 2] = [9, 3];
/// So many threads are few.
const FEW: usize = 8;

/// Rounds of each thread that are measured in a run, and of all threads together at least: few threads take turns by
/// chance for long.
const EACH: u64 = 200;
const ROUNDS: u64 = 1600;

/// The least number of ways to place threads that are bound to no CPU. Their mean counts: a benchmark that repeats
/// itself sees several. Each has a seed of its own.
const PLACEMENTS: u64 = 4;

/// So many threads are placed at least, in one way or in several: where two threads are depends on chance more than
/// where 32 are.
const PLACED: usize = 32;

/// How far the seeds of two predictors are apart.
const APART: u64 = 1000;

/// The hardware queues of the device in [`Load::InFlight`].
const IN_FLIGHT_QUEUES: usize = 48;

/// Work of its own that is tried, to see how much longer a thread then takes.
const TRIED: Picoseconds = 1_000_000;

/// The model, with what it has said so far. Several threads may ask it.
#[derive(Debug)]
pub struct Predictor {
    /// Before the first seed of each row.
    seed: u64,
    /// Work of its own, by source and case of the row that it was taken from.
    fitted: Memo<(&'static str, String), Picoseconds>,
    /// Nanoseconds of an operation, by what was run. Some figures were published of the same runs.
    times: Memo<(&'static str, &'static str, usize, String), f64>,
}

/// What was found once, or is being found by another thread. `None`: it cannot be found.
#[derive(Debug)]
struct Memo<K, V>(Mutex<BTreeMap<K, Arc<OnceLock<Option<V>>>>>);

impl<K: Ord, V: Copy> Memo<K, V> {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn get_or_find(&self, key: K, find: impl FnOnce() -> Option<V>) -> Option<V> {
        let place = Arc::clone(self.0.lock().expect("no thread panics with it").entry(key).or_default());
        *place.get_or_init(find)
    }
}

impl Default for Predictor {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Predictor {
    /// The model with a seed, from which everything follows.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let (fitted, times) = (Memo::new(), Memo::new());
        Self { seed: seed.saturating_sub(1).saturating_mul(APART), fitted, times }
    }

    /// What the model says of a row, in the row's unit. `rows`: all rows of its source at least, of which one may give
    /// the work beside a lock. `None`: it does not model that.
    pub fn value(&self, row: &Row, rows: &[Row]) -> Option<f64> {
        let cores = cores_of(row.machine)?;
        let own = match base(row, rows) {
            Some(base) => {
                let key = (base.source, base.case.clone());
                self.fitted.get_or_find(key, || self.fit(base, rows, &cores))?
            }
            None => 0,
        };
        let run = (row.source, row.machine.key, row.threads, format!("{:?}", row.load));
        let ns = self.times.get_or_find(run, || self.measure(row, rows, &cores, own))?;
        let threads = row.threads as f64;
        Some(match row.unit {
            Unit::NsPerOp => ns,
            Unit::ThreadNsPerOp => ns * threads,
            Unit::OpsPerSecond => 1e9 / ns,
            Unit::Percent | Unit::Threads | Unit::Ratio => return None,
        })
    }

    /// The work of its own that lets the model say of a row of one thread what was published.
    fn fit(&self, base: &Row, rows: &[Row], cores: &Cores) -> Option<Picoseconds> {
        let published = match base.unit {
            Unit::NsPerOp | Unit::ThreadNsPerOp => base.published,
            Unit::OpsPerSecond => 1e9 / base.published,
            _ => return None,
        };
        // Work takes longer than alone where another thread has the other half of the core.
        let without = self.measure(base, rows, cores, 0)?;
        let with = self.measure(base, rows, cores, TRIED)?;
        let ns = (published - without) / (with - without).max(1.0) * TRIED as f64;
        // A path that takes longer than was published has no other work.
        Some(ns.max(0.0).round() as Picoseconds)
    }

    /// Nanoseconds of all threads for an operation: the mean over several placements of threads that are bound to no
    /// CPU, and the median of several runs of others. `own`: the work beside a lock or a path, or in the lock.
    fn measure(&self, row: &Row, rows: &[Row], cores: &Cores, own: Picoseconds) -> Option<f64> {
        if row.load.is_anywhere() {
            let threads = threads_of(row);
            let placements = if threads == 1 { PLACEMENTS } else { PLACEMENTS.max((PLACED / threads) as u64) };
            let on = |seed| measure(row, rows, &shuffled(cores, seed), own, seed);
            let times = (1..=placements).map(|number| on(self.seed + number)).collect::<Option<Vec<f64>>>()?;
            Some(times.iter().sum::<f64>() / times.len() as f64)
        } else {
            let run = |number| measure(row, rows, cores, own, self.seed + number);
            let is_steady = row.threads == 1 || row.threads > FEW;
            let runs = RUNS[usize::from(is_steady)];
            let mut times = (1..=runs).map(run).collect::<Option<Vec<f64>>>()?;
            times.sort_by(f64::total_cmp);
            Some(times[times.len() / 2])
        }
    }
}

/// The rounds of each of so many threads that are measured in a run.
fn each(threads: usize) -> u64 {
    // One thread takes the same time again and again.
    if threads == 1 { EACH } else { EACH.max(ROUNDS / threads as u64) }
}

/// How many threads a row's benchmark runs.
fn threads_of(row: &Row) -> usize {
    match row.load {
        Load::SmallLocks { .. } => row.machine.cpus(),
        Load::ProducersConsumers { producers, consumers, .. } => producers + consumers,
        _ => row.threads,
    }
}

/// The row from which a time is taken for this row: of the same thing, or for another scheduler or locking of Linux of
/// the path beside it. It is one of one thread, or the only one that there is.
fn base<'r>(row: &Row, rows: &'r [Row]) -> Option<&'r Row> {
    let mut fitted = rows.iter().filter(|other| {
        other.counts == Counts::No(Reason::Fitted) && other.source == row.source && other.machine.key == row.machine.key
    });
    fitted.find(|other| match (&other.load, &row.load) {
        (Load::InFlight { .. }, Load::InFlight { .. }) => true,
        _ if other.threads != 1 => false,
        (Load::SmallLocks { design, .. }, Load::SmallLocks { design: own, .. }) => design == own,
        (Load::WillItScale { benchmark, .. }, Load::WillItScale { benchmark: own, .. }) => benchmark == own,
        (Load::BlockLayer { devices, .. }, Load::BlockLayer { devices: own, .. }) => devices == own,
        (one, other) => one == other,
    })
}

/// The CPUs of a machine, in the order in which its threads fill them: one on each core, socket by socket, and then
/// the second one of each core. The distances are those of the profile's levels of the same kind, so a profile can
/// stand for a machine that has more cores.
fn cores_of(machine: &Machine) -> Option<Cores> {
    let (Profiled::Own(name) | Profiled::Near(name)) = machine.profile;
    let profile = Profile::named(name)?;
    let ps = |level: &Level| level.ns.and_then(picoseconds);
    let named = |names: &[&str]| profile.levels.iter().find(|level| names.contains(&&*level.name));
    let machine_level = profile.levels.last()?;
    let socket_level = named(&["socket", "die"]).unwrap_or(machine_level);
    let siblings = named(&["core"]);
    let per_core = siblings.map_or(1, |level| level.cpus);
    let cluster = named(&["chiplet", "complex", "cluster"]).map(|level| (level, level.cpus / per_core));
    let [within, between] = [ps(socket_level)?, ps(machine_level)?];
    let Machine { sockets, cores, .. } = *machine;
    let distances = Distances::new(machine.cpus(), |one, other| {
        let ([one, other], all) = ([one, other].map(|cpu| cpu % (sockets * cores)), (one, other));
        if one == other && all.0 != all.1 {
            return siblings.and_then(ps).unwrap_or(within);
        }
        if one / cores != other / cores {
            return between;
        }
        let near = cluster.filter(|(_, size)| one % cores / size == other % cores / size);
        near.and_then(|(level, _)| ps(level)).unwrap_or(within)
    });
    let smt = (machine.threads == 2).then_some(Smt { apart: sockets * cores, percent: BOTH_PERCENT });
    Some(Cores { smt, ..Cores::new(distances) })
}

/// The same CPUs, filled in an order of chance: threads that are bound to none.
fn shuffled(cores: &Cores, seed: u64) -> Cores {
    let mut fill: Vec<usize> = (0..cores.distances.nr_cpus()).collect();
    let mut random = Random::new(seed);
    for last in (1..fill.len()).rev() {
        fill.swap(last, random.below(last as u64 + 1) as usize);
    }
    Cores { fill, ..cores.clone() }
}

/// Nanoseconds of all threads for an operation, in one run.
fn measure(row: &Row, rows: &[Row], cores: &Cores, own: Picoseconds, seed: u64) -> Option<f64> {
    // std::mutex of C++ does not spin before it sleeps.
    let kernel = Kernel { spin: 0, ..cores.kernel };
    let each = each(threads_of(row));
    let rounds = Rounds { cores: Cores { kernel, ..cores.clone() }, seed, each };
    let threads = row.threads;
    match &row.load {
        Load::SmallLocks { design, asked } => {
            Some(primitives::small_locks(&rounds, *design, *asked, own) / threads as f64)
        }
        Load::PriorityQueue { design, items } => {
            primitives::priority_queue(&rounds, *design, *items, threads, own, Task::InTurn(0))
        }
        Load::ProducersConsumers { design, producers, .. } => {
            primitives::priority_queue(&rounds, *design, 0, threads_of(row), 0, Task::Apart(*producers))
        }
        Load::Pairs { design } => {
            let ns = primitives::priority_queue(&rounds, *design, 64, threads, 0, Task::InTurn(own / 2))?;
            Some(2.0 * ns)
        }
        Load::Counter { design } => primitives::counter(&rounds, *design, threads),
        Load::WillItScale { benchmark, locks } => {
            let one_ns = 1e9 / base(row, rows)?.published;
            let Section { holds, held_ns } = benchmark.section()?;
            // Of the time that the lock was held with many threads, one transfer is that of the lines, which a core
            // fetches together. And one thread holds it for half of its time at most.
            let far_ns = rounds.cores.distances.between(0, (row.machine.sockets - 1) * row.machine.cores) as f64 / 1e3;
            let inside = (held_ns - far_ns).clamp(0.0, one_ns / 2.0 / f64::from(holds));
            let operation = Operation { holds, inside: (inside * 1e3) as Picoseconds, outside: own };
            Some(primitives::sections(&rounds, *locks, operation, threads))
        }
        Load::BlockLayer { scheduler, locking, devices, queues, job } => {
            let setting = Setting {
                devices: *devices,
                scheduler: scheduler.name().to_owned(),
                locking: locking.of_blkmq()?.parse().ok()?,
                ..block_layer(cores, *queues, own, threads, seed)
            };
            ns_of(&load_of(*job), threads, &setting)
        }
        Load::InFlight { counted } => {
            // That blkmq counts nothing at all is no different from a count of each thread's own.
            let accounting = if *counted == Counting::OneWord { Accounting::Shared } else { Accounting::PerThread };
            let setting = Setting { accounting, ..block_layer(cores, IN_FLIGHT_QUEUES, own, threads, seed) };
            ns_of(&crate::Load::closed_loop("rw=randread\nbs=512", 1, 1), threads, &setting)
        }
    }
}

/// blkmq without a scheduler on a machine of Linux's.
fn block_layer(cores: &Cores, queues: usize, own: Picoseconds, threads: usize, seed: u64) -> Setting {
    let cores = Cores { locks: LockKind::Queued, ..cores.clone() };
    let device = format!("null,irqmode=0,poll_queues=0,submit_queues={queues}");
    Setting { t0: own, seed, requests: each(threads) * threads as u64, ..Setting::new(cores, device) }
}

/// Nanoseconds of all threads for an operation of a load.
fn ns_of(load: &crate::Load, threads: usize, setting: &Setting) -> Option<f64> {
    Some(1e9 / requests_per_s(load, threads, setting).ok()?)
}

/// The load of a published job, for any number of threads.
fn load_of(job: Job) -> crate::Load {
    let (operations, depth, batch) = match job {
        Job::Icpe24 => ("rw=randread\nbs=4k", 128, 1),
        Job::Scaling32x4 => ("rw=randread\nbs=512", 4, 4),
        Job::Scaling1x128 => ("rw=randread\nbs=512", 128, 4),
        Job::Batch16x32 => ("rw=randwrite\nbs=4k", 32, 8),
    };
    crate::Load::closed_loop(operations, depth, batch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published;

    fn value_of(source: &str, case: &str) -> f64 {
        let rows = published::rows();
        let row = rows.iter().find(|row| row.source == source && row.case == case).expect("there is such a row");
        Predictor::default().value(row, &rows).expect("it is modelled")
    }

    /// Red if the work that is taken from a row is not given back to it, or if such a row is not modelled.
    #[test]
    fn a_row_that_a_time_was_taken_from_is_as_published() {
        let rows = published::rows();
        let fitted = rows.iter().filter(|row| row.counts == Counts::No(Reason::Fitted));
        // Those of the counters give no time: the model's own costs stand for them.
        let (counters, fitted): (Vec<&Row>, Vec<&Row>) =
            fitted.partition(|row| matches!(row.load, Load::Counter { .. }));
        assert!(fitted.len() > 20, "{}", fitted.len());
        let predictor = Predictor::default();
        for row in fitted {
            let value = predictor.value(row, &rows).unwrap_or_else(|| panic!("{}, {}", row.source, row.case));
            let ratio = value / row.published;
            assert!((0.98..1.02).contains(&ratio), "{}, {}: {value}", row.source, row.case);
        }
        let missing = counters.iter().filter(|row| predictor.value(row, &rows).is_none());
        let missing: Vec<&str> = missing.map(|row| &*row.case).collect();
        assert!(missing.iter().all(|case| case.starts_with("spin with pause")), "not modelled: {missing:?}");
    }

    /// Red if a figure depends on the seed: if runs are too few or too short, or if few threads are placed in few ways.
    /// These are rows of each kind that chance changes most.
    #[test]
    fn another_seed_changes_little() {
        let rows = published::rows();
        let [one, other] = [1, 2].map(Predictor::new);
        let mut most = 0.0_f64;
        for (source, case, percent) in [
            ("folly-queues", "mutex and heap, 64 items, 2 threads", 10.0),
            ("folly-queues", "flat combining, 512 items, 2 threads", 10.0),
            ("concurrency-hierarchy", "std::mutex, Skylake, 4 threads", 15.0),
            ("concurrency-hierarchy", "ticket spin, Skylake, 4 threads", 10.0),
            ("combining-kernel", "open1, combining, 4 cores", 15.0),
            ("qspinlock", "open1, Xeon 8468, 4 threads", 15.0),
            ("icpe24", "mq-deadline, 1 drive, 3 processes", 10.0),
        ] {
            let row = rows.iter().find(|row| row.source == source && row.case == case).expect("there is such a row");
            let [one, other] = [&one, &other].map(|predictor| predictor.value(row, &rows).expect("it is modelled"));
            let off = 100.0 * (one / other - 1.0).abs();
            println!("{source}, {case}: {off:.1} %");
            assert!(off < percent, "{source}, {case}: {one} and {other}");
            most = most.max(off);
        }
        assert!(most > 0.0, "the seed decides something");
    }

    /// Red if sections are not served one at a time, if a lock that combines is no better with many threads, or if the
    /// work beside a section is not done meanwhile.
    #[test]
    fn combining_wins_where_many_threads_meet() {
        let ns = |lock: &str, threads: usize| {
            value_of("folly-locks", &format!("{lock}, {threads} thread{}", if threads == 1 { "" } else { "s" }))
        };
        assert!(ns("std::mutex", 2) < 2.0 * ns("std::mutex", 1), "the work beside overlaps");
        assert!(ns("std::mutex", 19) > 5.0 * ns("std::mutex", 2), "the sections do not");
        assert!(ns("DistributedMutex, combining", 19) < 0.5 * ns("std::mutex", 19));
    }

    #[test]
    fn the_model_says_the_same_each_time() {
        let [once, again] = [(); 2].map(|()| value_of("folly-queues", "flat combining, 64 items, 8 threads"));
        assert_eq!(once, again);
    }
}
