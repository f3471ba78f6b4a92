//! All connections to a server, and what happens while the server is away.
//!
//! When one connection breaks, all are given up: the server may have begun anew, and an answer to a flush on one
//! connection would say nothing about what the server had acknowledged on another. All are also given up when the
//! server says that it is about to end. The device then waits for the answers to the requests that the server has, as
//! long as no request is overdue, and tells the server that the client leaves. One thread, the restorer, then connects
//! all of them again, until it has succeeded or the device is closed. While there is no outage the restorer sleeps. The
//! restorer is started with the first request and not earlier: a server that opens the device gives up rights before it
//! starts its first thread, and the restorer must have no more rights than the other threads.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use blkmq::MAX_HW_QUEUES;
use blkmq::driver::Health;
use blkmq_nbd::transmission;

use super::Config;
use super::cache::Cache;
use super::connection::{Connection, is_closed};
use super::connector::{Connector, TIMEOUT};
use super::handshake::{self, Terms};
use crate::{OpenError, lock};

/// The first pause between two tries to connect. Each pause is twice the one before, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often the restorer tries to connect. A connection that breaks soon after it was made counts as a failed try: a
/// server may accept every client and serve none.
#[derive(Debug)]
struct Pace {
    /// When the last try ended.
    tried: Option<Instant>,
    pause: Duration,
}

impl Pace {
    const fn new() -> Self {
        Self { tried: None, pause: FIRST_PAUSE }
    }

    /// Called when the connections of the last try are broken.
    fn begin(&mut self) {
        if self.tried.is_some_and(|tried| tried.elapsed() >= LONGEST_PAUSE) {
            *self = Self::new();
        }
    }

    /// Returns how long the next try has to wait. No pause is longer than `longest`.
    fn rest(&self, longest: Duration) -> Duration {
        self.tried.map_or(Duration::ZERO, |tried| self.pause.min(longest).saturating_sub(tried.elapsed()))
    }

    /// Called when a try has ended.
    fn count(&mut self) {
        if self.tried.replace(Instant::now()).is_some() {
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        }
    }
}

/// A time during which the server cannot be reached.
#[derive(Debug)]
struct Outage {
    since: Instant,
    /// Why the last try failed.
    said: String,
}

/// The state of the thread that connects again.
#[derive(Debug, Default)]
enum Restorer {
    /// There was no request yet, so no thread is needed.
    #[default]
    Unneeded,
    /// The system gave no thread.
    Refused(io::Error),
    There(JoinHandle<()>),
}

/// What all hardware queues of the device share.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) config: Config,
    pub(super) terms: Terms,
    /// Bytes of the export, which may grow while the server is away.
    size: AtomicU64,
    cache: Arc<Cache>,
    connector: Connector,
    /// Each connection is made when its hardware queue first exists, and lives as long as the device.
    connections: Box<[OnceLock<Connection>]>,
    /// How often all connections together went down or came up. Locked while they do, and while a further connection
    /// begins.
    nr_changes: Mutex<u64>,
    outage: Mutex<Option<Outage>>,
    restorer: Mutex<Restorer>,
    /// Whether there is a restorer.
    is_attended: AtomicBool,
    /// Whether the device is closed.
    is_over: AtomicBool,
}

impl Session {
    /// Connects to the server.
    ///
    /// # Errors
    /// Why there is no such export for this device, in one sentence.
    pub(super) fn open(config: Config) -> Result<Arc<Self>, OpenError> {
        let connector = Connector::new().map_err(|error| OpenError::from(error).at(&config.address))?;
        let (socket, terms) = handshake::connect(&connector, &config.address, TIMEOUT)?;
        let session = Arc::new(Self::new(config, connector, terms));
        session.begin(0, socket)?;
        session.connect(session.config.queues)?;
        Ok(session)
    }

    fn new(config: Config, connector: Connector, terms: Terms) -> Self {
        Self {
            size: AtomicU64::new(terms.size),
            cache: Arc::new(Cache::new(terms.has(transmission::SEND_FLUSH) && !config.keeps_cache, MAX_HW_QUEUES)),
            connections: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(),
            nr_changes: Mutex::default(),
            outage: Mutex::default(),
            restorer: Mutex::default(),
            is_attended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            connector,
            terms,
            config,
        }
    }

