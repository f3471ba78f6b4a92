//! `blkmq schedulers`: what each scheduler does, its knobs, and those of every queue.

use std::io::{self, Write};

use blkmq::QUEUE_KNOBS;
use blkmq_sched::SCHEDULERS;
use clap::Args;
use serde::Serialize;

use blkmq_program::{Failure, json};

const EXAMPLES: &str = "\
Examples:
  blkmq schedulers
  blkmq replay trace --device null --scheduler mq-deadline --set nr_requests=64 --set iosched/fifo_batch=1";

/// Explain each scheduler and its knobs.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(crate) struct Schedulers {
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Explained {
    schedulers: Vec<Scheduler>,
    queue: Vec<Knob>,
}

#[derive(Debug, Serialize)]
struct Scheduler {
    name: &'static str,
    about: &'static str,
    knobs: Vec<Knob>,
}

#[derive(Debug, Serialize)]
struct Knob {
    name: &'static str,
    unit: &'static str,
    /// `None` if the queue determines it.
    default: Option<i64>,
    min: i64,
    max: i64,
    about: &'static str,
}

impl Knob {
    fn of(knob: &blkmq_sched::Knob) -> Self {
        let &blkmq_sched::Knob { name, unit, default, min, max, about } = knob;
        Self { name, unit: unit.symbol(), default, min, max, about }
    }

    fn explain(&self, out: &mut dyn Write) -> io::Result<()> {
        let default =
            self.default.map_or_else(|| "from the queue".to_owned(), |value| format!("{value} {}", self.unit));
        let range = format!("{}..{}", self.min, self.max);
        writeln!(out, "      {:18} {:15} {range:24} {}", self.name, default.trim_end(), self.about)
    }
}

fn explained() -> Explained {
    let none = Scheduler {
        name: "none",
        about: "No order: each submitter's requests go to the device as they come.",
        knobs: Vec::new(),
    };
    let others = SCHEDULERS.iter().map(|scheduler| Scheduler {
        name: scheduler.name,
        about: scheduler.about,
        knobs: scheduler.knobs.iter().map(Knob::of).collect(),
    });
    Explained {
        schedulers: std::iter::once(none).chain(others).collect(),
        queue: QUEUE_KNOBS.iter().map(Knob::of).collect(),
    }
}

/// The names of the schedulers in front of which a limiter may hold requests back.
pub(crate) fn with_limiter() -> impl Iterator<Item = &'static str> {
    SCHEDULERS.iter().filter(|scheduler| !scheduler.is_per_hctx()).map(|scheduler| scheduler.name)
}

impl Schedulers {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let explained = explained();
        if self.json {
            return json::print(&explained, out);
        }
        for scheduler in explained.schedulers {
            writeln!(out, "{}\n    {}", scheduler.name, scheduler.about)?;
            for knob in &scheduler.knobs {
                knob.explain(out)?;
            }
            writeln!(out)?;
        }
        writeln!(
            out,
            "every queue, whatever its scheduler\n    Set without the prefix iosched/ that the knobs above need."
        )?;
        for knob in &explained.queue {
            knob.explain(out)?;
        }
        Ok(())
    }
}
