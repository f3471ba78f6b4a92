//! `blkmq replay`: feeds a recorded trace to blkmq.
//!
//! The folder has the two ways: `play` through a device, `order` through the scheduler alone. Nothing else calls in
//! there. `decisions` is `order` for a recording that says what Linux decided at each time.

mod decisions;
mod order;
mod play;

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

use blkmq::Locking;
use blkmq_workbench::oracle::Scoring;
use blkmq_workbench::order::{Agreement, Decisions, Finding, Groups, Insertions, Processes, replay_bfq, steps};
use blkmq_workbench::{Classes, Settings, Speed, TraceFiles};
use clap::Args;

use self::order::List;
use crate::file;
use crate::target::{self, Time};
use blkmq_program::Failure;

/// Play a Linux trace through a device, or compare a scheduler's choices with those that Linux made.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/replay.txt")))]
pub(crate) struct Replay {
    /// The trace, as blktrace writes it.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Play the trace on this device: a name, then parameters, as in null,hw_queue_depth=4; or a file's path.
    #[arg(long, value_name = "DEVICE", required_unless_present = "order", conflicts_with = "order")]
    device: Option<String>,
    /// The scheduler in front of the device [default, as in Linux: mq-deadline for one hardware queue, else none; with
    /// --order: the one under which the trace was recorded].
    #[arg(long, value_name = "NAME")]
    scheduler: Option<String>,
    /// How many times as fast as in the trace. 0 or max: as fast as the device can, with as many operations outstanding
    /// as in the trace.
    #[arg(long, value_name = "FACTOR", default_value = "1", allow_hyphen_values = true, conflicts_with = "order")]
    speed: Speed,
    /// real: the machine's time. virtual: time passes as fast as it can be computed, and each run gives the same
    /// result.
    #[arg(long, value_name = "CLOCK", default_value = "real", conflicts_with = "order")]
    clock: Time,
    /// Play a trace with writes on a device that may hold data. All of it may be overwritten.
    #[arg(long, conflicts_with = "order")]
    overwrite: bool,
    #[arg(long, value_name = "LOCKING", default_value_t, conflicts_with = "order", help = target::locking_help())]
    locking: Locking,
    /// Whether requests may pass a scheduler in which nothing waits [default: 1 with the locking combining, else 0].
    #[arg(long, value_name = "0|1", value_parser = target::switch, conflicts_with = "order")]
    bypass: Option<bool>,
    /// Compare the order of dispatch with Linux's, on virtual time.
    #[arg(long, requires = "queue")]
    order: bool,
    /// The settings under which the trace was recorded.
    #[arg(long, value_name = "FILE", requires = "order", conflicts_with = "device")]
    queue: Option<PathBuf>,
    /// What Linux's bfq decided, for a comparison with ours.
    #[arg(long, value_name = "FILE", requires = "processes", conflicts_with_all = ["device", "classes", "adjustments"])]
    decisions: Option<PathBuf>,
    /// The processes of the trace, with their groups and priorities.
    #[arg(long, value_name = "FILE", requires = "decisions", conflicts_with = "device")]
    processes: Option<PathBuf>,
    /// The weights of the control groups [default: 100 each].
    #[arg(long, value_name = "FILE", requires = "decisions", conflicts_with = "device")]
    groups: Option<PathBuf>,
    /// Write which queues our scheduler expired by itself.
    #[arg(long, value_name = "FILE", requires = "decisions", conflicts_with = "device")]
    expirations: Option<PathBuf>,
    /// Write our choices, one line for each request that the device took, or for each time that it asked.
    #[arg(long, value_name = "FILE", requires = "order", conflicts_with = "device")]
    choices: Option<PathBuf>,
    /// Write the depths that our scheduler changed, if it is one that does.
    #[arg(long, value_name = "FILE", requires = "order", conflicts_with = "device")]
    adjustments: Option<PathBuf>,
    /// The priority classes of sector ranges. All other sectors are best-effort.
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Change a setting: NAME=VALUE for the queue, iosched/NAME=VALUE for the scheduler. May be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

impl Replay {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let classes = match &self.classes {
            Some(path) => Classes::parse(&path.display().to_string(), &file::read(path)?)?,
            None => Classes::default(),
        };
        match (&self.device, &self.queue) {
            (Some(device), _) => self.play(device, &classes, out),
            (None, Some(queue)) => self.compare(queue, &classes, out),
            (None, None) => unreachable!("the parser demands a device or, with --order, a queue"),
        }
    }

