//! Who is connected.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use blkmq::Notify;
use blkmq::event::EventFd;

use crate::latency::{Latencies, Meter, add};

/// One connection, as it was when somebody asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its number: the first connection of a server has 1, and none has another's.
    pub number: u64,
    /// Where it comes from: address and port, or process and user.
    pub peer: String,
    /// Who its certificate says it is, if it had to show one: the common name of its subject, or else the first of its
    /// alternative names.
    pub name: Option<String>,
    /// The name of its export; `None` before it has chosen one.
    pub export: Option<String>,
    /// Requests taken from it.
    pub requests: u64,
    /// Bytes that it has read or written.
    pub bytes: u64,
    /// How long its requests took.
    pub latencies: Latencies,
}

/// What is kept of a connection. Its own thread alone counts.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) peer: String,
    pub(crate) name: OnceLock<String>,
    pub(crate) export: OnceLock<String>,
    /// Wakes its thread.
    pub(crate) bell: Arc<EventFd>,
    requests: AtomicU64,
    bytes: AtomicU64,
    pub(crate) meter: Meter,
}

impl Entry {
    pub(crate) fn count_request(&self) {
        add(&self.requests, 1);
    }

    pub(crate) fn count_bytes(&self, bytes: u32) {
        add(&self.bytes, bytes.into());
    }

    fn info(&self) -> ClientInfo {
        ClientInfo {
            number: self.number,
            peer: self.peer.clone(),
            name: self.name.get().cloned(),
            export: self.export.get().cloned(),
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            latencies: self.meter.read(),
        }
    }
}

#[derive(Debug, Default)]
struct Inside {
    last_number: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
    /// By export, of connections that are closed.
    past: BTreeMap<String, Latencies>,
}

/// All connections of a server.
#[derive(Debug)]
pub(crate) struct Clients {
    most: usize,
    inside: Mutex<Inside>,
    left: Condvar,
}

impl Clients {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, inside: Mutex::default(), left: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection; `None` if there is none.
    pub(crate) fn join(&self, peer: String, bell: Arc<EventFd>) -> Option<Arc<Entry>> {
        let mut inside = self.lock();
        if inside.entries.len() >= self.most {
            return None;
        }
        inside.last_number += 1;
        let number = inside.last_number;
        let (name, export) = (OnceLock::new(), OnceLock::new());
        let (requests, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let meter = Meter::default();
        let entry = Arc::new(Entry { number, peer, name, export, bell, requests, bytes, meter });
        inside.entries.insert(number, Arc::clone(&entry));
        Some(entry)
    }

    /// Gives the place back.
    pub(crate) fn leave(&self, number: u64) {
        let mut inside = self.lock();
        if let Some(entry) = inside.entries.remove(&number)
            && let Some(export) = entry.export.get()
        {
            *inside.past.entry(export.clone()).or_default() += entry.meter.read();
        }
        self.left.notify_all();
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().entries.len() >= self.most
    }

    pub(crate) fn list(&self) -> Vec<ClientInfo> {
        self.lock().entries.values().map(|entry| entry.info()).collect()
    }

    /// How long the requests of an export took, those of closed connections included.
    pub(crate) fn latencies(&self, export: &str) -> Latencies {
        let inside = self.lock();
        let mut sum = inside.past.get(export).copied().unwrap_or_default();
        let here = inside.entries.values().filter(|entry| entry.export.get().is_some_and(|name| name == export));
        here.for_each(|entry| sum += entry.meter.read());
        sum
    }

    /// Wakes every connection's thread.
    pub(crate) fn ring(&self) {
        self.lock().entries.values().for_each(|entry| entry.bell.notify());
    }

    /// Waits until nobody is connected.
    pub(crate) fn wait_empty(&self) {
        let mut inside = self.lock();
        while !inside.entries.is_empty() {
            inside = self.left.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
