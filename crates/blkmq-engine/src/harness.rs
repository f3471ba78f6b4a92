//! Conformance checks for front-ends: what each must do for its clients and for the engine.
//!
//! A test says by [`TestServer`] how the front-end's server is started, and by [`TestClient`] how a client speaks to
//! it, and calls [`check`]. `CONTRIBUTING.md` names one to copy.
//!
//! A front-end that loses a wake-up fails a check after five minutes, or hangs where the check waits for an answer.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use blkmq::driver::spec;
use blkmq::event::EventFd;
use blkmq::{Quiesce, RequestQueue};

use crate::ask::{Ask, Request};
use crate::clients::{ClientInfo, FrontEnd, Kind};
use crate::engine::{Bounds, Engine};
use crate::export::Export;
use crate::failure::Cause;
use crate::log::{Journal, Level};
use crate::memory::budget::least;
use crate::session::Session;

/// Connections of a server. It gets the least memory for them.
pub const CONNECTIONS: usize = 2;
/// Bytes of a read that takes memory of the common part, and is at most the guaranteed length.
const LONG: usize = 260 << 10;
const SIZE: u64 = 1 << 20;
const BLOCK: usize = 4096;
const WRITE: Ask = Ask::Write { fua: false };
const DISCARD: Ask = Ask::Discard { fua: false };
const ZEROES: Ask = Ask::WriteZeroes { fua: false, no_hole: false, fast: false };

/// A server of one front-end. Dropping it ends it.
pub trait TestServer {
    /// The front-end that its clients are counted for.
    const FRONT_END: FrontEnd;
    /// How many requests a client has in flight at a time, at least 1.
    const DEPTH: usize;
    /// A client of it.
    type Client: TestClient;

    /// Serves this export alone, with the [least memory](crate::least_memory) for [`CONNECTIONS`].
    fn start(export: Export) -> Self;

    /// Returns the engine.
    fn engine(&self) -> &Arc<Engine>;

    /// Connects a client. `None` if the server lets none in.
    fn connect(&self) -> Option<Self::Client>;

    /// Waits until the server, which has been asked to end, has ended.
    fn wait(&mut self);
}

/// A client of a [`TestServer`]. Dropping it closes its connection, without a goodbye.
pub trait TestClient {
    /// Returns the size in bytes and whether the export is read-only, as the server announced them.
    fn terms(&mut self) -> (u64, bool);

    /// Sends a request without waiting for its answer. `data` is as long as the request; a write writes these bytes.
    fn send(&mut self, ask: Ask, offset: u64, data: &[u8]);

    /// Waits for the next answer. Returns the data of a read, an empty vector for any other request, and `None` if the
    /// request failed.
    fn receive(&mut self) -> Option<Vec<u8>>;

    /// Waits until the server has closed the connection.
    fn wait_closed(&mut self);
}

/// Returns an engine with one export, without a log, with the least memory for so many connections.
///
/// # Panics
/// If the system has no thread or no descriptor left.
#[must_use]
pub fn engine(export: Export, connections: usize) -> Arc<Engine> {
    let (journal, _) = Journal::start(Arc::new(|_: Level, _: &str| ()), "log").expect("there is a thread");
    let bell = Arc::new(EventFd::new().expect("there is a descriptor"));
    Arc::new(Engine::new(vec![export], Bounds::default(), least(connections), connections, bell, journal))
}

/// Checks a front-end. Red, each bug planted once: neither front-end nor session checks that a client may only read;
/// latencies are not counted; NBD closes its connections when a drain begins. Red by a hang: answers are not counted, a
/// client stays in the list, memory that comes free wakes nobody.
///
/// # Panics
/// If a check fails.
pub fn check<S: TestServer>() {
    Run::<S>::of_reader().changes_of_a_reader_are_refused();
    Run::<S>::new().requests_are_counted_and_timed();
    Run::<S>::new().a_client_that_vanishes_leaves_nothing();
    Run::<S>::new().a_drain_answers_what_was_taken();
    Run::<S>::new().a_client_waits_for_memory();
}

/// A check of one server, in front of a disk in memory.
struct Run<S> {
    server: S,
    q: RequestQueue,
}

/// Waits until this holds, for five minutes at most.
#[track_caller]
fn wait_until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(300), "it does not come about");
        thread::sleep(Duration::from_millis(1));
    }
}

impl<S: TestServer> Run<S> {
    fn of_export(read_only: bool) -> Self {
        let device = spec::open(&format!("ram,size={SIZE}")).expect("there is such a device");
        let q = RequestQueue::builder(device).build().expect("it can have a queue");
        Self { server: S::start(Export { read_only, ..Export::new("", q.clone()) }), q }
    }

    fn new() -> Self {
        Self::of_export(false)
    }

    fn of_reader() -> Self {
        Self::of_export(true)
    }

    fn connect(&self) -> S::Client {
        self.server.connect().expect("a client is let in")
    }

    fn errors(&self, cause: Cause) -> [u64; 2] {
        let errors = self.server.engine().clients.errors(S::FRONT_END, "");
        [errors.of(cause), errors.count()]
    }

    fn info(&self) -> ClientInfo {
        self.server.engine().clients.list().remove(0)
    }

