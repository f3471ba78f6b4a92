//! The server: its exports, the clients that may connect, and its threads.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blkmq::Notify;
use blkmq::event::EventFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::available;
use crate::budget::{self, Budget};
use crate::clients::{ClientInfo, Clients, Entry, Reason, Rejections};
use crate::connection::{Connection, Ending};
use crate::errors::Errors;
use crate::export::Export;
use crate::latency::Latencies;
use crate::listener::{Address, Listener, Source, unix_peer};
use crate::log::{Journal, Level, Log, Teller, Topic};
use crate::reserve::Reserve;
use crate::stop::{Phase, Stop};
use crate::tls::Tls;

/// How long the server pauses accepting when the system has no descriptors or memory left.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The most connections at a time, unless the builder sets another number.
pub const MAX_CONNECTIONS: u16 = 256;

/// What one connection may hold at a time. When it holds this much, the server reads nothing more from the client until
/// replies have been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Requests that are not answered yet: 1 to 32768, 256 by default.
    pub requests: u16,
    /// Bytes of the requests' buffers, each rounded up to a power of two: at least 65536, 64 MiB by default. A read or
    /// write that is longer is refused. So is one of more than 32 MiB.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { requests: 256, bytes: 64 << 20 }
    }
}

/// Why a server did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The configuration makes no sense. The text says what would.
    Bad(String),
    /// The server cannot listen at this address.
    Listen(Address, io::Error),
    /// The system gives no thread or no descriptor.
    System(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(text) => f.write_str(text),
            Self::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
            Self::System(error) => write!(f, "cannot start a server: {error}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bad(_) => None,
            Self::Listen(_, error) | Self::System(error) => Some(error),
        }
    }
}

