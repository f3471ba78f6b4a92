//! Who is connected.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use blkmq::Notify;
use blkmq::event::EventFd;

/// One connection, as it was when somebody asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// Its number: the first connection of a server has 1, and none has another's.
    pub number: u64,
    /// Where it comes from: address and port, or process and user.
    pub peer: String,
    /// The name of its export; `None` before it has chosen one.
    pub export: Option<String>,
    /// Requests taken from it.
    pub requests: u64,
    /// Bytes that it has read or written.
    pub bytes: u64,
}

/// What is kept of a connection. Its own thread alone counts.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) peer: String,
    pub(crate) export: OnceLock<String>,
    /// Wakes its thread.
    pub(crate) bell: Arc<EventFd>,
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Entry {
    pub(crate) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_bytes(&self, bytes: u32) {
        self.bytes.fetch_add(bytes.into(), Ordering::Relaxed);
    }

    fn info(&self) -> ClientInfo {
        ClientInfo {
            number: self.number,
            peer: self.peer.clone(),
            export: self.export.get().cloned(),
            requests: self.requests.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

#[derive(Debug, Default)]
struct Inside {
    last_number: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
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
        let (requests, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let entry = Arc::new(Entry { number, peer, export: OnceLock::new(), bell, requests, bytes });
        inside.entries.insert(number, Arc::clone(&entry));
        Some(entry)
    }

    /// Gives the place back.
    pub(crate) fn leave(&self, number: u64) {
        self.lock().entries.remove(&number);
        self.left.notify_all();
    }

    pub(crate) fn is_full(&self) -> bool {
        self.lock().entries.len() >= self.most
    }

    pub(crate) fn list(&self) -> Vec<ClientInfo> {
        self.lock().entries.values().map(|entry| entry.info()).collect()
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