    /// Has a client send as many writes as it has requests in flight. The device gets them when the value is dropped.
    fn begin_writes(&self, client: &mut S::Client) -> Quiesce {
        let quiesce = self.q.quiesce();
        (0..S::DEPTH).for_each(|nr| client.send(WRITE, (nr * BLOCK) as u64, &[7; BLOCK]));
        wait_until(|| self.info().requests >= S::DEPTH as u64);
        assert_eq!(self.info().requests, S::DEPTH as u64, "each request is counted once");
        quiesce
    }

    /// Checks that nothing is left of clients that have gone.
    fn assert_clean(&self) {
        let Engine { clients, .. } = &**self.server.engine();
        clients.wait_empty(S::FRONT_END);
        assert_eq!(
            (clients.list(), self.server.engine().memory().0),
            (vec![], 0),
            "clients, and memory that they have"
        );
        assert_eq!((self.q.busy_tags(), self.q.disk_stats().in_flight), (0, 0), "requests in flight");
    }

    fn changes_of_a_reader_are_refused(self) {
        let mut client = self.connect();
        assert_eq!(client.terms(), (SIZE, true), "size, and whether the export is read-only");
        for ask in [WRITE, DISCARD, ZEROES] {
            client.send(ask, 0, &[7; BLOCK]);
            assert!(client.receive().is_none(), "{ask:?} of a client that may only read");
        }
        assert_eq!(self.errors(Cause::NotPermitted), [3, 3], "changes that are not permitted, and all errors");
        client.send(Ask::Read, 0, &[0; BLOCK]);
        assert_eq!(client.receive(), Some(vec![0; BLOCK]), "nothing is changed");
        let stats = self.q.disk_stats();
        assert_eq!((stats.write_ios, stats.discard_ios), (0, 0), "the device gets no change");
    }

    fn requests_are_counted_and_timed(self) {
        let mut client = self.connect();
        assert_eq!(client.terms(), (SIZE, false), "size, and whether the export is read-only");
        let data = vec![7; BLOCK];
        for (ask, expected) in [(WRITE, &[][..]), (Ask::Flush, &[]), (Ask::Read, &data), (ZEROES, &[]), (DISCARD, &[])]
        {
            client.send(ask, 0, if ask == Ask::Flush { &[] } else { &data });
            assert_eq!(client.receive().as_deref(), Some(expected), "{ask:?}");
        }
        wait_until(|| self.info().unanswered == 0);
        let ClientInfo { requests, bytes, latencies, .. } = self.info();
        assert_eq!((requests, bytes), (5, 2 * BLOCK as u64), "requests, and bytes that were read or written");
        let times = [Kind::Read, Kind::Write, Kind::Discard, Kind::Flush].map(|kind| latencies.of(kind).count());
        assert_eq!(times, [1, 2, 1, 1], "reads, writes with zeroes, discards and flushes with their latency");
        client.send(Ask::Read, SIZE, &data);
        assert!(client.receive().is_none(), "a read behind the end");
        drop(client);
        self.assert_clean();
        assert_eq!(self.errors(Cause::Invalid), [1, 1], "invalid requests, and all errors");
    }

    fn a_client_that_vanishes_leaves_nothing(self) {
        let mut client = self.connect();
        let quiesce = self.begin_writes(&mut client);
        drop(client);
        drop(quiesce);
        self.assert_clean();
        let mut another = self.connect();
        another.send(Ask::Read, 0, &[0; BLOCK]);
        assert_eq!(another.receive(), Some(vec![7; BLOCK]), "requests in flight are completed");
    }

    fn a_drain_answers_what_was_taken(mut self) {
        let mut client = self.connect();
        let quiesce = self.begin_writes(&mut client);
        self.server.engine().stop.drain();
        drop(quiesce);
        (0..S::DEPTH)
            .for_each(|nr| assert_eq!(client.receive(), Some(vec![]), "request {nr} of those that were taken"));
        client.wait_closed();
        self.server.wait();
        self.assert_clean();
        assert!(self.server.connect().is_none(), "no client is let in after the end");
    }

    /// Two sessions beside the client have all of the common part of the memory.
    fn a_client_waits_for_memory(self) {
        let engine = self.server.engine();
        let bells = [(); 2].map(|()| Arc::new(EventFd::new().expect("there is a descriptor")));
        let entry = engine.clients.enter(S::FRONT_END, "a neighbour".to_owned(), bells.to_vec());
        let neighbours = [0, 1].map(|thread| {
            let joined = Session::of_own(engine, 0, (&entry, thread), engine.bounds);
            let (submitter, mut session) = joined.expect("there is a place in the queue");
            let id = session.take(&Request::new(Ask::Tell { bytes: 512 << 10 }, 0, 0, ()));
            (id.expect("there is memory"), submitter, session)
        });
        let mut client = self.connect();
        client.send(Ask::Read, 0, &[0; LONG]);
        wait_until(|| neighbours[0].2.is_in_the_way());
        for (id, submitter, mut session) in neighbours {
            assert_eq!(session.next_finished(), Some((id, None)));
            session.forget(id);
            drop((submitter, session));
        }
        engine.clients.leave(entry.number);
        assert!(client.receive() == Some(vec![0; LONG]), "the read goes on when there is memory");
        client.send(WRITE, 0, &[7; LONG]);
        assert_eq!(client.receive(), Some(vec![]), "a write that is as long");
        assert_eq!(self.errors(Cause::NoMemory), [0, 0], "requests without memory, and all errors");
    }
}
