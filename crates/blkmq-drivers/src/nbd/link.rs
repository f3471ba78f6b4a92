//! All connections to a server, and what is done while it is away.
//!
//! When one connection breaks all are given up: the server may have begun anew, and an answer to a flush over one
//! connection would say nothing about what another one was told before. So they are when the server says that it is
//! about to go; what it has is awaited then, as long as no request is overdue, and it is told that we leave. One
//! thread, the restorer, then connects again, for all of them, until it has succeeded or the device is closed. While
//! all is well it sleeps. It is there from the first request on and not earlier: a server that opens the device gives
//! up rights before its first thread, and the restorer is to have no more of them than the others.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use blkmq::MAX_HW_QUEUES;
use blkmq::driver::Health;

use super::Config;
use super::cache::Cache;
use super::connection::{Connection, is_closed};
use super::dial::Dialer;
use super::handshake::{self, PATIENCE, Terms};
use crate::lock;

/// The first pause between two tries to connect; each is twice the one before, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A time during which the server cannot be reached.
#[derive(Debug)]
struct Outage {
    since: Instant,
    /// Why the last try failed.
    said: String,
}

/// The thread that connects again.
#[derive(Debug, Default)]
enum Restorer {
    /// There was no request yet.
    #[default]
    Unneeded,
    /// The system gave no thread.
    Refused(io::Error),
    There(JoinHandle<()>),
}

/// What all hardware queues of the device share.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) config: Config,
    pub(super) terms: Terms,
    /// Bytes of the export, which may grow while the server is away.
    size: AtomicU64,
    pub(super) cache: Cache,
    dialer: Dialer,
    /// Made when a hardware queue is first there; none goes before the device.
    connections: Box<[OnceLock<Connection>]>,
    outage: Mutex<Option<Outage>>,
    restorer: Mutex<Restorer>,
    /// There is a restorer.
    is_attended: AtomicBool,
    /// The device is closed.
    is_over: AtomicBool,
}

impl Link {
    /// Connects to the server.
    ///
    /// # Errors
    /// Why there is no such export for us, in one sentence.
    pub(super) fn open(config: Config) -> Result<Arc<Self>, String> {
        let dialer = Dialer::new().map_err(|error| format!("{}: {error}", config.address))?;
        let (socket, terms) = handshake::connect(&dialer, &config.address, PATIENCE)?;
        let link = Self {
            size: AtomicU64::new(terms.size),
            cache: Cache::new(terms.can_flush && !config.keeps_cache, MAX_HW_QUEUES),
            connections: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(),
            outage: Mutex::default(),
            restorer: Mutex::default(),
            is_attended: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            dialer,
            terms,
            config,
        };
        link.begin(0, socket)?;
        let link = Arc::new(link);
        link.connect(link.config.queues)?;
        Ok(link)
    }

    /// Makes the connections that are missing, to the server that the others are to.
    pub(super) fn connect(&self, queues: u16) -> Result<(), String> {
        let address = &self.config.address;
        if queues > 1 && !self.terms.can_multi_conn {
            return Err(format!("{address}: the server allows one connection; submit_queues must be 1"));
        }
        for hctx in (0..queues).filter(|hctx| self.connections[usize::from(*hctx)].get().is_none()) {
            let (socket, terms) = handshake::connect(&self.dialer, address, PATIENCE)?;
            self.check(terms)?;
            // A flush by the new one would say nothing of what a server before it had acknowledged.
            if let Some(lost) = self.iter().find(|connection| !connection.is_up() || connection.is_closed()) {
                lost.give_up();
                self.wake();
                return Err(format!("{address}: the server is away"));
            }
            self.begin(hctx, socket)?;
        }
        Ok(())
    }

    /// Whether these are the terms of the first connection. The export may have grown since it came.
    fn check(&self, terms: Terms) -> Result<(), String> {
        if (Terms { size: self.terms.size, ..terms }) != self.terms || terms.size < self.size() {
            return Err(format!("{}: the server promises each connection something else", self.config.address));
        }
        Ok(())
    }

    fn begin(&self, hctx: u16, socket: OwnedFd) -> Result<(), String> {
        let connection = Connection::new(socket, hctx, self.config.depth);
        let _ = self.connections[usize::from(hctx)]
            .set(connection.map_err(|error| format!("{}: {error}", self.config.address))?);
        Ok(())
    }

    /// The connection of a hardware queue, if that has been there.
    pub(super) fn get(&self, hctx: u16) -> Option<&Connection> {
        self.connections[usize::from(hctx)].get()
    }

