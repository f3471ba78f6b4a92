//! All connections to a server, and what is done while it is away.
//!
//! When one connection breaks all are given up: the server may have begun anew, and an answer to a flush over one connection would
//! say nothing about what another one was told before. One thread then connects again, for all of them, until it has succeeded or
//! the device is closed.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, Thread};
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
    /// The thread that tries.
    thread: Thread,
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
    pub(super) fn connect(self: &Arc<Self>, queues: u16) -> Result<(), String> {
        let address = &self.config.address;
        if queues > 1 && !self.terms.can_multi_conn {
            return Err(format!("{address}: the server allows one connection; submit_queues must be 1"));
        }
        for hctx in (0..queues).filter(|hctx| self.connections[usize::from(*hctx)].get().is_none()) {
            let (socket, terms) = handshake::connect(&self.dialer, address, PATIENCE)?;
            self.check(terms)?;
            // A flush by the new one would say nothing of what a server before it had acknowledged.
            if self.iter().any(|connection| !connection.is_up() || connection.is_closed()) {
                self.lose();
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

    /// A connection has broken. Starts the thread that connects again, unless there is one.
    #[cold]
    pub(super) fn lose(self: &Arc<Self>) {
        let mut outage = lock(&self.outage);
        if outage.is_some() {
            return;
        }
        let link = Arc::downgrade(self);
        let since = Instant::now();
        // Without a thread requests wait, and the next thread that polls comes here again.
        if let Ok(thread) = thread::Builder::new().name("nbd reconnect".into()).spawn(move || restore(&link, since)) {
            let said = format!("{}: the connection broke", self.config.address);
            *outage = Some(Outage { since, said, thread: thread.thread().clone() });
        }
    }

    /// Tries to connect all hardware queues anew, within that time for each; all of them or none.
    ///
    /// Once every socket is there none may be closed: then all of them are to one server, which has not begun anew in between. With
    /// connections to two, a flush by one would cover what the other had acknowledged and lost.
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
        // What every connection has been promised: a try that fails leaves no size behind that the next server may not have.
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
        if self.cache.is_lost() {
            let address = &self.config.address;
            return Health::Failed(format!(
                "{address}: the server was away, and writes that it had answered and not flushed may be lost; flushes fail until \
                 the device is opened anew"
            ));
        }
        Health::Good
    }

    /// The device is closed: the thread that connects again is to see it now.
    pub(super) fn close(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.dialer.close();
        if let Some(outage) = &*lock(&self.outage) {
            outage.thread.unpark();
        }
    }
}

/// Connects again until that has succeeded or the device is closed.
fn restore(link: &Weak<Link>, since: Instant) {
    let mut pause = FIRST_PAUSE;
    let mut is_down = false;
    let mut keeps = true;
    while let Some(link) = link.upgrade().filter(|link| !link.is_over.load(Ordering::Relaxed)) {
        let left = || link.config.reconnect_delay.saturating_sub(since.elapsed());
        if !is_down {
            is_down = true;
            keeps = !left().is_zero();
            link.iter().for_each(|connection| connection.go_down(keeps));
            // Every connection is closed, so nothing more is acknowledged.
            link.cache.server_is_away();
        } else if keeps && left().is_zero() {
            keeps = false;
            link.iter().filter(|connection| !connection.is_up()).for_each(|connection| connection.go_down(false));
        }
        let tried = link.come_up(|| if keeps { left().min(PATIENCE) } else { PATIENCE });
        let mut outage = lock(&link.outage);
        match tried {
            Ok(()) => return *outage = None,
            Err(said) => outage.as_mut().expect("this thread alone ends it").said = said,
        }
        drop(outage);
        let rest = if keeps { pause.min(left()) } else { pause };
        // Not while the device is held: it may be closed meanwhile.
        drop(link);
        thread::park_timeout(rest);
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}