    /// Makes the missing connections, to the server that the others are connected to.
    pub(super) fn connect(&self, queues: u16) -> Result<(), OpenError> {
        let address = &self.config.address;
        if queues > 1 && !self.terms.has(transmission::CAN_MULTI_CONN) {
            return Err(OpenError::new(format!(
                "{address}: the server allows one connection; submit_queues must be 1"
            )));
        }
        for hctx in (0..queues).filter(|hctx| self.connections[usize::from(*hctx)].get().is_none()) {
            let nr_before = *lock(&self.nr_changes);
            let (socket, terms) = handshake::connect(&self.connector, address, TIMEOUT)?;
            self.check(terms)?;
            // A flush through the new connection would say nothing of what another server had acknowledged. So the
            // others must be connected to one and the same server from before this connection is dialled until it is
            // one of them.
            let nr_changes = lock(&self.nr_changes);
            self.iter().filter(|connection| connection.is_closed()).for_each(Connection::give_up);
            if *nr_changes != nr_before || self.iter().any(|connection| !connection.is_up() || connection.is_broken()) {
                self.wake();
                return Err(OpenError::new(format!("{address}: the server is away; try again when it is back")));
            }
            self.begin(hctx, socket)?;
        }
        Ok(())
    }

    /// Checks that these are the terms of the first connection. The export may have grown since then.
    fn check(&self, terms: Terms) -> Result<(), OpenError> {
        if (Terms { size: self.terms.size, ..terms }) != self.terms || terms.size < self.size() {
            return Err(OpenError::new(format!(
                "{}: the server promises each connection something else",
                self.config.address
            )));
        }
        Ok(())
    }

    fn begin(&self, hctx: u16, socket: OwnedFd) -> Result<(), OpenError> {
        let connection = Connection::new(socket, hctx, &self.config, &self.cache);
        let _ = self.connections[usize::from(hctx)]
            .set(connection.map_err(|error| OpenError::from(error).at(&self.config.address))?);
        Ok(())
    }

    /// Returns the connection of a hardware queue, if the hardware queue has existed.
    pub(super) fn get(&self, hctx: u16) -> Option<&Connection> {
        self.connections[usize::from(hctx)].get()
    }