    /// Compares the choices of the scheduler with those of Linux.
    fn compare(&self, queue: &Path, classes: &Classes, out: &mut dyn Write) -> Result<(), Failure> {
        let mut settings = Settings::parse(&queue.display().to_string(), &file::read(queue)?)?;
        if let Some(scheduler) = &self.scheduler {
            settings.use_scheduler(scheduler);
        }
        for assignment in &self.set {
            settings.set(assignment)?;
        }
        let trace = TraceFiles::open(&self.trace)?;
        if let (Some(decisions), Some(processes)) = (&self.decisions, &self.processes) {
            return self.compare_decisions(trace, &settings, decisions, processes, out);
        }
        let mut findings = blkmq_workbench::order::replay(trace, &settings, classes)?;
        let (scheduler, has_depths) = (settings.scheduler(), findings.has_depths());
        if self.adjustments.is_some() && !has_depths {
            return Err(Failure::Input(format!("--adjustments: {scheduler} has no depths to adjust; kyber has")));
        }
        let mut choices = List::create(self.choices.as_deref())?;
        let mut adjustments = List::create(self.adjustments.as_deref())?;
        let mut agreement = Agreement::default();
        findings.try_for_each(|finding| {
            let finding = finding?;
            agreement.add(&finding);
            match finding {
                Finding::Choice(choice) => choices.write(|out| choice.write(out)),
                Finding::Adjustment(adjustment) => adjustments.write(|out| adjustment.write(out)),
            }
        })?;
        choices.finish()?;
        adjustments.finish()?;
        if self.json {
            order::tell_programs(&agreement, has_depths, out)
        } else {
            order::tell(&agreement, scheduler, has_depths, out)
        }
    }

    /// Compares the decisions of bfq with those of Linux's.
    fn compare_decisions(
        &self,
        trace: TraceFiles,
        settings: &Settings,
        decisions: &Path,
        processes: &Path,
        out: &mut dyn Write,
    ) -> Result<(), Failure> {
        let name = |path: &Path| path.display().to_string();
        let processes = Processes::parse(&name(processes), &file::read(processes)?)?;
        let groups = match &self.groups {
            Some(path) => Groups::parse(&name(path), &file::read(path)?)?,
            None => Groups::default(),
        };
        let lines = File::open(decisions).map_err(|error| decisions::unreadable(decisions, &error))?;
        let lines = Decisions::new(name(decisions), BufReader::new(lines));
        let again = trace.again()?;
        let insertions = Insertions::count(trace)?;
        let mut steps = replay_bfq(steps(again, lines), &insertions, settings, &processes, &groups)?;
        let mut choices = List::create(self.choices.as_deref())?;
        let mut expirations = List::create(self.expirations.as_deref())?;
        let mut scoring = Scoring::default();
        steps.try_for_each(|replayed| {
            let replayed = replayed?;
            scoring.add(&replayed);
            if let Some(answer) = replayed.answer {
                choices.write(|out| answer.write(out))?;
            }
            replayed.expired.iter().try_for_each(|expired| expirations.write(|out| expired.write(out)))
        })?;
        choices.finish()?;
        expirations.finish()?;
        let score = scoring.finish();
        if self.json { decisions::tell_programs(&score, out) } else { decisions::tell(&score, out) }
    }
}
