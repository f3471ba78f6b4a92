//! The exports of a server, as its control socket shows them: their connections, latencies and errors.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use blkmq_export::{ClientInfo, FrontEnd, Latencies, Server};

use super::name::shown;
use super::schema::{Answered, Connection, by_kind};

/// The exports of a server. Once the server has drained, it has no connections, and counts nothing.
#[derive(Debug)]
pub(crate) struct Exports {
    /// The server, until it has drained.
    pub(crate) server: Arc<Mutex<Option<Server>>>,
    /// The queue of each export, by the export's name. Clients use these names of exports, commands those of queues.
    pub(crate) queues: BTreeMap<String, String>,
}

impl Exports {
    /// Reads a value of the server. Returns the default if the server has drained.
    pub(super) fn read<T: Default>(&self, of: impl FnOnce(&Server) -> T) -> T {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(of).unwrap_or_default()
    }

    /// Lists the connections.
    pub(super) fn connections(&self) -> Vec<Connection> {
        let connection = |info: ClientInfo| Connection {
            number: info.number,
            front_end: info.front_end.word().to_owned(),
            queue: info.export.as_ref().and_then(|name| self.queues.get(name)).cloned(),
            export: info.export.as_deref().map(shown).map(str::to_owned),
            peer: info.peer,
            name: info.name,
            client: info.client,
            requests: info.requests,
            bytes: info.bytes,
            errors: by_kind(&info.errors),
            latencies: info.latencies,
        };
        self.read(Server::clients).into_iter().map(connection).collect()
    }

    /// Returns the latencies of the requests that reached a queue through a front-end.
    pub(super) fn latencies(&self, front_end: FrontEnd, queue: &str) -> Latencies {
        self.read(|server| {
            let mut sum = Latencies::default();
            let exports = self.queues.iter().filter(|(_, of)| *of == queue);
            exports.for_each(|(export, _)| sum += server.latencies(front_end, export));
            sum
        })
    }

    /// Counts the errors of each export.
    pub(super) fn answered(&self) -> Vec<Answered> {
        let answered = |(export, queue): (&String, &String)| Answered {
            queue: queue.clone(),
            export: shown(export).to_owned(),
            errors: FrontEnd::ALL.map(|front_end| self.read(|server| server.errors(front_end, export))),
        };
        self.queues.iter().map(answered).collect()
    }
}
