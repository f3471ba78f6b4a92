//! `blkmq groups`: the groups of clients of a running server's queues.

use std::io::Write;

use clap::Args;
use serde_json::Value;

use crate::control::client::Which;
use crate::control::schema::Group;
use crate::percent;
use blkmq_program::{Failure, columns, json};

/// List the groups of clients of a running server's queues, or add or remove one.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/groups.txt")))]
pub(crate) struct Groups {
    /// The queue, as 'blkmq list' names it [default: all; to add or remove a group: the only one].
    queue: Option<String>,
    /// Add a group, of weight 100. The path of a group in another one begins with that one's, as in gold/batch.
    #[arg(long, value_name = "GROUP", conflicts_with = "remove")]
    add: Option<String>,
    /// Remove a group that has no clients and groups in it.
    #[arg(long, value_name = "GROUP")]
    remove: Option<String>,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

impl Groups {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let server = self.which.server()?;
        if let Some(group) = self.add.as_ref().or(self.remove.as_ref()) {
            let queue = server.queue(self.queue.as_deref())?.name;
            let path = ["queues", &queue, "groups", group];
            let answer: Value = if self.add.is_some() { server.put(&path, "")? } else { server.delete(&path)? };
            return if self.json { json::print(&answer, out) } else { Ok(()) };
        }
        let queues = match &self.queue {
            Some(name) => vec![server.queue(Some(name))?],
            None => server.queues()?,
        };
        let groups = queues.iter().map(|queue| server.get::<Vec<Group>>(&["queues", &queue.name, "groups"]));
        let groups: Vec<Group> = groups.collect::<Result<Vec<_>, _>>()?.concat();
        if self.json {
            return json::print(&groups, out);
        }
        let head = ["group", "queue", "weight", "clients", "due 1s", "got 1s", "due 1m", "got 1m"];
        let rows = groups.into_iter().map(|group| {
            let Group { queue, group, weight, clients, second, minute } = group;
            let [weight, clients] = [weight.to_string(), clients.to_string()];
            let parts = [second.due, second.received, minute.due, minute.received].map(percent::of);
            [vec![group, queue, weight, clients], parts.to_vec()].concat()
        });
        columns::write(&head, rows, 2, 0, out)?;
        queues.iter().try_for_each(|queue| queue.tell_idle_weights(out))?;
        Ok(())
    }
}