/// What a server is built from.
pub struct Builder {
    exports: Vec<Export>,
    addresses: Vec<Address>,
    sockets: Vec<OwnedFd>,
    max_connections: usize,
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
        self.sockets.push(socket);
        self
    }

    /// The most clients at a time, at least 1; [`MAX_CONNECTIONS`] by default. A client that chooses an export when
    /// there are this many is told so by an error. Each client takes a thread, and one of the 1023 places of its
    /// export's queue. Connections that have not chosen an export yet have 128 places of their own. At most 64 of these
    /// are for connections from one address, or of one user of this machine. If no place is left, a connection that
    /// says nothing has to end.
    #[must_use]
    pub fn max_connections(mut self, most: usize) -> Self {
        self.max_connections = most;
        self
    }

    /// How long a client may take to choose an export before it is disconnected; 10 seconds by default.
    #[must_use]
    pub fn negotiation_timeout(mut self, timeout: Duration) -> Self {
        self.negotiation_timeout = timeout;
        self
    }

    /// For how long a client may take nothing of the replies that wait for it, or may send nothing of a request that it
    /// has begun, before its connection is closed. 5 minutes by default. `None`: without a limit. No other client can
    /// have what this client holds meanwhile.
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
    /// they hold. By default a quarter of the machine's memory, or of the limit of the process's control group. Each
    /// connection always has a part of its own, which is as large as the maximum number of connections allows. No
    /// connection gets all of the rest.
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

    fn check(&self) -> Result<(), String> {
        if self.exports.is_empty() {
            return Err("a server has at least one export".into());
        }
        let names_clients = self.tls.as_ref().is_some_and(Tls::verifies_clients);
        let mut names = HashSet::new();
        for export in &self.exports {
            export.check(names_clients)?;
            if !names.insert(&export.name) {
                return Err(format!("two exports have the name {:?}; clients could not tell them apart", export.name));
            }
        }
        let Bounds { requests, bytes } = self.bounds;
        if !(1..=32768).contains(&requests) {
            return Err(format!("{requests} requests at a time; give a number from 1 to 32768"));
        }
        if bytes < 65536 {
            return Err(format!("{bytes} bytes at a time; give at least 65536, the largest block"));
        }
        if self.max_connections == 0 {
            return Err("no connection is allowed; give at least 1".into());
        }
        let least = budget::least(self.max_connections);
        if let Some(bytes) = self.memory.filter(|bytes| *bytes < least) {
            return Err(format!(
                "memory: {bytes} bytes are too few for {} connections; give at least {least}, or allow fewer connections",
                self.max_connections
            ));
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
    /// as the right to use a port or to open a folder. It can do so before there is a client, and before there is a
    /// thread.
    ///
    /// # Errors
    /// As for [`start`](Self::start), except for errors of threads.
    pub fn bind(mut self) -> Result<Bound, StartError> {
        self.check().map_err(StartError::Bad)?;
        let bell = Arc::new(EventFd::new().map_err(StartError::System)?);
        let open =
            |address: &Address| Listener::open(address).map_err(|error| StartError::Listen(address.clone(), error));
        let mut listeners = self.addresses.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        for socket in std::mem::take(&mut self.sockets) {
            listeners.push(Listener::adopt(socket).map_err(StartError::Bad)?);
        }
        // The memory is looked up now, while the process may still read the files that say it.
        let least = budget::least(self.max_connections);
        self.memory.get_or_insert_with(|| (available::memory().unwrap_or(0) / 4).max(least));
        Ok(Bound { builder: self, listeners, bell })
    }
}

/// A server that listens, and that has no client and no thread yet. Dropping it removes the files of its sockets.
#[derive(Debug)]
pub struct Bound {
    builder: Builder,
    listeners: Vec<Listener>,
    bell: Arc<EventFd>,
}

impl Bound {
    /// Starts to accept clients.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(self) -> Result<Server, StartError> {
        let Self { builder, listeners, bell } = self;
        let names = builder.exports.iter().map(|export| &export.name);
        let is_secure = builder.tls.as_ref().is_some_and(Tls::is_required);
        let uris_of = |listener: &Listener| names.clone().map(|name| listener.uri(is_secure, name)).collect::<Vec<_>>();
        let uris = listeners.iter().flat_map(uris_of).collect();
        let clients = Arc::new(Clients::new(builder.max_connections));
        let memory = builder.memory.unwrap_or_else(|| budget::least(builder.max_connections));
        let budget = Arc::new(Budget::new(memory, builder.max_connections));
        let (journal, teller) = Journal::start(builder.log).map_err(StartError::System)?;
        let shared = Arc::new(Shared {
            exports: builder.exports,
            longest: builder.bounds.bytes.min(budget.longest()),
            bounds: builder.bounds,
            budget,
            tls: builder.tls,
            negotiation_timeout: builder.negotiation_timeout,
            stall_timeout: builder.stall_timeout,
            stop: Stop::new(Arc::clone(&clients), Arc::clone(&bell)),
            clients,
            bell,
            journal,
            shrunk: Mutex::default(),
        });
        let listeners = Arc::new(listeners);
        let shares = Arc::downgrade(&listeners);
        let accept = {
            let shared = Arc::clone(&shared);
            move || accept_all(&shared, &listeners)
        };
        let thread = thread::Builder::new().name("nbd accept".into());
        let acceptor = Some(thread.spawn(accept).map_err(StartError::System)?);
        Ok(Server { shared, uris, listeners: shares, acceptor, teller })
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
    journal: Journal,
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

    /// Starts a thread for a client. Returns false if too many clients negotiate.
    fn serve(self: &Arc<Self>, socket: OwnedFd, peer: String, source: Source) -> io::Result<bool> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let bell = Arc::new(EventFd::new()?);
        let Some(entry) = self.clients.join(peer.clone(), source, bell) else {
            self.warn(Topic::Refusal, format_args!("a client from {peer} is refused: too many negotiate"));
            return Ok(false);
        };
        let place = Place { clients: Arc::clone(&self.clients), bell: Arc::clone(&self.bell), number: entry.number };
        let shared = Arc::clone(self);
        let thread = thread::Builder::new().name(format!("nbd {}", entry.number));
        // No thread joins this thread. It gives back its place last, after it has released the queues.
        let serve = move || {
            let _place = place;
            shared.serve_alone(socket, entry);
        };
        thread.spawn(serve).map(|_| true)
    }

    /// Serves one client until its end.
    fn serve_alone(self: Arc<Self>, socket: OwnedFd, entry: Arc<Entry>) {
        let Entry { number, peer, .. } = &*entry;
        match Connection::new(socket, Arc::clone(&self), Arc::clone(&entry)).run() {
            Ok(()) => self.inform(format_args!("client {number} from {peer} left")),
            Err(ending @ (Ending::Gone | Ending::Stopped | Ending::Refused)) => {
                self.inform(format_args!("client {number} from {peer}: {ending}"));
            }
            Err(ending) => {
                match ending {
                    Ending::Late(_) => self.clients.reject(Reason::Late),
                    Ending::Displaced => self.clients.reject(Reason::Crowded),
                    _ => (),
                }
                self.warn(Topic::Ending, format_args!("client {number} from {peer}: {ending}"));
            }
        }
    }
}

/// A connection's place among the clients. It is given back when this value is dropped, also if the thread panics.
struct Place {
    clients: Arc<Clients>,
    bell: Arc<EventFd>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clients.leave(self.number);
        // Now there may be room for another client.
        self.bell.notify();
    }
}

