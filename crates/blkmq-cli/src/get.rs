//! `blkmq get`: the knobs of a running server's queues, or of a client or group.

use std::io::Write;

use clap::Args;

use crate::control::client::Which;
use crate::control::schema::Value;
use crate::knob::Knob;
use blkmq_program::{Failure, columns, json};

/// Show the knobs of a running server's queues, or the value of one.
#[derive(Debug, Args)]
#[command(override_usage = "blkmq get [OPTIONS] [QUEUE] [KNOB [client=NAME|group=NAME]]")]
#[command(after_help = blkmq_program::after_help(include_str!("help/get.txt")))]
pub(crate) struct Get {
    /// The queue, as 'blkmq list' names it, the knob, and whose knob it is, if not the queue's. One word alone is a
    /// queue if there is one of that name.
    #[arg(value_names = ["QUEUE", "KNOB", "WHOSE"], num_args = 0..=3)]
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
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let (queue, knob) = match words[..] {
            [] => (None, None),
            [name] if queues.iter().any(|queue| queue.name == name) => (Some(name), None),
            _ => (None, Knob::read(&words)?),
        };
        if knob.is_none() && queue.is_none() && !words.is_empty() {
            return Err(Failure::Input("say what to get: [QUEUE] [KNOB [client=NAME|group=NAME]]".to_owned()));
        }
        if let Some(knob) = knob {
            let queue = server.queue(knob.queue)?.name;
            let value: Value = server.get(&knob.path(&queue))?;
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
                of: None,
                value: value.clone(),
                warnings: Vec::new(),
            };
            queue.knobs.iter().map(value).collect::<Vec<_>>()
        });
        if self.json {
            return json::print(&values.collect::<Vec<_>>(), out);
        }
        let rows = values.map(|Value { queue, knob, value, .. }| vec![queue, knob, value]);
        Ok(columns::write(&[], rows, 3, 0, out)?)
    }
}