    /// Returns all connections.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter_map(OnceLock::get)
    }

    /// Returns the number of bytes of the export.
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Returns true if there is a thread that connects again.
    pub(super) fn is_attended(&self) -> bool {
        // Relaxed: the thread itself is reached by its lock.
        self.is_attended.load(Ordering::Relaxed)
    }

    /// Starts the thread that connects again, if there is none. Returns whether there is one.
    #[cold]
    pub(super) fn attend(self: &Arc<Self>) -> bool {
        let mut restorer = lock(&self.restorer);
        if matches!(*restorer, Restorer::There(_)) {
            return true;
        }
        let session = Arc::clone(self);
        *restorer = match thread::Builder::new().name("nbd restorer".into()).spawn(move || session.keep_up()) {
            Ok(thread) => Restorer::There(thread),
            Err(error) => Restorer::Refused(error),
        };
        let is_there = matches!(*restorer, Restorer::There(_));
        self.is_attended.store(is_there, Ordering::Relaxed);
        is_there
    }

    /// Wakes the restorer, because a connection is given up, or because its server is about to end.
    #[cold]
    pub(super) fn wake(&self) {
        if let Restorer::There(thread) = &*lock(&self.restorer) {
            thread.thread().unpark();
        }
    }

    /// What the restorer does until the device is closed.
    fn keep_up(&self) {
        let mut pace = Pace::new();
        while !self.is_over.load(Ordering::Relaxed) {
            match self.time_left() {
                Duration::ZERO => self.restore(&mut pace),
                // A connection that breaks from here on, or whose server asks to leave, wakes the restorer, even before
                // the restorer sleeps.
                left => thread::park_timeout(left),
            }
        }
    }

    /// Notes that the server is away, for this reason, unless that was noted before. Returns since when it is away.
    fn note_outage(&self, said: &str) -> Instant {
        let said = || format!("{}: {said}", self.config.address);
        lock(&self.outage).get_or_insert_with(|| Outage { since: Instant::now(), said: said() }).since
    }

    /// Returns how long the connections may stay as they are. Zero if one is broken, or if the server is about to end
    /// and has answered everything.
    ///
    /// A server that is about to end may have said so on one connection only. No connection sends the server more
    /// requests. The server has half of the time that requests wait for the next server. The next server has the other
    /// half.
    fn time_left(&self) -> Duration {
        if self.iter().any(Connection::is_broken) {
            return Duration::ZERO;
        }
        if !self.iter().any(Connection::is_leaving) {
            return Duration::MAX;
        }
        self.iter().for_each(Connection::leave);
        let since = self.note_outage("the server says that it is about to go");
        if self.iter().all(Connection::is_idle) {
            Duration::ZERO
        } else if self.config.keeps() {
            (self.config.reconnect_delay / 2).saturating_sub(since.elapsed())
        } else {
            Duration::MAX
        }
    }

    /// Connects again, until that succeeds or the device is closed.
    fn restore(&self, pace: &mut Pace) {
        let delay = self.config.reconnect_delay;
        let since = self.note_outage("the connection broke");
        let left = || delay.saturating_sub(since.elapsed());
        let mut keeps = self.config.keeps();
        self.go_down(keeps);
        pace.begin();
        loop {
            // While requests wait, the pauses are short enough for a few tries.
            let rest = if keeps { pace.rest(delay / 4).min(left()) } else { pace.rest(LONGEST_PAUSE) };
            if !self.connector.rest_until(Instant::now() + rest) {
                return;
            }
            if keeps && left().is_zero() {
                keeps = false;
                self.iter().for_each(|connection| connection.go_down(false));
            }
            if let Some(time) = Instant::now().checked_sub(delay).filter(|_| keeps) {
                self.iter().for_each(|connection| connection.give_up_since(time));
            }
            let came_up = self.come_up(since, || if keeps { left().min(TIMEOUT) } else { TIMEOUT });
            pace.count();
            match came_up {
                Ok(()) => return *lock(&self.outage) = None,
                Err(error) => {
                    if let Some(outage) = &mut *lock(&self.outage) {
                        outage.said = error.to_string();
                    }
                }
            }
        }
    }

    /// Notes that the server is away: from now on no connection has a socket.
    fn go_down(&self, keeps: bool) {
        let mut nr_changes = lock(&self.nr_changes);
        *nr_changes += 1;
        self.iter().for_each(|connection| connection.go_down(keeps));
        // Every connection is closed, so nothing more is acknowledged.
        self.cache.server_is_away();
    }

    /// Tries to connect all hardware queues anew after an outage, within this time for each. Either all are connected,
    /// or none.
    ///
    /// Once every socket is there, none of them may have been closed. Then all are connected to one server, which has
    /// not begun anew in between. If the queues were connected to two servers, a flush by one server would cover what
    /// the other had acknowledged and lost.
    fn come_up(&self, since: Instant, timeout: impl Fn() -> Duration) -> Result<(), OpenError> {
        let address = &self.config.address;
        let (mut sockets, mut size) = (Vec::new(), u64::MAX);
        for connection in self.iter() {
            let (socket, terms) = handshake::connect(&self.connector, address, timeout())?;
            self.check(terms)?;
            sockets.push((connection, socket));
            size = size.min(terms.size);
        }
        if sockets.iter().any(|(_, socket)| is_closed(socket)) {
            return Err(OpenError::new(format!("{address}: the server went away again")));
        }
        self.use_sockets(sockets, size, since).map_err(|error| error.at(address))
    }

    /// Connects with these sockets to a server that has promised this many bytes on each of them.
    ///
    /// # Errors
    /// The system has no memory for that. Then nothing has changed. The size has not changed either, because the next
    /// server may have another one.
    fn use_sockets(&self, sockets: Vec<(&Connection, OwnedFd)>, size: u64, since: Instant) -> Result<(), OpenError> {
        let mut nr_changes = lock(&self.nr_changes);
        for (connection, socket) in &sockets {
            let what = "the system does not let the device wait for its sockets";
            connection.watch_next(socket).map_err(|error| OpenError::from(error).at(what))?;
        }
        *nr_changes += 1;
        self.size.fetch_max(size, Ordering::Relaxed);
        for (connection, socket) in sockets {
            connection.come_up(socket, since);
        }
        Ok(())
    }

    pub(super) fn health(&self) -> Health {
        let address = &self.config.address;
        let away = lock(&self.outage)
            .as_ref()
            .map(|Outage { since, said }| format!("the server is away for {} s: {said}", since.elapsed().as_secs()));
        if self.cache.is_lost() {
            let away = away.map(|away| format!("; {away}")).unwrap_or_default();
            return Health::Failed(format!(
                "{address}: the server was away, and writes that it had answered and not flushed may be lost; flushes \
                 fail until the device is opened anew{away}"
            ));
        }
        if let Some(away) = away {
            return Health::Away(away);
        }
        if let Restorer::Refused(error) = &*lock(&self.restorer) {
            return Health::Away(format!(
                "{address}: requests fail until the system gives the device a thread that connects again, which each \
                 request asks for: {error}"
            ));
        }
        Health::Good
    }

    /// Closes the device. Returns when the restorer has ended, which then waits for no server any more.
    pub(super) fn close(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.connector.close();
        let restorer = std::mem::take(&mut *lock(&self.restorer));
        if let Restorer::There(thread) = restorer {
            thread.thread().unpark();
            // The restorer does not panic. After a panic nothing would be left to do.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    const TERMS: Terms = Terms {
        size: 1 << 20,
        block_size: 512,
        max_bytes: 1 << 20,
        flags: transmission::SEND_FLUSH | transmission::CAN_MULTI_CONN,
    };

    fn pair() -> (OwnedFd, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("there are descriptors");
        ours.set_nonblocking(true).expect("it is a socket");
        (ours.into(), theirs)
    }

    fn session() -> Session {
        let connector = Connector::new().expect("there are descriptors");
        Session::new(Config::new("nbd+unix:///?socket=a".parse().expect("it is a URI")), connector, TERMS)
    }

    /// Red if an outage, or a thread that the system does not give, hides for a time what never heals; or if such a
    /// thread counts as what never heals.
    #[test]
    fn what_is_lost_is_told_before_what_heals() {
        let session = session();
        let refuse = || *lock(&session.restorer) = Restorer::Refused(io::ErrorKind::WouldBlock.into());
        refuse();
        let health = session.health();
        assert!(matches!(&health, Health::Away(text) if text.contains("a thread that connects again")), "{health:?}");
        session.note_outage("it was the test");
        let health = session.health();
        assert!(matches!(&health, Health::Away(text) if text.contains("it was the test")), "{health:?}");
        session.cache.count(0);
        session.go_down(true);
        let health = session.health();
        let is_all_told = |text: &str| text.contains("may be lost") && text.contains("it was the test");
        assert!(matches!(&health, Health::Failed(text) if is_all_told(text)), "{health:?}");
        *lock(&session.outage) = None;
        let health = session.health();
        assert!(matches!(&health, Health::Failed(text) if text.contains("may be lost")), "{health:?}");
    }

    /// Red if a connection comes up, or the size changes, before all sockets are watched: the next try would find one
    /// connection to this server and one to the next.
    #[test]
    fn all_connections_come_up_or_none() {
        let session = session();
        let _servers = [0, 1].map(|hctx| {
            let (ours, theirs) = pair();
            session.begin(hctx, ours).expect("there are descriptors");
            theirs
        });
        let first = session.get(0).expect("it has begun");
        let second = session.get(1).expect("it has begun");
        session.go_down(true);
        let (ours, _theirs) = pair();
        let unwatchable = File::open("/proc/self/exe").expect("proc is there").into();
        let sockets = vec![(first, ours), (second, unwatchable)];
        let error = session.use_sockets(sockets, 2 * TERMS.size, Instant::now()).unwrap_err().to_string();
        assert!(error.contains("wait for its sockets"), "{error}");
        assert!(!first.is_up() && !second.is_up());
        assert_eq!(session.size(), TERMS.size);
        let (ours, _theirs) = [pair(), pair()].into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
        session.use_sockets([first, second].into_iter().zip(ours).collect(), 2 * TERMS.size, Instant::now()).unwrap();
        assert!(first.is_up() && second.is_up());
        assert_eq!(session.size(), 2 * TERMS.size);
    }

    /// Red if a connection that breaks at once is replaced at once, or if one that has lasted for a while is not.
    #[test]
    fn a_server_that_soon_breaks_is_left_alone_for_longer_each_time() {
        let mut pace = Pace::new();
        assert_eq!(pace.rest(LONGEST_PAUSE), Duration::ZERO, "the first try is at once");
        let mut before = Duration::ZERO;
        for _ in 0..5 {
            pace.count();
            pace.begin();
            let rest = pace.rest(LONGEST_PAUSE);
            assert!(rest > before, "{rest:?} after {before:?}");
            before = rest;
        }
        assert!(pace.rest(FIRST_PAUSE) <= FIRST_PAUSE);
        pace.tried = Instant::now().checked_sub(LONGEST_PAUSE);
        pace.begin();
        assert_eq!(pace.rest(LONGEST_PAUSE), Duration::ZERO, "the server did its work in between");
    }
}
