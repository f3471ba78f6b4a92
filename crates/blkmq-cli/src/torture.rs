//! `blkmq torture`: the whole block layer on virtual CPUs, from a seed.

mod stepper;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IsTerminal, Write};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use blkmq_sched::SCHEDULERS;
use blkmq_workbench::torture::{
    Control, CountingAllocator, Failure as Broken, Length, MUTANTS, Mutant, Rig, Settings, Tally, WORLD_REQUESTS,
    replay,
};
use clap::Args;
use indicatif::HumanCount;
use serde::Serialize;

use self::stepper::Stepper;
use crate::failure::Failure;
use crate::words::short;
use crate::{interrupt, json, progress, target};

const EXAMPLES: &str = "\
Examples:
  blkmq torture
  blkmq torture --minutes 60 --cpus 4 --scheduler mq-deadline
  blkmq torture --seed 42 --requests 1000000
  blkmq torture --seed 42 --requests 300 --replay
  blkmq torture --plant lost-kick --minutes 2
  blkmq torture --list-mutants

The code of the block layer runs on virtual CPUs and virtual time: which CPU goes on after each step, what the device does
and what everybody asks for follows from the seed. Checkers watch that every promise is kept. A run is made of worlds of 5000
operations, the first of which has the run's own seed; so the command that is printed with a failure plays the failing world
alone, cut to the shortest length that fails. What a run comes to does not depend on the cores of the machine.

The last line of a clean run is 'clean: seed S, requests N, hash H': the same seed and number of requests give the same hash,
of everything that happened in all worlds, with the same version of blkmq.

--replay tells everything that happens in one world. On a terminal it stops after each line: Enter goes on by one, a number by
so many, 't 1.5' to that millisecond, 's 400' to that step, 'b 17' to what next happens to operation 17; 'q' ends.

Ctrl-C ends a run after the worlds that have begun, and what it came to is told. Who types it again does not wait.";

/// How long a run lasts unless told otherwise.
const MINUTES: f64 = 2.0;

/// Torture the block layer on virtual CPUs, and check all that it promises.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", crate::EXIT_CODES))]
pub(crate) struct Torture {
    /// The number that everything follows from; drawn and told unless given.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Begin worlds for so many minutes [default: 2].
    #[arg(long, value_name = "M", value_parser = minutes, conflicts_with = "requests")]
    minutes: Option<Duration>,
    /// Submit exactly so many operations.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Virtual CPUs that submit.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: u16,
    /// The scheduler; any, and changed under load, unless given.
    #[arg(long, value_name = "NAME", value_parser = schedulers())]
    scheduler: Option<String>,
    /// How threads share the scheduler; any unless given.
    #[arg(long, value_name = "LOCKING", value_parser = target::LOCKINGS)]
    locking: Option<String>,
    /// Plant a bug, to see it found.
    #[arg(long, value_name = "MUTANT", value_parser = mutants())]
    plant: Option<String>,
    /// Tell all that happens in one world, of --seed with --requests.
    #[arg(long, conflicts_with_all = ["minutes", "json"])]
    replay: bool,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
    /// Explain the bugs that can be planted.
    #[arg(long, exclusive = true)]
    list_mutants: bool,
}

fn minutes(text: &str) -> Result<Duration, String> {
    let minutes = text.parse::<f64>().ok().filter(|minutes| *minutes > 0.0);
    let span = minutes.and_then(|minutes| Duration::try_from_secs_f64(60.0 * minutes).ok());
    span.ok_or_else(|| format!("'{text}' is not a number of minutes above 0, as in 0.5 or 120"))
}

fn schedulers() -> Vec<&'static str> {
    std::iter::once("none").chain(SCHEDULERS.iter().map(|scheduler| scheduler.name)).collect()
}

fn mutants() -> Vec<&'static str> {
    MUTANTS.iter().map(|mutant| mutant.name).collect()
}

