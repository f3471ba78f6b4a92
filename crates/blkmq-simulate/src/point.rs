//! One run of a load on the modelled CPUs of a machine.

use std::sync::Arc;

use blkmq_vcpu::cache::Picoseconds;
use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::{Cores, Ended, OnStage, Options, Random, run, thread, time};
use blkmq_virtual::driver::spec::open;
use blkmq_virtual::{Accounting, Client, Limits, Locking, RequestQueue};

use crate::load::{Load, Worker};
use crate::pace::Paced as _;
use crate::stages::{Private, Stages, Way};
use crate::tally::{self, Plan, Tally};

/// How many threads a device's spec calls `{threads}`.
const THREADS: &str = "{threads}";

/// What a thread of the load does before each of its operations, beside them. It gets the thread's number.
pub type Each = Arc<dyn Fn(usize) + Send + Sync>;

/// Threads of a load that stop while the others go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// How many threads stop: the last ones. At least one other goes on.
    pub threads: usize,
    /// The virtual time at which they stop submitting, in nanoseconds since the run began. They still have operations
    /// outstanding then.
    pub at_ns: u64,
    /// How long after that the measurement begins, in nanoseconds.
    pub settle_ns: u64,
}

impl Stop {
    /// Whether the time has come for thread `thread` of so many to stop.
    fn is_due(self, thread: usize, threads: usize) -> bool {
        thread >= threads - self.threads && time::now() >= self.at_ns
    }
}

/// What a load runs on.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a closure has no such form")]
pub struct Setting {
    /// The CPUs. If there are more threads, several share a CPU.
    pub cores: Cores,
    /// The device's spec, in which `{threads}` stands for the number of threads.
    pub device: String,
    /// How many such devices there are, each with a queue of its own; at least 1. A thread goes from device to device
    /// by chance.
    pub devices: usize,
    /// The scheduler's name.
    pub scheduler: String,
    /// The locking around it.
    pub locking: Locking,
    /// Whether requests may bypass it; `None`: as the locking has it.
    pub bypass: Option<bool>,
    /// How the statistics know what is in flight.
    pub accounting: Accounting,
    /// What threads do by themselves at each stage of a request's way. `None`: nothing, so that only accesses to shared
    /// lines take time.
    pub stages: Option<Stages>,
    /// How long private work takes, in percent of what it took on the machine where the stages were measured.
    pub percent: u64,
    /// How much work a thread does for each operation beside the block layer's: that of another stack.
    pub t0: Picoseconds,
    /// What else a thread does for each operation.
    pub each: Option<Each>,
    /// The number of a thread, from 0, that has a load of its own, and this load. `None`: all threads do the same.
    pub thread_load: Option<(usize, Load)>,
    /// Threads that stop during the run. `None`: each goes on to its end.
    pub stop: Option<Stop>,
    /// The number from which everything else follows.
    pub seed: u64,
    /// How many operations of all threads together are measured. Before these come others that are not measured: a
    /// quarter as many or more, or those until threads [stop](Self::stop).
    pub requests: u64,
}

impl Setting {
    /// A device with a queue of the block layer in front of it, without a scheduler. Threads do what they were measured
    /// to do, and nothing beside that.
    #[must_use]
    pub fn new(cores: Cores, device: impl Into<String>) -> Self {
        Self {
            cores,
            device: device.into(),
            devices: 1,
            scheduler: "none".to_owned(),
            locking: Locking::Single,
            bypass: Some(false),
            accounting: Accounting::PerThread,
            stages: Some(Stages::measured()),
            percent: 100,
            t0: 0,
            each: None,
            thread_load: None,
            stop: None,
            seed: 1,
            requests: 20_000,
        }
    }

    /// Whether requests may bypass the scheduler.
    #[must_use]
    pub fn bypasses(&self) -> bool {
        self.bypass.unwrap_or(self.locking == Locking::Combining)
    }

    fn way(&self) -> Way {
        Way { scheduler: self.scheduler.clone(), locking: self.locking.to_string(), bypass: self.bypasses() }
    }
}

/// The loads of the threads of a run, on each device.
struct Loads {
    common: Load,
    thread_load: Option<(usize, Load)>,
}

impl Loads {
    fn of(load: &Load, setting: &Setting) -> Self {
        let thread_load = setting.thread_load.as_ref().map(|(thread, load)| (*thread, load.shared_by(setting.devices)));
        Self { common: load.shared_by(setting.devices), thread_load }
    }

    fn of_thread(&self, thread: usize) -> &Load {
        self.thread_load.as_ref().filter(|(number, _)| *number == thread).map_or(&self.common, |(_, load)| load)
    }

    /// Slots that each submitter needs.
    fn slots(&self) -> u16 {
        self.thread_load.iter().fold(self.common.slots(), |slots, (_, load)| slots.max(load.slots()))
    }

    /// Whether so many threads can do this to a device with such limits.
    fn fit(&self, threads: usize, limits: &Limits) -> Result<(), String> {
        self.common.fits(threads, limits)?;
        self.thread_load.as_ref().map_or(Ok(()), |(thread, load)| load.fits(thread + 1, limits))
    }
}

