//! `blkmq reproduce`: repeats published measurements and prints them beside what was published.

mod tables;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use blkmq_workbench::bench::LayerOutcome;
use blkmq_workbench::report::{Bar, Group, Section};
use blkmq_workbench::{JobFile, Mode, Ratio, System, Turns};
use clap::Args;
use serde::Serialize;

use self::tables::{Row, TABLES, Table};
use crate::failure::Failure;
use crate::page::{self, Page};
use crate::target::{Target, Time};
use crate::turns::{self, Rates, Variant};
use crate::words::{self, short};
use crate::{bench, interrupt, json, machine, progress};

const EXAMPLES: &str = "\
Examples:
  blkmq reproduce scaling
  blkmq reproduce all --rounds 8
  blkmq reproduce merge --json
  blkmq reproduce all --report tables.html

Each row of a table runs the same job on a null device, in short slices that take turns; IOPS are the median of its slices,
with quartiles, and its ratio to the first row of its kind has a 95 % interval; CPU ns is what the jobs' threads took for each
request. What was published stands beside it: it was measured on other machines, mostly larger ones, and through system
calls. 'merge' runs on a model of a disk: 10 s of virtual time, after 5 s in which its write cache fills.";

/// Repeat published measurements on this machine.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", crate::EXIT_CODES))]
pub(crate) struct Reproduce {
    /// Which measurement; all for every one.
    #[arg(value_name = "TABLE", value_parser = names())]
    table: String,
    /// Stop after so many rounds, resolved or not.
    #[arg(long, value_name = "N", default_value = "60", value_parser = clap::value_parser!(u32).range(2..))]
    rounds: u32,
    /// How long a slice lasts, as in 100ms; not on virtual time.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = bench::duration)]
    runtime: Duration,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
    /// Write a report as well: one HTML file with tables and plots.
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

fn names() -> Vec<&'static str> {
    TABLES.iter().map(|table| table.name).chain(["all"]).collect()
}

/// How long a load runs on virtual time, where every run gives the same result.
const VIRTUAL: Duration = Duration::from_secs(10);

/// What comes before that: the published run lasts so long that the beginning, with an empty write cache, does not count.
const RAMP: &str = "ramp_time=5";

/// What the figures of a report are worth.
const MODELLED: &str = "\
'Measured' is what the machine above did, on devices that are part of blkmq: what they take for an operation is what their \
parameters say. Tables on virtual time come from a model of a disk, and are the same on every machine. 'Published' is what \
others measured, on the machines that each table names.";

/// All that was found.
#[derive(Debug, Serialize)]
struct Found {
    machine: String,
    date: String,
    command: String,
    tables: Vec<FoundTable>,
}

#[derive(Debug, Serialize)]
struct FoundTable {
    name: &'static str,
    about: &'static str,
    job: &'static str,
    /// How long it ran, on which time.
    time: String,
    published: &'static str,
    rounds: usize,
    rows: Vec<FoundRow>,
}

#[derive(Debug, Serialize)]
struct FoundRow {
    label: &'static str,
    device: &'static str,
    settings: Vec<String>,
    /// Operations per second.
    iops: Rates,
    /// To the row `base`; of that, and on virtual time, there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<FoundRatio>,
    /// Percent of the operations that joined another one's request.
    merged_percent: f64,
    /// On virtual time this is the time of the model as well, and says nothing; as is the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ns_per_request: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_iops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    published_merged_percent: Option<f64>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct FoundRatio {
    base: &'static str,
    ratio: f64,
    low: f64,
    high: f64,
}

