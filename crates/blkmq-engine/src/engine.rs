//! What the threads of a front-end share: the exports, what connections may hold, the clients, and the log. The threads
//! that let clients in and those that serve them call in.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use blkmq::QueueError;
use blkmq::SECTOR_SIZE;
use blkmq::event::EventFd;

use crate::clients::Clients;
use crate::export::Export;
use crate::log::{Journal, LogThread, Topic};
use crate::memory::budget::{BESIDE, Budget};
use crate::stop::Stop;

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

/// What all threads of a front-end share.
pub struct Engine {
    /// What clients can connect to.
    pub exports: Vec<Export>,
    /// What each connection may hold.
    pub bounds: Bounds,
    /// Ends the front-end.
    pub stop: Stop,
    /// The clients that are connected.
    pub clients: Arc<Clients>,
    /// Wakes the thread that lets clients in.
    pub bell: Arc<EventFd>,
    pub(crate) budget: Arc<Budget>,
    journal: Journal,
    /// The last log line about each export's device that has become smaller. The next client does not cause the same
    /// line again.
    shrunk: Mutex<BTreeMap<String, String>>,
}

impl Engine {
    /// Creates an engine for these exports. `memory`: bytes that all connections may have together, at least
    /// [`least_memory`](crate::least_memory) of `max_connections`. `bell` wakes the thread that lets clients in.
    #[must_use]
    pub fn new(
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
            stop: Stop::new(Arc::clone(&clients), Arc::clone(&bell)),
            clients,
            bell,
            journal,
            shrunk: Mutex::default(),
        }
    }

    /// Returns the longest read or write, in bytes, that certainly gets its memory.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.bounds.bytes.min(self.budget.longest())
    }

    /// Returns the number of bytes of memory that the connections have, and the most that they may have.
    #[must_use]
    pub fn memory(&self) -> (usize, usize) {
        let (connections, data) = self.clients.memory();
        (data + connections * BESIDE, self.budget.most())
    }

    /// Logs what is as it should be.
    pub fn inform(&self, text: fmt::Arguments<'_>) {
        self.journal.inform(text.to_string());
    }

    /// Logs what should not happen.
    pub fn warn(&self, topic: Topic, text: fmt::Arguments<'_>) {
        self.journal.warn(topic, text.to_string());
    }

    /// Warns that the device of an export has become smaller, once for each size.
    pub fn warn_of_shrinking(&self, export: &str, error: &QueueError) {
        let error = error.to_string();
        let mut told = self.shrunk.lock().unwrap_or_else(PoisonError::into_inner);
        if told.get(export) != Some(&error) {
            self.warn(Topic::Device, format_args!("export {export:?}: {error}"));
            told.insert(export.to_owned(), error);
        }
    }

    /// Warns of the bytes at the end of an export's device that are less than a block, for a front-end that addresses
    /// blocks. `disk`: what has no such bytes.
    pub fn warn_of_rest(&self, export: usize, disk: impl fmt::Display) {
        let limits = self.exports[export].queue.limits();
        let bytes = limits.size_bytes();
        let rest = bytes - limits.whole_sectors() * SECTOR_SIZE as u64;
        if rest > 0 {
            let block = limits.logical_block_size;
            let what = format_args!("less than a block of {block}, and only NBD clients reach them");
            self.warn(Topic::Device, format_args!("{disk}: the last {rest} of the device's {bytes} bytes are {what}"));
        }
    }

    /// Called when no more happens that is logged.
    pub fn end_log(&self, log_thread: &LogThread) {
        self.journal.end(log_thread);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("exports", &self.exports).field("stop", &self.stop).finish_non_exhaustive()
    }
}
