//! `blkmq judge`: what each scheduler is worth to the clients behind it.

mod oracle;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use blkmq::driver::spec::Opener;
use blkmq_workbench::TextError;
use blkmq_workbench::judge::{self, Contestant, Interference, JudgeError, Row, Settings, Site};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::bench;
use crate::page::{self, Page};
use crate::target::Time;
use blkmq_program::{Failure, columns, interrupt, json, notice, progress};

/// Judge schedulers by what the clients behind them get: latency beside floods, shares, deadlines, start-up times, and
/// more.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(&format!("{}{}\n", include_str!("help/judge.txt"), test_list())))]
pub(crate) struct Judge {
    /// The device: a name, then parameters, as in ssd,hw_queue_depth=32; or a file's path.
    #[arg(long, value_name = "DEVICE", default_value = "ssd")]
    device: String,
    /// The schedulers to judge [default: all].
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    schedulers: Vec<String>,
    /// The tests to make [default: all].
    #[arg(long, value_name = "ID,ID", value_delimiter = ',')]
    tests: Vec<String>,
    /// Instead of the tests, repeat a published table beside what was published. interference: a reader beside other
    /// applications (ICPE'24, doi 10.1145/3629526.3645053).
    #[arg(long, value_name = "TABLE", conflicts_with_all = ["tests", "report"])]
    table: Option<Table>,
    /// Instead of the tests, say how near bfq is to Linux's: a folder with recordings of what Linux's decided, or one
    /// of them.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["tests", "report", "table", "device", "schedulers"])]
    oracle: Option<PathBuf>,
    /// How long the tests take on a real device, as in 5m, beside the starts of Q9: these take as long as they take. On
    /// a model the virtual time follows from the tests.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = bench::duration)]
    runtime: Duration,
    /// Use a device that may hold data. All of it may be overwritten.
    #[arg(long)]
    overwrite: bool,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
    /// Write a report as well: one HTML file with tables and plots.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// A published table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Table {
    Interference,
}

fn test_list() -> String {
    let line = |(id, title): (&str, &str)| format!("  {id:4} {title}");
    judge::tests().into_iter().map(line).collect::<Vec<_>>().join("\n")
}

impl Judge {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        if let Some(folder) = &self.oracle {
            return oracle::run(folder, self.json, out);
        }
        let contestants = self.contestants()?;
        let tests = self.test_ids()?;
        let site = self.site()?;
        let page = Page::open(self.report.as_deref())?;
        let stop = interrupt::flag();
        let settings = Settings { tests, runtime: self.runtime, stop: Arc::clone(&stop), ..Settings::default() };
        let (done, all) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let tell = |measured, count| {
            done.fetch_max(measured, Ordering::Relaxed);
            all.store(count, Ordering::Relaxed);
        };
        let look = || {
            let (done, all) = (done.load(Ordering::Relaxed), all.load(Ordering::Relaxed));
            (done as f64 / all.max(1) as f64, format!("{done} of {all} measurements"))
        };
        if let Some(Table::Interference) = self.table {
            let rows = progress::watch(look, || judge::interference(&site, &contestants, &settings, &tell));
            let rows = rows.map_err(|error| self.failure(&error))?;
            if self.json {
                return print(&site, &rows, out);
            }
            return Ok(write_interference(&site, &rows, out)?);
        }
        let rows = progress::watch(look, || judge::judge(&site, &contestants, &settings, &tell));
        let rows = rows.map_err(|error| self.failure(&error))?;
        if let Some(page) = page {
            let clock = if site.is_model() { Time::Virtual } else { Time::Real };
            let title = format!("Schedulers judged on {}", site.spec());
            page.write("blkmq", title, page::modelled(&[site.spec()], clock), judge::sections(&rows))?;
        }
        if self.json {
            print(&site, &rows, out)?;
        } else {
            write(&site, &rows, out)?;
        }
        if stop.load(Ordering::Relaxed) { Err(interrupt::failure("judge")) } else { Ok(()) }
    }

    fn contestants(&self) -> Result<Vec<Contestant>, TextError> {
        let known = blkmq::scheduler_names();
        let mut contestants: Vec<Contestant> = Vec::new();
        for name in &self.schedulers {
            let place = || "--schedulers".to_owned();
            if !known.contains(&&**name) {
                let what = format!("'{name}' is no scheduler; accepted: {}", known.join(", "));
                return Err(TextError { place: place(), what });
            }
            if contestants.iter().any(|other| other.name == *name) {
                return Err(TextError { place: place(), what: format!("'{name}' is given twice") });
            }
            contestants.push(Contestant::named(name));
        }
        if contestants.is_empty() {
            contestants = known.into_iter().map(Contestant::named).collect();
        }
        Ok(contestants)
    }

    fn test_ids(&self) -> Result<Vec<&'static str>, TextError> {
        let known: Vec<&str> = judge::tests().into_iter().map(|(id, _)| id).collect();
        let find = |asked: &String| {
            known.iter().copied().find(|id| id.eq_ignore_ascii_case(asked)).ok_or_else(|| TextError {
                place: "--tests".to_owned(),
                what: format!("'{asked}' is no test; accepted: {}", known.join(", ")),
            })
        };
        self.tests.iter().map(find).collect()
    }

    fn site(&self) -> Result<Site, Failure> {
        let spec = blkmq_drivers::canonical(&self.device);
        let opener = Opener { tell: &notice, ..Opener::SILENT };
        Site::open(&spec, self.overwrite, &opener)
            .map_err(|error| TextError { place: "--device".to_owned(), what: error.to_string() }.into())
    }

    fn failure(&self, error: &JudgeError) -> Failure {
        match error {
            JudgeError::Stopped => interrupt::failure("judge"),
            JudgeError::Failed(_) => Failure::Running(format!("{}: {error}", self.device)),
            _ => TextError { place: "--device".to_owned(), what: error.to_string() }.into(),
        }
    }
}

