//! How a server comes about: it is configured, checked, bound to its addresses, and started.

use std::collections::HashSet;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use blkmq::event::EventFd;
use blkmq_engine::{Address, Bounds, Engine, Export, Journal, Level, Listener, Log, least_memory};

use super::Server;
use super::acceptor::accept_all;
use super::available::{self, MAX_CONNECTIONS};
use super::error::StartError;
use super::uri::uri;
use crate::connection::shared::Shared;
use crate::tls::Tls;

/// What a server is built from.
pub struct Builder {
    exports: Vec<Export>,
    addresses: Vec<Address>,
    /// Sockets that already listen, and the permissions that their files get.
    sockets: Vec<(OwnedFd, Option<u32>)>,
    max_connections: Option<usize>,
    negotiation_timeout: Duration,
    stall_timeout: Option<Duration>,
    bounds: Bounds,
    memory: Option<usize>,
    tls: Option<Tls>,
    log: Arc<dyn Log>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("exports", &self.exports)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            exports: Vec::new(),
            addresses: Vec::new(),
            sockets: Vec::new(),
            max_connections: None,
            negotiation_timeout: Duration::from_secs(10),
            stall_timeout: Some(Duration::from_secs(300)),
            bounds: Bounds::default(),
            memory: None,
            tls: None,
            log: Arc::new(|_: Level, _: &str| ()),
        }
    }

    /// Adds an export. A server needs at least one, and the names must differ.
    #[must_use]
    pub fn export(mut self, export: Export) -> Self {
        self.exports.push(export);
        self
    }

    /// Adds an address to listen at. Without any address, clients come only through [`Server::serve`].
    #[must_use]
    pub fn listen(mut self, address: Address) -> Self {
        self.addresses.push(address);
        self
    }

    /// Adds a Unix or TCP socket that already listens. A service manager that starts servers when clients come hands
    /// over such sockets. The file of a Unix socket stays when the server ends.
    #[must_use]
    pub fn socket(mut self, socket: OwnedFd) -> Self {
        self.sockets.push((socket, None));
        self
    }

    /// Adds a socket of a server whose place this one takes. If it is a Unix socket, its file gets the permissions
    /// `mode`, and stays when the server ends. If `mode` lets only the file's owner and root connect, connections of
    /// other users that still wait are closed.
    #[must_use]
    pub fn inherited_socket(mut self, socket: OwnedFd, mode: u32) -> Self {
        self.sockets.push((socket, Some(mode)));
        self
    }

    /// The most clients at a time, at least 1; by default [`MAX_CONNECTIONS`], or as many as the default of
    /// [`memory`](Self::memory) is enough for. A client that chooses an export when there are this many is told so by
    /// an error. Each client takes a thread, and one of the 1023 places of its export's queue. Connections that have
    /// not chosen an export yet have 128 places of their own. At most 64 of these are for connections from one address,
    /// or of one user of this machine. If no place is left, a connection that says nothing has to end.
    #[must_use]
    pub fn max_connections(mut self, most: usize) -> Self {
        self.max_connections = Some(most);
        self
    }

    /// How long a client may take to choose an export before it is disconnected; 10 seconds by default.
    #[must_use]
    pub fn negotiation_timeout(mut self, timeout: Duration) -> Self {
        self.negotiation_timeout = timeout;
        self
    }

    /// For how long a client may take nothing of the replies that wait for it, or may send nothing of a request that it
    /// has begun, before its connection is closed. 5 minutes by default. `None`: without a limit. A client that takes
    /// nothing is waited for no longer than 5 seconds if its replies take memory without which another client can begin
    /// nothing; but not if there is no limit.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Option<Duration>) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// Sets what each connection may hold.
    #[must_use]
    pub fn bounds(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    /// Bytes of memory that all connections together may have, for the data of their requests and everything else that
    /// they hold. By default a quarter of the machine's memory, or of the limit of a control group around the process,
    /// and no more than half of what is free there. If that is too little for the number of connections, the log says
    /// what is done about it. Each connection always has a part of its own, which is as large as the maximum number of
    /// connections allows. No connection gets all of the rest.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Offers TLS to clients, or requires it. Without this call, a client that asks for TLS is refused. A connection
    /// that uses TLS holds up to 200 KiB more than the bounds allow.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the log that is told what happens. By default there is no log.
    #[must_use]
    pub fn log(mut self, log: impl Log + 'static) -> Self {
        self.log = Arc::new(log);
        self
    }

    fn check(&self) -> Result<(), StartError> {
        if self.exports.is_empty() {
            return Err(StartError::NoExport);
        }
        let names_clients = self.tls.as_ref().is_some_and(Tls::verifies_clients);
        let mut names = HashSet::new();
        for export in &self.exports {
            export.check(names_clients).map_err(StartError::Export)?;
            if !names.insert(&export.name) {
                return Err(StartError::SameName(export.name.clone()));
            }
        }
        let Bounds { requests, bytes } = self.bounds;
        if !(1..=32768).contains(&requests) || bytes < 65536 {
            return Err(StartError::Bounds(self.bounds));
        }
        let connections = self.max_connections.unwrap_or(MAX_CONNECTIONS.into());
        if connections == 0 {
            return Err(StartError::NoConnection);
        }
        let least = least_memory(connections);
        if let Some(bytes) = self.memory.filter(|bytes| *bytes < least) {
            return Err(StartError::Memory { bytes, connections, least });
        }
        Ok(())
    }

    /// Listens, and starts to accept clients.
    ///
    /// # Errors
    /// The configuration makes no sense, or the system does not allow it. Then nothing is left behind.
    pub fn start(self) -> Result<Server, StartError> {
        self.bind()?.start()
    }

    /// Listens, and does nothing else yet. After this, the process can give up rights that only this step needs, such
    /// as the right to use a port or to open a folder. The process can do so before there is a client, and before there
    /// is a thread.
    ///
    /// # Errors
    /// As for [`start`](Self::start), except for errors of threads.
    pub fn bind(mut self) -> Result<Bound, StartError> {
        self.check()?;
        let bell = Arc::new(EventFd::new().map_err(StartError::System)?);
        let open =
            |address: &Address| Listener::open(address).map_err(|error| StartError::Listen(address.clone(), error));
        let mut listeners = self.addresses.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        for (socket, mode) in std::mem::take(&mut self.sockets) {
            let descriptor = socket.as_raw_fd();
            let adopted = Listener::adopt(socket, mode).map_err(|error| StartError::Socket { descriptor, error });
            listeners.push(adopted?);
        }
        let (memory, max_connections) = self.divide();
        Ok(Bound { builder: self, memory, max_connections, listeners, bell })
    }

    /// Returns the memory of all connections together, and the most connections. The system is asked now, while the
    /// process may still read the files that say it.
    fn divide(&self) -> (usize, usize) {
        if let Some(memory) = self.memory {
            return (memory, self.max_connections.unwrap_or(MAX_CONNECTIONS.into()));
        }
        let (memory, connections, said) = available::divide(available::share(), self.max_connections);
        if let Some(text) = said {
            self.log.line(Level::Warning, &text);
        }
        (memory, connections)
    }
}

