//! `blkmq get`: the knobs of a running server.

use std::io::Write;

use clap::Args;

use crate::control::client::Which;
use crate::control::schema::Value;
use blkmq_program::{Failure, json};

const EXAMPLES: &str = "\
Examples:
  blkmq get                       every knob of every queue
  blkmq get scheduler             one knob of the only queue
  blkmq get disk                  every knob of the queue called disk
  blkmq get disk iosched/fifo_batch";

/// Show the knobs of a running server's queues, or the value of one.
#[derive(Debug, Args)]
#[command(override_usage = "blkmq get [OPTIONS] [QUEUE] [KNOB]")]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(crate) struct Get {
    /// The queue, as 'blkmq list' names it, and the knob. One word alone is a queue if there is one of that name.
    #[arg(value_names = ["QUEUE", "KNOB"], num_args = 0..=2)]
    words: Vec<String>,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

impl Get {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let server = self.which.server()?;
        let queues = server.queues()?;
        let is_queue = |name: &String| queues.iter().any(|queue| queue.name == *name);
        let (queue, knob) = match &self.words[..] {
            [queue, knob] => (Some(queue), Some(knob)),
            [name] if is_queue(name) => (Some(name), None),
            [knob] => (None, Some(knob)),
            _ => (None, None),
        };
        if let Some(knob) = knob {
            let queue = server.queue(queue.map(String::as_str))?.name;
            let value: Value = server.get(&["queues", &queue, "knobs", knob])?;
            if self.json {
                return json::print(&value, out);
            }
            writeln!(out, "{}", value.value)?;
            return Ok(());
        }
        let shown = queues.iter().filter(|found| queue.is_none_or(|name| found.name == *name));
        let values = shown.flat_map(|queue| {
            let value = |(knob, value): (&String, &String)| Value {
                queue: queue.name.clone(),
                knob: knob.clone(),
                value: value.clone(),
                warnings: Vec::new(),
            };
            queue.knobs.iter().map(value).collect::<Vec<_>>()
        });
        if self.json {
            return json::print(&values.collect::<Vec<_>>(), out);
        }
        for Value { queue, knob, value, .. } in values {
            writeln!(out, "{queue:12} {knob:24} {value}")?;
        }
        Ok(())
    }
}