impl Reproduce {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let stop = interrupt::flag();
        let page = Page::open(self.report.as_deref())?;
        let mut found =
            Found { machine: machine::name(), date: machine::date(), command: machine::command(), tables: Vec::new() };
        if !self.json {
            found.write_head(out)?;
        }
        for table in TABLES.iter().filter(|table| self.table == "all" || self.table == table.name) {
            let table = self.measure(table, &stop)?;
            if !self.json {
                table.write(out)?;
                out.flush()?;
            }
            found.tables.push(table);
        }
        if let Some(page) = page {
            let sections = found.tables.iter().flat_map(FoundTable::sections).collect();
            page.write("Published measurements, repeated".to_owned(), MODELLED.to_owned(), sections)?;
        }
        if self.json {
            json::print(&found, out)?;
        }
        if stop.load(Ordering::Relaxed) { Err(interrupt::failure(&self.table)) } else { Ok(()) }
    }

    fn measure(&self, table: &'static Table, stop: &Arc<AtomicBool>) -> Result<FoundTable, Failure> {
        let is_real = table.clock == Time::Real;
        let options: &[&str] = if is_real { &[] } else { &[RAMP] };
        let jobs = JobFile::parse(table.file, table.job, options, Mode::Strict, &System)?.jobs;
        let mut variants = Vec::new();
        for row in table.rows {
            let mut target = Target::new(row.device, table.clock);
            for (name, value) in row.set {
                target.set(name, value, format!("{}: {}", table.name, row.label));
            }
            variants.push(Variant::new(row.label.to_owned(), &jobs, target.open(table.file, &jobs)?));
        }
        let (slice, rounds) = if is_real { (self.runtime, self.rounds) } else { (VIRTUAL, 1) };
        let bar = progress::bar(2 * variants.len() as u64 * u64::from(rounds));
        bar.set_message(table.file);
        let turns = turns::take(&mut variants, slice, rounds as usize, stop, &bar);
        bar.finish_and_clear();
        let turns = turns?;
        let time = if is_real {
            format!("slices of {}", words::time(slice))
        } else {
            format!("{} of virtual time, after {RAMP}", words::time(slice))
        };
        let rows = table.rows.iter().zip(&variants).enumerate();
        Ok(FoundTable {
            name: table.name,
            about: table.about,
            job: table.file,
            time,
            published: table.published,
            rounds: turns.rounds(),
            rows: rows
                .map(|(index, (row, variant))| FoundRow::new(table, index, row, &variant.layer, &turns))
                .collect(),
        })
    }
}

impl FoundRow {
    fn new(table: &Table, index: usize, row: &'static Row, layer: &LayerOutcome, turns: &Turns) -> Self {
        let base = &table.rows[row.base];
        let ratio = turns.ratio(row.base, index).filter(|_| row.base != index);
        let ratio = ratio.map(|Ratio { ratio, low, high, .. }| FoundRatio { base: base.label, ratio, low, high });
        let published_ratio =
            row.iops.zip(row.base_iops.or(base.iops)).filter(|_| row.base != index).map(|(row, base)| row / base);
        let is_real = table.clock == Time::Real;
        Self {
            label: row.label,
            device: row.device,
            settings: row.set.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            iops: turns.spread(index).expect("every row had slices").into(),
            ratio,
            merged_percent: 100.0 * layer.merges as f64 / (layer.requests + layer.merges).max(1) as f64,
            cpu_ns_per_request: is_real.then(|| layer.cpu_ns_per_request()),
            wait_share: is_real.then(|| layer.wait_share()),
            published_iops: row.iops,
            published_ratio,
            published_merged_percent: row.merged,
        }
    }
}

impl Found {
    fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "measured on {}; {}; by '{}'", self.machine, self.date, self.command)
    }
}