    /// All connections.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter().filter_map(OnceLock::get)
    }

    /// Bytes of the export.
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Whether requests wait for a server that is away.
    pub(super) fn keeps(&self) -> bool {
        !self.config.reconnect_delay.is_zero()
    }

    /// Whether there is a thread that connects again.
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
        let link = Arc::clone(self);
        *restorer = match thread::Builder::new().name("nbd restorer".into()).spawn(move || link.keep_up()) {
            Ok(thread) => Restorer::There(thread),
            Err(error) => Restorer::Refused(error),
        };
        let is_there = matches!(*restorer, Restorer::There(_));
        self.is_attended.store(is_there, Ordering::Relaxed);
        is_there
    }

    /// A connection is given up, or its server is about to go: the restorer is to see it now.
    #[cold]
    pub(super) fn wake(&self) {
        if let Restorer::There(thread) = &*lock(&self.restorer) {
            thread.thread().unpark();
        }
    }

    /// What the restorer does until the device is closed.
    fn keep_up(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            if self.iter().any(Connection::is_broken) || self.has_left() {
                self.restore();
            } else {
                // A connection that breaks, or is asked to leave, from here on wakes it, if need be before it sleeps.
                thread::park();
            }
        }
    }

    /// The server is away from now on, for that reason, unless it has been before.
    fn note_outage(&self, said: &str) {
        let said = || format!("{}: {said}", self.config.address);
        lock(&self.outage).get_or_insert_with(|| Outage { since: Instant::now(), said: said() });
    }

    /// Whether the server is about to go, and has answered all that it was asked for. The server may have said so over
    /// one connection alone; it is asked for nothing more over any.
    fn has_left(&self) -> bool {
        if !self.iter().any(Connection::is_leaving) {
            return false;
        }
        self.note_outage("the server says that it is about to go");
        self.iter().for_each(Connection::leave);
        self.iter().all(Connection::is_idle)
    }

    /// Connects again until that has succeeded or the device is closed.
    fn restore(&self) {
        let since = Instant::now();
        let left = || self.config.reconnect_delay.saturating_sub(since.elapsed());
        self.note_outage("the connection broke");
        let mut keeps = self.keeps();
        self.iter().for_each(|connection| connection.go_down(keeps));
        // Every connection is closed, so nothing more is acknowledged.
        self.cache.server_is_away();
        let mut pause = FIRST_PAUSE;
        loop {
            match self.come_up(|| if keeps { left().min(PATIENCE) } else { PATIENCE }) {
                Ok(()) => return *lock(&self.outage) = None,
                Err(said) => {
                    if let Some(outage) = &mut *lock(&self.outage) {
                        outage.said = said;
                    }
                }
            }
            let rest = if keeps { pause.min(left()) } else { pause };
            if !self.dialer.rest_until(Instant::now() + rest) {
                return;
            }
            pause = (2 * pause).min(LONGEST_PAUSE);
            if keeps && left().is_zero() {
                keeps = false;
                self.iter().filter(|connection| !connection.is_up()).for_each(|connection| connection.go_down(false));
            }
        }
    }

    /// Tries to connect all hardware queues anew, within that time for each; all of them or none.
    ///
    /// Once every socket is there none may be closed: then all of them are to one server, which has not begun anew in
    /// between. With connections to two, a flush by one would cover what the other had acknowledged and lost.
    fn come_up(&self, patience: impl Fn() -> Duration) -> Result<(), String> {
        let address = &self.config.address;
        let mut sockets = Vec::new();
        for connection in self.iter().filter(|connection| !connection.is_up()) {
            let (socket, terms) = handshake::connect(&self.dialer, address, patience())?;
            self.check(terms)?;
            sockets.push((connection, socket, terms.size));
        }
        if sockets.iter().any(|(_, socket, _)| is_closed(socket)) {
            return Err(format!("{address}: the server went away again"));
        }
        // What every connection has been promised: a try that fails leaves no size behind that the next server may not
        // have.
        let size = sockets.iter().map(|(.., size)| *size).min().unwrap_or_default();
        self.size.fetch_max(size, Ordering::Relaxed);
        for (connection, socket, _) in sockets {
            connection.come_up(self, socket).map_err(|error| format!("{address}: {error}"))?;
        }
        Ok(())
    }

    pub(super) fn health(&self) -> Health {
        if let Some(outage) = &*lock(&self.outage) {
            let seconds = outage.since.elapsed().as_secs();
            return Health::Away(format!("the server is away for {seconds} s: {}", outage.said));
        }
        if let Restorer::Refused(error) = &*lock(&self.restorer) {
            let address = &self.config.address;
            return Health::Failed(format!(
                "{address}: requests fail until the system gives the device a thread that connects again: {error}"
            ));
        }
        if self.cache.is_lost() {
            let address = &self.config.address;
            return Health::Failed(format!(
                "{address}: the server was away, and writes that it had answered and not flushed may be lost; flushes fail until \
                 the device is opened anew"
            ));
        }
        Health::Good
    }

    /// The device is closed. Returns when the restorer has ended, which waits for no server any more.
    pub(super) fn close(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.dialer.close();
        let restorer = std::mem::take(&mut *lock(&self.restorer));
        if let Restorer::There(thread) = restorer {
            thread.thread().unpark();
            // It does not panic, and if it did there would be nothing left to do.
            let _ = thread.join();
        }
    }
}