/// What runs: the version, and the commit if whoever built it said so.
fn version() -> String {
    let commit = option_env!("BLKMQ_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map(|commit| format!(" ({commit})")).unwrap_or_default();
    format!("blkmq {}{commit}", env!("CARGO_PKG_VERSION"))
}

/// What was found.
#[derive(Debug, Serialize)]
struct Found {
    version: String,
    seed: u64,
    /// Of clean worlds, as what follows.
    requests: u64,
    worlds: u64,
    steps: u64,
    hash: String,
    seconds: f64,
    /// The world that took the most steps for an operation.
    heaviest: Option<HeaviestWorld>,
    /// Whether Ctrl-C ended the run.
    interrupted: bool,
    failure: Option<FoundFailure>,
}

#[derive(Debug, Serialize)]
struct HeaviestWorld {
    seed: u64,
    requests: u64,
    steps_per_request: u64,
}

#[derive(Debug, Serialize)]
struct FoundFailure {
    seed: u64,
    requests: u64,
    rule: &'static str,
    what: String,
    step: u64,
    time_ns: u64,
    cpu: u16,
    /// The command that plays this world alone.
    repeat: String,
    repeatable: bool,
    history: Vec<String>,
    left_out: u64,
}

impl Torture {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        if self.list_mutants {
            for mutant in MUTANTS {
                writeln!(out, "{:20} {}", mutant.name, mutant.what)?;
            }
            return Ok(());
        }
        let seed = self.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        if self.replay {
            return self.step_through(seed, out);
        }
        let head = format!("torture with seed {seed}: {}; {}", self.settings_in_words(), version());
        if self.json && self.seed.is_none() {
            eprintln!("blkmq: {head}");
        } else if !self.json {
            writeln!(out, "{head}")?;
            out.flush()?;
        }
        let control = Control { stop: interrupt::flag(), ..Control::default() };
        let found = self.found(seed, &control);
        if self.json {
            json::print(&found, out)?;
        } else {
            found.write(out)?;
        }
        match &found.failure {
            Some(failure) => {
                let FoundFailure { seed, requests, rule, what, .. } = failure;
                Err(Failure::Running(format!("torture: seed {seed}, requests {requests}: {rule}: {what}")))
            }
            None if found.interrupted => Err(interrupt::failure("torture")),
            None => Ok(()),
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            cpus: self.cpus,
            scheduler: self.scheduler.clone(),
            locking: self.locking.clone(),
            mutant: self.plant.as_deref().and_then(Mutant::by_name),
            live: Some(CountingAllocator::live),
        }
    }

    fn settings_in_words(&self) -> String {
        let or_any = |value: &Option<String>| value.clone().unwrap_or_else(|| "any".to_owned());
        let planted = self.plant.as_ref().map(|mutant| format!(", {mutant} planted")).unwrap_or_default();
        let (scheduler, locking) = (or_any(&self.scheduler), or_any(&self.locking));
        format!("{} CPUs, scheduler {scheduler}, locking {locking}{planted}", self.cpus)
    }

    /// The command that plays one world alone.
    fn repeat(&self, seed: u64, requests: u64) -> String {
        let mut command = format!("blkmq torture --seed {seed} --requests {requests} --cpus {}", self.cpus);
        for (option, value) in [("scheduler", &self.scheduler), ("locking", &self.locking), ("plant", &self.plant)] {
            command.extend(value.iter().map(|value| format!(" --{option} {value}")));
        }
        command
    }

    fn found(&self, seed: u64, control: &Control) -> Found {
        let span = self.minutes.unwrap_or(Duration::from_secs_f64(60.0 * MINUTES));
        let length = self.requests.map_or(Length::Time(span), Length::Requests);
        let threads = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
        let rig = Rig { seed, length, settings: self.settings(), threads };
        let start = Instant::now();
        let look = || {
            let requests = control.requests.load(Ordering::Relaxed);
            let fraction = match length {
                Length::Requests(all) => requests as f64 / all as f64,
                Length::Time(span) => start.elapsed().as_secs_f64() / span.as_secs_f64(),
            };
            (fraction.min(1.0), format!("{} requests", HumanCount(requests)))
        };
        let Tally { requests, steps, worlds, hash, heaviest, failure } = progress::watch(look, || rig.run(control));
        Found {
            version: version(),
            seed,
            requests,
            worlds,
            steps,
            hash: format!("{hash:016x}"),
            seconds: start.elapsed().as_secs_f64(),
            heaviest: heaviest.map(|world| HeaviestWorld {
                seed: world.seed,
                requests: world.requests,
                steps_per_request: world.steps_per_request(),
            }),
            interrupted: control.stop.load(Ordering::Relaxed),
            failure: failure.map(|broken| self.explained(broken)),
        }
    }

    fn explained(&self, broken: Broken) -> FoundFailure {
        let repeat = self.repeat(broken.seed, broken.requests);
        let Broken { seed, requests, rule, what, step, time_ns, cpu, history, left_out, is_repeatable } = broken;
        FoundFailure {
            seed,
            requests,
            rule,
            what,
            step,
            time_ns,
            cpu,
            repeat,
            repeatable: is_repeatable,
            history,
            left_out,
        }
    }

    /// Tells the history of one world.
    fn step_through(&self, seed: u64, out: &mut dyn Write) -> Result<(), Failure> {
        let requests = self.requests.unwrap_or(WORLD_REQUESTS);
        if requests > WORLD_REQUESTS {
            let what =
                format!("--requests {requests}: --replay tells of one world, which has at most {WORLD_REQUESTS}");
            return Err(Failure::Input(what));
        }
        writeln!(out, "{}", self.repeat(seed, requests))?;
        let is_asked = io::stdin().is_terminal() && io::stdout().is_terminal();
        let mut stepper = Stepper::new(is_asked.then(|| io::stdin().lock()));
        let mut left = None;
        let replayed = replay(seed, requests, &self.settings(), |line| match stepper.tell(&line, out) {
            Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
            Ok(ControlFlow::Break(())) => {
                left = Some(Ok(()));
                ControlFlow::Break(())
            }
            Err(error) => {
                left = Some(Err(error.into()));
                ControlFlow::Break(())
            }
        });
        if let Some(left) = left {
            return left;
        }
        match replayed.broken {
            Some((rule, what)) => Err(Failure::Running(format!("torture: {rule}: {what}"))),
            None => {
                writeln!(out, "{} requests, {} steps: every promise was kept", replayed.requests, replayed.steps)?;
                Ok(())
            }
        }
    }
}

