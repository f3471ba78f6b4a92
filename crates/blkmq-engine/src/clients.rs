//! The clients that are connected: [`Entry`] is what is known of one of them. The thread that accepts and the threads
//! of connections call in.

mod counters;
mod entry;
mod errors;
mod front;
mod latency;
mod rejection;
mod source;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use blkmq::event::EventFd;

use self::counters::Outcomes;
pub(crate) use self::counters::ThreadCounters;
pub use self::entry::{ClientInfo, Entry};
pub use self::errors::Errors;
pub use self::front::FrontEnd;
pub use self::latency::{Histogram, Kind, Latencies, NR_BUCKETS};
pub use self::rejection::{Reason, Rejections};
pub use self::source::Source;

/// Connections that may negotiate at a time. Such connections have places of their own, because it is not known whether
/// a connection becomes a client before it has chosen an export.
const MAX_NEGOTIATING: usize = 128;
/// How many connections of one source may negotiate at a time.
const MAX_OF_SOURCE: usize = 64;
/// How long a connection that negotiates may say nothing before another connection may take its place.
const SILENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
struct Registry {
    last_number: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
    /// The connections that have not chosen an export yet.
    negotiating: Vec<Arc<Entry>>,
    /// Clients that need no place.
    nr_own: usize,
    rejected: Rejections,
    /// By front-end and export, the counts of connections that are closed.
    past: BTreeMap<(FrontEnd, String), Outcomes>,
}

impl Registry {
    /// Returns how the requests of an export ended that came through a front-end, those of closed connections included.
    fn outcomes(&self, front_end: FrontEnd, export: &str) -> Outcomes {
        let uses =
            |entry: &&Arc<Entry>| entry.front_end == front_end && entry.export().is_some_and(|name| name == export);
        let past = self.past.get(&(front_end, export.to_owned())).copied();
        self.entries.values().filter(uses).map(|entry| entry.outcomes()).chain(past).sum()
    }
}

/// All connections of a front-end.
#[derive(Debug)]
pub struct Clients {
    most: usize,
    /// How long a connection that negotiates may say nothing before another connection may take its place.
    silence: Duration,
    registry: Mutex<Registry>,
    left: Condvar,
}

impl Clients {
    /// No connections, and places for this many clients.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, silence: SILENCE, registry: Mutex::default(), left: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place in the negotiation for a connection that comes through a front-end. `peer` says where the client
    /// comes from, and `bell` wakes the connection's thread. `None` if there is none. A connection that has been silent
    /// gives its place to one that comes.
    pub fn join(&self, front_end: FrontEnd, peer: String, source: Source, bell: Arc<EventFd>) -> Option<Arc<Entry>> {
        let mut registry = self.lock();
        if !registry.make_room(source, self.silence) {
            registry.rejected.add(Reason::Crowded);
            return None;
        }
        let entry = registry.enter(front_end, peer, Some(source), vec![bell]);
        registry.negotiating.push(Arc::clone(&entry));
        Some(entry)
    }

    /// Enters what the operator has named, a block device of this machine or a virtual machine: it needs no place among
    /// the clients, of which there are so many at most. `peer` says which it is, and each of its threads has one of
    /// `bells`.
    ///
    /// # Panics
    /// If there is no bell.
    pub fn enter(&self, front_end: FrontEnd, peer: String, bells: Vec<Arc<EventFd>>) -> Arc<Entry> {
        let mut registry = self.lock();
        registry.nr_own += 1;
        registry.enter(front_end, peer, None, bells)
    }

    /// Gives a connection that negotiates a place among the clients. Returns false if there is none.
    pub fn admit(&self, entry: &Entry) -> bool {
        let mut registry = self.lock();
        let Some(place) = registry.negotiating.iter().position(|other| other.number == entry.number) else {
            return true;
        };
        if registry.entries.len() - registry.nr_own - registry.negotiating.len() >= self.most {
            return false;
        }
        registry.negotiating.swap_remove(place);
        entry.keep_place();
        true
    }

    /// Takes its place among the clients from a connection that got no export after all. It negotiates on.
    pub fn dismiss(&self, entry: &Arc<Entry>) {
        let mut registry = self.lock();
        debug_assert!(registry.negotiating.iter().all(|other| other.number != entry.number), "it was admitted");
        registry.negotiating.push(Arc::clone(entry));
    }

    /// Returns the most clients that there may be.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Counts a connection that was not served.
    pub fn reject(&self, reason: Reason) {
        self.lock().rejected.add(reason);
    }

    /// Connections that were not served, by reason.
    pub fn rejected(&self) -> Rejections {
        self.lock().rejected
    }

    /// Gives the connection's place back.
    pub fn leave(&self, number: u64) {
        let mut registry = self.lock();
        registry.negotiating.retain(|entry| entry.number != number);
        if let Some(entry) = registry.entries.remove(&number) {
            registry.nr_own -= usize::from(entry.is_own);
            if let Some(export) = entry.export() {
                let past = registry.past.entry((entry.front_end, export.clone())).or_default();
                *past = [*past, entry.outcomes()].into_iter().sum();
            }
        }
        self.left.notify_all();
    }

    /// Returns true if so many connections are about to end that the server accepts no more until some have ended.
    pub fn is_crowded(&self) -> bool {
        self.lock().negotiating.len() >= 2 * MAX_NEGOTIATING
    }

    /// Returns the connections that there are, by number.
    pub fn list(&self) -> Vec<ClientInfo> {
        self.lock().entries.values().map(|entry| entry.info()).collect()
    }

