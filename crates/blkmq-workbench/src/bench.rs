//! The load generator: runs the jobs of fio's job files through the block layer.
//!
//! In the folder a `plan` is what a thread of a job does on a device, a `pattern` chooses its next operation, and a
//! `worker` submits it; `threads` or `tasks` run the workers, and their `outcome` is the result. The module
//! [`compare`](crate::compare) and the forms of output call in, at the names of this page.
//!
//! Each thread of a job is a thread with a [`Submitter`](blkmq::Submitter) and a [`Client`] of its own. On a virtual
//! clock the threads of the jobs are tasks of the calling thread, and the outcome depends only on the jobs, the device
//! and the settings. As in fio, a job without batch options passes on each operation by itself, so that operations
//! merge only in the scheduler.

mod cpu;
mod error;
mod latency;
mod outcome;
mod pace;
mod partial;
mod pattern;
mod plan;
mod progress;
mod range_locks;
mod recorder;
mod scheduler;
mod stage;
mod syncs;
mod tasks;
mod threads;
mod verify;
mod waits;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blkmq::driver::Driver;
use blkmq::driver::spec::Opener;
use blkmq::{Client, Clock, Limits, Locking, RequestQueue, VirtualClock};

use crate::device::is_real;
use crate::job::{Job, nanoseconds};
pub use cpu::{Usage, thread_cpu_ns};
pub use error::{BenchError, JobError};
pub use latency::Latency;
pub use outcome::{DirectionOutcome, JobOutcome, LayerOutcome, Outcome, Sample, Spread};
use plan::Plan;
pub use progress::{Progress, Snapshot};
pub use scheduler::SchedulerSource;
use stage::Stage;
pub use waits::Waits;
use worker::{JobsClock, Worker};

/// What jobs run on.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// The device, as a spec: `null,irqmode=2`.
    pub device: String,
    /// The scheduler, by its name or a program's own; `None` for Linux's choice, mq-deadline for one hardware queue and
    /// else none.
    pub scheduler: Option<SchedulerSource>,
    /// How threads share the scheduler.
    pub locking: Locking,
    /// Whether requests may bypass the scheduler. `None` for the default of the locking.
    pub bypass: Option<bool>,
    /// Knobs of the queue and, as `iosched/NAME`, of its scheduler, with their values, in the order in which they are
    /// set. `accounting` is accepted too: how the statistics know what is in flight.
    pub settings: Vec<(String, String)>,
    /// The clock that the jobs run on.
    pub clock: ClockKind,
    /// Whether to measure how long threads and requests wait on their way to the scheduler. The measurement costs a
    /// reading of the clock for each wait.
    pub waits: bool,
}

/// Which time jobs run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ClockKind {
    /// The machine's clock. The clock is read for each batch if the run needs the exact time. Otherwise requests get
    /// the time of the kernel's last tick, and the queue's statistics count time in ticks. A run needs the exact time
    /// if a job measures latencies, if a job does something at a certain time, or if the device takes time of its own.
    /// fio saves the same with `gtod_reduce`.
    #[default]
    Real,
    /// The machine's clock, read for each batch in any case.
    Exact,
    /// A virtual clock: it moves to the next event as soon as no job can go on. Not for real storage.
    Virtual,
    /// The machine's clock for the jobs, and for the block layer a clock that stands still while anything can be done.
    /// So the block layer takes no time stamps, and a comparison with such a run shows what time stamps cost. Latencies
    /// are measured by the clock of the block layer.
    Still,
}

/// Where the time stamps of a run's requests come from. Taking them is part of a request's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stamps {
    /// The machine's clock, read for each batch: the default for the requests of applications.
    Exact,
    /// The kernel's last tick; see [`ClockKind::Real`].
    Coarse,
    /// A virtual clock.
    Virtual,
    /// Nothing; see [`ClockKind::Still`].
    None,
}

impl Stamps {
    /// A word for tables: `exact`, `coarse`, `virtual` or `none`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Coarse => "coarse",
            Self::Virtual => "virtual",
            Self::None => "none",
        }
    }
}

/// How another thread limits, watches and stops a run.
#[derive(Debug, Clone, Default)]
pub struct Control {
    /// Every job runs for this long and begins new passes until then, whatever its file says.
    pub runtime: Option<Duration>,
    /// Set to true to end the run: nothing more is submitted, and what is outstanding completes.
    pub stop: Arc<AtomicBool>,
    /// How far the run has come.
    pub progress: Arc<Progress>,
}

impl Setup {
    /// A device on the machine's time, with Linux's choice of scheduler.
    #[must_use]
    pub fn new(device: impl Into<String>) -> Self {
        Self { device: device.into(), ..Self::default() }
    }
}

