//! Who is connected.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use blkmq::Notify;
use blkmq::event::EventFd;

use crate::errors::{ErrorMeter, Errors};
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
    /// Those of them whose replies are not sent to their end.
    pub unanswered: u64,
    /// For how long it has taken nothing of the replies that wait for it; `None` if none does.
    pub unread: Option<Duration>,
    /// Bytes that it has read or written.
    pub bytes: u64,
    /// Its requests that were answered with an error.
    pub errors: Errors,
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
    answers: AtomicU64,
    bytes: AtomicU64,
    since: Instant,
    /// In microseconds of the time since then, and one more, when the client last took something, if it is waited for to take more.
    blocked: AtomicU64,
    pub(crate) meter: Meter,
    pub(crate) errors: ErrorMeter,
}

impl Entry {
    pub(crate) fn count_request(&self) {
        add(&self.requests, 1);
    }

    pub(crate) fn count_answer(&self) {
        add(&self.answers, 1);
    }

    /// The client takes nothing from now on, though something waits for it.
    pub(crate) fn note_blocked(&self) {
        // Relaxed: a number for people, which orders nothing.
        self.blocked.store(self.since.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
    }

    /// The client has taken something.
    pub(crate) fn note_reading(&self) {
        // Relaxed: as above.
        self.blocked.store(0, Ordering::Relaxed);
    }

    pub(crate) fn count_bytes(&self, bytes: u32) {
        add(&self.bytes, bytes.into());
    }

    fn info(&self) -> ClientInfo {
        // Answers first: what is counted meanwhile makes the difference larger, not negative.
        let answers = self.answers.load(Ordering::Relaxed);
        let requests = self.requests.load(Ordering::Relaxed);
        let blocked = self.blocked.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_micros);
        ClientInfo {
            number: self.number,
            peer: self.peer.clone(),
            name: self.name.get().cloned(),
            export: self.export.get().cloned(),
            requests,
            unanswered: requests.saturating_sub(answers),
            unread: blocked.map(|blocked| self.since.elapsed().saturating_sub(blocked)),
            bytes: self.bytes.load(Ordering::Relaxed),
            errors: self.errors.read(),
            latencies: self.meter.read(),
        }
    }
}

#[derive(Debug, Default)]
struct Inside {
    last_number: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
    /// By export, of connections that are closed.
    past: BTreeMap<String, Past>,
}

/// What is kept of connections that are closed.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    latencies: Latencies,
    errors: Errors,
}

impl Inside {
    /// The connections that use an export.
    fn users(&self, export: &str) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values().filter(move |entry| entry.export.get().is_some_and(|name| name == export))
    }
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
        let [requests, answers, bytes, blocked] = [const { AtomicU64::new(0) }; 4];
        let (since, meter, errors) = (Instant::now(), Meter::default(), ErrorMeter::default());
        let entry = Arc::new(Entry {
            number,
            peer,
            name,
            export,
            bell,
            requests,
            answers,
            bytes,
            since,
            blocked,
            meter,
            errors,
        });
        inside.entries.insert(number, Arc::clone(&entry));
        Some(entry)
    }

    /// Gives the place back.
    pub(crate) fn leave(&self, number: u64) {
        let mut inside = self.lock();
        if let Some(entry) = inside.entries.remove(&number)
            && let Some(export) = entry.export.get()
        {
            let past = inside.past.entry(export.clone()).or_default();
            past.latencies += entry.meter.read();
            past.errors += entry.errors.read();
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
        let mut sum = inside.past.get(export).copied().unwrap_or_default().latencies;
        inside.users(export).for_each(|entry| sum += entry.meter.read());
        sum
    }

    /// The requests of an export that were answered with an error, those of closed connections included.
    pub(crate) fn errors(&self, export: &str) -> Errors {
        let inside = self.lock();
        let mut sum = inside.past.get(export).copied().unwrap_or_default().errors;
        inside.users(export).for_each(|entry| sum += entry.errors.read());
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
