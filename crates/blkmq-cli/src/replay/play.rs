//! A replay through a device, and what it prints.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::Ordering;

use blkmq::{Clock, QueueError, RequestQueue, Status, VirtualClock};
use blkmq_workbench::{
    Classes, Latencies, Load, Outcome, Percentiles, Source, Speed, TextError, TraceFiles, assignment,
};
use serde_json::{Value, json};

use super::Replay;
use crate::device::{self, Intent};
use crate::target::{self, Time};
use blkmq_program::{Failure, interrupt, json, progress};

/// Requests that each submitter can have outstanding. A trace needs more only if the device is far slower than the
/// traced one.
const SLOTS: u16 = 1024;

impl Replay {
    /// Plays the trace on a device.
    pub(super) fn play(&self, device: &str, classes: &Classes, out: &mut dyn Write) -> Result<(), Failure> {
        let load = Load::read(TraceFiles::open(&self.trace)?, classes)?;
        if load.nr_operations == 0 {
            return Err(self.fault("the trace holds no operation: no event is a Q, I or D".to_owned()).into());
        }
        let q = self.open(device, &load)?;
        let bar = progress::bar(load.nr_operations);
        let mut tell = |done| {
            bar.set_position(done);
            bar.set_message(format!("{done} of {} operations", load.nr_operations));
        };
        let stop = interrupt::flag();
        let outcome = blkmq_workbench::play(&load, &q, self.speed, &stop, &mut tell)
            .map_err(|error| Failure::Running(error.to_string()))?;
        bar.finish_and_clear();
        let is_stopped = stop.load(Ordering::Relaxed);
        if outcome.completed == 0 && !is_stopped {
            let reasons: Vec<String> = outcome.refused.iter().map(|(status, n)| format!("{n}: {status}")).collect();
            let (reasons, ends) = (reasons.join("; "), ends(&load, &q));
            return Err(self.fault(format!("the device takes none of its operations; {reasons}; {ends}")).into());
        }
        let report = Report { load: &load, outcome: &outcome, device, q: &q, replay: self };
        if self.json {
            json::print(&report.summary(), out)?;
        } else {
            report.write(out)?;
        }
        if is_stopped { Err(interrupt::failure(&self.trace.display().to_string())) } else { Ok(()) }
    }

    /// The queue that `load` is played through, with its settings.
    fn open(&self, device: &str, load: &Load) -> Result<RequestQueue, Failure> {
        let fault = |option: &str, what: String| Failure::Input(format!("{option}: {what}"));
        let is_virtual = self.clock == Time::Virtual;
        let intent = Intent { is_virtual, changes: load.has_changes, overwrite: self.overwrite };
        let driver = device::open(device, None, intent).map_err(|what| fault("--device", what))?;
        if load.traced.latencies.percentiles("read").is_some() {
            device::warn_reader(device, &*driver);
        }
        let clock = match self.clock {
            Time::Real => Clock::real(),
            Time::Virtual => Clock::Virtual(VirtualClock::new()),
        };
        let (mut locking, mut bypass, mut knobs) = (self.locking, self.bypass, Vec::new());
        for text in &self.set {
            let fault = |what| fault(&format!("--set {text}"), what);
            match assignment(text)? {
                // The queue is built with these two settings. The two depend on each other unless both are given.
                ("locking", value) => locking = value.parse().map_err(|error: QueueError| fault(error.to_string()))?,
                ("bypass", value) => bypass = Some(target::switch(value).map_err(fault)?),
                knob => knobs.push((text, knob)),
            }
        }
        let mut builder = RequestQueue::builder(driver).clock(clock).slots(SLOTS).locking(locking);
        if let Some(bypass) = bypass {
            builder = builder.bypass(bypass);
        }
        if let Some(scheduler) = &self.scheduler {
            builder = builder.scheduler(scheduler);
        }
        let q = builder.build().map_err(|error| fault("--scheduler", error.to_string()))?;
        for (text, (name, value)) in knobs {
            q.change_knob(name, value)
                .and_then(|change| change.wait())
                .map_err(|error| fault(&format!("--set {text}"), error.to_string()))?;
        }
        Ok(q)
    }

    fn fault(&self, what: String) -> TextError {
        TextError { place: self.trace.display().to_string(), what }
    }
}

/// The ends of the trace and of the device.
fn ends(load: &Load, q: &RequestQueue) -> String {
    let capacity = q.limits().capacity_sectors;
    format!("the trace reaches to sector {}, the device to sector {capacity}", load.end)
}

/// Everything that a report is made from.
struct Report<'a> {
    load: &'a Load,
    outcome: &'a Outcome,
    device: &'a str,
    q: &'a RequestQueue,
    replay: &'a Replay,
}

const fn letter(source: Source) -> char {
    match source {
        Source::Bios => 'Q',
        Source::Insertions => 'I',
        Source::Issues => 'D',
    }
}

const fn noun(source: Source) -> &'static str {
    match source {
        Source::Bios => "bios as applications submitted them",
        Source::Insertions => "requests as they were inserted, since the trace has no Q",
        Source::Issues => "requests as the device took them, since the trace has neither Q nor I",
    }
}