/// A server that listens, and that has no client and no thread yet. Dropping it removes the files of its sockets.
#[derive(Debug)]
pub struct Bound {
    builder: Builder,
    memory: usize,
    max_connections: usize,
    listeners: Vec<Listener>,
    bell: Arc<EventFd>,
}

impl Bound {
    /// Starts to accept clients.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(self) -> Result<Server, StartError> {
        let Self { builder, memory, max_connections, listeners, bell } = self;
        let names = builder.exports.iter().map(|export| &export.name);
        let is_secure = builder.tls.as_ref().is_some_and(Tls::is_required);
        let uris_of = |listener: &Listener| {
            names.clone().map(|name| uri(is_secure, listener.address(), name)).collect::<Vec<_>>()
        };
        let uris = listeners.iter().flat_map(uris_of).collect();
        let (journal, log_thread) = Journal::start(builder.log, "nbd log").map_err(StartError::System)?;
        let engine = Engine::new(builder.exports, builder.bounds, memory, max_connections, bell, journal);
        let shared = Arc::new(Shared {
            engine: Arc::new(engine),
            tls: builder.tls,
            negotiation_timeout: builder.negotiation_timeout,
            stall_timeout: builder.stall_timeout,
        });
        let listeners = Arc::new(listeners);
        let shares = Arc::downgrade(&listeners);
        let accept = {
            let shared = Arc::clone(&shared);
            move || accept_all(&shared, &listeners)
        };
        let thread = thread::Builder::new().name("nbd accept".into());
        let acceptor = Some(thread.spawn(accept).map_err(StartError::System)?);
        Ok(Server { shared, uris, listeners: shares, acceptor, log_thread })
    }
}
