//! The server as a program has it: built, asked how it is, and ended. Programs call in; no other module does.
//!
//! [`builder`] makes a server, and [`acceptor`] has the threads that accept clients and serve them.

mod acceptor;
mod available;
mod builder;
mod error;
mod uri;

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use blkmq_engine::{
    Accepted, ClientInfo, Engine, Errors, FrontEnd, Latencies, Listener, LogThread, Phase, Rejections, Stop,
};

pub use self::available::{MAX_CONNECTIONS, memory as available_memory};
pub use self::builder::{Bound, Builder};
pub use self::error::StartError;
use crate::connection::shared::Shared;

/// An NBD server in front of queues. Dropping it stops it at once and waits until it has.
///
/// The server sets no signal handler and keeps nothing outside this value, so a process may have any number of servers.
pub struct Server {
    shared: Arc<Shared>,
    uris: Vec<String>,
    /// The thread that accepts owns the listeners.
    listeners: Weak<Vec<Listener>>,
    acceptor: Option<JoinHandle<()>>,
    log_thread: LogThread,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("uris", &self.uris)
            .field("stop", &self.shared.engine.stop)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Begins to build a server without exports, which listens nowhere.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// NBD URIs: first for each address, then for each socket, one URI for each export. The URIs ask for TLS if TLS is
    /// required.
    #[must_use]
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    /// What the server's threads share. Clients of other front-ends, as block devices, can be clients of it too: then
    /// [`clients`](Self::clients), the statistics and the end are those of all of them.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.shared.engine
    }

    /// Returns the clients that are connected, by number.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientInfo> {
        self.shared.engine.clients.list()
    }

    /// Returns how long the requests of an export took that came through a front-end since the server was started,
    /// including those of clients that have left.
    #[must_use]
    pub fn latencies(&self, front_end: FrontEnd, export: &str) -> Latencies {
        self.shared.engine.clients.latencies(front_end, export)
    }

    /// Returns the requests of an export that came through a front-end and were answered with an error since the server
    /// was started, including those of clients that have left.
    #[must_use]
    pub fn errors(&self, front_end: FrontEnd, export: &str) -> Errors {
        self.shared.engine.clients.errors(front_end, export)
    }

    /// Returns the number of bytes of memory that the connections have, and the most that they may have.
    #[must_use]
    pub fn memory(&self) -> (usize, usize) {
        self.shared.engine.memory()
    }

    /// Connections that were not served, by reason.
    #[must_use]
    pub fn rejections(&self) -> Rejections {
        self.shared.engine.clients.rejected()
    }

    /// Returns the sockets that the server listens with, for a server that takes its place. Clients that come while
    /// neither server accepts wait. The files of Unix sockets stay from now on. This server continues to accept until
    /// it is told to end. Afterwards this function returns no sockets.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn share_sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let listeners = self.listeners.upgrade();
        listeners.iter().flat_map(|listeners| listeners.iter()).map(Listener::share).collect()
    }

    /// Returns the handle that ends the server.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.shared.engine.stop.clone()
    }

    /// Serves a client whose connected stream socket the caller has: one end of a socket pair, or a socket that other
    /// code accepted. `peer` says where the client comes from. `None`: the name of the process at the other end. The
    /// socket is made non-blocking.
    ///
    /// # Errors
    /// The server stops, too many connections negotiate, or the system gives no thread or no descriptor.
    pub fn serve(&self, socket: OwnedFd, peer: Option<&str>) -> io::Result<()> {
        if self.shared.engine.stop.phase() != Phase::Running {
            return Err(io::Error::other("the server stops"));
        }
        rustix::io::ioctl_fionbio(&socket, true)?;
        let mut client = Accepted::of_unix(socket);
        if let Some(peer) = peer {
            peer.clone_into(&mut client.peer);
        }
        match acceptor::serve(&self.shared, client)? {
            true => Ok(()),
            false => Err(io::Error::other("too many connections negotiate; try again later")),
        }
    }

    /// Waits until a thread has [stopped](Self::stop) the server and every connection of NBD is closed.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            // A thread that panicked has already reported it.
            let _ = acceptor.join();
        }
        self.shared.engine.clients.wait_empty(FrontEnd::Nbd);
        // Clients of other front-ends may still be there, whose errors are logged too.
        if self.shared.engine.clients.is_empty() {
            self.shared.engine.end_log(&self.log_thread);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.engine.stop.now();
        self.join();
    }
}
