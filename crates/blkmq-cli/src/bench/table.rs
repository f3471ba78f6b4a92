//! The report of a run in words.

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::Duration;

use blkmq::GateCounts;
use blkmq_workbench::bench::{JobOutcome, Latency, LayerOutcome, Outcome};
use blkmq_workbench::report::{self, Section};
use blkmq_workbench::{JobFile, Reported, Subject, reported};

use crate::page;
use crate::target::Time;
use blkmq_program::{
    columns,
    render::{distinct, short, time, us},
};

/// Everything that the words are made from.
pub(super) struct Table<'a> {
    pub(super) name: &'a str,
    pub(super) file: &'a JobFile,
    pub(super) outcome: &'a Outcome,
    pub(super) subject: &'a Subject,
    pub(super) clock: Time,
}

/// The results of one job, or group of threads, in one direction.
struct Row {
    name: String,
    kind: &'static str,
    /// Cells in the order of [`TITLES`].
    cells: Vec<String>,
}

/// A fact about what the block layer did with a load.
struct Fact {
    title: &'static str,
    text: String,
    /// The whole that this is a part of, or the unit. May be empty.
    share: String,
    /// What the reader should know. May be empty.
    about: Cow<'static, str>,
}

/// What counts as waiting.
pub(super) const WAITING: &str = "(for the scheduler's lock, and in polls that found no completion)";

/// The note shown if nearly all requests bypassed the scheduler.
pub(super) const NOTHING_WAITED: &str = "nothing waits that the scheduler could order, as the device takes all that is outstanding at once: raise iodepth, or \
     lower the device's hw_queue_depth";

/// Whether there is a scheduler, and next to nothing waited for it.
pub(super) fn is_idle(scheduler: &str, layer: &LayerOutcome) -> bool {
    scheduler != "none" && layer.bypassed_share() > 0.99
}

const TITLES: [&str; 8] = ["IOPS", "MiB/s", "p50", "p99", "p99.9", "max", "dev p50", "dev p99"];

impl Table<'_> {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for (title, text) in self.facts() {
            writeln!(out, "{title:11}{text}")?;
        }
        let reported = reported(&self.file.jobs, self.outcome);
        let mut lines = vec![[vec![String::new(); 2], TITLES.map(str::to_owned).to_vec()].concat()];
        let mut wrong = Vec::new();
        for (name, Reported { job, done, .. }) in names(&reported).iter().zip(&reported) {
            let mut shown = &**name;
            for Row { kind, cells, .. } in rows(name, done) {
                lines.push([vec![shown.to_owned(), kind.to_owned()], cells].concat());
                shown = "";
            }
            if done.verify_errors > 0 {
                wrong.push(format!("{}: {} blocks do not hold what was written", job.name, done.verify_errors));
            }
        }
        let mut note = "  latency in us";
        writeln!(out)?;
        for line in columns::lines(&lines, 2, 8) {
            writeln!(out, "{line}{note}")?;
            note = "";
        }
        for line in wrong {
            writeln!(out, "{line}")?;
        }
        writeln!(out)?;
        let layer: Vec<Vec<String>> = self
            .layer()
            .into_iter()
            .map(|Fact { title, text, share, .. }| vec![title.to_owned(), text, share])
            .collect();
        let notes = self.layer().into_iter().map(|fact| fact.about);
        for (line, about) in columns::lines(&layer, 1, 8).iter().zip(notes) {
            writeln!(out, "{}", if about.is_empty() { line.clone() } else { format!("{line}  {about}") })?;
        }
        Ok(())
    }

    /// The sections for a report, including those that only a report has room for.
    pub(super) fn sections(&self) -> Vec<Section> {
        let reported = reported(&self.file.jobs, self.outcome);
        let named: Vec<(String, &JobOutcome)> =
            names(&reported).into_iter().zip(reported.iter().map(|reported| &reported.done)).collect();
        let rows = named.iter().flat_map(|(name, done)| rows(name, done));
        let rows = rows.map(|row| [vec![row.name, row.kind.to_owned()], row.cells].concat()).collect();
        let facts = self.facts().into_iter().map(|(title, text)| vec![title.to_owned(), text]).collect();
        let layer = self.layer().into_iter();
        let layer =
            layer.map(|fact| vec![fact.title.to_owned(), fact.text, fact.share, fact.about.into_owned()]).collect();
        let head = [&["job", "direction"][..], &TITLES].concat();
        let note = "Latencies in microseconds; dev: in the device alone.";
        let mut sections = vec![page::table("Setting", "", &["", ""], facts), page::table("Jobs", note, &head, rows)];
        sections.extend(report::latencies(&named));
        sections.extend(report::throughput(&named));
        sections.push(page::table("Block layer", "", &["", "", "", ""], layer));
        sections
    }

    /// What ran, and on what.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let Self { name, file, outcome, subject, clock } = self;
        let is_real = *clock == Time::Real;
        let clock = if is_real { "the machine's time" } else { "virtual time" };
        let mut facts = vec![
            ("load", format!("{name}, {} of {clock}", time(Duration::from_nanos(outcome.elapsed_ns)))),
            ("device", format!("{}, {}", subject.device, scheduler(subject))),
        ];
        if is_real {
            facts.push(("stamps", format!("{}, {}", subject.stamps, stamps(subject.stamps))));
        }
        if !file.without_effect.is_empty() {
            facts.push(("no effect", file.without_effect.join(", ")));
        }
        facts
    }

    /// What the block layer did with the load.
    fn layer(&self) -> Vec<Fact> {
        let layer = &self.outcome.layer;
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let fact = |title, text, share| Fact { title, text, share, about: Cow::Borrowed("") };
        let mut rows = vec![
            fact("requests to the driver", layer.requests.to_string(), String::new()),
            fact("merged into others", layer.merges.to_string(), percent(layer.merged_share())),
        ];
        if self.subject.scheduler != "none" {
            let passed = percent(layer.bypassed_share());
            let about = if is_idle(&self.subject.scheduler, layer) { NOTHING_WAITED } else { "" };
            let about = about.into();
            rows.push(Fact { about, ..fact("past the scheduler", layer.stats.bypassed.to_string(), passed) });
            rows.push(fact("scheduler held", layer.stats.holds.to_string(), String::new()));
            rows.push(fact("requests per hold", format!("{:.2}", layer.requests_per_hold()), String::new()));
        }
        let GateCounts { shut, shut_ns, .. } = layer.stats.gate;
        if shut_ns > 0 {
            rows.push(fact("bypass gate shut", shut.to_string(), time(Duration::from_nanos(shut_ns))));
        }
        rows.extend([
            fact("dispatch batches", layer.stats.dispatch_batches.to_string(), String::new()),
            fact("CPU time per request", format!("{:.1} ns", layer.cpu_ns_per_request()), String::new()),
            Fact { about: WAITING.into(), ..fact("of it waiting", percent(layer.wait_share()), String::new()) },
        ]);
        let woken = layer.stats.wakeups;
        if woken.total() > 0 {
            let causes = woken.by_cause().into_iter().filter(|(_, number)| *number > 0);
            let causes: Vec<_> = causes.map(|(cause, number)| format!("{cause} {number}")).collect();
            let about = format!("({})", causes.join(", ")).into();
            rows.push(Fact { about, ..fact("threads woken", woken.total().to_string(), String::new()) });
        }
        let waits = self.outcome.waits();
        let all = [
            ("waits for the lock", "lock p50 p99 p99.9", &waits.lock),
            ("published", "staged p50 p99 p99.9", &waits.staged),
        ];
        for (title, times, waits) in all.into_iter().filter(|(.., waits)| waits.count() > 0) {
            rows.push(fact(title, waits.count().to_string(), String::new()));
            let [p50, p99, p99_9] = [50.0, 99.0, 99.9].map(|percent| us(waits.percentile(percent)));
            rows.push(fact(times, format!("{p50} {p99} {p99_9}"), "us".to_owned()));
        }
        rows
    }
}

