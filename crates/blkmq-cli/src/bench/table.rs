//! A run in words.

use std::io::{self, Write};
use std::time::Duration;

use blkmq_workbench::bench::{JobOutcome, Latency, Outcome};
use blkmq_workbench::{JobFile, Reported, Subject, reported};

use crate::target::Time;
use crate::words::{short, time, us};

/// All that the words are made from.
pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    pub(super) file: &'a JobFile,
    pub(super) outcome: &'a Outcome,
    pub(super) subject: &'a Subject,
    pub(super) clock: Time,
}

impl Table<'_> {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { name, file, outcome, subject, clock } = self;
        let clock = if *clock == Time::Real { "the machine's time" } else { "virtual time" };
        writeln!(out, "load       {name}, {} of {clock}", time(Duration::from_nanos(outcome.elapsed_ns)))?;
        writeln!(out, "device     {}, scheduler {}, locking {}", subject.device, subject.scheduler, subject.locking)?;
        if !file.without_effect.is_empty() {
            writeln!(out, "no effect  {}", file.without_effect.join(", "))?;
        }
        let titles = ["IOPS", "MiB/s", "p50", "p99", "p99.9", "max", "dev p50", "dev p99"];
        writeln!(out, "\n{:24}{}  latency in us", "", titles.map(|title| format!("{title:>9}")).concat())?;
        for Reported { job, done, .. } in reported(&file.jobs, outcome) {
            self.write_job(&job.name, &done, out)?;
        }
        self.write_layer(out)
    }

    /// One line for each direction that the job has.
    fn write_job(&self, name: &str, done: &JobOutcome, out: &mut dyn Write) -> io::Result<()> {
        let [read, write, trim] = &done.directions;
        let mut name = name;
        for (kind, direction) in [("read", read), ("write", write), ("trim", trim), ("flush", &done.sync)] {
            if direction.ios + direction.errors == 0 {
                continue;
            }
            let mib = direction.bandwidth(done.runtime_ns) / f64::from(1 << 20);
            let rates = [short(direction.iops(done.runtime_ns)), format!("{mib:.1}")];
            let times = latencies(&direction.latency, &[50.0, 99.0, 99.9, 100.0]);
            let cells = rates.into_iter().chain(times).chain(latencies(&direction.device, &[50.0, 99.0]));
            let cells = cells.map(|cell| format!("{cell:>9}")).collect::<String>();
            writeln!(out, "{name:16.16}{kind:8}{cells}")?;
            name = "";
        }
        if done.verify_errors > 0 {
            writeln!(out, "  {} blocks do not hold what was written", done.verify_errors)?;
        }
        Ok(())
    }

    fn write_layer(&self, out: &mut dyn Write) -> io::Result<()> {
        let layer = &self.outcome.layer;
        let operations = layer.requests + layer.merges;
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 };
        writeln!(out, "\nrequests to the driver {:>14}", layer.requests)?;
        writeln!(out, "merged into others     {:>14}   {:.1} %", layer.merges, share(layer.merges, operations))?;
        writeln!(out, "dispatch batches       {:>14}", layer.stats.dispatch_batches)?;
        writeln!(out, "CPU time per request   {:>14.1} ns", layer.cpu_ns_per_request())?;
        writeln!(out, "of it waiting          {:>14.1} %", 100.0 * layer.wait_share())
    }
}

/// Percentiles in microseconds, or dashes.
fn latencies(latency: &Latency, percents: &[f64]) -> Vec<String> {
    let cell = |percent: &f64| if latency.count() == 0 { "-".to_owned() } else { us(latency.percentile(*percent)) };
    percents.iter().map(cell).collect()
}
