//! The clients that are connected.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use blkmq::Notify;
use blkmq::event::EventFd;

use crate::errors::{ErrorMeter, Errors};
use crate::latency::{Latencies, Meter, add};
use crate::listener::Source;

/// Connections that may negotiate at a time. Such connections have places of their own, because it is not known whether
/// a connection becomes a client before it has chosen an export.
const MAX_NEGOTIATING: usize = 128;
/// How many connections of one source may negotiate at a time.
const MAX_OF_SOURCE: usize = 64;
/// How long a connection that negotiates may say nothing before another connection may take its place.
const SILENCE: Duration = Duration::from_secs(1);

/// One connection, as it was at the moment of the question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientInfo {
    /// The connection's number. The first connection of a server has number 1, and no number is used twice.
    pub number: u64,
    /// Where the client comes from: address and port, or process and user.
    pub peer: String,
    /// The name in the client's certificate, if the client had to show one: the common name of the certificate's
    /// subject, or else the first of the alternative names.
    pub name: Option<String>,
    /// The name of the client's export. `None` before the client has chosen one.
    pub export: Option<String>,
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

/// What is known of a connection. Only the connection's own thread writes the counts.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) peer: String,
    source: Source,
    /// The user of the process at the other end of a Unix socket.
    pub(crate) user: Option<u32>,
    /// The name in the client's certificate, which was verified.
    pub(crate) certified: OnceLock<String>,
    /// The name in the certificate in a form that can be shown.
    pub(crate) name: OnceLock<String>,
    /// Set when the client has asked for an export that it may not use.
    pub(crate) was_refused: OnceLock<()>,
    /// Set when the client has asked for a place when there was none.
    pub(crate) was_turned_away: OnceLock<()>,
    pub(crate) export: OnceLock<String>,
    /// Wakes the connection's thread.
    pub(crate) bell: Arc<EventFd>,
    requests: AtomicU64,
    answers: AtomicU64,
    bytes: AtomicU64,
    since: Instant,
    /// When the client last said something in its negotiation, in microseconds since `since`.
    heard: AtomicU64,
    /// Whether another connection has taken this connection's place in the negotiation.
    is_displaced: AtomicBool,
    memory: AtomicUsize,
    /// When the client last took something, in microseconds since `since` plus one, if the connection waits for the
    /// client to take more; else 0.
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

    /// Notes that the connection has this many bytes of memory for data.
    pub(crate) fn note_memory(&self, bytes: usize) {
        // Relaxed: this number is only shown to people, and orders nothing.
        self.memory.store(bytes, Ordering::Relaxed);
    }

    /// Notes that the client has said something in its negotiation.
    pub(crate) fn note_word(&self) {
        // Relaxed: this time is only compared, and orders nothing.
        self.heard.store(self.since.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// For how long the client has said nothing by now.
    fn silence(&self, now: Instant) -> Duration {
        let age = now.saturating_duration_since(self.since);
        // Relaxed: as above.
        age.saturating_sub(Duration::from_micros(self.heard.load(Ordering::Relaxed)))
    }

    /// Whether another connection has taken this connection's place, so that this one has to end.
    pub(crate) fn is_displaced(&self) -> bool {
        // Relaxed: the flag is set before the bell rings, and the bell orders the two.
        self.is_displaced.load(Ordering::Relaxed)
    }

    /// Notes that the client takes nothing from now on, although data waits for it.
    pub(crate) fn note_blocked(&self) {
        // Relaxed: this number is only shown to people, and orders nothing.
        self.blocked.store(self.since.elapsed().as_micros() as u64 + 1, Ordering::Relaxed);
    }

    /// Notes that the client has taken something.
    pub(crate) fn note_reading(&self) {
        // Relaxed: as above.
        self.blocked.store(0, Ordering::Relaxed);
    }

    pub(crate) fn count_bytes(&self, bytes: u32) {
        add(&self.bytes, bytes.into());
    }

    fn info(&self) -> ClientInfo {
        // The answers are read first. If requests are counted meanwhile, the difference is larger, but not negative.
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
            memory: self.memory.load(Ordering::Relaxed),
            latencies: self.meter.read(),
        }
    }
}

/// Why a connection was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Denied,
    Full,
    Crowded,
    Late,
    NoDescriptor,
}

/// Connections that were not served since the server was started, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejections {
    /// Connections that asked for an export that they may not use.
    pub denied: u64,
    /// Connections that chose an export, once or several times, when the server had as many clients as it may have.
    pub full: u64,
    /// Connections that came when too many were negotiating, in all or from one address or user.
    pub crowded: u64,
    /// Connections that chose no export in time.
    pub late: u64,
    /// Connections for which the system had no descriptor.
    pub no_descriptor: u64,
}

