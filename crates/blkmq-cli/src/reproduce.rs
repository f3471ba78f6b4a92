//! `blkmq reproduce`: repeats published measurements and prints the results next to the published ones.
//!
//! In the folder `tables` says what is repeated, `found` what came out, and `words` prints it; `flood` and `limiter`
//! are measurements of our own. Nothing else calls in there. `blkmq demo` runs two of the measurements in short, by the
//! functions of this page.

mod flood;
mod found;
mod limiter;
mod render;
mod tables;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blkmq_workbench::bench::Control;
use blkmq_workbench::compare::{self, Variant};
use blkmq_workbench::{JobFile, MIN_ROUNDS, Mode, System};
use clap::Args;

use self::found::Found;
pub(crate) use self::found::FoundTable;
use self::tables::{NAMES, Table};
pub(crate) use self::tables::{QUICK, WAITING};
use crate::page::Page;
use crate::target::{Target, Time};
use crate::{bench, machine};
use blkmq_program::render::time;
use blkmq_program::{Failure, interrupt, json, progress};

/// Repeat published measurements on this machine.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/reproduce.txt")))]
pub(crate) struct Reproduce {
    /// The measurement, or all.
    #[arg(value_name = "TABLE", value_parser = names())]
    table: String,
    /// Stop after this many rounds, even if an interval is still wide.
    #[arg(long, value_name = "N", default_value = "60", value_parser = clap::value_parser!(u32).range(2..))]
    rounds: u32,
    /// How long a slice lasts, or each row of flood or limiter, as in 1s [default: 100ms, for flood 5s, for limiter
    /// 4s]. Not used by merge.
    #[arg(long, value_name = "TIME", value_parser = bench::duration)]
    runtime: Option<Duration>,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
    /// Write a report as well: one HTML file with tables and plots.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

fn names() -> Vec<&'static str> {
    NAMES.into_iter().chain([flood::NAME, limiter::NAME, "all"]).collect()
}

/// How long a load runs on virtual time, where every run gives the same result.
const VIRTUAL: Duration = Duration::from_secs(5);

/// The ramp before a load on virtual time. The published run lasts so long that its beginning, with an empty write
/// cache, does not count.
const RAMP: &str = "ramp_time=5";

/// The shortest slice that gives a useful result, because the threads have to start first.
const SHORT_SLICE: Duration = Duration::from_millis(50);

/// What the figures of a report depend on.
const MODELLED: &str = "\
'Measured' is what the machine above did, on devices that are part of blkmq; the time that a device takes for an operation \
follows from its parameters. Tables on virtual time come from a model of a disk, and are the same on every machine. \
'Published' is what others measured, on the machines that each table names.";

impl Reproduce {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let stop = interrupt::flag();
        let page = Page::open(self.report.as_deref())?;
        let mut found = Found {
            machine: machine::name(),
            date: machine::date(),
            command: machine::command("blkmq"),
            tables: Vec::new(),
            flood: None,
            limiter: None,
        };
        if !self.json {
            found.write_head(out)?;
        }
        for name in NAMES.into_iter().filter(|name| self.table == "all" || self.table == *name) {
            let runtime = self.runtime.unwrap_or(bench::SLICE);
            let table = match measure(&tables::table(name), self.rounds, runtime, &stop) {
                // The tables before it are kept.
                Err(_) if stop.load(Ordering::Relaxed) => break,
                measured => measured?,
            };
            if !self.json {
                table.write(out)?;
                out.flush()?;
            }
            found.tables.push(table);
        }
        let is_wanted = |name| !stop.load(Ordering::Relaxed) && (self.table == "all" || self.table == name);
        if is_wanted(flood::NAME) {
            let control = Control { stop: Arc::clone(&stop), ..Control::default() };
            let rows_to: Option<&mut dyn Write> = if self.json { None } else { Some(&mut *out) };
            found.flood = Some(flood::measure(self.runtime, &control, rows_to)?);
        }
        if is_wanted(limiter::NAME) {
            let control = Control { stop: Arc::clone(&stop), ..Control::default() };
            found.limiter = limiter::measure(self.runtime, &control)?;
            if let Some(limiter) = found.limiter.as_ref().filter(|_| !self.json) {
                limiter.write(out)?;
            }
        }
        if let Some(page) = page {
            let flood = found.flood.iter().map(flood::FoundFlood::section);
            let limiter = found.limiter.iter().flat_map(limiter::FoundLimiter::sections);
            let sections = found.tables.iter().flat_map(FoundTable::sections).chain(flood).chain(limiter).collect();
            page.write("blkmq", "Published measurements, repeated".to_owned(), MODELLED.to_owned(), sections)?;
        }
        if self.json {
            json::print(&found, out)?;
        }
        if stop.load(Ordering::Relaxed) { Err(interrupt::failure(&self.table)) } else { Ok(()) }
    }
}

/// The table 'scaling' in a short form: one device, each locking as a whole, few rounds.
pub(crate) fn scaling_in_short(stop: &Arc<AtomicBool>) -> Result<FoundTable, Failure> {
    measure(&tables::in_short("scaling", QUICK), MIN_ROUNDS as u32, SHORT_SLICE, stop)
}

/// The same table for a load in which requests wait.
pub(crate) fn waiting_in_short(stop: &Arc<AtomicBool>) -> Result<FoundTable, Failure> {
    measure(&tables::in_short("waiting", WAITING), MIN_ROUNDS as u32, SHORT_SLICE, stop)
}

fn measure(table: &Table, rounds: u32, runtime: Duration, stop: &Arc<AtomicBool>) -> Result<FoundTable, Failure> {
    let is_real = table.clock == Time::Real;
    let options: &[&str] = if is_real { &[] } else { &[RAMP] };
    let jobs = JobFile::parse(&table.file, table.job(), options, Mode::Strict, &System)?.jobs;
    let mut variants = Vec::new();
    for row in &table.rows {
        let mut target = Target::new(&row.device, table.clock);
        for (name, value) in &row.set {
            target.set(name, value, format!("{}: {}", table.name, row.label));
        }
        variants.push(Variant::new(row.label.clone(), &jobs, target.open(&table.file, &jobs)?));
    }
    let nr_slices = if is_real { 2 * u64::from(rounds) } else { 1 };
    let bar = progress::bar(variants.len() as u64 * nr_slices);
    bar.set_message(table.file.clone());
    let turns = if is_real {
        let pairs: Vec<_> = table.rows.iter().enumerate().map(|(index, row)| (row.base, index)).collect();
        compare::in_turn(&mut variants, runtime, rounds as usize, &pairs, stop, &mut || bar.inc(1))
    } else {
        compare::once(&mut variants, VIRTUAL, stop, &mut || bar.inc(1))
    };
    bar.finish_and_clear();
    let turns = turns?;
    let duration = if is_real {
        format!("{} rounds of slices of {}", turns.rounds(), time(runtime))
    } else {
        format!("{} of virtual time, after {RAMP}", time(VIRTUAL))
    };
    Ok(FoundTable::new(table, duration, &variants, &turns))
}
