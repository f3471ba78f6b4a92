//! `blkmq simulate native`: the model of this machine beside the machine.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use blkmq_program::render::short;
use blkmq_program::{Failure, columns, interrupt};
use blkmq_simulate::scaling::requests_per_s;
use blkmq_simulate::{Load, Machine, NativeLoad, Setting, Stages, Way};
use blkmq_virtual::Locking;
use clap::Args;
use serde::Serialize;

use super::output::Output;

const EXAMPLES: &str = "\
Examples:
  blkmq simulate native
  blkmq simulate native --rounds 3 --json rows.json

Measures this machine: how long a line takes from CPU to CPU, and what accesses to a line of one's own cost. Then runs the
block layer on it with one thread and with two, beside a device that takes no time, in turns; and models the same. How long
the machine takes for private work is taken from one thread without a scheduler, whose row therefore says nothing. To be run
where nothing else runs.";

/// The device of both.
const DEVICE: &str = "null,irqmode=0,poll_queues=0,submit_queues=2";
/// How many operations each thread has outstanding. It submits all of them at once, and waits for all of them.
const BATCH: usize = 4;
const THREADS: [usize; 2] = [1, 2];
/// How far the model may be off.
const MOST_ERROR: f64 = 0.25;
/// The number from which the sectors of both follow.
const SEED: u64 = 1;
/// Requests that are modelled.
const REQUESTS: u64 = 20_000;

/// Hold the model of this machine against this machine.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(super) struct Native {
    /// How often each way is measured, in turns; the median counts.
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long a measurement takes, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "200", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    length: u64,
    /// Print one JSON object instead of the table, or write it to a file beside the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
}

/// A way past a scheduler with some threads.
#[derive(Debug, Serialize)]
struct Compared {
    way: String,
    threads: usize,
    /// Requests per second: median, least and greatest.
    measured: f64,
    least: f64,
    greatest: f64,
    /// Modelled requests per second.
    model: f64,
    /// `model` divided by `measured`, less 1.
    error: f64,
}

#[derive(Debug, Serialize)]
struct Document {
    machine: String,
    /// How long private work takes on this machine, in percent of what it took where the stages were measured.
    percent: u64,
    rows: Vec<Compared>,
}

/// What each thread does, on both sides.
fn load() -> Load {
    Load::closed_loop("rw=randread\nbs=4k", BATCH, BATCH)
}

fn ways() -> Vec<(&'static str, Locking)> {
    let ordered = [Locking::Single, Locking::Batch, Locking::Combining].map(|locking| ("mq-deadline", locking));
    std::iter::once(("none", Locking::Single)).chain(ordered).collect()
}

impl Native {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let output = Output::open(self.json.as_ref())?;
        let machine = Machine::host().map_err(Failure::Running)?;
        let Some(measured) = self.measure()? else { return Err(interrupt::failure("simulate native")) };
        let percent = percent(&machine, median(&measured[0].1))?;
        let mut rows = Vec::new();
        for ((scheduler, locking, threads), rates) in measured {
            let model = model(&machine, (scheduler, locking), threads, Some(percent))?;
            let median = median(&rates);
            rows.push(Compared {
                way: if scheduler == "none" { scheduler.to_owned() } else { format!("{scheduler}, {locking}") },
                threads,
                measured: median,
                least: rates[0],
                greatest: rates[rates.len() - 1],
                model,
                error: model / median - 1.0,
            });
        }
        let document = Document { machine: machine.cpu().to_owned(), percent, rows };
        output.write(&document, out, |out| table(&document).iter().try_for_each(|line| writeln!(out, "{line}")))?;
        let off = document.rows.iter().filter(|row| row.error.abs() > MOST_ERROR).count();
        if off == 0 {
            return Ok(());
        }
        let all = document.rows.len();
        Err(Failure::Running(format!("simulate native: the model is off by more than 25 % in {off} of {all} rows")))
    }

    /// Requests per second of each way and number of threads, sorted. `None`: it was interrupted.
    #[expect(clippy::type_complexity, reason = "a way with its rates; one caller")]
    fn measure(&self) -> Result<Option<Vec<((&'static str, Locking, usize), Vec<f64>)>>, Failure> {
        let stop = interrupt::flag();
        let all = |(scheduler, locking)| THREADS.map(|threads| ((scheduler, locking, threads), Vec::new()));
        let mut found: Vec<_> = ways().into_iter().flat_map(all).collect();
        for _ in 0..self.rounds {
            for ((scheduler, locking, threads), rates) in &mut found {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return Ok(None);
                }
                let way = Way { scheduler: (*scheduler).to_owned(), locking: locking.to_string(), bypass: false };
                let (device, threads) = (DEVICE.to_owned(), *threads);
                let load = NativeLoad { device, way, threads, load: load(), seed: SEED };
                rates.push(load.measure(Duration::from_millis(self.length)).map_err(Failure::Running)?);
            }
        }
        found.iter_mut().for_each(|(_, rates)| rates.sort_by(f64::total_cmp));
        Ok(Some(found))
    }
}

/// The median of sorted values, of which there is one at least.
fn median(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

/// How long private work takes on the machine, in percent of what it took where the stages were measured, if one thread
/// without a scheduler reaches `rate` requests per second.
fn percent(machine: &Machine, rate: f64) -> Result<u64, Failure> {
    let ns = |percent| Ok::<_, Failure>(1e9 / model(machine, ("none", Locking::Single), 1, percent)?);
    let (accesses, all) = (ns(None)?, ns(Some(100))?);
    Ok(((1e9 / rate - accesses) / (all - accesses) * 100.0).clamp(1.0, 10_000.0).round() as u64)
}

/// Modelled requests per second. `percent`: how long private work takes; `None`: there is none.
fn model(
    machine: &Machine,
    (scheduler, locking): (&str, Locking),
    threads: usize,
    percent: Option<u64>,
) -> Result<f64, Failure> {
    let setting = Setting {
        scheduler: scheduler.to_owned(),
        locking,
        stages: percent.map(|_| Stages::measured()),
        percent: percent.unwrap_or(100),
        seed: SEED,
        requests: REQUESTS,
        ..Setting::new(machine.cores(), DEVICE)
    };
    requests_per_s(&load(), threads, &setting).map_err(Failure::Running)
}

fn table(document: &Document) -> Vec<String> {
    let head = ["way", "threads", "measured", "least", "greatest", "modelled", "off by"].map(str::to_owned).to_vec();
    let cells = |row: &Compared| {
        let [measured, least, greatest, model] = [row.measured, row.least, row.greatest, row.model].map(short);
        let off = format!("{:+.0} %", row.error * 100.0);
        vec![row.way.clone(), row.threads.to_string(), measured, least, greatest, model, off]
    };
    let table: Vec<_> = std::iter::once(head).chain(document.rows.iter().map(cells)).collect();
    let mut lines = vec![
        format!("machine: {}", document.machine),
        format!("private work: {} % of what the stages took where they were measured", document.percent),
    ];
    lines.extend(columns::lines(&table, 1, 7));
    lines
}