    /// Returns how long the requests of an export took that came through a front-end, those of closed connections
    /// included.
    pub fn latencies(&self, front_end: FrontEnd, export: &str) -> Latencies {
        self.lock().outcomes(front_end, export).latencies
    }

    /// Returns the requests of an export that came through a front-end and were answered with an error, those of closed
    /// connections included.
    pub fn errors(&self, front_end: FrontEnd, export: &str) -> Errors {
        self.lock().outcomes(front_end, export).errors
    }

    /// Connections, and bytes of memory that they have for data.
    pub fn memory(&self) -> (usize, usize) {
        let registry = self.lock();
        let bytes = registry.entries.values().map(|entry| entry.memory()).sum();
        (registry.entries.len() - registry.nr_own, bytes)
    }

    /// Wakes every thread of every client.
    pub fn ring(&self) {
        self.lock().entries.values().for_each(|entry| entry.ring());
    }

    /// Returns true if there is no client, of whatever front-end.
    pub fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    /// Waits until no client of this front-end is connected.
    pub fn wait_empty(&self, front_end: FrontEnd) {
        let mut registry = self.lock();
        while registry.entries.values().any(|entry| entry.front_end == front_end) {
            registry = self.left.wait(registry).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Registry {
    fn enter(
        &mut self,
        front_end: FrontEnd,
        peer: String,
        source: Option<Source>,
        bells: Vec<Arc<EventFd>>,
    ) -> Arc<Entry> {
        self.last_number += 1;
        let entry = Arc::new(Entry::new(self.last_number, front_end, peer, source, bells));
        self.entries.insert(self.last_number, Arc::clone(&entry));
        entry
    }

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
        oldest.displace();
        true
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::failure::Cause;

    pub(crate) fn join(clients: &Clients, user: u32) -> Option<Arc<Entry>> {
        clients.join(FrontEnd::Nbd, "a test".into(), Source::User(user), Arc::new(EventFd::new().unwrap()))
    }

    /// Returns a connection of its own.
    pub(crate) fn entry() -> Arc<Entry> {
        join(&Clients::new(1), 0).unwrap()
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
        let reasons =
            [Reason::Denied, Reason::Full, Reason::Crowded, Reason::Late, Reason::NoDescriptor, Reason::QueueFull];
        for (reason, times) in reasons.into_iter().zip(1..) {
            (0..times).for_each(|_| clients.reject(reason));
        }
        let expected = Rejections { denied: 1, full: 2, crowded: 3, late: 4, no_descriptor: 5, queue_full: 6 };
        assert_eq!(clients.rejected(), expected);
    }

    /// Red if the errors of a connection that is closed are forgotten, or if those of another export are counted.
    #[test]
    #[cfg_attr(miri, ignore = "there are no eventfds")]
    fn errors_outlive_their_connection() {
        let clients = Clients::new(2);
        let [one, other] = [("a", 1), ("b", 2)].map(|(export, user)| {
            let entry = join(&clients, user).unwrap();
            entry.choose(export);
            entry
        });
        one.counters(0).count_error(Cause::NoSpace);
        other.counters(0).count_error(Cause::Io);
        clients.leave(one.number);
        let errors = |export| clients.errors(FrontEnd::Nbd, export);
        assert_eq!((errors("a").of(Cause::NoSpace), errors("a").count()), (1, 1));
        assert_eq!((errors("b").of(Cause::Io), errors("b").count()), (1, 1));
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
        let third = join(&clients, 1).unwrap();
        assert!(!clients.admit(&third));
        clients.dismiss(&other);
        assert!(clients.admit(&third) && !clients.admit(&other), "it gave its place back, and negotiates");
    }

    /// Red if the counts of a thread are left out, if a thread is not woken, if a block device takes the place of a
    /// client, or if its end gives one that it never had.
    #[test]
    #[cfg_attr(miri, ignore = "there are no eventfds")]
    fn a_block_device_is_one_client_with_all_its_threads() {
        let clients = Clients::new(1);
        let bells = [(); 3].map(|()| Arc::new(EventFd::new().unwrap()));
        let device = clients.enter(FrontEnd::Ublk, "ublk0".into(), bells.to_vec());
        device.choose("a");
        for index in 0..3 {
            let counters = device.counters(index);
            counters.count_request();
            counters.count_bytes(512 << index);
            counters.note_memory(1 << index);
            counters.count_error(Cause::Io);
        }
        device.counters(2).count_answer();
        let info = &clients.list()[0];
        assert_eq!((info.front_end, info.requests, info.unanswered, info.bytes), (FrontEnd::Ublk, 3, 2, 7 * 512));
        assert_eq!((info.memory, info.errors.count(), clients.errors(FrontEnd::Ublk, "a").count()), (7, 3, 3));
        assert_eq!(clients.memory(), (0, 7), "it has no memory beside");
        clients.ring();
        let rung = |bell: &Arc<EventFd>| {
            let mut fds = [rustix::event::PollFd::new(&**bell, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() == 1
        };
        assert!(bells.iter().all(rung));
        let [one, other] = [(); 2].map(|()| join(&clients, 1).unwrap());
        assert!(clients.admit(&one) && !clients.admit(&other));
        clients.leave(device.number);
        assert!(!clients.admit(&other));
        assert_eq!([FrontEnd::Ublk, FrontEnd::Nbd].map(|front_end| clients.errors(front_end, "a").count()), [3, 0]);
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
