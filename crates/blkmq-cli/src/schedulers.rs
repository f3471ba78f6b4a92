//! `blkmq schedulers`: what each scheduler does, and its knobs.

use std::io::{self, Write};

use blkmq_sched::{Knob, SCHEDULERS};
use clap::Args;

use crate::failure::Failure;

/// Explain each scheduler and its knobs.
#[derive(Debug, Args)]
#[command(after_help = crate::EXIT_CODES)]
pub(crate) struct Schedulers {}

impl Schedulers {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        writeln!(out, "none\n    No order: each submitter's requests go to the device as they come.")?;
        for scheduler in SCHEDULERS {
            writeln!(out, "\n{}\n    {}", scheduler.name, scheduler.about)?;
            for knob in scheduler.knobs {
                explain(knob, out)?;
            }
        }
        Ok(())
    }
}

fn explain(knob: &Knob, out: &mut dyn Write) -> io::Result<()> {
    let unit = knob.unit.symbol();
    let default = knob.default.map_or_else(|| "from the queue".to_owned(), |value| format!("{value} {unit}"));
    let range = format!("{}..{}", knob.min, knob.max);
    writeln!(out, "      {:18} {:15} {range:24} {}", knob.name, default.trim_end(), knob.about)
}
