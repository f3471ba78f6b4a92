//! A flood of writes next to a paced reader: the load, and its results.

use std::time::Duration;

use blkmq::{Class, IoPriority};
use blkmq_workbench::bench::{Control, JobOutcome, Outcome};
use blkmq_workbench::job::Direction;
use blkmq_workbench::{JobFile, Mode, System};
use serde::Serialize;

use crate::progress;
use crate::target::{Target, Time};
use blkmq_program::Failure;

/// A job file whose first job is the reader.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) file: &'static str,
    text: &'static str,
    /// Where the writes come from, in words.
    pub(crate) about: &'static str,
}

/// Many threads, each with a few writes.
pub(crate) const THREADS: Load =
    Load { file: "flood.fio", text: include_str!("../../blkmq-workbench/jobs/flood.fio"), about: "128 threads x 4" };

/// Few threads, each with many writes.
pub(crate) const DEEP: Load = Load {
    file: "flood-deep.fio",
    text: include_str!("../../blkmq-workbench/jobs/flood-deep.fio"),
    about: "4 threads x 128",
};

/// How many requests Linux gives a scheduler in front of a hardware queue of this depth.
pub(crate) const fn linux_nr_requests(depth: u16) -> u32 {
    if depth < 128 { 2 * depth as u32 } else { 256 }
}

/// The setup of a flood.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) load: Load,
    pub(crate) depth: u16,
    pub(crate) scheduler: &'static str,
    /// How many requests the scheduler takes. `None` for the queue's default.
    pub(crate) nr_requests: Option<u32>,
    /// The reader is of the real-time class.
    pub(crate) is_reader_rt: bool,
}

/// The results of a flood. Latencies are the reader's, in nanoseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Flooded {
    pub(crate) job: &'static str,
    pub(crate) device: String,
    pub(crate) scheduler: &'static str,
    /// Requests that the queue takes, if that was set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) nr_requests: Option<u32>,
    /// Whether the reader was of the real-time class.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_reader_rt: bool,
    pub(crate) reads_per_second: f64,
    pub(crate) p50_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) p99_9_ns: u64,
    /// The rate of the writers.
    pub(crate) write_bytes_per_second: f64,
}

/// Runs a flood. `None` if it was stopped.
pub(crate) fn run(way: &Way, clock: Time, runtime: Duration, stop: &Control) -> Result<Option<Flooded>, Failure> {
    let Way { load, depth, scheduler, nr_requests, is_reader_rt } = *way;
    let mut jobs = JobFile::parse(load.file, load.text, &[], Mode::Strict, &System)?.jobs;
    if is_reader_rt {
        jobs[0].priority = Some(IoPriority { class: Class::RealTime, level: 0 });
    }
    let device = format!("ssd,hw_queue_depth={depth}");
    let mut target = Target::new(&device, clock);
    target.set("scheduler", scheduler, load.file.to_owned());
    if let Some(nr_requests) = nr_requests {
        target.set("nr_requests", &nr_requests.to_string(), load.file.to_owned());
    }
    let mut bench = target.open(load.file, &jobs)?;
    let control = Control { runtime: Some(runtime), ..stop.clone() };
    let failed = |what: String| Failure::Running(format!("{}: {what}", load.file));
    let outcome = progress::watch_jobs(&control, || bench.run(&control)).map_err(|error| failed(error.to_string()))?;
    let Some((reader, writers)) = reader_and_writers(&outcome, runtime, failed)? else { return Ok(None) };
    let read = reader.direction(Direction::Read);
    let written = |job: &JobOutcome| job.direction(Direction::Write).bandwidth(job.runtime_ns);
    Ok(Some(Flooded {
        job: load.file,
        device,
        scheduler,
        nr_requests,
        is_reader_rt,
        reads_per_second: read.iops(reader.runtime_ns),
        p50_ns: read.latency.percentile(50.0),
        p99_ns: read.latency.percentile(99.0),
        p99_9_ns: read.latency.percentile(99.9),
        write_bytes_per_second: writers.iter().map(written).sum(),
    }))
}