impl Rejections {
    fn add(&mut self, reason: Reason) {
        let count = match reason {
            Reason::Denied => &mut self.denied,
            Reason::Full => &mut self.full,
            Reason::Crowded => &mut self.crowded,
            Reason::Late => &mut self.late,
            Reason::NoDescriptor => &mut self.no_descriptor,
        };
        *count += 1;
    }
}

#[derive(Debug, Default)]
struct Inside {
    last_number: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
    /// The connections that have not chosen an export yet.
    negotiating: Vec<Arc<Entry>>,
    rejected: Rejections,
    /// By export, the counts of connections that are closed.
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
    /// How long a connection that negotiates may say nothing before another connection may take its place.
    silence: Duration,
    inside: Mutex<Inside>,
    left: Condvar,
}

impl Clients {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, silence: SILENCE, inside: Mutex::default(), left: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place in the negotiation for a connection. `None` if there is none. A connection that has been silent
    /// gives its place to one that comes.
    pub(crate) fn join(&self, peer: String, source: Source, bell: Arc<EventFd>) -> Option<Arc<Entry>> {
        let mut inside = self.lock();
        if !inside.make_room(source, self.silence) {
            inside.rejected.add(Reason::Crowded);
            return None;
        }
        inside.last_number += 1;
        let number = inside.last_number;
        let [certified, name, export] = [const { OnceLock::new() }; 3];
        let [requests, answers, bytes, blocked, heard] = [const { AtomicU64::new(0) }; 5];
        let (is_displaced, memory) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (since, meter, errors) = (Instant::now(), Meter::default(), ErrorMeter::default());
        let entry = Arc::new(Entry {
            number,
            peer,
            source,
            user: source.user(),
            certified,
            name,
            was_refused: OnceLock::new(),
            was_turned_away: OnceLock::new(),
            export,
            bell,
            requests,
            answers,
            bytes,
            since,
            heard,
            is_displaced,
            memory,
            blocked,
            meter,
            errors,
        });
        inside.entries.insert(number, Arc::clone(&entry));
        inside.negotiating.push(Arc::clone(&entry));
        Some(entry)
    }

    /// Gives a connection that negotiates a place among the clients. Returns false if there is none.
    pub(crate) fn admit(&self, entry: &Entry) -> bool {
        let mut inside = self.lock();
        let Some(place) = inside.negotiating.iter().position(|other| other.number == entry.number) else {
            return true;
        };
        if inside.entries.len() - inside.negotiating.len() >= self.most {
            return false;
        }
        inside.negotiating.swap_remove(place);
        // Relaxed: only the connection's own thread reads this flag, and that thread runs this code.
        entry.is_displaced.store(false, Ordering::Relaxed);
        true
    }

    /// The most clients that there may be.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Counts a connection that was not served.
    pub(crate) fn reject(&self, reason: Reason) {
        self.lock().rejected.add(reason);
    }

    pub(crate) fn rejected(&self) -> Rejections {
        self.lock().rejected
    }

    /// Gives the connection's place back.
    pub(crate) fn leave(&self, number: u64) {
        let mut inside = self.lock();
        inside.negotiating.retain(|entry| entry.number != number);
        if let Some(entry) = inside.entries.remove(&number)
            && let Some(export) = entry.export.get()
        {
            let past = inside.past.entry(export.clone()).or_default();
            past.latencies += entry.meter.read();
            past.errors += entry.errors.read();
        }
        self.left.notify_all();
    }

    /// Whether so many connections are about to end that the server accepts no more until some have ended.
    pub(crate) fn is_crowded(&self) -> bool {
        self.lock().negotiating.len() >= 2 * MAX_NEGOTIATING
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

    /// Connections, and bytes of memory that they have for data.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let inside = self.lock();
        let bytes = inside.entries.values().map(|entry| entry.memory.load(Ordering::Relaxed)).sum();
        (inside.entries.len(), bytes)
    }

    /// Wakes every connection's thread.
    pub(crate) fn ring(&self) {
        self.lock().entries.values().for_each(|entry| entry.bell.notify());
    }

