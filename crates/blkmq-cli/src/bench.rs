//! `blkmq bench`: runs fio's job files.
//!
//! In the folder `named` finds the device that a job file names. `table` prints the results of one run, and `ab` those
//! of a comparison of two values of a knob. Nothing else calls in there. Other commands read their durations with
//! [`duration`].

mod ab;
mod named;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use blkmq::Locking;
use blkmq_workbench::bench::Control;
use blkmq_workbench::{Document, JobFile, Mode, System, TextError};
use clap::{Args, ValueEnum};

use self::named::Named;
use crate::page::{self, Page};
use crate::target::{Pair, Target, Time};
use crate::{file, progress, target};
use blkmq_program::{Failure, interrupt, json};

/// The default length of a slice of a comparison.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Run a fio job file on a device, or compare two settings by it.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/bench.txt")))]
pub(crate) struct Bench {
    /// The job file.
    #[arg(value_name = "JOB.fio")]
    job: PathBuf,
    /// The device: a name, then parameters, as in null,hw_queue_depth=4; or a file's path [default: the file that the
    /// jobs name by filename, or else null].
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// The scheduler in front of the device.
    #[arg(long, value_name = "NAME", default_value = "none")]
    scheduler: String,
    #[arg(long, value_name = "LOCKING", default_value_t, help = target::locking_help())]
    locking: Locking,
    /// Whether requests may pass a scheduler in which nothing waits [default: 1 with the locking combining, else 0].
    #[arg(long, value_name = "0|1", value_parser = target::switch)]
    bypass: Option<bool>,
    /// Change a setting: NAME=VALUE for the queue, iosched/NAME=VALUE for the scheduler. May be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// real: the machine's time. virtual: time passes as fast as it can be computed, and each run gives the same
    /// result.
    #[arg(long, value_name = "CLOCK", default_value = "real")]
    clock: Time,
    /// Run jobs that write on a device that may hold data. All of it may be overwritten.
    #[arg(long)]
    overwrite: bool,
    /// Measure how long threads wait for the scheduler's lock, and how long requests wait that were left with another
    /// thread.
    #[arg(long, conflicts_with = "ab")]
    waits: bool,
    /// How long each job runs, as in 5s or 100ms, instead of what the file says. With --ab: how long each slice lasts
    /// [default: 100ms].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    runtime: Option<Duration>,
    /// Change an option of every job in the file, as in numjobs=1. May be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    option: Vec<String>,
    /// Warn of options that blkmq does not know, instead of refusing them.
    #[arg(long)]
    lenient: bool,
    /// Compare two values of a knob: KNOB=A,B, or KNOB=A::B where values contain commas.
    #[arg(long, value_name = "KNOB=A,B")]
    ab: Option<String>,
    /// Stop a comparison after this many rounds of four slices, even if its interval is still wide.
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u32).range(2..), requires = "ab")]
    rounds: u32,
    /// End a comparison after this time at the latest. Slices and rounds are chosen to fit.
    #[arg(long = "for", value_name = "TIME", value_parser = duration, requires = "ab", conflicts_with = "rounds")]
    limit: Option<Duration>,
    /// Print one JSON object instead of words: the same as --output-format json.
    #[arg(long, conflicts_with = "output_format")]
    json: bool,
    /// What to print: words, fio's JSON, or fio's JSON with histograms of latencies.
    #[arg(long, value_name = "FORMAT", default_value = "normal")]
    output_format: Format,
    /// Write a report as well: one HTML file with tables and plots.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// What is printed, by fio's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Normal,
    Json,
    #[value(name = "json+")]
    JsonPlus,
}

/// Reads a time such as `5s` or `100ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let span = text.parse::<jiff::SignedDuration>().ok().and_then(|span| Duration::try_from(span).ok());
    span.filter(|span| !span.is_zero()).ok_or_else(|| format!("'{text}' is not a time above 0, as in 5s or 100ms"))
}

impl Bench {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let name = self.job.display().to_string();
        let options: Vec<&str> = self.option.iter().map(String::as_str).collect();
        let mode = if self.lenient { Mode::Lenient } else { Mode::Strict };
        let file = JobFile::parse(&name, &file::read(&self.job)?, &options, mode, &System)?;
        for warning in &file.warnings {
            eprintln!("blkmq: warning: {warning}");
        }
        if self.ab.is_some() && self.format() == Format::JsonPlus {
            let what = "a comparison has no histograms; give it json, or leave out --ab".to_owned();
            return Err(TextError { place: "--output-format json+".to_owned(), what }.into());
        }
        let pair = self.ab.as_deref().map(Pair::parse).transpose()?;
        let stop = interrupt::flag();
        let named = match &self.device {
            Some(spec) => Named { spec: spec.clone(), is_own: false },
            None if pair.as_ref().is_some_and(|pair| pair.knob == "device") => Named::default(),
            None => Named::of(&name, &file, self.clock, &stop)?,
        };
        let target = self.target(&named)?;
        match &pair {
            Some(pair) => self.compare(pair, &target, &name, &file, &stop, out),
            None => self.measure(&target, &name, &file, stop, out),
        }
    }

    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.output_format }
    }

    fn target(&self, named: &Named) -> Result<Target, TextError> {
        let mut target = Target::new(&named.spec, self.clock);
        target.overwrite = self.overwrite || named.is_own;
        target.setup.waits = self.waits;
        target.set("scheduler", &self.scheduler, "--scheduler".to_owned());
        target.set("locking", self.locking.name(), "--locking".to_owned());
        if let Some(bypass) = self.bypass {
            target.set("bypass", &u8::from(bypass).to_string(), "--bypass".to_owned());
        }
        for text in &self.set {
            target.set_knob(text)?;
        }
        Ok(target)
    }

    /// Runs the jobs once.
    fn measure(
        &self,
        target: &Target,
        name: &str,
        file: &JobFile,
        stop: Arc<AtomicBool>,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let mut bench = target.open(name, &file.jobs)?;
        let page = Page::open(self.report.as_deref())?;
        let subject = target.subject(&bench);
        let control = Control { runtime: self.runtime, stop, ..Control::default() };
        let outcome = progress::watch_jobs(&control, || bench.run(&control))
            .map_err(|error| TextError { place: name.to_owned(), what: error.to_string() })?;
        let table = table::Table { name, file, outcome: &outcome, subject: &subject, clock: self.clock };
        if let Some(page) = page {
            page.write(
                "blkmq",
                format!("The load {name}"),
                page::modelled(&[&subject.device], self.clock),
                table.sections(),
            )?;
        }
        match self.format() {
            Format::Normal => table.write(out)?,
            format => {
                let bins = format == Format::JsonPlus;
                json::print(&Document::new(&file.global, &file.jobs, &outcome, subject, bins), out)?;
            }
        }
        match outcome.error() {
            Some(error) => Err(Failure::Running(format!("{name}: {error}"))),
            None if outcome.stopped => Err(interrupt::failure(name)),
            None => Ok(()),
        }
    }
}
