//! `blkmq replay`: feeds a recorded trace to blkmq.
//!
//! The folder has the two ways: `play` through a device, `order` through the scheduler alone. Nothing else calls in
//! there.

mod order;
mod play;

use std::io::Write;
use std::path::{Path, PathBuf};

use blkmq::Locking;
use blkmq_workbench::{Classes, Settings, Speed, TraceFiles};
use clap::Args;

use crate::file;
use crate::target::{self, Time};
use blkmq_program::Failure;

const EXAMPLES: &str = "\
Examples:
  blkmq replay trace.blktrace.0 --device null,irqmode=2,completion_nsec=500us,hw_queue_depth=1 --scheduler mq-deadline
  blkmq replay trace --device ram,size=1G --scheduler none --speed max --json
  blkmq replay trace --device null --clock virtual --set nr_requests=128 --set iosched/fifo_batch=1
  blkmq replay --order trace.blktrace.0 --queue queue.txt
  blkmq replay --order trace --queue queue.txt --classes classes.txt --choices choices.txt --json
  blkmq replay --order trace --queue queue.txt --scheduler kyber --adjustments depths.txt --set read_lat_nsec=500000

With --device the operations of the trace go through the whole block layer, with a submitter for each traced process and a
plug for each traced plug. The counts and latencies are printed beside those of the trace. A latency runs from the moment
at which an operation is due (with --speed max: is submitted) to its completion; latencies have four digits. A trace holds
no data, so zeroes are written.

With --order the scheduler alone gets what Linux's scheduler got, and each of its choices is compared with Linux's choice.

Files:
  TRACE    as blktrace writes it, little-endian: NAME stands for NAME.blktrace.0, NAME.blktrace.1 and so on, and
           so does the name of one of these files
  queue    lines 'NAME VALUE': the files of Linux's queue/ and queue/iosched/, in the kernel's units; one line
           'scheduler none [mq-deadline]' with the active one in brackets
  classes  lines 'FIRST END CLASS': the sectors from FIRST to before END were used under CLASS: rt, be or idle
  choices  a line for each request that the device took: the time in ns, then the sector and R, W or D of the
           request that our scheduler had chosen for it, or '- -' if it had chosen none
  adjustments
           a line for each depth that our scheduler changed: the time in ns, READ, WRITE or DISCARD, and the depth

'blkmq devices' lists devices and their parameters, 'blkmq schedulers' schedulers and knobs.";

/// Play a Linux trace through a device, or compare a scheduler's choices with those that Linux made.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(crate) struct Replay {
    /// The trace, as blktrace writes it.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Play the trace on this device: a name, then parameters, as in null,hw_queue_depth=4.
    #[arg(long, value_name = "SPEC", required_unless_present = "order", conflicts_with = "order")]
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
    /// Write our choices, one line for each request that the device took.
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
        let trace = TraceFiles::read(&self.trace)?;
        let agreement = blkmq_workbench::order::replay(&trace.events()?, &settings, classes)?;
        if let Some(path) = &self.choices {
            order::write_choices(path, &agreement)?;
        }
        if let Some(path) = &self.adjustments {
            order::write_adjustments(path, &agreement, settings.scheduler())?;
        }
        if self.json {
            order::tell_programs(&agreement, out)
        } else {
            order::tell(&agreement, settings.scheduler(), out)
        }
    }
}