/// A queue with the jobs that are to run on it. The jobs can run as often as the caller wants.
#[derive(Debug)]
pub struct Bench {
    q: RequestQueue,
    /// The jobs' clock: the queue's own clock, unless that is coarse or stands still.
    clock: Clock,
    is_apart: bool,
    stamps: Stamps,
    plans: Vec<Plan>,
    /// The slots of each submitter.
    slots: u16,
}

impl Bench {
    /// Opens the device, and checks that the jobs can run on it.
    ///
    /// # Errors
    /// What is wrong with the device, the settings or a job.
    pub fn new(jobs: &[Job], setup: &Setup) -> Result<Self, BenchError> {
        let opener = Opener { nr_submitters: Self::nr_submitters(jobs), ..Opener::SILENT };
        let driver = blkmq_drivers::open_for(&setup.device, &opener).map_err(BenchError::Device)?;
        Self::over(driver, jobs, setup)
    }

    /// The most submitters that these jobs have at once, for the device to know. A job with `stonewall` begins when
    /// those before it have ended. `None` if they are too many to count.
    #[must_use]
    pub fn nr_submitters(jobs: &[Job]) -> Option<u16> {
        let stages = jobs.chunk_by(|_, next| !next.stonewall);
        let most = stages.map(|jobs| jobs.iter().map(|job| u64::from(job.numjobs)).sum::<u64>()).max();
        u16::try_from(most?).ok()
    }

    /// As [`new`](Self::new), over an open device; the spec of the setup is ignored.
    ///
    /// # Errors
    /// What is wrong with the settings or a job.
    pub fn over(driver: Arc<dyn Driver>, jobs: &[Job], setup: &Setup) -> Result<Self, BenchError> {
        if jobs.is_empty() {
            return Err(BenchError::NoJob);
        }
        if setup.clock == ClockKind::Virtual && is_real(driver.name()) {
            return Err(BenchError::RealTime);
        }
        let limits = driver.limits();
        let plans = plan::plans(jobs, &limits, driver.keeps_data())?;
        let slots = most_slots(&plans, &limits, MAX_SLOTS)?;
        // A limiter measures latencies by the queue's clock.
        let has_limiter = setup.settings.iter().any(|(name, value)| name == "wbt_lat_usec" && value != "0");
        let is_timed = has_limiter || driver.takes_time() || plans.iter().any(Plan::is_timed);
        let stamps = match setup.clock {
            ClockKind::Real if !is_timed => Stamps::Coarse,
            ClockKind::Real | ClockKind::Exact => Stamps::Exact,
            ClockKind::Virtual => Stamps::Virtual,
            ClockKind::Still => Stamps::None,
        };
        let clock = match stamps {
            Stamps::Virtual | Stamps::None => Clock::Virtual(VirtualClock::new()),
            Stamps::Coarse => Clock::coarse(),
            Stamps::Exact => Clock::real(),
        };
        let is_apart = matches!(stamps, Stamps::Coarse | Stamps::None);
        let of_jobs = if is_apart { Clock::real() } else { clock.clone() };
        let mut builder = RequestQueue::builder(driver)
            .clock(clock)
            .slots(slots)
            .wait_meter(threads::lock_meter)
            .locking(setup.locking);
        if setup.waits {
            builder = builder.observe_waits(waits::note);
        }
        if let Some(bypass) = setup.bypass {
            builder = builder.bypass(bypass);
        }
        if let Some(scheduler) = &setup.scheduler {
            builder = builder.scheduler(scheduler.choice());
        }
        let refused = |name: &str, value: &str| {
            let (name, value) = (name.to_owned(), value.to_owned());
            |error| BenchError::Setting { name, value, error: Box::new(error) }
        };
        let (built, settings): (Vec<_>, Vec<_>) = setup.settings.iter().partition(|(name, _)| name == "accounting");
        if let Some((name, value)) = built.last() {
            builder = builder.accounting(value.parse().map_err(refused(name, value))?);
        }
        let q = builder.build().map_err(BenchError::Queue)?;
        for (name, value) in settings {
            q.change_knob(name, value).and_then(|change| change.wait()).map_err(refused(name, value))?;
        }
        Ok(Self { q, clock: of_jobs, plans, is_apart, stamps, slots })
    }

    /// Other jobs on the same queue: the device keeps the state in which the jobs before left it, and the clock goes
    /// on. The kind of the clock, and the most requests that one thread can have, stay those of the first jobs.
    ///
    /// # Errors
    /// A job cannot run on this device, or needs more requests than the first jobs did.
    pub fn with_jobs(&self, jobs: &[Job]) -> Result<Self, BenchError> {
        if jobs.is_empty() {
            return Err(BenchError::NoJob);
        }
        let driver = self.q.driver();
        let limits = driver.limits();
        let plans = plan::plans(jobs, &limits, driver.keeps_data())?;
        most_slots(&plans, &limits, self.slots)?;
        let Self { is_apart, stamps, slots, .. } = *self;
        Ok(Self { q: self.q.clone(), clock: self.clock.clone(), plans, is_apart, stamps, slots })
    }

