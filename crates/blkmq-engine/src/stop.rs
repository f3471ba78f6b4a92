//! Ending a server, from any thread.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use blkmq::Notify;
use blkmq::event::EventFd;

use crate::clients::Clients;

/// How far a server is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It serves.
    Running,
    /// What was asked for by now is still answered.
    Draining,
    /// Nothing is answered any more.
    Stopped,
}

struct Inside {
    /// A [`Phase`], which only grows.
    phase: AtomicU8,
    clients: Arc<Clients>,
    /// Wakes the thread that accepts.
    acceptor: Arc<EventFd>,
}

/// Ends a server. All clones end the same server. To end it twice has the same effect as once.
#[derive(Clone)]
pub struct Stop(Arc<Inside>);

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.phase()).finish()
    }
}

impl Stop {
    /// The handle of a server that runs, with these clients. `acceptor` wakes the thread that accepts.
    #[must_use]
    pub fn new(clients: Arc<Clients>, acceptor: Arc<EventFd>) -> Self {
        Self(Arc::new(Inside { phase: AtomicU8::new(Phase::Running as u8), clients, acceptor }))
    }

    /// Ends the server gracefully. The server accepts no new connections, and answers every request that had reached a
    /// socket. Then the server tells each client that the connection has ended, and closes the connection when the
    /// replies have arrived (with TCP, at the client's system). The call returns at once. The end takes as long as a
    /// client takes to receive its replies; [`now`](Self::now) ends that, and so does the server's stall timeout for a
    /// client that takes none. Connections that still negotiate are closed.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Ends the server at once: connections are closed, whatever was asked. The call returns at once. The connections'
    /// threads still wait for operations that the queue has.
    pub fn now(&self) {
        self.advance(Phase::Stopped);
    }

    fn advance(&self, phase: Phase) {
        // Release: publishes what the caller did before; pairs with the Acquire in `phase`. The bells ring after this
        // store, so a thread that a bell wakes sees the new phase.
        self.0.phase.fetch_max(phase as u8, Ordering::Release);
        self.0.acceptor.notify();
        self.0.clients.ring();
    }

    /// How far the server is from its end.
    #[must_use]
    pub fn phase(&self) -> Phase {
        // Acquire: pairs with the Release in `advance`.
        match self.0.phase.load(Ordering::Acquire) {
            0 => Phase::Running,
            1 => Phase::Draining,
            _ => Phase::Stopped,
        }
    }
}