    /// Waits until no client is connected.
    pub(crate) fn wait_empty(&self) {
        let mut inside = self.lock();
        while !inside.entries.is_empty() {
            inside = self.left.wait(inside).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Inside {
    /// Makes sure that there is a place in the negotiation for one more connection of that source. If there is none,
    /// the connection that has been silent for longest has to end. A connection that has not been silent need not end,
    /// with one exception: if other sources have all places, a connection of the source that has the most places has to
    /// end.
    fn make_room(&self, source: Source, silence: Duration) -> bool {
        let here = || self.negotiating.iter().filter(|entry| !entry.is_displaced());
        let count = |source: Source| here().filter(|entry| entry.source == source).count();
        let of_source = count(source);
        let source = if of_source >= MAX_OF_SOURCE {
            source
        } else if here().count() >= MAX_NEGOTIATING {
            let greediest = here().map(|entry| entry.source).max_by_key(|source| count(*source));
            greediest.unwrap_or(source)
        } else {
            return true;
        };
        // One time is used for all comparisons. Otherwise a thread that is held up between two looks at the clock would
        // take a client that came later for the oldest one.
        let now = Instant::now();
        let Some(oldest) = here().filter(|entry| entry.source == source).max_by_key(|entry| entry.silence(now)) else {
            return false;
        };
        if oldest.silence(now) < silence && of_source + 1 >= count(source) {
            return false;
        }
        // Relaxed: the bell that rings after this orders it.
        oldest.is_displaced.store(true, Ordering::Relaxed);
        oldest.bell.notify();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::Errno;

    fn join(clients: &Clients, user: u32) -> Option<Arc<Entry>> {
        clients.join("a test".into(), Source::User(user), Arc::new(EventFd::new().unwrap()))
    }

    /// Red if one source can have all places for negotiation, or if silent connections keep their places.
    #[test]
    #[cfg_attr(miri, ignore = "there are no eventfds")]
    fn one_source_cannot_keep_others_from_negotiating() {
        let clients = Clients { silence: Duration::MAX, ..Clients::new(1) };
        let first: Vec<_> = (0..MAX_OF_SOURCE).map(|_| join(&clients, 1).unwrap()).collect();
        assert!(join(&clients, 1).is_none(), "none of its connections has been silent for long");
        assert_eq!(clients.rejected().crowded, 1);
        let second: Vec<_> = (0..MAX_NEGOTIATING - MAX_OF_SOURCE).map(|_| join(&clients, 2).unwrap()).collect();
        assert!(join(&clients, 3).is_some(), "one of those that have most has to go");
        let gone = |entries: &[Arc<Entry>]| entries.iter().filter(|entry| entry.is_displaced()).count();
        assert_eq!(gone(&first) + gone(&second), 1);
    }

    /// Red if two reasons are counted as one.
    #[test]
    fn every_reason_for_a_rejection_is_counted_apart() {
        let clients = Clients::new(1);
        let reasons = [Reason::Denied, Reason::Full, Reason::Crowded, Reason::Late, Reason::NoDescriptor];
        for (reason, times) in reasons.into_iter().zip(1..) {
            (0..times).for_each(|_| clients.reject(reason));
        }
        let expected = Rejections { denied: 1, full: 2, crowded: 3, late: 4, no_descriptor: 5 };
        assert_eq!(clients.rejected(), expected);
    }

    /// Red if the errors of a connection that is closed are forgotten, or if those of another export are counted.
    #[test]
    #[cfg_attr(miri, ignore = "there are no eventfds")]
    fn errors_outlive_their_connection() {
        let clients = Clients::new(2);
        let [one, other] = [("a", 1), ("b", 2)].map(|(export, user)| {
            let entry = join(&clients, user).unwrap();
            entry.export.set(export.to_owned()).unwrap();
            entry
        });
        one.errors.count(Errno::NoSpace);
        other.errors.count(Errno::Io);
        clients.leave(one.number);
        assert_eq!((clients.errors("a").of(Errno::NoSpace), clients.errors("a").count()), (1, 1));
        assert_eq!((clients.errors("b").of(Errno::Io), clients.errors("b").count()), (1, 1));
    }

    /// Red if a place is taken before an export is chosen.
    #[test]
    #[cfg_attr(miri, ignore = "there are no eventfds")]
    fn a_place_is_taken_when_an_export_is_chosen_and_given_back() {
        let clients = Clients::new(1);
        let [one, other] = [(); 2].map(|()| join(&clients, 1).unwrap());
        assert!(clients.admit(&one) && clients.admit(&one) && !clients.admit(&other));
        clients.leave(one.number);
        assert!(clients.admit(&other));
    }

    /// Red if another connection than the one that has been silent for longest has to end.
    #[test]
    #[cfg_attr(miri, ignore = "there are no eventfds")]
    fn the_one_that_has_been_silent_for_longest_goes() {
        let clients = Clients { silence: Duration::ZERO, ..Clients::new(1) };
        let entries: Vec<_> = (0..MAX_OF_SOURCE).map(|_| join(&clients, 1).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(2));
        entries.iter().filter(|entry| entry.number != 7).for_each(|entry| entry.note_word());
        assert!(join(&clients, 1).is_some());
        let gone: Vec<_> = entries.iter().filter(|entry| entry.is_displaced()).map(|entry| entry.number).collect();
        assert_eq!(gone, [7]);
        clients.leave(7);
    }
}
