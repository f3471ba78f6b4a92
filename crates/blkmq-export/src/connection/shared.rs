//! What the threads of a server share: the exports, what connections may hold, the clients, and the log. The thread
//! that accepts and the thread of each connection call in.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use blkmq::QueueError;
use blkmq::event::EventFd;

use super::budget::{BESIDE, Budget};
use crate::clients::Clients;
use crate::export::Export;
use crate::log::{Journal, Teller, Topic};
use crate::stop::Stop;
use crate::tls::Tls;

/// What one connection may hold at a time. When a connection holds this much, the server reads nothing more from the
/// client until replies have been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Requests that are not answered yet: 1 to 32768, 256 by default.
    pub requests: u16,
    /// Bytes of the requests' buffers, each rounded up to a power of two: at least 65536, 64 MiB by default. A read or
    /// write whose length exceeds this, or 32 MiB, is refused. A request whose length does not, but whose buffers do,
    /// waits until the connection works on nothing else.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { requests: 256, bytes: 64 << 20 }
    }
}

/// What all threads of a server share.
pub(crate) struct Shared {
    pub(super) exports: Vec<Export>,
    pub(super) bounds: Bounds,
    pub(super) budget: Arc<Budget>,
    pub(super) tls: Option<Tls>,
    pub(super) negotiation_timeout: Duration,
    pub(super) stall_timeout: Option<Duration>,
    pub(crate) stop: Stop,
    pub(crate) clients: Arc<Clients>,
    /// Wakes the thread that accepts.
    pub(crate) bell: Arc<EventFd>,
    journal: Journal,
    /// The last log line about each export's device that has become smaller. The next client does not cause the same
    /// line again.
    shrunk: Mutex<BTreeMap<String, String>>,
}

impl Shared {
    /// What a server without TLS shares, whose clients may take their time. `memory`: bytes that all connections may
    /// have together, at least [`least`](super::budget::least) of `max_connections`. `bell` wakes the thread that
    /// accepts.
    pub(crate) fn new(
        exports: Vec<Export>,
        bounds: Bounds,
        memory: usize,
        max_connections: usize,
        bell: Arc<EventFd>,
        journal: Journal,
    ) -> Self {
        let clients = Arc::new(Clients::new(max_connections));
        Self {
            exports,
            bounds,
            budget: Arc::new(Budget::new(memory, max_connections)),
            tls: None,
            negotiation_timeout: Duration::MAX,
            stall_timeout: None,
            stop: Stop::new(Arc::clone(&clients), Arc::clone(&bell)),
            clients,
            bell,
            journal,
            shrunk: Mutex::default(),
        }
    }

    /// The same with TLS, and with limits to how long clients may take: to choose an export, and to send or to read
    /// more of what they have begun.
    pub(crate) fn with(self, tls: Option<Tls>, negotiation: Duration, stall: Option<Duration>) -> Self {
        Self { tls, negotiation_timeout: negotiation, stall_timeout: stall, ..self }
    }

    /// The longest read or write, in bytes, that certainly gets its memory.
    pub(super) fn longest(&self) -> usize {
        self.bounds.bytes.min(self.budget.longest())
    }

    /// Bytes of memory that the connections have, and the most that they may have.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let (connections, data) = self.clients.memory();
        (data + connections * BESIDE, self.budget.most())
    }

    pub(crate) fn inform(&self, text: fmt::Arguments<'_>) {
        self.journal.inform(text.to_string());
    }

    pub(crate) fn warn(&self, topic: Topic, text: fmt::Arguments<'_>) {
        self.journal.warn(topic, text.to_string());
    }

    /// Warns that the device of an export has become smaller, once for each size.
    pub(super) fn warn_of_shrinking(&self, export: &str, error: &QueueError) {
        let error = error.to_string();
        let mut told = self.shrunk.lock().unwrap_or_else(PoisonError::into_inner);
        if told.get(export) != Some(&error) {
            self.warn(Topic::Device, format_args!("export {export:?}: {error}"));
            told.insert(export.to_owned(), error);
        }
    }

    /// Called when no more happens that is logged.
    pub(crate) fn end_log(&self, teller: &Teller) {
        self.journal.end(teller);
    }
}