fn seconds(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

impl Report<'_> {
    /// Writes the report in words.
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let (load, outcome, traced) = (self.load, self.outcome, &self.load.traced);
        let (source, nr) = (load.source, load.nr_operations);
        writeln!(out, "trace      {nr} {} ({}), by {} processes", noun(source), letter(source), load.nr_processes())?;
        write!(out, "device     {}, scheduler {}", self.device, self.q.scheduler())?;
        if self.has_scheduler() {
            write!(out, ", locking {}, bypass {}", self.q.locking(), u8::from(self.q.has_bypass()))?;
        }
        writeln!(out)?;
        let speed = match self.replay.speed {
            Speed::Scaled(1.0) => "at the traced times".to_owned(),
            Speed::Scaled(factor) => format!("{factor} times as fast as traced"),
            Speed::Max => "as fast as the device takes it, as many outstanding as traced".to_owned(),
        };
        let clock = if self.replay.clock == Time::Real { "the machine's time" } else { "virtual time" };
        writeln!(out, "played     {speed}, on {clock}")?;
        let row = |out: &mut dyn Write, name: &str, trace: &str, ours: &str| {
            writeln!(out, "{name:20} {trace:>11} {ours:>11}")
        };
        let stats = outcome.stats;
        writeln!(out)?;
        row(out, "", "trace", "replay")?;
        row(out, "completed", &traced.completed.to_string(), &outcome.completed.to_string())?;
        row(out, "requests issued", &traced.requests.to_string(), &stats.issued.to_string())?;
        let merges = stats.merges_plug + stats.merges_insert;
        row(out, "merges", &traced.merges.to_string(), &merges.to_string())?;
        row(out, "  in a plug", "", &stats.merges_plug.to_string())?;
        row(out, "  in the scheduler", "", &stats.merges_insert.to_string())?;
        if self.has_scheduler() {
            row(out, "past the scheduler", "", &stats.bypassed.to_string())?;
        }
        for (name, count) in [("requeued", stats.requeued), ("timed out", stats.timeouts)] {
            if count > 0 {
                row(out, name, "", &count.to_string())?;
            }
        }
        row(out, "duration", &seconds(traced.duration), &seconds(outcome.duration))?;
        self.write_latencies(out)?;
        for (status, n) in &outcome.failed {
            writeln!(out, "{n} operations failed: {status}")?;
        }
        for (status, n) in &outcome.refused {
            writeln!(out, "{n} operations were not played: {status}")?;
        }
        if outcome.refused.iter().any(|(status, _)| *status == Status::BeyondEnd) {
            writeln!(out, "{}", ends(load, self.q))?;
        }
        Ok(())
    }

    fn has_scheduler(&self) -> bool {
        self.q.scheduler() != "none"
    }

    fn write_latencies(&self, out: &mut dyn Write) -> io::Result<()> {
        let titles = ["p50", "p90", "p99", "p99.9", "max"].map(|title| format!("{title:>11}")).concat();
        writeln!(out, "\n{:20}{titles}", "latency in us")?;
        for kind in Latencies::KINDS {
            for (name, latencies) in [("trace", &self.load.traced.latencies), ("replay", &self.outcome.latencies)] {
                if let Some(Percentiles { p50, p90, p99, p99_9, max, .. }) = latencies.percentiles(kind) {
                    let cells = [p50, p90, p99, p99_9, max].map(|ns| format!("{:>11.1}", ns as f64 / 1e3)).concat();
                    writeln!(out, "{:20}{cells}", format!("{kind:8}{name}"))?;
                }
            }
        }
        Ok(())
    }

    /// The report for programs.
    fn summary(&self) -> Value {
        let (traced, outcome) = (&self.load.traced, self.outcome);
        let stats = outcome.stats;
        json!({
            "source": letter(self.load.source),
            "operations": self.load.nr_operations,
            "processes": self.load.nr_processes(),
            "device": self.device,
            "scheduler": self.q.scheduler(),
            "locking": self.q.locking().name(),
            "bypass": self.q.has_bypass(),
            "trace": {
                "completed": traced.completed,
                "requests": traced.requests,
                "merges": traced.merges,
                "duration_ns": traced.duration,
                "latency_ns": by_kind(&traced.latencies),
            },
            "replay": {
                "completed": outcome.completed,
                "requests": stats.issued,
                "merges": stats.merges_plug + stats.merges_insert,
                "merges_plug": stats.merges_plug,
                "merges_scheduler": stats.merges_insert,
                "bypassed": stats.bypassed,
                "requeued": stats.requeued,
                "timed_out": stats.timeouts,
                "failed": by_status(&outcome.failed),
                "refused": by_status(&outcome.refused),
                "duration_ns": outcome.duration,
                "latency_ns": by_kind(&outcome.latencies),
            },
        })
    }
}

fn by_kind(latencies: &Latencies) -> BTreeMap<&'static str, Percentiles> {
    Latencies::KINDS.into_iter().filter_map(|kind| Some((kind, latencies.percentiles(kind)?))).collect()
}

fn by_status(counts: &[(Status, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(status, n)| (format!("{status:?}"), *n)).collect()
}
