//! `blkmq torture`: the whole block layer on virtual CPUs, from a seed. The program `blkmq` starts this one.

mod found;
mod stepper;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, IsTerminal, Write};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use blkmq_program::render::counted;
use blkmq_program::{EXIT_CODES, Failure, interrupt, json, progress};
use blkmq_sched::SCHEDULERS;
use blkmq_torture::{
    Broken, Control, CountingAllocator, Failure as Shortened, Length, Locking, MOST_CPUS, MUTANTS, Mutant, Rig,
    Settings, Tally, WORLD_REQUESTS, replay,
};
use clap::Parser;
use indicatif::HumanCount;

use self::found::{Found, FoundFailure, HeaviestWorld};
use self::stepper::Stepper;

/// Counts what the worlds hold.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const EXAMPLES: &str = "\
Examples:
  blkmq torture
  blkmq torture --minutes 60 --cpus 4 --scheduler mq-deadline
  blkmq torture --seed 42 --requests 1000000
  blkmq torture --seed 42 --requests 300 --replay
  blkmq torture --plant lost-kick --minutes 2
  blkmq torture --list-mutants

The code of the block layer runs on virtual CPUs and in virtual time. The seed decides everything: which CPU goes on
after each step, what the device does, and what each client asks for. Checkers watch what the block layer promises.

A run is made of worlds of 5000 operations. The first world has the run's own seed. When a world fails, the run prints
what it found, looks for the shortest part of that world that fails, and prints a command that plays this part alone.
What a run finds does not depend on how many cores the machine has.

The last line of a clean run is 'clean: seed S, requests N, hash H'. The hash is that of everything that happened in all
worlds. With one version of blkmq, the same seed and the same number of requests give the same hash.

--replay prints everything that happens in one world. On a terminal it stops after each line. Enter goes on to the next
line, a number by that many lines, 't 1.5' to that millisecond, 's 400' to that step, and 'b 17' to the next line about
operation 17; 'q' ends.

Ctrl-C or SIGTERM ends a run when the worlds that have begun are over, and the run prints its results. If the run is
just looking for a shorter part, it prints the shortest one found so far. A second signal, at least a second later,
ends the program at once.";

/// The word that leaves a choice to the worlds.
const ANY: &str = "any";

/// How long a run lasts by default, in minutes.
const MINUTES: f64 = 2.0;

/// Torture the block layer on virtual CPUs, and check all that it promises.
#[derive(Debug, Parser)]
#[command(name = "blkmq-torture", bin_name = "blkmq torture", version, after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
struct Torture {
    /// The number from which everything follows [default: a random number, which is printed].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Begin new worlds for this many minutes; at least one world is played [default: 2].
    #[arg(long, value_name = "M", value_parser = minutes, allow_negative_numbers = true, conflicts_with = "requests")]
    minutes: Option<Duration>,
    /// Submit exactly this many operations.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    requests: Option<u64>,
    /// Virtual CPUs that submit, 1 to 64.
    #[arg(long, value_name = "N", default_value = "8", value_parser = cpus(), allow_negative_numbers = true)]
    cpus: u16,
    /// Worlds that are played at a time [default: one for each core].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), allow_negative_numbers = true)]
    threads: Option<u16>,
    /// The scheduler of every world [default: the worlds choose, and change it under load].
    #[arg(long, value_name = "NAME", value_parser = schedulers())]
    scheduler: Option<String>,
    /// How threads share the scheduler. With 'any', the worlds choose, and change it under load.
    #[arg(long, value_name = "LOCKING", default_value = ANY, value_parser = lockings())]
    locking: String,
    /// Plant a bug, to see it found.
    #[arg(long, value_name = "MUTANT", value_parser = mutants())]
    plant: Option<String>,
    /// Tell of a failing world as it was found, and do not look for the shortest part that fails.
    #[arg(long, conflicts_with = "replay")]
    as_found: bool,
    /// Print everything that happens in one world, the one of --seed and --requests.
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

fn cpus() -> impl clap::builder::TypedValueParser {
    clap::value_parser!(u16).range(1..=i64::from(MOST_CPUS))
}

fn schedulers() -> Vec<&'static str> {
    std::iter::once("none").chain(SCHEDULERS.iter().map(|scheduler| scheduler.name)).collect()
}

fn lockings() -> Vec<&'static str> {
    std::iter::once(ANY).chain(Locking::ALL.map(Locking::name)).collect()
}

fn mutants() -> Vec<&'static str> {
    MUTANTS.iter().map(|mutant| mutant.name).collect()
}

/// What runs: the version; the commit, if it was given to the build; and the compiler, which decides what is hashed in
/// which order.
fn version() -> String {
    let commit = option_env!("BLKMQ_COMMIT").filter(|commit| !commit.is_empty());
    let commit = commit.map(|commit| format!(" ({commit})")).unwrap_or_default();
    format!("blkmq {}{commit}, {}", env!("CARGO_PKG_VERSION"), env!("BLKMQ_RUSTC"))
}

