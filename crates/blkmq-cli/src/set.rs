//! `blkmq set`: changes a knob of a running server.

use std::io::{self, Write};

use clap::Args;

use crate::control::client::Which;
use crate::control::schema::Value;
use blkmq_program::{Failure, json};

const EXAMPLES: &str = "\
Examples:
  blkmq set scheduler none
  blkmq set disk iosched/fifo_batch 1
  blkmq set locking single

A change is made while I/O runs: outstanding requests complete first, and new ones wait meanwhile.";

/// Change a knob of a running server's queue.
#[derive(Debug, Args)]
#[command(override_usage = "blkmq set [OPTIONS] [QUEUE] KNOB VALUE")]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(crate) struct Set {
    /// The queue, as 'blkmq list' names it [default: the only one]; the knob; and its new value.
    #[arg(value_names = ["QUEUE", "KNOB", "VALUE"], num_args = 2..=3, required = true, allow_negative_numbers = true)]
    words: Vec<String>,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

impl Set {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let (queue, knob, value) = match &self.words[..] {
            [queue, knob, value] => (Some(queue.as_str()), knob, value),
            [knob, value] => (None, knob, value),
            _ => return Err(Failure::Input("say what to set: [QUEUE] KNOB VALUE".to_owned())),
        };
        let server = self.which.server()?;
        let queue = server.queue(queue)?.name;
        let set: Value = server.put(&["queues", &queue, "knobs", knob], value)?;
        if self.json {
            return json::print(&set, out);
        }
        writeln!(out, "{}", set.value)?;
        for warning in &set.warnings {
            // If it cannot be written, there is no other way to tell the user.
            let _ = writeln!(io::stderr(), "blkmq: {warning}");
        }
        Ok(())
    }
}
