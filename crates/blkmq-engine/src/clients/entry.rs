//! What is known of one client.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use blkmq::event::EventFd;
use blkmq::{Notify, is_hidden};

use super::counters::{Outcomes, ThreadCounters};
use super::errors::Errors;
use super::front::FrontEnd;
use super::latency::Latencies;
use super::source::Source;

/// One connection, as it was at the moment of the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// The connection's number. The first connection of a server has number 1, and no number is used twice.
    pub number: u64,
    /// The front-end that the connection came through.
    pub front_end: FrontEnd,
    /// Where the client comes from: address and port, or process and user.
    pub peer: String,
    /// The name in the client's certificate, if the client had to show one: the common name of the certificate's
    /// subject, or else the first of the alternative names.
    pub name: Option<String>,
    /// The name of the client's export. `None` before the client has chosen one.
    pub export: Option<String>,
    /// The name of the queue's client that the connection belongs to. `None` before the client has chosen an export.
    pub client: Option<String>,
    /// Requests taken from the client.
    pub requests: u64,
    /// Requests whose replies are not completely sent.
    pub unanswered: u64,
    /// For how long the client has taken nothing of the replies that wait for it. `None` if no reply waits.
    pub unread: Option<Duration>,
    /// Bytes that the client has read or written.
    pub bytes: u64,
    /// The client's requests that were answered with an error.
    pub errors: Errors,
    /// Bytes of memory that the connection has for the data of its requests.
    pub memory: usize,
    /// How long the client's requests took.
    pub latencies: Latencies,
}

/// The longest name of a client that is shown, in characters. X.509 allows a common name of this length.
const MAX_NAME: usize = 64;

/// Threads of one client have numbers of their own up to this one.
const THREAD_BITS: u32 = 16;

/// What is known of a connection, of a block device, or of a machine.
#[derive(Debug)]
pub struct Entry {
    /// The connection's number.
    pub number: u64,
    /// The front-end that the connection came through.
    pub front_end: FrontEnd,
    peer: String,
    pub(super) source: Source,
    /// Whether the operator has named it, so that it needs no place among the clients.
    pub(crate) is_own: bool,
    /// The user of the process at the other end of a Unix socket.
    pub user: Option<u32>,
    /// The name in the client's certificate, which was verified.
    certified: OnceLock<String>,
    /// See [`name`](Self::name).
    name: OnceLock<String>,
    export: OnceLock<String>,
    /// The name of the queue's client.
    client: OnceLock<String>,
    /// Wakes the connection's thread; the first one, if there are several.
    pub bell: Arc<EventFd>,
    /// The threads, at least one.
    threads: Box<[Arc<ThreadCounters>]>,
    since: Instant,
    /// When the client last said something in its negotiation, in microseconds since `since`.
    heard: AtomicU64,
    /// Whether another connection has taken this connection's place in the negotiation.
    is_displaced: AtomicBool,
    /// When the client last took something, in microseconds since `since` plus one, if the connection waits for the
    /// client to take more; else 0.
    blocked: AtomicU64,
}

impl Entry {
    /// `source`: none for a client that the operator has named. `bells`: one for each thread, at least one.
    pub(super) fn new(
        number: u64,
        front_end: FrontEnd,
        peer: String,
        source: Option<Source>,
        bells: Vec<Arc<EventFd>>,
    ) -> Self {
        let (bell, is_own, source) = (Arc::clone(&bells[0]), source.is_none(), source.unwrap_or(Source::NONE));
        let threads =
            (0..).zip(bells).map(|(index, bell)| Arc::new(ThreadCounters::new(number << THREAD_BITS | index, bell)));
        let [certified, name, export, client] = [const { OnceLock::new() }; 4];
        let [blocked, heard] = [const { AtomicU64::new(0) }; 2];
        Self {
            number,
            front_end,
            peer,
            source,
            is_own,
            user: source.user(),
            certified,
            name,
            export,
            client,
            bell,
            threads: threads.collect(),
            since: Instant::now(),
            heard,
            is_displaced: AtomicBool::new(false),
            blocked,
        }
    }

    /// What a thread counts.
    pub(crate) fn counters(&self, index: usize) -> &Arc<ThreadCounters> {
        &self.threads[index]
    }

    /// Wakes every thread.
    pub(super) fn ring(&self) {
        self.threads.iter().for_each(|counters| counters.bell.notify());
    }

