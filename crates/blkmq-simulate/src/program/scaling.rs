//! `blkmq simulate scaling`: how a job scales with the number of threads.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use blkmq_program::page::Page;
use blkmq_program::render::short;
use blkmq_program::{Failure, columns, file, interrupt};
use blkmq_simulate::band::Point;
use blkmq_simulate::{Load, Machine, Setting};
use blkmq_vcpu::{Cores, LockKind};
use blkmq_virtual::{Accounting, Locking, scheduler_names};
use blkmq_workbench::{JobFile, Mode, System, TextError};
use clap::Args;
use serde::Serialize;

use super::output::Output;
use super::{curves, parallel, threads};

const EXAMPLES: &str = "\
Examples:
  blkmq simulate scaling --job job.fio --machine 7950x --threads 1,2,4,..,32 --scheduler mq-deadline
  blkmq simulate scaling --job job.fio --machine 7773x --threads 1,2,4,..,128 --bypass off --t0 1000 --json rows.json
  blkmq simulate scaling --job job.fio --machine mine.toml --threads 8 --html page.html

JOB.fio is a job file of fio with one job. Each thread does what the job says in a closed loop; numjobs, runtime and what
is measured are left out. Threads fill the cores of a machine before two share one, and the CPUs before two share one.

The columns: requests per second; the same divided by those of 'none' with as many threads; the share of the threads'
time that is lost to waiting, for lines that are busy with other CPUs and for the scheduler's lock; the share in which
threads wait until a request completes, without their own work meanwhile; lines that move between CPUs for each request;
requests that bypass the scheduler and that are left with another thread, in percent; requests that a thread brings to
the scheduler while it is there (mean, p99); how long requests that are left wait for the thread that takes them over
(mean, p99); the largest share of one thread in taking them over; the p99 latency of requests whose submitters combine,
and of others; requests that the scheduler dispatches for each hold of its lock, and how long a hold takes (mean); the
share of the time in which the gate is shut, so that no request bypasses the scheduler; and threads that are woken for
each request, by cause (completed, deferred, started, changed: see docs/scale.md). The last column names the lines
that move most.

Everything is modelled, and follows from the seed: the same command gives the same result, bit for bit, but for the machine
two-core, whose distances and costs are measured anew each time. A curve is a band if each point has several runs: with
--seeds, or for a machine of whose distances only bounds are known.";

/// Model how a job scales with the number of threads.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(super) struct Scaling {
    #[arg(long, value_name = "MACHINE", help = machine_help())]
    machine: String,
    /// Numbers of threads, as in 1,2,4,..,128: the dots stand for doubles.
    #[arg(long, value_name = "N,..", required = true, value_parser = threads::read)]
    threads: Vec<Vec<usize>>,
    /// The job file.
    #[arg(long, value_name = "JOB.fio")]
    job: PathBuf,
    /// The scheduler in front of the device.
    #[arg(long, value_name = "NAME", default_value = "mq-deadline", value_parser = scheduler_names())]
    scheduler: String,
    #[arg(long, value_name = "LOCKING", default_value_t, help = locking_help())]
    locking: Locking,
    /// Whether requests may pass a scheduler in which nothing waits: on or off [default: on with the locking
    /// combining, else off].
    #[arg(long, value_name = "on|off", value_parser = one_of(&[("on", true), ("off", false), ("1", true), ("0", false)]))]
    bypass: Option<bool>,
    /// How the statistics know what is in flight: per-thread or shared.
    #[arg(long, value_name = "HOW", default_value = "per-thread", value_parser = one_of(&ACCOUNTINGS))]
    accounting: Accounting,
    /// As which locks those of the block layer behave: as std's (futex), as the kernel's queued spinlocks (queued), or
    /// as ticket locks (ticket).
    #[arg(long, value_name = "LOCK", default_value = "futex", value_parser = one_of(&LOCKS))]
    lock: LockKind,
    /// Work of each thread for each request, beside that of the block layer, in nanoseconds: another stack's system
    /// calls and driver.
    #[arg(long, value_name = "NS", default_value = "0", value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    t0: u64,
    /// The device; {threads} stands for the number of threads.
    #[arg(long, value_name = "SPEC", default_value = "null,irqmode=0,poll_queues=0,submit_queues={threads}")]
    device: String,
    /// Change an option of the job, as in iodepth=1. May be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    option: Vec<String>,
    /// The number from which everything follows.
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Run each point with so many seeds, from --seed on, and show the run of median rate, the lowest and the highest
    /// rate.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Requests that are measured for each number of threads, after a quarter as many.
    #[arg(long, value_name = "N", default_value = "50000", value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    requests: u64,
    /// Print one JSON object instead of the table, or write it to a file beside the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
    /// Write a report as well: one HTML file with the table and curves.
    #[arg(long, value_name = "FILE.html", visible_alias = "html")]
    report: Option<PathBuf>,
}

