//! `blkmq schedulers`: what each scheduler does, its knobs, and those of every queue.

use std::io::{self, Write};

use blkmq::QUEUE_KNOBS;
use blkmq_sched::{Description, FeedbackKind, Knob, SCHEDULERS};
use clap::Args;
use serde_json::{Value, json};

use blkmq_program::{Failure, json};

/// Explain each scheduler and its knobs.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/schedulers.txt")))]
pub(crate) struct Schedulers {
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

/// Writes the line about a knob.
fn explain(Knob { name, unit, default, min, max, about }: &Knob, out: &mut dyn Write) -> io::Result<()> {
    let default = default.map_or_else(|| "from the queue".to_owned(), |value| format!("{value} {}", unit.symbol()));
    writeln!(out, "      {name:18} {:15} {:24} {about}", default.trim_end(), format!("{min}..{max}"))
}

/// A knob as JSON. Its default is null if the queue determines it.
fn value(Knob { name, unit, default, min, max, about }: &Knob) -> Value {
    json!({ "name": name, "unit": unit.symbol(), "default": default, "min": min, "max": max, "about": about })
}

fn values(knobs: &[Knob]) -> Vec<Value> {
    knobs.iter().map(value).collect()
}

/// The names of the schedulers in front of which a limiter may hold requests back.
pub(crate) fn with_limiter() -> impl Iterator<Item = &'static str> {
    SCHEDULERS.iter().filter(|scheduler| !scheduler.is_per_hctx()).map(|scheduler| scheduler.name)
}

/// Whether a queue with this scheduler bounds the work with the device whatever is set, while a client gets less than
/// it is due.
pub(crate) fn bounds_for_shares(name: &str) -> bool {
    Description::named(name).is_some_and(|scheduler| scheduler.feedback() == FeedbackKind::Usage)
}

impl Schedulers {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let none = ("none", "No order: each submitter's requests go to the device as they come.", &[][..]);
        let others = SCHEDULERS.iter().map(|scheduler| (scheduler.name, scheduler.about, scheduler.knobs));
        let schedulers = std::iter::once(none).chain(others);
        if self.json {
            let of = |(name, about, knobs)| json!({ "name": name, "about": about, "knobs": values(knobs) });
            let schedulers: Vec<_> = schedulers.map(of).collect();
            return json::print(&json!({ "schedulers": schedulers, "queue": values(QUEUE_KNOBS) }), out);
        }
        for (name, about, knobs) in schedulers {
            writeln!(out, "{name}\n    {about}")?;
            knobs.iter().try_for_each(|knob| explain(knob, out))?;
            writeln!(out)?;
        }
        writeln!(
            out,
            "every queue, whatever its scheduler\n    Set without the prefix iosched/ that the knobs above need."
        )?;
        Ok(QUEUE_KNOBS.iter().try_for_each(|knob| explain(knob, out))?)
    }
}
