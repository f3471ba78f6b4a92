//! `blkmq reproduce limiter`: a reader beside a flood of writes on a volume with a ceiling. The device's queue is
//! bounded by hand, by the limiter and by kyber's own control, and the ceiling falls and comes back.

mod jump;
mod step;

use std::io::{self, Write};
use std::time::Duration;

use blkmq::RequestQueue;
use blkmq_workbench::bench::Control;
use blkmq_workbench::job::Direction;
use blkmq_workbench::report::{Axis, Content, Line, Lines, Section, Unit};
use blkmq_workbench::{JobFile, Mode, System};
use serde::Serialize;

use self::step::Steps;
use crate::flood::reader_and_writers;
use crate::page;
use crate::target::{Target, Time};
use blkmq_program::Failure;
use blkmq_program::render::time;

pub(super) const NAME: &str = "limiter";

const ABOUT: &str = "What does a bound on the work with the device bring a reader, and what does it cost?";

/// How long each row runs by default.
const RUNTIME: Duration = Duration::from_secs(4);

/// What the limiter takes to find the ceiling does not count.
const RAMP: &str = "ramp_time=3";

const JOB: &str = include_str!("../../../blkmq-workbench/jobs/flood-blocks.fio");

/// The depths to which the device's queue is bounded by hand.
const DEPTHS: [u16; 8] = [4, 8, 16, 24, 32, 48, 64, 128];

/// kyber's knob for what a read may take, in nanoseconds.
const READ_TARGET: &str = "iosched/read_lat_nsec";

/// The values of that knob: its default, what the limiter takes for its target on this volume, and a shorter one, at
/// which kyber decides otherwise.
const READ_TARGETS_NS: [u64; 3] = [2_000_000, 180_000, 140_000];

const PUBLISHED: &str = "\
Published: a database on an instance with 275,000 operations a second, its queue bounded by hand: the p99.9 of reads 3.25
-> 0.42 ms at 243,000 operations a second, 12 % below the ceiling.";

#[derive(Debug, Serialize)]
pub(super) struct FoundLimiter {
    about: &'static str,
    /// How long each row ran, and on which clock.
    time: String,
    published: &'static str,
    rows: Vec<Row>,
    steps: Steps,
}

/// A row: how the queue was bounded, and what came of it.
#[derive(Debug, Serialize)]
struct Row {
    /// As the queue said after the run, and so is the target.
    scheduler: &'static str,
    /// In words.
    bound: String,
    /// What a read may take before the limiter or kyber holds something back, in nanoseconds. `None` where nothing
    /// does.
    target_ns: Option<u64>,
    p50_ns: u64,
    p99_ns: u64,
    p99_9_ns: u64,
    writes_per_second: f64,
}

/// How one row is set up.
struct Way {
    scheduler: &'static str,
    bound: String,
    device: String,
    /// A knob, and its value.
    set: Option<(&'static str, String)>,
}

fn ways() -> Vec<Way> {
    let way = |scheduler, bound: String, set| Way { scheduler, bound, device: "cloud".to_owned(), set };
    let mut ways = vec![way("none", "none".to_owned(), None)];
    ways.extend(DEPTHS.map(|depth| Way {
        device: format!("cloud,hw_queue_depth={depth}"),
        ..way("mq-deadline", format!("{depth} requests"), None)
    }));
    ways.extend(crate::schedulers::with_limiter().map(|scheduler| {
        let set = ("wbt_lat_usec", "-1".to_owned());
        way(scheduler, "the limiter".to_owned(), Some(set))
    }));
    ways.extend(READ_TARGETS_NS.map(|ns| {
        let set = (READ_TARGET, ns.to_string());
        way("kyber", format!("target {} us", ns / 1000), Some(set))
    }));
    ways
}

/// What a read may take before the queue holds something back.
fn target_ns(q: &RequestQueue) -> Option<u64> {
    let of_limiter = q.limiter().and_then(|info| info.limiter.target_ns());
    of_limiter.or_else(|| q.knob(READ_TARGET).ok()?.parse().ok())
}

/// Runs all rows, and the steps. `None` if it was stopped.
pub(super) fn measure(runtime: Option<Duration>, control: &Control) -> Result<Option<FoundLimiter>, Failure> {
    let runtime = runtime.unwrap_or(RUNTIME);
    let mut rows = Vec::new();
    for way in ways() {
        let Some(row) = run(way, runtime, control)? else { return Ok(None) };
        rows.push(row);
    }
    let steps = step::measure().map_err(|error| Failure::Running(format!("{NAME}: {error}")))?;
    let time = format!("{} of virtual time, after {RAMP}", time(runtime));
    Ok(Some(FoundLimiter { about: ABOUT, time, published: PUBLISHED, rows, steps }))
}

fn run(way: Way, runtime: Duration, control: &Control) -> Result<Option<Row>, Failure> {
    let jobs = JobFile::parse(NAME, JOB, &[RAMP], Mode::Strict, &System)?.jobs;
    let mut target = Target::new(&way.device, Time::Virtual);
    target.set("scheduler", way.scheduler, NAME.to_owned());
    if let Some((knob, value)) = way.set {
        target.set(knob, &value, NAME.to_owned());
    }
    let mut bench = target.open(NAME, &jobs)?;
    let failed = |what: String| Failure::Running(format!("{NAME}: {what}"));
    let control = Control { runtime: Some(runtime), ..control.clone() };
    let outcome = bench.run(&control).map_err(|error| failed(error.to_string()))?;
    let Some((reader, writers)) = reader_and_writers(&outcome, runtime, failed)? else { return Ok(None) };
    let latency = &reader.direction(Direction::Read).latency;
    Ok(Some(Row {
        scheduler: bench.queue().scheduler(),
        bound: way.bound,
        target_ns: target_ns(bench.queue()),
        p50_ns: latency.percentile(50.0),
        p99_ns: latency.percentile(99.0),
        p99_9_ns: latency.percentile(99.9),
        writes_per_second: writers.iter().map(|job| job.direction(Direction::Write).iops(job.runtime_ns)).sum(),
    }))
}

const HEAD: [&str; 7] = ["scheduler", "bound", "p50 us", "p99 us", "p99.9 us", "writes/s", "of none"];

impl FoundLimiter {
    fn cells(&self, row: &Row) -> [String; 7] {
        let us = |ns: u64| format!("{:.0}", ns as f64 / 1e3);
        let none = self.rows.first().map_or(row.writes_per_second, |row| row.writes_per_second);
        [
            row.scheduler.to_owned(),
            row.bound.clone(),
            us(row.p50_ns),
            us(row.p99_ns),
            us(row.p99_9_ns),
            format!("{:.0}", row.writes_per_second),
            format!("{:.3}", row.writes_per_second / none),
        ]
    }

    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{NAME}: {}", self.about)?;
        writeln!(out, "{}\n", self.note())?;
        let line = |cells: &[&str; 7], out: &mut dyn Write| {
            let [scheduler, bound, figures @ ..] = cells;
            let figures: String = figures.iter().map(|cell| format!(" {cell:>10}")).collect();
            writeln!(out, "{scheduler:12} {bound:14}{figures}")
        };
        line(&HEAD, out)?;
        for row in &self.rows {
            line(&self.cells(row).each_ref().map(String::as_str), out)?;
        }
        writeln!(out, "\n{}\n", self.steps.words())?;
        writeln!(out, "{}", self.published)
    }