const ACCOUNTINGS: [(&str, Accounting); 2] = [("per-thread", Accounting::PerThread), ("shared", Accounting::Shared)];

const LOCKS: [(&str, LockKind); 3] =
    [("futex", LockKind::Futex), ("queued", LockKind::Queued), ("ticket", LockKind::Ticket)];

/// Reads a name of this table.
fn one_of<T: Copy + Send + Sync>(
    all: &'static [(&'static str, T)],
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        let names = || all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.ok_or_else(|| format!("'{text}' is not accepted; accepted: {}", names()))
    }
}

fn machine_help() -> String {
    format!(
        "The machine: {}, which is this one, measured now; or a file with a profile (.toml) or a matrix",
        machines()
    )
}

fn machines() -> String {
    Machine::names().chain([Machine::HOST]).collect::<Vec<_>>().join(", ")
}

fn locking_help() -> String {
    let names = Locking::ALL.map(|locking| locking.to_string()).join(", ");
    format!("How threads share the scheduler: {names}")
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    /// Says that nothing here was measured.
    modelled: bool,
    machine: &'a str,
    cpu: &'a str,
    job: String,
    device: &'a str,
    scheduler: &'a str,
    locking: String,
    bypass: bool,
    lock: String,
    accounting: &'static str,
    t0_ns: u64,
    /// As text, because readers of JSON may know numbers only up to 2^53.
    seed: String,
    seeds: u64,
    requests: u64,
    rows: &'a [Point],
}

