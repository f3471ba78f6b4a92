//! `blkmq dump`: everything that a running server's queue holds.

use std::io::Write;

use clap::Args;

use crate::control::client::Which;
use blkmq_program::Failure;

/// Show everything that a queue of a running server holds: lists, tags, requests, threads, counters.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/dump.txt")))]
pub(crate) struct Dump {
    /// The queue, as 'blkmq list' names it [default: the only one].
    queue: Option<String>,
    #[command(flatten)]
    which: Which,
}

impl Dump {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let server = self.which.server()?;
        let queue = server.queue(self.queue.as_deref())?.name;
        out.write_all(server.text(&["queues", &queue, "dump"])?.as_bytes())?;
        Ok(())
    }
}