    fn note(&self) -> String {
        format!("The model 'cloud', {}; a reader of 500 reads/s beside 128 writes of 4 KiB.", self.time)
    }

    pub(super) fn sections(&self) -> Vec<Section> {
        let note = format!("{} {} {}", self.about, self.note(), self.published);
        let rows = self.rows.iter().map(|row| self.cells(row).to_vec()).collect();
        let points = |rows: &[&Row]| {
            rows.iter().map(|row| (row.writes_per_second / 1e3, row.p99_9_ns as f64 / 1e3)).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.rows.iter().filter(|row| row.scheduler == "mq-deadline").collect();
        let by_hand = &all[..all.len().min(DEPTHS.len())];
        let by_limiter = &all[by_hand.len()..];
        let by_kyber: Vec<_> = self.rows.iter().filter(|row| row.scheduler == "kyber").collect();
        let frontier = Lines {
            x: Axis::linear("thousand writes/s", Unit::Number),
            y: Axis::linear("p99.9 of reads, us", Unit::Number),
            lines: vec![
                Line { name: "depths by hand".to_owned(), points: points(by_hand) },
                Line { name: "the limiter".to_owned(), points: points(by_limiter) },
                Line { name: "kyber's targets".to_owned(), points: points(&by_kyber) },
            ],
        };
        let section = |title: &str, note: &str, lines| Section {
            title: title.to_owned(),
            note: note.to_owned(),
            content: Content::Lines(lines),
        };
        let mut sections = vec![
            page::table(NAME, &note, &HEAD, rows),
            section("A reader's latency against the writers' rate", "", frontier),
        ];
        sections.extend(self.steps.lines().map(|(title, lines)| section(title, &self.steps.words(), lines)));
        sections
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a row is not printed, or a point of the plot is missing or on another line.
    #[test]
    fn every_row_is_in_the_words_and_in_the_report() {
        let row = |way: Way| Row {
            scheduler: way.scheduler,
            bound: way.bound,
            target_ns: None,
            p50_ns: 1000,
            p99_ns: 2000,
            p99_9_ns: 3000,
            writes_per_second: 4000.0,
        };
        let rows: Vec<_> = ways().into_iter().map(row).collect();
        let nr_rows = rows.len();
        let found =
            FoundLimiter { about: ABOUT, time: String::new(), published: PUBLISHED, rows, steps: Steps::default() };
        let mut words = Vec::new();
        found.write(&mut words).expect("memory takes everything");
        let words = String::from_utf8(words).expect("it is text");
        for target in ["2000", "180", "140"] {
            let wanted = format!("kyber target {target} us 1 2 3 4000 1.000");
            let is_it = |line: &str| line.split_whitespace().eq(wanted.split(' '));
            assert!(words.lines().any(is_it), "{wanted}: {words}");
        }
        let (mut tables, mut lines) = (Vec::new(), Vec::new());
        for section in found.sections() {
            match section.content {
                Content::Table(table) => tables.push(table.rows.len()),
                Content::Lines(plot) => lines.push(plot.lines.iter().map(|line| line.points.len()).collect::<Vec<_>>()),
                _ => {}
            }
        }
        assert_eq!((tables, &lines[0]), (vec![nr_rows], &vec![DEPTHS.len(), 1, 3]));
    }
}
