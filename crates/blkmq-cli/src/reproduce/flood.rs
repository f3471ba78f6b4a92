//! `blkmq reproduce flood`: a reader next to a flood of writes, with queues of several depths, under every scheduler.

use std::io::{self, Write};
use std::time::Duration;

use blkmq_workbench::bench::Control;
use blkmq_workbench::report::Section;
use serde::Serialize;

use crate::flood::{self, DEEP, Flooded, Load, THREADS, TITLES, Way};
use crate::page;
use crate::target::Time;
use blkmq_program::Failure;
use blkmq_program::render::time;

pub(super) const NAME: &str = "flood";

const ABOUT: &str = "What is left of a reader's latency beside four writers with 512 writes outstanding?";

/// How long each setup runs by default: long enough for several garbage collections.
const RUNTIME: Duration = Duration::from_secs(5);

/// The depths of the SSD's queue: that of SATA, that of a small NVMe drive, and that of the published profile.
const DEPTHS: [u16; 3] = [32, 128, 1023];

const PUBLISHED: &str = "\
Published: ICPE'24, Linux 6.3, eight SSDs 1023 deep, default nr_requests, writers of 64 KiB with 128 outstanding each; the
reader's p99 beside 8 writers: none 75 ms, mq-deadline 101 ms; beside 32 writers: none 405 ms, mq-deadline 367 ms.";

#[derive(Debug, Serialize)]
pub(super) struct FoundFlood {
    about: &'static str,
    /// How long each row ran, and on which clock.
    time: String,
    published: &'static str,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    hw_queue_depth: u16,
    #[serde(skip)]
    load: &'static str,
    #[serde(flatten)]
    flooded: Flooded,
    /// The reader's p99, divided by the p99 with the same load and depth and no scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    p99_of_none: Option<f64>,
}

/// Every setup: no scheduler; each scheduler with its defaults; and each scheduler with as many requests as Linux gives
/// it.
fn ways() -> Vec<Way> {
    let loads: [(Load, &[u16]); 2] = [(THREADS, &DEPTHS), (DEEP, &DEPTHS[..1])];
    let mut ways = Vec::new();
    for (load, depths) in loads {
        for &depth in depths {
            for scheduler in blkmq::scheduler_names() {
                let of_linux = (scheduler != "none").then(|| flood::linux_nr_requests(depth));
                let rooms = std::iter::once(None).chain(of_linux.map(Some));
                ways.extend(rooms.map(|nr_requests| Way { load, depth, scheduler, nr_requests, is_reader_rt: false }));
            }
        }
    }
    ways
}

/// Runs all setups, and writes each row to `out` as it comes. If it is stopped, the rows are those that came before.
pub(super) fn measure(
    runtime: Option<Duration>,
    control: &Control,
    mut out: Option<&mut dyn Write>,
) -> Result<FoundFlood, Failure> {
    let runtime = runtime.unwrap_or(RUNTIME);
    let time = format!("{} of virtual time", time(runtime));
    let mut found = FoundFlood { about: ABOUT, time, published: PUBLISHED, rows: Vec::new() };
    if let Some(out) = &mut out {
        found.write_head(out)?;
    }
    let mut none_p99_ns = 0;
    for way in ways() {
        let Some(flooded) = flood::run(&way, Time::Virtual, runtime, control)? else { return Ok(found) };
        // The setup without a scheduler comes first for each load and depth.
        let is_none = way.scheduler == "none";
        if is_none {
            none_p99_ns = flooded.p99_ns;
        }
        let p99_of_none = (!is_none).then(|| flooded.p99_ns as f64 / none_p99_ns as f64);
        let row = Row { hw_queue_depth: way.depth, load: way.load.about, flooded, p99_of_none };
        if let Some(out) = &mut out {
            write_line(&row.cells(), out)?;
            out.flush()?;
        }
        found.rows.push(row);
    }
    if let Some(out) = &mut out {
        writeln!(out, "\n{}", found.published)?;
    }
    Ok(found)
}

const HEAD: [&str; 3] = ["depth", "writers", "scheduler"];

impl Row {
    fn cells(&self) -> Vec<String> {
        let scheduler = match self.flooded.nr_requests {
            Some(nr) => format!("{}, nr_requests={nr}", self.flooded.scheduler),
            None => self.flooded.scheduler.to_owned(),
        };
        let mut cells = vec![self.hw_queue_depth.to_string(), self.load.to_owned(), scheduler];
        cells.extend(self.flooded.cells());
        cells.push(self.p99_of_none.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")));
        cells
    }
}

fn head() -> Vec<&'static str> {
    [&HEAD[..], &TITLES, &["p99 of none"]].concat()
}

fn write_line<T: AsRef<str>>(cells: &[T], out: &mut dyn Write) -> io::Result<()> {
    let [depth, writers, scheduler, figures @ ..] = cells else { return Ok(()) };
    let [depth, writers, scheduler] = [depth, writers, scheduler].map(AsRef::as_ref);
    let figures: String = figures.iter().map(|cell| format!(" {:>12}", cell.as_ref())).collect();
    writeln!(out, "{depth:>5}  {writers:16} {scheduler:29} {figures}")
}

impl FoundFlood {
    fn write_head(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "\n{NAME}: {}", self.about)?;
        writeln!(out, "The model 'ssd', {}; the reader wants 1000 reads/s, its latencies are in ms.\n", self.time)?;
        write_line(&head(), out)?;
        out.flush()
    }

    pub(super) fn section(&self) -> Section {
        let note = format!(
            "{} The model 'ssd', {}; the reader wants 1000 reads/s, its latencies are in milliseconds. {}",
            self.about, self.time, self.published
        );
        page::table(NAME, &note, &head(), self.rows.iter().map(Row::cells).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a row's ratio compares it with a row of another load or depth: a ratio compares a row with the last row
    /// before it that has no ratio.
    #[test]
    fn every_scheduler_follows_none_on_its_load_and_depth() {
        let ways = ways();
        let mut none = &ways[0];
        for way in &ways {
            if way.scheduler == "none" {
                none = way;
            }
            assert_eq!((none.scheduler, way.depth, way.load.file), ("none", none.depth, none.load.file));
        }
        for depth in DEPTHS {
            for scheduler in blkmq::scheduler_names() {
                assert!(ways.iter().any(|way| way.depth == depth && way.scheduler == scheduler));
            }
        }
    }
}
