//! `blkmq clients`: the clients of a running server with their shares, and their connections.

use std::io::{self, Write};

use clap::Args;
use serde_json::json;

use crate::control::client::Which;
use crate::control::schema::{Connection, Share};
use crate::percent;
use blkmq_program::{Failure, columns, json};

/// List the clients of a running server with their shares, and their connections.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/clients.txt")))]
pub(crate) struct Clients {
    #[command(flatten)]
    which: Which,
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

impl Clients {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let server = self.which.server()?;
        let queues = server.queues()?;
        let shares = queues.iter().map(|queue| server.get::<Vec<Share>>(&["queues", &queue.name, "clients"]));
        let clients: Vec<Share> = shares.collect::<Result<Vec<_>, _>>()?.concat();
        let connections: Vec<Connection> = server.get(&["clients"])?;
        if self.json {
            return json::print(&json!({ "clients": clients, "connections": connections }), out);
        }
        write_clients(&clients, out)?;
        for queue in queues.iter().filter(|queue| clients.iter().any(|client| client.queue == queue.name)) {
            queue.tell_idle_weights(out)?;
        }
        writeln!(out)?;
        Ok(write_connections(&connections, out)?)
    }
}

fn write_clients(clients: &[Share], out: &mut dyn Write) -> io::Result<()> {
    let head = ["client", "queue", "group", "now", "weight", "due 1s", "got 1s", "due 1m", "got 1m", "waiting"];
    let row = |client: &Share| {
        let Share { queue, client: name, group, second, minute, .. } = client;
        let now = match client {
            Share { asks_for_less: true, .. } => "asks for less",
            Share { waits: true, .. } => "waits",
            Share { second, .. } if second.received.is_some_and(|part| part > 0.0) => "goes",
            _ => "-",
        };
        let words = [name, queue, group.as_deref().unwrap_or("-"), now].map(str::to_owned);
        let parts = [second.due, second.received, minute.due, minute.received].map(percent::of);
        [words.to_vec(), vec![client.weight.to_string()], parts.to_vec(), vec![client.waiting.to_string()]].concat()
    };
    columns::write(&head, clients.iter().map(row), 5, 0, out)
}

fn write_connections(connections: &[Connection], out: &mut dyn Write) -> io::Result<()> {
    let head = ["peer", "front-end", "client", "export", "queue", "connection", "requests", "bytes", "errors"];
    let row = |connection: &Connection| {
        let Connection { number, front_end, client, export, queue, requests, bytes, errors, peer, .. } = connection;
        let named = [client, export, queue].map(|text| text.clone().unwrap_or_else(|| "-".to_owned()));
        let errors: u64 = errors.values().sum();
        let counts = [*number, *requests, *bytes, errors].map(|count| count.to_string());
        [vec![peer.clone(), front_end.clone()], named.to_vec(), counts.to_vec()].concat()
    };
    columns::write(&head, connections.iter().map(row), 5, 0, out)
}
