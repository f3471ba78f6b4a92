//! `blkmq replay`: feeds a recorded trace to blkmq.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use blkmq_workbench::order::{self, Agreement, Choice, Request};
use blkmq_workbench::{Classes, Settings, TextError, TraceFiles};
use clap::Args;
use serde::Serialize;

use crate::failure::Failure;

/// So many disagreements are told in words.
const TOLD: usize = 5;

const EXAMPLES: &str = "\
Examples:
  blkmq replay --order trace.blktrace.0 --queue queue.txt
  blkmq replay --order trace --queue queue.txt --classes classes.txt --choices choices.txt --json
  blkmq replay --order trace --queue queue.txt --set iosched/fifo_batch=1

Files:
  TRACE    as blktrace writes it, little-endian: NAME stands for NAME.blktrace.0, NAME.blktrace.1 and so on,
           and so does the name of any of them
  queue    lines 'NAME VALUE': the files of Linux's queue/ and queue/iosched/, in the kernel's units; one line
           'scheduler none [mq-deadline]' with the active one in brackets
  classes  lines 'FIRST END CLASS': the sectors from FIRST to before END were used under CLASS: rt, be or idle
  choices  a line for each request that the device took: the time in ns, then the sector and R or W of the
           request that our scheduler had chosen for it, or '- -' if it had chosen none";

/// Feed a Linux trace to a scheduler and compare its choices with those that Linux made.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", crate::EXIT_CODES))]
pub(crate) struct Replay {
    /// The trace, as blktrace writes it.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Compare the order of dispatch with Linux's, on virtual time.
    #[arg(long, required = true)]
    order: bool,
    /// The settings under which the trace was recorded.
    #[arg(long, value_name = "FILE")]
    queue: PathBuf,
    /// The priority classes of sector ranges; best-effort where nothing is said.
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Write our choices, one line for each request that the device took.
    #[arg(long, value_name = "FILE")]
    choices: Option<PathBuf>,
    /// Print counts and the first disagreement as one JSON object.
    #[arg(long)]
    json: bool,
    /// Change a setting: NAME=VALUE for the queue, iosched/NAME=VALUE for the scheduler. May be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl Replay {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let mut settings = Settings::parse(&self.queue.display().to_string(), &read(&self.queue)?)?;
        for assignment in &self.set {
            settings.set(assignment)?;
        }
        let classes = match &self.classes {
            Some(path) => Classes::parse(&path.display().to_string(), &read(path)?)?,
            None => Classes::default(),
        };
        let trace = TraceFiles::read(&self.trace)?;
        let agreement = order::replay(&trace.events()?, &settings, &classes)?;
        if let Some(path) = &self.choices {
            write_choices(path, &agreement)?;
        }
        if self.json {
            writeln!(out, "{}", Summary::of(&agreement).json())?;
        } else {
            tell(&agreement, settings.scheduler(), out)?;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    let fault = |what| TextError { place: path.display().to_string(), what };
    let bytes = fs::read(path).map_err(|error| fault(error.to_string()))?;
    Ok(String::from_utf8(bytes).map_err(|error| {
        fault(format!("byte {} is not UTF-8; a text is wanted here", error.utf8_error().valid_up_to()))
    })?)
}

fn write_choices(path: &Path, agreement: &Agreement) -> Result<(), Failure> {
    let write = || {
        let mut out = BufWriter::new(File::create(path)?);
        agreement.write_choices(&mut out)?;
        out.flush()
    };
    write().map_err(|error| Failure::writing(path.display(), &error))
}

/// The comparison in words.
fn tell(agreement: &Agreement, scheduler: &str, out: &mut dyn Write) -> Result<(), Failure> {
    let (choices, agree) = (agreement.choices.len(), agreement.agree());
    if choices == 0 {
        writeln!(out, "The device took no request in this trace: there is nothing to compare.")?;
        return Ok(());
    }
    let disagree = choices - agree;
    writeln!(
        out,
        "{scheduler}: {choices} choices, {agree} as Linux, {disagree} otherwise: {:.2} % agreement",
        agreement.percent()
    )?;
    for choice in agreement.disagreements().take(TOLD) {
        writeln!(out, "  {choice}")?;
    }
    if disagree > TOLD {
        writeln!(out, "  and {} more", disagree - TOLD)?;
    }
    Ok(())
}

/// The comparison for programs.
#[derive(Debug, Serialize)]
struct Summary {
    choices: usize,
    agree: usize,
    disagree: usize,
    first: Option<Disagreement>,
}

/// A choice on which Linux and we differ.
#[derive(Debug, Serialize)]
struct Disagreement {
    time_ns: u64,
    linux: Chosen,
    ours: Option<Chosen>,
}

#[derive(Debug, Serialize)]
struct Chosen {
    sector: u64,
    direction: char,
    waited_ns: u64,
}

impl Summary {
    fn of(agreement: &Agreement) -> Self {
        let (choices, agree) = (agreement.choices.len(), agreement.agree());
        let first = agreement.disagreements().next().map(Disagreement::of);
        Self { choices, agree, disagree: choices - agree, first }
    }

    fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings are always valid JSON")
    }
}

impl Disagreement {
    fn of(choice: &Choice) -> Self {
        Self { time_ns: choice.time, linux: Chosen::of(choice.linux), ours: choice.ours.map(Chosen::of) }
    }
}

impl Chosen {
    fn of(rq: Request) -> Self {
        Self { sector: rq.sector, direction: rq.direction(), waited_ns: rq.waited }
    }
}