/// Accepts clients until the server stops. The listeners are dropped with it.
fn accept_all(shared: &Arc<Shared>, listeners: &[Listener]) {
    let mut pauses = false;
    let mut reserve = Reserve::new();
    while shared.stop.phase() == Phase::Running {
        let is_open = !pauses && !shared.clients.is_crowded();
        let events = if is_open { PollFlags::IN } else { PollFlags::empty() };
        let mut fds: Vec<_> =
            listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), events)).collect();
        fds.push(PollFd::new(&*shared.bell, PollFlags::IN));
        if let Err(error) = poll(&mut fds, pauses.then_some(&PAUSE))
            && error != Errno::INTR
        {
            shared.warn(Topic::Server, format_args!("clients are accepted no more: {error}"));
            return;
        }
        shared.bell.drain();
        reserve.renew();
        pauses = false;
        let ready = fds.iter().map(|fd| fd.revents().contains(PollFlags::IN));
        for (listener, _) in listeners.iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
            let accepted = listener.accept().inspect_err(|error| reserve.turn_away(listener, error, &shared.clients));
            let accepted = accepted.and_then(|accepted| match accepted {
                Some((socket, peer, source)) => shared.serve(socket, peer, source).map(drop),
                None => Ok(()),
            });
            if let Err(error) = accepted {
                shared.warn(Topic::Server, format_args!("a client could not be accepted: {error}"));
                pauses = true;
            }
        }
    }
}

/// An NBD server in front of queues. Dropping it stops it at once and waits until it has.
///
/// The server sets no signal handler and keeps nothing outside this value, so a process may have any number of servers.
pub struct Server {
    shared: Arc<Shared>,
    uris: Vec<String>,
    /// The thread that accepts owns the listeners.
    listeners: Weak<Vec<Listener>>,
    acceptor: Option<JoinHandle<()>>,
    teller: Teller,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("uris", &self.uris).field("stop", &self.shared.stop).finish_non_exhaustive()
    }
}

impl Server {
    /// Begins to build a server without exports, which listens nowhere.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            exports: Vec::new(),
            addresses: Vec::new(),
            sockets: Vec::new(),
            max_connections: MAX_CONNECTIONS.into(),
            negotiation_timeout: Duration::from_secs(10),
            stall_timeout: Some(Duration::from_secs(300)),
            bounds: Bounds::default(),
            memory: None,
            tls: None,
            log: Arc::new(|_: Level, _: &str| ()),
        }
    }

    /// The state that each connection uses.
    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// NBD URIs: first for each address, then for each socket, one URI for each export. They ask for TLS if TLS is
    /// required.
    #[must_use]
    pub fn uris(&self) -> &[String] {
        &self.uris
    }

    /// The clients that are connected, by number.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientInfo> {
        self.shared.clients.list()
    }

    /// How long the requests of an export took since the server was started, including those of clients that have left.
    #[must_use]
    pub fn latencies(&self, export: &str) -> Latencies {
        self.shared.clients.latencies(export)
    }

    /// The requests of an export that were answered with an error since the server was started, including those of
    /// clients that have left.
    #[must_use]
    pub fn errors(&self, export: &str) -> Errors {
        self.shared.clients.errors(export)
    }

    /// Bytes of memory that the connections have, and the most that they may have.
    #[must_use]
    pub fn memory(&self) -> (usize, usize) {
        let (connections, data) = self.shared.clients.memory();
        (data + connections * budget::BESIDE, self.shared.budget.most())
    }

    /// Connections that were not served, by reason.
    #[must_use]
    pub fn rejections(&self) -> Rejections {
        self.shared.clients.rejected()
    }

    /// The sockets that the server listens with, for a server that takes its place. Clients that come while neither
    /// server accepts wait. The files of Unix sockets stay from now on. This server continues to accept until it is
    /// told to end. After that, this returns no sockets.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn share_sockets(&self) -> io::Result<Vec<OwnedFd>> {
        let listeners = self.listeners.upgrade();
        listeners.iter().flat_map(|listeners| listeners.iter()).map(Listener::share).collect()
    }

    /// The handle that ends the server.
    #[must_use]
    pub fn stop(&self) -> Stop {
        self.shared.stop.clone()
    }

    /// Serves a client whose connected stream socket the caller has: one end of a socket pair, or a socket that other
    /// code accepted. `peer` says where the client comes from. `None`: the name of the process at the other end. The
    /// socket is made non-blocking.
    ///
    /// # Errors
    /// The server stops, too many connections negotiate, or the system gives no thread or no descriptor.
    pub fn serve(&self, socket: OwnedFd, peer: Option<&str>) -> io::Result<()> {
        if self.shared.stop.phase() != Phase::Running {
            return Err(io::Error::other("the server stops"));
        }
        let peer = peer.map_or_else(|| unix_peer(socket.as_fd()), ToOwned::to_owned);
        let source = Source::of_unix(socket.as_fd());
        match self.shared.serve(socket, peer, source)? {
            true => Ok(()),
            false => Err(io::Error::other("too many connections negotiate; try again later")),
        }
    }

    /// Waits until a thread has [stopped](Self::stop) the server and every connection is closed.
    pub fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            // A thread that panicked has already reported it.
            let _ = acceptor.join();
        }
        self.shared.clients.wait_empty();
        self.shared.journal.end(&self.teller);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.now();
        self.join();
    }
}
