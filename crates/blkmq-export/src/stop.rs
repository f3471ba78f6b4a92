//! Ending a server, from any thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use blkmq::Notify;
use blkmq::event::EventFd;

use crate::clients::Clients;

/// How far a server is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Draining,
    Stopped,
}

struct Inside {
    /// A [`Phase`], which only grows.
    phase: AtomicU8,
    clients: Arc<Clients>,
    /// Wakes the thread that accepts.
    acceptor: Arc<EventFd>,
}

/// Ends a server. Clones end the same one; ending it twice is ending it once.
#[derive(Clone)]
pub struct Stop(Arc<Inside>);

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.phase()).finish()
    }
}

impl Stop {
    pub(crate) fn new(clients: Arc<Clients>, acceptor: Arc<EventFd>) -> Self {
        Self(Arc::new(Inside { phase: AtomicU8::new(Phase::Running as u8), clients, acceptor }))
    }

    /// Gracefully: no new connections, and each client is answered what had reached its socket. Then its connection is
    /// told to have ended, and closed when the replies have arrived, by TCP at the client's system. Returns at once. It
    /// takes as long as a client takes to receive its replies; [`now`](Self::now) ends that, and the server's stall
    /// timeout for a client that takes none. Connections that still negotiate are closed.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// At once: connections are closed, whatever was asked. Returns at once; operations that the queue has are waited
    /// for by the connections' threads.
    pub fn now(&self) {
        self.advance(Phase::Stopped);
    }

    fn advance(&self, phase: Phase) {
        // Release: publishes what the caller did before; pairs with the Acquire in `phase`. The bells come after it, so
        // who wakes sees it.
        self.0.phase.fetch_max(phase as u8, Ordering::Release);
        self.0.acceptor.notify();
        self.0.clients.ring();
    }

    pub(crate) fn phase(&self) -> Phase {
        // Acquire: pairs with the Release in `advance`.
        match self.0.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Draining,
            _ => Phase::Stopped,
        }
    }
}