/// The scheduler, and how threads share it if there is one.
fn scheduler(Subject { scheduler, locking, bypass, .. }: &Subject) -> String {
    if scheduler == "none" {
        return "scheduler none".to_owned();
    }
    format!("scheduler {scheduler}, locking {locking}, bypass {}", u8::from(*bypass))
}

/// What the name of a source of time stamps means.
fn stamps(name: &str) -> &'static str {
    match name {
        "exact" => "from a clock that is read for each batch, as requests of applications have them",
        "coarse" => {
            "the kernel's last tick, as no job measures a latency; --set stamps=1 gives what applications pay for"
        }
        _ => "the cost of time stamps is left out",
    }
}

/// The names of everything that is reported. No two are the same.
fn names(reported: &[Reported<'_>]) -> Vec<String> {
    distinct(&reported.iter().map(|reported| &*reported.job.name).collect::<Vec<_>>())
}

/// One row for each direction that the job has.
fn rows(name: &str, done: &JobOutcome) -> Vec<Row> {
    let [read, write, trim] = &done.directions;
    let mut rows = Vec::new();
    for (kind, direction) in [("read", read), ("write", write), ("trim", trim), ("flush", &done.sync)] {
        if direction.ios + direction.errors == 0 {
            continue;
        }
        let mib = direction.bandwidth(done.runtime_ns) / f64::from(1 << 20);
        let rates = [short(direction.iops(done.runtime_ns)), format!("{mib:.1}")];
        let times = latencies(&direction.latency, &[50.0, 99.0, 99.9, 100.0]);
        let cells = rates.into_iter().chain(times).chain(latencies(&direction.device, &[50.0, 99.0])).collect();
        rows.push(Row { name: name.to_owned(), kind, cells });
    }
    rows
}

/// Percentiles in microseconds, or dashes.
fn latencies(latency: &Latency, percents: &[f64]) -> Vec<String> {
    let cell = |percent: &f64| if latency.count() == 0 { "-".to_owned() } else { us(latency.percentile(*percent)) };
    percents.iter().map(cell).collect()
}