impl FoundTable {
    /// The table, its rates and its ratios, each beside what was published.
    fn sections(&self) -> Vec<Section> {
        let head = ["", "device", "settings", "IOPS", "ratio", "CPU ns", "merged", "published IOPS", "ratio", "merged"];
        let rows = self.rows.iter().map(FoundRow::cells).collect();
        let published = |value: Option<f64>| value.map(Bar::new);
        let group = |row: &FoundRow, bars| Group { name: row.label.to_owned(), bars };
        let rates = |row: &FoundRow| {
            let Rates { median, lower_quartile, upper_quartile } = row.iops;
            group(
                row,
                vec![Some(Bar::with_interval(median, lower_quartile, upper_quartile)), published(row.published_iops)],
            )
        };
        let ratios = |row: &FoundRow| {
            let FoundRatio { ratio, low, high, .. } = row.ratio?;
            Some(group(row, vec![Some(Bar::with_interval(ratio, low, high)), published(row.published_ratio)]))
        };
        let series = (0.0, &["measured", "published"][..]);
        let note = format!("{} {}, {}. Published: {}.", self.about, self.job, self.time, self.published);
        let mut sections = vec![
            page::table(self.name, &note, &head, rows),
            page::bars(
                &format!("{}: rates", self.name),
                "Operations per second: the median of slices that took turns, with quartiles.",
                "IOPS",
                series,
                self.rows.iter().map(rates).collect(),
            ),
        ];
        let ratios: Vec<Group> = self.rows.iter().filter_map(ratios).collect();
        if !ratios.is_empty() {
            let note = "To the first row of its kind, with 95 % intervals.";
            sections.push(page::bars(&format!("{}: ratios", self.name), note, "ratio", series, ratios));
        }
        sections
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let has_merges = self.rows.iter().any(|row| row.published_merged_percent.is_some());
        writeln!(out, "\n{}: {}", self.name, self.about)?;
        writeln!(out, "{}, {}. Published: {}", self.job, self.time, self.published)?;
        let merged = if has_merges { format!("{:>9}{:>11}", "merged", "published") } else { String::new() };
        writeln!(
            out,
            "\n{:40}{:>8}{:>17}{:>8}{:>18}{:>8}{:>11}{:>7}{merged}",
            "", "IOPS", "quartiles", "ratio", "95 % interval", "CPU ns", "published", "ratio"
        )?;
        for row in &self.rows {
            row.write(has_merges, out)?;
        }
        Ok(())
    }
}

impl FoundRow {
    /// One cell for each column of a report.
    fn cells(&self) -> Vec<String> {
        let ratio = self.ratio.map_or_else(String::new, |FoundRatio { base, ratio, low, high }| {
            format!("{ratio:.3} ({low:.3} to {high:.3}) of '{base}'")
        });
        let percent = |share: f64| format!("{share:.1} %");
        vec![
            self.label.to_owned(),
            self.device.to_owned(),
            self.settings.join(", "),
            short(self.iops.median),
            ratio,
            self.cpu_ns_per_request.map_or_else(String::new, |ns| format!("{ns:.0}")),
            percent(self.merged_percent),
            self.published_iops.map_or_else(String::new, short),
            self.published_ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}")),
            self.published_merged_percent.map_or_else(String::new, percent),
        ]
    }

    fn write(&self, has_merges: bool, out: &mut dyn Write) -> io::Result<()> {
        let Rates { median, lower_quartile, upper_quartile } = self.iops;
        let quartiles = format!("{} .. {}", short(lower_quartile), short(upper_quartile));
        let (ratio, interval) = self.ratio.map_or_else(Default::default, |FoundRatio { ratio, low, high, .. }| {
            (format!("{ratio:.3}"), format!("{low:.3} .. {high:.3}"))
        });
        let published = self.published_iops.map_or_else(|| "-".to_owned(), short);
        let published_ratio = self.published_ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        let cpu_ns = self.cpu_ns_per_request.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}"));
        write!(
            out,
            "{:40}{:>8}{quartiles:>17}{ratio:>8}{interval:>18}{cpu_ns:>8}{published:>11}{published_ratio:>7}",
            self.label,
            short(median)
        )?;
        if has_merges {
            let published =
                self.published_merged_percent.map_or_else(|| "-".to_owned(), |share| format!("{share:.1} %"));
            write!(out, "{:>7.1} %{published:>11}", self.merged_percent)?;
        }
        writeln!(out)
    }
}