/// The outcome of the first job, which reads, and those of the others. `None` if the run was stopped.
pub(crate) fn reader_and_writers(
    outcome: &Outcome,
    runtime: Duration,
    failed: impl Fn(String) -> Failure,
) -> Result<Option<(&JobOutcome, &[JobOutcome])>, Failure> {
    if let Some(error) = outcome.error() {
        return Err(failed(error));
    }
    if outcome.stopped {
        return Ok(None);
    }
    let (reader, writers) = outcome.jobs.split_first().ok_or_else(|| failed("it has no job".to_owned()))?;
    if reader.direction(Direction::Read).latency.count() == 0 {
        return Err(failed(format!("no read completed within {runtime:?}: it has to run for longer")));
    }
    Ok(Some((reader, writers)))
}

/// The headings for [`Flooded::cells`].
pub(crate) const TITLES: [&str; 5] = ["reads/s", "p50", "p99", "p99.9", "writes MiB/s"];

/// Nanoseconds as milliseconds.
pub(crate) fn ms(ns: u64) -> String {
    let ms = ns as f64 / 1e6;
    if ms < 99.95 { format!("{ms:.2}") } else { format!("{ms:.0}") }
}

impl Flooded {
    /// The scheduler, and the reader's class if it has one.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.scheduler, if self.is_reader_rt { ", reader rt" } else { "" })
    }

    /// Latencies in milliseconds.
    pub(crate) fn cells(&self) -> [String; 5] {
        [
            format!("{:.0}", self.reads_per_second),
            ms(self.p50_ns),
            ms(self.p99_ns),
            ms(self.p99_9_ns),
            format!("{:.0}", self.write_bytes_per_second / f64::from(1 << 20)),
        ]
    }

    /// What the scheduler changed in the reader's latency and in the writers' throughput, in a sentence.
    pub(crate) fn beside(&self, none: &Self) -> String {
        let times = none.p99_ns as f64 / self.p99_ns as f64;
        let verdict = match times {
            1.1.. => format!("{times:.1} times shorter"),
            0.9..1.1 => "no difference".to_owned(),
            _ => format!("{:.1} times longer", 1.0 / times),
        };
        format!(
            "With {}{} 99 of 100 reads take at most {} ms, with {} {} ms: {verdict}. The writers get {:.0} % of what they get with {}.",
            self.name(),
            if self.is_reader_rt { "," } else { "" },
            ms(self.p99_ns),
            none.scheduler,
            ms(none.p99_ns),
            100.0 * self.write_bytes_per_second / none.write_bytes_per_second,
            none.scheduler,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flooded(scheduler: &'static str, p99_ns: u64, write_bytes_per_second: f64) -> Flooded {
        Flooded {
            job: THREADS.file,
            device: String::new(),
            scheduler,
            nr_requests: None,
            is_reader_rt: false,
            reads_per_second: 1.0,
            p50_ns: 1,
            p99_ns,
            p99_9_ns: p99_ns,
            write_bytes_per_second,
        }
    }

    #[test]
    fn the_sentence_says_what_the_figures_say() {
        let none = flooded("none", 60_000_000, 1e9);
        for (p99_ns, written, expected) in [
            (7_500_000, 1e9, "at most 7.50 ms, with none 60.00 ms: 8.0 times shorter. The writers get 100 % of"),
            (61_000_000, 0.5e9, "at most 61.00 ms, with none 60.00 ms: no difference. The writers get 50 % of"),
            (150_000_000, 1.2e9, "at most 150 ms, with none 60.00 ms: 2.5 times longer. The writers get 120 % of"),
        ] {
            let sentence = flooded("mq-deadline", p99_ns, written).beside(&none);
            assert!(
                sentence.starts_with("With mq-deadline 99 of 100 reads") && sentence.contains(expected),
                "{sentence}"
            );
        }
    }

    #[test]
    fn either_load_keeps_512_writes_outstanding_beside_one_paced_reader() {
        for load in [THREADS, DEEP] {
            let jobs = JobFile::parse(load.file, load.text, &[], Mode::Strict, &System).unwrap().jobs;
            let (reader, writers) = jobs.split_first().unwrap();
            assert_eq!((reader.iodepth, reader.numjobs, writers.len()), (1, 1, 4), "{}", load.file);
            let threads: u32 = writers.iter().map(|job| job.numjobs).sum();
            let outstanding: u32 = writers.iter().map(|job| job.numjobs * job.iodepth).sum();
            assert!(outstanding >= 512, "{}: {outstanding}", load.file);
            assert_eq!(load.about, format!("{threads} threads x {}", outstanding / threads));
        }
    }
}