fn main() -> ExitCode {
    blkmq_program::main(|torture: Torture, out| torture.run(out))
}

impl Torture {
    fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
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
        let control = Control { stop: interrupt::flag(), ..Control::default() };
        let head = format!("torture with seed {seed}: {}; {}", self.settings_in_words(), version());
        if self.json && self.seed.is_none() {
            eprintln!("blkmq: {head}");
        } else if !self.json {
            writeln!(out, "{head}")?;
            out.flush()?;
        }
        let found = self.found(seed, &control, out);
        let written = if self.json { json::print(&found, out) } else { found.write(out) };
        match &found.failure {
            // The failure is printed even if nothing else could be.
            Some(failure) => {
                let FoundFailure { seed, requests, rule, what, .. } = failure;
                Err(Failure::Running(format!("torture: seed {seed}, requests {requests}: {rule}: {what}")))
            }
            None => {
                written?;
                if found.interrupted { Err(interrupt::failure("torture")) } else { Ok(()) }
            }
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            cpus: self.cpus,
            scheduler: self.scheduler.clone(),
            locking: Locking::ALL.into_iter().find(|locking| locking.name() == self.locking),
            mutant: self.plant.as_deref().and_then(Mutant::by_name),
            live: Some(CountingAllocator::live),
        }
    }

    fn settings_in_words(&self) -> String {
        let scheduler = self.scheduler.as_deref().unwrap_or(ANY);
        let planted = self.plant.as_ref().map(|mutant| format!(", {mutant} planted")).unwrap_or_default();
        let cpus = counted(self.cpus.into(), "CPU");
        format!("{cpus}, scheduler {scheduler}, locking {}{planted}", self.locking)
    }

    /// The command that plays one world only.
    fn repeat(&self, seed: u64, requests: u64) -> String {
        let mut command = format!("blkmq torture --seed {seed} --requests {requests} --cpus {}", self.cpus);
        let locking = Some(&self.locking).filter(|locking| *locking != ANY);
        let given = [("scheduler", self.scheduler.as_ref()), ("locking", locking), ("plant", self.plant.as_ref())];
        for (option, value) in given {
            command.extend(value.map(|value| format!(" --{option} {value}")));
        }
        command
    }

    fn found(&self, seed: u64, control: &Control, out: &mut dyn Write) -> Found {
        let span = self.minutes.unwrap_or(Duration::from_secs_f64(60.0 * MINUTES));
        let length = self.requests.map_or(Length::Time(span), Length::Requests);
        let asked = self.threads.and_then(|threads| NonZero::new(threads.into()));
        let threads = asked.or_else(|| thread::available_parallelism().ok()).unwrap_or(NonZero::<usize>::MIN);
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
        let seconds = start.elapsed().as_secs_f64();
        let failure = failure.map(|broken| {
            self.announce(&broken, out);
            self.explained(if self.as_found {
                broken.tell(&rig.settings)
            } else {
                broken.explain(&rig.settings, &control.stop)
            })
        });
        Found {
            version: version(),
            seed: seed.to_string(),
            requests,
            worlds,
            steps,
            hash: format!("{hash:016x}"),
            seconds,
            heaviest: heaviest.map(|world| HeaviestWorld {
                seed: world.seed.to_string(),
                requests: world.requests,
                steps_per_request: world.steps_per_request(),
            }),
            interrupted: control.stop.load(Ordering::Relaxed),
            failure,
        }
    }

    /// Says what was found before the search for a shorter world, which takes time. If it cannot be written, the end of
    /// the run says it once more.
    fn announce(&self, broken: &Broken, out: &mut dyn Write) {
        let Broken { seed, requests, .. } = *broken;
        let found = format!("found: seed {seed}, requests {requests}: {}: {}", broken.rule(), broken.what());
        let next = if self.as_found { "" } else { "\nmaking it shorter" };
        if !self.json {
            let _ = writeln!(out, "{found}{next}").and_then(|()| out.flush());
        }
    }

    fn explained(&self, shortened: Shortened) -> FoundFailure {
        let repeat = self.repeat(shortened.seed, shortened.requests);
        let Shortened { seed, requests, rule, what, step, time_ns, cpu, history, left_out, .. } = shortened;
        FoundFailure {
            seed: seed.to_string(),
            requests,
            rule,
            what,
            step,
            time_ns,
            cpu,
            repeat,
            shortest: shortened.is_shortest,
            repeatable: shortened.is_repeatable,
            history,
            left_out,
        }
    }

    /// Prints the history of one world.
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
        stepper.end(out)?;
        match replayed.broken {
            Some((rule, what)) => {
                writeln!(out, "broken: {rule}: {what}")?;
                Err(Failure::Running(format!("torture: {rule}: {what}")))
            }
            None => {
                let requests = counted(replayed.requests, "request");
                writeln!(out, "{requests}, {} steps: no promise was seen broken", replayed.steps)?;
                Ok(())
            }
        }
    }
}