/// Runs `load` with so many threads.
///
/// # Errors
/// It cannot be run.
pub(crate) fn measure(load: &Load, threads: usize, setting: &Setting) -> Result<Tally, String> {
    let stopping = setting.stop.map_or(0, |stop| stop.threads);
    let numbers =
        [(threads, "threads"), (setting.devices, "devices"), (threads.saturating_sub(stopping), "threads that go on")];
    for (number, what) in numbers {
        if number == 0 {
            return Err(format!("no {what}; a load has 1 or more"));
        }
    }
    if let Some((number, _)) = setting.thread_load.as_ref().filter(|(number, _)| *number >= threads) {
        return Err(format!(
            "no thread {number}, which has a load of its own; threads are numbered from 0 to {}",
            threads - 1
        ));
    }
    let loads = Loads::of(load, setting);
    loads.fit(threads, &queue(&loads, threads, setting)?.limits())?;
    let Setting { cores, seed, requests, .. } = setting.clone();
    let private =
        setting.stages.as_ref().map(|stages| Private::of(stages, &setting.way(), cores.costs, setting.percent));
    let on_access = Box::new(|accessed| tally::accessed(&accessed));
    let mut charge = private.map(Private::on_stage);
    let on_stage: Box<OnStage> = Box::new(move |cpu, stage, requests| {
        let work = charge.as_mut().map_or(0, |charge| charge(cpu, stage, requests));
        tally::stage_ended(cpu, stage, requests, work);
        work
    });
    let cores = Some(Cores { seed, ..cores });
    let options = Options { on_access: Some(on_access), cores, on_stage: Some(on_stage), ..Options::default() };
    let least = 8 * threads as u64 * u64::from(loads.common.pace.depth);
    let (warm, warm_ns) = setting.stop.map_or((least.max(requests / 4), 0), |stop| (0, stop.at_ns + stop.settle_ns));
    tally::begin(threads, Plan { warm, warm_ns, wanted: requests });
    let (loads, theirs) = (Arc::new(loads), setting.clone());
    let ended = run(Box::new(Uniform::new(Random::new(seed), 1)), options, move || work(&loads, threads, &theirs));
    let tally = tally::take();
    match (ended, tally) {
        (_, Some(Tally { failed: Some(why), .. })) => Err(format!("device {}: {why}", spec(threads, setting))),
        (Ended::Finished, Some(tally)) => Ok(tally),
        (ended, _) => Err(format!("the run did not come to its end: {ended:?}")),
    }
}

/// The spec of a run's device.
fn spec(threads: usize, setting: &Setting) -> String {
    setting.device.replace(THREADS, &threads.to_string())
}

fn queue(loads: &Loads, threads: usize, setting: &Setting) -> Result<RequestQueue, String> {
    let Setting { scheduler, locking, bypass, accounting, .. } = setting;
    let spec = spec(threads, setting);
    let device = open(&spec).map_err(|error| format!("device {spec}: {error}"))?;
    let builder = RequestQueue::builder(device)
        .scheduler(&**scheduler)
        .locking(*locking)
        .accounting(*accounting)
        .slots(loads.slots())
        .wait_meter(tally::lock_meter)
        .observe_waits(tally::waited);
    let builder = bypass.iter().fold(builder, |builder, bypass| builder.bypass(*bypass));
    builder.build().map_err(|error| error.to_string())
}

/// The numbers of chance of a thread.
pub(crate) struct Chance {
    /// From which follows where its operations go on each device.
    pub(crate) by_device: Vec<Random>,
    /// From which follows the device that is next.
    turns: Random,
}

impl Chance {
    /// Those of so many threads, in their order.
    pub(crate) fn of_threads(seed: u64, threads: usize, devices: usize) -> impl Iterator<Item = Self> {
        let mut random = Random::new(seed);
        (0..threads).map(move |_| {
            let by_device = (0..devices).map(|_| random.fork()).collect();
            Self { by_device, turns: random.fork() }
        })
    }
}

/// What the virtual CPUs do: the first one too is a thread of the load.
fn work(loads: &Arc<Loads>, nr_threads: usize, setting: &Setting) {
    let build = |_| queue(loads, nr_threads, setting).expect("it could be built just now");
    let queues: Vec<_> = (0..setting.devices).map(build).collect();
    tally::runs_through(&queues);
    let mut threads: Vec<_> = Chance::of_threads(setting.seed, nr_threads, setting.devices)
        .enumerate()
        .map(|(thread, Chance { by_device, mut turns })| {
            let client = Client::new(format!("thread {thread}"));
            let join = |q: &RequestQueue| q.submitter(&client).expect("there is a place for each");
            let submitters: Vec<_> = queues.iter().map(join).zip(by_device).collect();
            let (loads, t0, each, stop) = (Arc::clone(loads), setting.t0, setting.each.clone(), setting.stop);
            move || {
                let each = || each.iter().for_each(|each| each(thread));
                let load = loads.of_thread(thread);
                let worker = |(submitter, random)| Worker::new(load, thread as u64, submitter, random, t0);
                let mut workers: Vec<_> = submitters.into_iter().map(worker).collect();
                workers[0].begin();
                while !tally::is_over() && !stop.is_some_and(|stop| stop.is_due(thread, nr_threads)) {
                    // In turn all threads would meet at each device: real ones answer when they like.
                    let next = turns.below(workers.len() as u64) as usize;
                    workers[next].go_round(each);
                }
                workers.into_iter().map(Worker::end).collect::<Vec<_>>()
            }
        })
        .collect();
    let first = threads.remove(0);
    let others: Vec<_> = threads.into_iter().map(thread::spawn).collect();
    let first = first();
    let others: Vec<_> = others.into_iter().map(|other| other.join().expect("a panic ends the run")).collect();
    drop((first, others));
}
