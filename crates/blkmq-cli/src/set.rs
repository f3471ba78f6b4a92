//! `blkmq set`: changes a knob of a running server's queue, or of a client or group of it.

use std::io::{self, Write};

use clap::Args;

use crate::control::client::{Server, Which};
use crate::control::schema::Value;
use crate::knob::{Knob, Whose};
use blkmq_program::{Failure, json};

/// Change a knob of a running server's queue, or of a client or group of it.
#[derive(Debug, Args)]
#[command(override_usage = "blkmq set [OPTIONS] [QUEUE] KNOB [client=NAME|group=NAME] VALUE")]
#[command(after_help = blkmq_program::after_help(include_str!("help/set.txt")))]
pub(crate) struct Set {
    /// The queue, as 'blkmq list' names it [default: the only one]; the knob; whose knob it is, if not the queue's; and
    /// its new value. Clients have weight (1..1000) and group, groups have weight.
    #[arg(value_names = ["QUEUE", "KNOB", "WHOSE", "VALUE"], num_args = 1..=4, required = true)]
    #[arg(allow_negative_numbers = true)]
    words: Vec<String>,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

/// The last word says what to set, and not to what.
fn lacks_value(words: &[&str]) -> Failure {
    Failure::Input(format!(
        "a value is missing: blkmq set {} VALUE; the words are [QUEUE] KNOB [client=NAME|group=NAME] VALUE",
        words.join(" ")
    ))
}

/// Whether a word is the name of a queue, and not of a knob.
fn is_queue(server: &Server, word: &str) -> Result<bool, Failure> {
    let queues = server.queues()?;
    let is_knob = queues.iter().any(|queue| queue.knobs.contains_key(word));
    Ok(!is_knob && queues.iter().any(|queue| queue.name == word))
}

impl Set {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let missing = || lacks_value(&words);
        let (value, others) = words.split_last().filter(|(last, _)| Whose::of(last).is_none()).ok_or_else(missing)?;
        let knob = Knob::read(others)?.ok_or_else(missing)?;
        let server = self.which.server()?;
        if knob.queue.is_none() && is_queue(&server, knob.name)? {
            return Err(missing());
        }
        let queue = server.queue(knob.queue)?.name;
        let set: Value = server.put(&knob.path(&queue), value)?;
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
