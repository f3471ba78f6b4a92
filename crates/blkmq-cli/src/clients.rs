//! `blkmq clients`: the clients that are connected to a running server.

use std::io::Write;

use clap::Args;

use crate::control::client::Which;
use crate::control::schema::Client;
use blkmq_program::{Failure, json};

const EXAMPLES: &str = "\
Examples:
  blkmq clients
  blkmq clients --json";

/// List the clients that are connected to a running server.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(crate) struct Clients {
    #[command(flatten)]
    which: Which,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

impl Clients {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let clients: Vec<Client> = self.which.server()?.get(&["clients"])?;
        if self.json {
            return json::print(&clients, out);
        }
        let [client, name, export, queue] = ["client", "name", "export", "queue"];
        let [requests, bytes, errors] = ["requests", "bytes", "errors"];
        writeln!(out, "{client:>6} {name:12} {export:12} {queue:12} {requests:>12} {bytes:>16} {errors:>8}  peer")?;
        for Client { number, name, export, queue, requests, bytes, errors, peer, .. } in clients {
            let [name, export, queue] = [name, export, queue].map(|text| text.unwrap_or_else(|| "-".to_owned()));
            let errors: u64 = errors.values().sum();
            writeln!(
                out,
                "{number:>6} {name:12} {export:12} {queue:12} {requests:>12} {bytes:>16} {errors:>8}  {peer}"
            )?;
        }
        Ok(())
    }
}