    /// The queue that the jobs run on.
    #[must_use]
    pub fn queue(&self) -> &RequestQueue {
        &self.q
    }

    /// Where the time stamps of requests come from.
    #[must_use]
    pub fn stamps(&self) -> Stamps {
        self.stamps
    }

    /// Runs the jobs, and returns when all of them have ended.
    ///
    /// # Errors
    /// The queue cannot serve this many threads, or only time would end the jobs, and on this clock it does
    /// not pass. An operation that the device fails ends its job, and is an error in the outcome.
    pub fn run(&mut self, control: &Control) -> Result<Outcome, BenchError> {
        let mut plans = self.plans.clone();
        if let Some(runtime) = control.runtime {
            plans.iter_mut().for_each(|plan| plan.set_runtime(nanoseconds(runtime)));
        }
        let mut cells = control.progress.begin(plans.len()).into_iter();
        let begin = self.clock.now();
        let mut outcome = Outcome::default();
        let nr_stages = plans.last().map_or(0, |plan| plan.stage + 1);
        let mut plans = plans.into_iter().peekable();
        for number in 0..nr_stages {
            let mut members = Vec::new();
            while let Some(plan) = plans.next_if(|plan| plan.stage == number) {
                members.push(plan);
            }
            if control.stop.load(Ordering::Relaxed) {
                outcome.stopped = true;
                break;
            }
            self.run_stage(members, &mut cells, &control.stop, &mut outcome)?;
        }
        outcome.elapsed_ns = self.clock.now().since(begin);
        Ok(outcome)
    }

    /// Runs the jobs of one stage, all at the same time.
    fn run_stage(
        &self,
        plans: Vec<Plan>,
        cells: &mut dyn Iterator<Item = Arc<progress::Cell>>,
        stop: &AtomicBool,
        outcome: &mut Outcome,
    ) -> Result<(), BenchError> {
        let nr_ramping = plans.iter().filter(|plan| plan.ramp_ns > 0).count();
        let stage = Arc::new(Stage::new(&self.q, nr_ramping));
        let mut workers = Vec::new();
        for (plan, cell) in plans.into_iter().zip(cells) {
            // Equal clients count as one. Each thread is a client of its own, as a process is under Linux.
            let client = Client::new(plan.client()).with_priority(plan.job.priority.unwrap_or_default());
            let submitter = self.q.submitter(&client).map_err(BenchError::Threads)?;
            let clock = JobsClock { clock: self.clock.clone(), is_apart: self.is_apart };
            workers.push(Worker::new(plan, submitter, clock, Arc::clone(&stage), cell));
        }
        let (ended, cpu_ns) = match &self.clock {
            Clock::Real(_) => (threads::run(workers, stop), None),
            Clock::Virtual(clock) => {
                let before = thread_cpu_ns();
                tasks::run(&mut workers, clock, stop)?;
                let cpu_ns = stage.cpu_ns(before);
                (workers.into_iter().map(Worker::into_outcome).collect(), Some(cpu_ns))
            }
        };
        let layer = &mut outcome.layer;
        let stats = stage.stats(&self.q);
        layer.cpu_ns += cpu_ns.unwrap_or_else(|| ended.iter().map(|(job, _)| job.usage.cpu_ns).sum());
        layer.wait_ns += stats.lock_wait_ns + ended.iter().map(|(job, _)| job.empty_polls_ns).sum::<u64>();
        layer.requests += stats.issued.saturating_sub(stats.requeued);
        layer.merges += stats.merges_plug + stats.merges_insert;
        layer.stats += stats;
        for (job, _) in &ended {
            layer.operations += job.ios();
            layer.bytes += job.directions.iter().map(|direction| direction.bytes).sum::<u64>();
        }
        outcome.stopped |= ended.iter().any(|(_, is_stopped)| *is_stopped);
        outcome.jobs.extend(ended.into_iter().map(|(job, _)| job));
        Ok(())
    }
}

/// The most slots that a submitter can have.
const MAX_SLOTS: u16 = 32768;

/// The most slots that the plan of one thread takes, which are not to be more than `most`.
fn most_slots(plans: &[Plan], limits: &Limits, most: u16) -> Result<u16, BenchError> {
    let Some(largest) = plans.iter().max_by_key(|plan| plan.slots(limits)) else { return Ok(1) };
    let slots = largest.slots(limits);
    u16::try_from(slots)
        .ok()
        .filter(|slots| *slots <= most)
        .ok_or_else(|| BenchError::Job { name: largest.job.name.clone(), error: JobError::Depth(slots) })
}