impl Found {
    fn write(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let Self { seed, requests, worlds, steps, hash, seconds, .. } = self;
        if let Some(failure) = &self.failure {
            writeln!(out, "clean until then: {worlds} worlds, {requests} requests")?;
            return failure.write(&self.version, out);
        }
        let (rate, steps) = (short(*requests as f64 / seconds), short(*steps as f64));
        writeln!(out, "{worlds} worlds, {steps} steps in {seconds:.1} s; {rate} requests/s")?;
        if let Some(HeaviestWorld { seed, requests, steps_per_request }) = &self.heaviest {
            let each = short(*steps_per_request as f64);
            writeln!(out, "most steps for an operation: {each}, in the world of seed {seed}, requests {requests}")?;
        }
        writeln!(out, "clean: seed {seed}, requests {requests}, hash {hash}")?;
        Ok(())
    }
}

impl FoundFailure {
    fn write(&self, version: &str, out: &mut dyn Write) -> Result<(), Failure> {
        let Self { seed, requests, rule, what, repeat, .. } = self;
        writeln!(out, "what happened to the operations and requests concerned, what changed the queue, and the end:")?;
        if self.left_out > 0 {
            writeln!(out, "  ({} earlier lines are left out; --replay tells them)", self.left_out)?;
        }
        for line in &self.history {
            writeln!(out, "  {line}")?;
        }
        writeln!(out, "broken: {rule}: {what}")?;
        writeln!(out, "seed {seed}, the first {requests} requests of its world; {version}")?;
        if !self.repeatable {
            writeln!(
                out,
                "played again it went another way: the rig itself is at fault, or the time that it measured"
            )?;
        }
        writeln!(out, "repeat: {repeat}")?;
        Ok(())
    }
}