    /// Notes the name in the client's certificate, which was verified.
    pub fn identify(&self, name: String) {
        let shown = name.chars().take(MAX_NAME);
        let shown = shown.map(|c| if is_hidden(c) { char::REPLACEMENT_CHARACTER } else { c }).collect();
        let _ = self.name.set(shown);
        let _ = self.certified.set(name);
    }

    /// Returns true if the client has shown a certificate with this name.
    pub fn is_certified(&self, name: &str) -> bool {
        self.certified.get().is_some_and(|certified| certified == name)
    }

    /// Returns true if the name in the client's certificate reads otherwise than it is. The client is not served then.
    pub fn is_disguised(&self) -> bool {
        self.certified.get().is_some_and(|certified| certified.contains(is_hidden))
    }

    /// Returns the name in the client's certificate in a form that can be shown: only characters that can stand in a
    /// line, and not more of them than needed.
    pub fn name(&self) -> Option<&String> {
        self.name.get()
    }

    /// Returns the client's address, if it has come by TCP.
    pub fn address(&self) -> Option<IpAddr> {
        self.source.address()
    }

    /// Returns where the client comes from, for people; of a client that the operator has named, this name.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Notes the export that the client has chosen.
    pub fn choose(&self, export: &str) {
        let _ = self.export.set(export.to_owned());
    }

    /// Notes the queue's client that the connection belongs to.
    pub fn belong_to(&self, client: &str) {
        let _ = self.client.set(client.to_owned());
    }

    /// Returns the name of the queue's client that the connection belongs to, once it does.
    pub fn client(&self) -> Option<&String> {
        self.client.get()
    }

    /// Returns the export that the client has chosen.
    pub fn export(&self) -> Option<&String> {
        self.export.get()
    }

    /// Notes that the client has said something in its negotiation.
    pub fn note_word(&self) {
        // Relaxed: this time is only compared, and orders nothing.
        self.heard.store(self.since.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// For how long the client has said nothing by now.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.since);
        // Relaxed: as above.
        age.saturating_sub(Duration::from_micros(self.heard.load(Ordering::Relaxed)))
    }

    /// Returns true if another connection has taken this connection's place, so that this one has to end.
    pub fn is_displaced(&self) -> bool {
        // Relaxed: the flag is set before the bell rings, and the bell orders the two.
        self.is_displaced.load(Ordering::Relaxed)
    }

    /// Notes that the client takes nothing from now on, although data waits for it.
    pub fn note_blocked(&self) {
        // Relaxed: this number is only shown to people, and orders nothing.
        self.blocked.store(self.since.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
    }

    /// Notes that the client has taken something.
    pub fn note_reading(&self) {
        // Relaxed: as above.
        self.blocked.store(0, Ordering::Relaxed);
    }

    /// Takes the connection's place in the negotiation for another connection.
    pub(super) fn displace(&self) {
        // Relaxed: the bell that rings after this orders it.
        self.is_displaced.store(true, Ordering::Relaxed);
        self.bell.notify();
    }

    /// Notes that the connection, which was chosen to end, keeps its place after all.
    pub(super) fn keep_place(&self) {
        // Relaxed: only the connection's own thread reads this flag, and that thread runs this code.
        self.is_displaced.store(false, Ordering::Relaxed);
    }

    pub(super) fn outcomes(&self) -> Outcomes {
        self.threads.iter().map(|counters| counters.outcomes()).sum()
    }

    /// Returns the number of bytes of memory that the connection has for data.
    pub(super) fn memory(&self) -> usize {
        self.threads.iter().map(|counters| counters.memory()).sum()
    }

    pub(super) fn info(&self) -> ClientInfo {
        let counts = self.threads.iter().map(|counters| counters.requests());
        let [answers, requests] = counts.fold([0; 2], |sum, more| [sum[0] + more[0], sum[1] + more[1]]);
        let Outcomes { latencies, errors } = self.outcomes();
        let blocked = self.blocked.load(Ordering::Relaxed).checked_sub(1).map(Duration::from_micros);
        ClientInfo {
            number: self.number,
            front_end: self.front_end,
            peer: self.peer.clone(),
            name: self.name.get().cloned(),
            export: self.export.get().cloned(),
            client: self.client.get().cloned(),
            requests,
            unanswered: requests.saturating_sub(answers),
            unread: blocked.map(|blocked| self.since.elapsed().saturating_sub(blocked)),
            bytes: self.threads.iter().map(|counters| counters.bytes()).sum(),
            errors,
            memory: self.memory(),
            latencies,
        }
    }
}

/// The client in the log: its number, and where it comes from.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} from {}", self.number, self.peer)
    }
}
