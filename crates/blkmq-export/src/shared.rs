//! What the threads of a server share: the exports, what connections may hold, the clients, and the log. The thread
//! that accepts and the thread of each connection call in.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blkmq::event::EventFd;

use crate::budget::Budget;
use crate::clients::Clients;
use crate::export::Export;
use crate::log::{Journal, Topic};
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
    pub(crate) exports: Vec<Export>,
    pub(crate) bounds: Bounds,
    pub(crate) budget: Arc<Budget>,
    /// The longest read or write, in bytes, that certainly gets its memory.
    pub(crate) longest: usize,
    pub(crate) tls: Option<Tls>,
    pub(crate) negotiation_timeout: Duration,
    pub(crate) stall_timeout: Option<Duration>,
    pub(crate) stop: Stop,
    pub(crate) clients: Arc<Clients>,
    /// Wakes the thread that accepts.
    pub(crate) bell: Arc<EventFd>,
    pub(crate) journal: Journal,
    /// The last log line about each export's device that has become smaller. The next client does not cause the same
    /// line again.
    pub(crate) shrunk: Mutex<BTreeMap<String, String>>,
}

impl Shared {
    pub(crate) fn inform(&self, text: fmt::Arguments<'_>) {
        self.journal.inform(text.to_string());
    }

    pub(crate) fn warn(&self, topic: Topic, text: fmt::Arguments<'_>) {
        self.journal.warn(topic, text.to_string());
    }
}