impl Scaling {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let machine = self.machine()?;
        let load = self.load()?;
        let threads = self.threads.concat();
        let output = Output::open(self.json.as_ref())?;
        let page = Page::open(self.report.as_deref())?;
        let settings = self.settings(&machine);
        let stop = interrupt::flag();
        let by_bounds = machine.farthest_cores().is_some();
        let rows = rows(&load, &threads, &settings, by_bounds, &stop)?;
        let setting = &settings[0];
        if let Some(page) = page {
            page.write("blkmq simulate", self.title(&machine, setting), MODELLED.to_owned(), curves::sections(&rows))?;
        }
        let document = self.document(&machine, setting, &rows);
        output.write(&document, out, |out| {
            writeln!(out, "modelled: {}", self.title(&machine, setting))?;
            if by_bounds {
                writeln!(
                    out,
                    "note: of this machine's distances only bounds are known; each point is run with the least and with \
                     the greatest"
                )?;
            }
            let (cpus, most) = (machine.nr_cpus(), threads.iter().copied().max().unwrap_or(0));
            if most > cpus {
                writeln!(
                    out,
                    "note: the machine has {cpus} CPUs; of more threads, several share a CPU and take turns"
                )?;
            }
            columns::lines(&curves::table(&rows), 0, 0).iter().try_for_each(|line| writeln!(out, "{line}"))
        })?;
        if rows.len() < threads.len() { Err(interrupt::failure("simulate scaling")) } else { Ok(()) }
    }

    fn machine(&self) -> Result<Machine, TextError> {
        let fault = |what: String| TextError { place: format!("--machine {}", self.machine), what };
        if let Some(machine) = Machine::named(&self.machine) {
            return Ok(machine);
        }
        if self.machine == Machine::HOST {
            return Machine::host().map_err(fault);
        }
        let path = Path::new(&self.machine);
        if !path.exists() {
            return Err(fault(format!("there is no such machine, and no such file; machines: {}", machines())));
        }
        Machine::parse(&self.machine, &file::read(path)?).map_err(fault)
    }

    fn load(&self) -> Result<Load, TextError> {
        let name = self.job.display().to_string();
        let options: Vec<&str> = self.option.iter().map(String::as_str).collect();
        let file = JobFile::parse(&name, &file::read(&self.job)?, &options, Mode::Strict, &System)?;
        for warning in &file.warnings {
            eprintln!("blkmq: warning: {warning}");
        }
        let [job] = &file.jobs[..] else {
            let what =
                format!("{} jobs; a load that is modelled has one job, for any number of threads", file.jobs.len());
            return Err(TextError { place: name, what });
        };
        Load::of(job).map_err(|what| TextError { place: format!("{name}: [{}]", job.name), what })
    }

    /// What each point is run with: each seed, and if the machine is known by bounds, both ends of them.
    fn settings(&self, machine: &Machine) -> Vec<Setting> {
        let ends = std::iter::once(machine.cores()).chain(machine.farthest_cores());
        let seeds = |cores: Cores| {
            let seeds = (0..self.seeds).map(|number| self.seed.wrapping_add(number));
            seeds.map(move |seed| self.setting(cores.clone(), seed))
        };
        ends.flat_map(seeds).collect()
    }

    fn setting(&self, cores: Cores, seed: u64) -> Setting {
        let cores = Cores { locks: self.lock, ..cores };
        Setting {
            accounting: self.accounting,
            scheduler: self.scheduler.clone(),
            locking: self.locking,
            bypass: self.bypass,
            t0: self.t0 * 1000,
            seed,
            requests: self.requests,
            ..Setting::new(cores, &*self.device)
        }
    }

    fn title(&self, machine: &Machine, setting: &Setting) -> String {
        let Self { job, scheduler, locking, t0, seed, seeds, .. } = self;
        let seeds = if *seeds == 1 { format!("seed {seed}") } else { format!("{seeds} seeds from {seed}") };
        let bypass = if setting.bypasses() { "on" } else { "off" };
        format!(
            "{} on {} ({}), scheduler {scheduler}, locking {locking}, bypass {bypass}, t0 {t0} ns, {seeds}, {} requests",
            job.display(),
            self.machine,
            machine.cpu(),
            short(self.requests as f64)
        )
    }

    fn document<'a>(&'a self, machine: &'a Machine, setting: &Setting, rows: &'a [Point]) -> Document<'a> {
        Document {
            modelled: true,
            machine: &self.machine,
            cpu: machine.cpu(),
            job: self.job.display().to_string(),
            device: &self.device,
            scheduler: &self.scheduler,
            locking: self.locking.to_string(),
            bypass: setting.bypasses(),
            lock: format!("{:?}", self.lock).to_lowercase(),
            accounting: self.accounting.name(),
            t0_ns: self.t0,
            seed: self.seed.to_string(),
            seeds: self.seeds,
            requests: self.requests,
            rows,
        }
    }
}

/// The rows, in the order of the numbers of threads. The machine's cores work at them side by side. Ctrl-C ends that
/// early.
fn rows(
    load: &Load,
    threads: &[usize],
    settings: &[Setting],
    by_bounds: bool,
    stop: &AtomicBool,
) -> Result<Vec<Point>, Failure> {
    let run = |threads: &usize| Point::of(load, *threads, settings, by_bounds);
    let points = parallel::map(threads, stop, run).into_iter().collect::<Result<_, _>>();
    points.map_err(|error| Failure::Input(format!("simulate scaling: {error}")))
}

const MODELLED: &str = "Every figure on this page is modelled: the code of the block layer ran on virtual CPUs, whose \
                        distances are those of the machine named in the title. Nothing was measured on the machine above.";