/// Prints rows of the tests, or of a table, as JSON.
fn print(site: &Site, rows: &[impl Serialize], out: &mut dyn Write) -> Result<(), Failure> {
    let clock = if site.is_model() { "virtual" } else { "real" };
    json::print(&serde_json::json!({ "device": site.spec(), "clock": clock, "rows": rows }), out)
}

fn write_device(site: &Site, out: &mut dyn Write) -> io::Result<()> {
    let clock = if site.is_model() { "a model, on virtual time" } else { "on the machine's time" };
    writeln!(out, "device  {}, {clock}", site.spec())
}

/// The table, with what was published in its last columns.
fn write_interference(site: &Site, rows: &[Interference], out: &mut dyn Write) -> io::Result<()> {
    write_device(site, out)?;
    writeln!(
        out,
        "\nA reader of 4 KiB, one read at a time, beside applications with 128 operations outstanding each. Latencies in ms. The
published ones are from Linux 6.3 with eight SSDs, which each job takes in turn, and ten cores (ICPE'24, doi
10.1145/3629526.3645053). {}\n",
        if site.is_model() { "Here there are eight models." } else { "Here there is one device." },
    )?;
    let head = ["beside", "scheduler", "p99", "p99.9", "beside, MiB/s", "published p99", "published p99.9"];
    let or_none = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| value.to_string());
    let line = |row: &Interference| {
        let beside = match row.applications {
            0 => row.background.to_owned(),
            applications => format!("{applications} x {}", row.background),
        };
        let figures = [row.p99_ms, row.p99_9_ms, row.background_mib_s].map(|value| value.to_string());
        let published = [row.published_p99_ms, row.published_p99_9_ms].map(or_none);
        [vec![beside, row.scheduler.clone()], figures.to_vec(), published.to_vec()].concat()
    };
    columns::write(&head, rows.iter().map(line), 2, 8, out)
}

fn write(site: &Site, rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    write_device(site, out)?;
    writeln!(out, "verdict {}", judge::verdict(rows))?;
    let schedulers = judge::schedulers(rows);
    for (id, title) in judge::tests() {
        let own: Vec<&Row> = rows.iter().filter(|row| row.id == id).collect();
        if !own.is_empty() {
            writeln!(out, "\n{id}  {title}")?;
            write_test(&own, &schedulers, out)?;
        }
    }
    writeln!(out)?;
    for scheduler in schedulers {
        let own = || rows.iter().filter(|row| row.scheduler == scheduler);
        let aimed = own().filter(|row| row.pass.is_some()).count();
        let missed: Vec<&Row> = own().filter(|row| row.pass == Some(false)).collect();
        writeln!(
            out,
            "{scheduler} meets {} of {aimed} targets{}",
            aimed - missed.len(),
            if missed.is_empty() { "." } else { ", and misses:" }
        )?;
        for Row { id, case, value, unit, target, .. } in missed {
            let target = target.map_or_else(String::new, |target| target.to_string());
            writeln!(out, "  {id} {case}: {value} {unit}, the target is {target}")?;
        }
    }
    Ok(())
}

/// The cases of a test, a line each, with a column for each scheduler.
fn write_test(rows: &[&Row], schedulers: &[&str], out: &mut dyn Write) -> io::Result<()> {
    let mut cases: Vec<&Row> = Vec::new();
    for row in rows {
        if !cases.iter().any(|case| case.case == row.case) {
            cases.push(row);
        }
    }
    let titles = schedulers.iter().map(|name| (*name).to_owned());
    let mut lines = vec![[String::new(), String::new()].into_iter().chain(titles).collect::<Vec<_>>()];
    for case in &cases {
        let cell = |scheduler: &&str| {
            let row = rows.iter().find(|row| row.case == case.case && row.scheduler == **scheduler);
            row.map_or_else(|| "-".to_owned(), |row| format!("{}{}", mark(row), row.value))
        };
        let cells = schedulers.iter().map(cell);
        lines.push([format!("  {}", case.case), case.unit.to_owned()].into_iter().chain(cells).collect());
    }
    let meanings = std::iter::once("").chain(cases.iter().map(|case| case.meaning));
    for (line, meaning) in columns::lines(&lines, 2, 8).iter().zip(meanings) {
        writeln!(out, "{}", format!("{line}  {meaning}").trim_end())?;
    }
    Ok(())
}

/// Whether a target is met, in front of the figure.
fn mark(row: &Row) -> &'static str {
    match row.pass {
        None => "",
        Some(true) if row.is_too_long() => "SLOW ",
        Some(true) => "ok ",
        Some(false) => "NO ",
    }
}
