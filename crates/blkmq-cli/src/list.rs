//! `blkmq list`: the servers that run, and their queues.

use std::io::Write;

use clap::Args;
use serde_json::json;

use crate::control::client::Which;
use blkmq_program::{Failure, json, render};

/// List the servers that run and the queues they serve.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/list.txt")))]
pub(crate) struct List {
    #[command(flatten)]
    which: Which,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

impl List {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let mut servers = Vec::new();
        for server in self.which.servers()? {
            match server.queues() {
                Ok(queues) => servers.push((server.path().display().to_string(), queues)),
                // One that was found and not named may have ended since.
                Err(failure) if self.which.is_given() => return Err(failure),
                Err(_) => (),
            }
        }
        if self.json {
            let listed = servers.iter().map(|(control, queues)| json!({ "control": control, "queues": queues }));
            return json::print(&listed.collect::<Vec<_>>(), out);
        }
        for (control, queues) in servers {
            writeln!(out, "{control}")?;
            for queue in queues {
                let size = render::size(queue.size_bytes);
                let read_only = if queue.read_only { " read-only" } else { "" };
                let kept = if queue.keeps_data { "" } else { " KEEPS NOTHING" };
                let scheduler = queue.knobs.get("scheduler").map_or("", String::as_str);
                writeln!(out, "  {}: {}, {size}{read_only}{kept}, scheduler {scheduler}", queue.name, queue.device)?;
                let health = queue.health.line();
                let description = Some(&queue.description).filter(|text| !text.is_empty());
                for line in health.iter().chain(&queue.uris).chain(description) {
                    writeln!(out, "    {line}")?;
                }
            }
        }
        Ok(())
    }
}
