//! A connection: requests on their way to the server, and replies on their way back.
//!
//! Each of its two sides has a lock: one thread at a time sends, and one at a time receives. A thread that finds
//! another thread receiving leaves, and waits for that thread before it sleeps. While replies remain, the socket stays
//! readable, so a thread that then sleeps on it wakes at once. While something is unsent, the same descriptor tells
//! when the socket takes more.
//!
//! A connection that breaks gets another socket once the server is back: the restorer of the [session](super::session)
//! calls [`Connection::come_up`]. The socket and the phase change only with both locks taken. So a thread that has one
//! of the locks sees one socket and one phase. Locks are taken in the order `received`, `unsent`, `outstanding`.
//!
//! The device calls in to start requests and to take replies. The link calls in when the server goes and when it is
//! back. A connection knows nothing of the session: [`Connection::reap`] returns whether the restorer has to be woken.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use blkmq::driver::{Batch, Done};
use blkmq::event::EventFd;
use blkmq::{Notify, Op, RqId, Status};
use blkmq_nbd::{SimpleReply, commands};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use super::Config;
use super::cache::Cache;
use super::outstanding::{self, Outstanding};
use super::received::{Broken, Received};
use crate::{lock, try_lock};

/// The most bytes of memory that are kept for sending.
const KEPT: usize = 1 << 20;

/// Whether the server can be reached, and what happens to requests if it cannot. The phase changes only with both sides
/// locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The socket works, or no thread has found out yet that it does not.
    Up,
    /// The server is about to end. The server still answers what was sent to it, but gets nothing more: requests wait
    /// for the next server, or fail.
    Leaving,
    /// There is no socket. Requests wait for one.
    Keeping,
    /// There is no socket, and requests fail.
    Failing,
}

impl Phase {
    const fn has_socket(self) -> bool {
        matches!(self, Self::Up | Self::Leaving)
    }
}

/// Bytes that the socket has not taken yet.
#[derive(Debug)]
struct Unsent {
    socket: Arc<OwnedFd>,
    phase: Phase,
    bytes: Vec<u8>,
    /// How many of these bytes are sent.
    sent: usize,
}

impl Unsent {
    fn is_empty(&self) -> bool {
        self.sent == self.bytes.len()
    }

    /// Removes the sent bytes once all bytes are sent, and frees the memory that a long wait has taken.
    fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
        self.sent = 0;
    }
}

/// A connection of one hardware queue, with the export chosen.
pub(super) struct Connection {
    hctx: u16,
    /// Whether requests wait for a server that is away.
    keeps: bool,
    /// The server's cache, which all connections share.
    cache: Arc<Cache>,
    /// An epoll instance that watches the socket and `wakeup`.
    readiness: OwnedFd,
    /// Readable while a thread that polls has work to do that does not involve the server.
    wakeup: EventFd,
    has_failures: AtomicBool,
    /// The lock of the thread that sends.
    unsent: Mutex<Unsent>,
    /// The lock of the thread that receives.
    received: Mutex<Received>,
    /// The requests by tag. Each lock is taken by one thread at a time: first by the thread that starts the request,
    /// then by the thread that finds its reply.
    outstanding: Box<[Mutex<Outstanding>]>,
    /// The socket, for a thread that has the lock of neither side.
    socket: Mutex<Arc<OwnedFd>>,
    /// Whether something is unsent.
    is_behind: AtomicBool,
    /// Whether the socket is given up.
    is_broken: AtomicBool,
    /// Whether the server at this socket is about to end.
    is_leaving: AtomicBool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut state = f.debug_struct("Connection");
        state.field("is_behind", &self.is_behind).field("is_broken", &self.is_broken).finish_non_exhaustive()
    }
}

fn watched(more: epoll::EventFlags) -> (epoll::EventData, epoll::EventFlags) {
    (epoll::EventData::new_u64(0), epoll::EventFlags::IN | more)
}

impl Connection {
    /// The connection of a hardware queue.
    ///
    /// # Errors
    /// The system gives no descriptor.
    pub(super) fn new(socket: OwnedFd, hctx: u16, config: &Config, cache: &Arc<Cache>) -> io::Result<Self> {
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (data, events) = watched(epoll::EventFlags::empty());
        epoll::add(&readiness, &socket, data, events)?;
        let wakeup = EventFd::new()?;
        epoll::add(&readiness, &wakeup, data, events)?;
        let socket = Arc::new(socket);
        Ok(Self {
            hctx,
            keeps: config.keeps(),
            cache: Arc::clone(cache),
            readiness,
            wakeup,
            has_failures: AtomicBool::new(false),
            unsent: Mutex::new(Unsent { socket: Arc::clone(&socket), phase: Phase::Up, bytes: Vec::new(), sent: 0 }),
            received: Mutex::new(Received::new(Arc::clone(&socket))),
            outstanding: (0..config.depth).map(|_| Mutex::new(Outstanding::new())).collect(),
            socket: Mutex::new(socket),
            is_behind: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
        })
    }

    /// Returns a descriptor that is readable while there are replies, while the socket takes more of what is unsent,
    /// when the connection is broken, or when requests have failed. The call first waits for the thread that receives,
    /// as [`Driver::ready_fd`](blkmq::driver::Driver::ready_fd) asks for.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        drop(lock(&self.received));
        self.readiness.as_fd()
    }

    /// Starts the requests of a batch, in order.
    pub(super) fn start(&self, batch: &mut Batch<'_>) {
        let mut unsent = lock(&self.unsent);
        if unsent.phase == Phase::Failing || unsent.phase == Phase::Leaving && !self.keeps {
            return batch.finish_all(Status::IoError);
        }
        while let Some(mut rq) = batch.next_request() {
            if outstanding::is_durable(&rq) && self.cache.is_lost() {
                batch.finish(rq, Status::IoError);
                continue;
            }
            let covers = if rq.op() == Op::Flush { self.cache.acknowledged() } else { 0 };
            let mut outstanding = lock(&self.outstanding[usize::from(rq.tag())]);
            outstanding.note(&mut rq, covers);
            // The borrowed request is stored before the server can answer, because nothing is sent yet.
            outstanding.borrow(batch.borrow(rq));
            if unsent.phase == Phase::Up {
                outstanding.send_to(&mut unsent.bytes);
            }
        }
        if unsent.phase == Phase::Up {
            self.send(&mut unsent);
        }
    }

    /// Sends as much as the socket takes.
    fn send(&self, unsent: &mut Unsent) {
        while !unsent.is_empty() {
            match send(&unsent.socket, &unsent.bytes[unsent.sent..], SendFlags::NOSIGNAL) {
                Ok(more) => unsent.sent += more,
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) => return self.watch(unsent, true),
                Err(_) => {
                    self.give_up();
                    unsent.sent = unsent.bytes.len();
                }
            }
        }
        unsent.clear();
        self.watch(unsent, false);
    }

    /// Sets whether the descriptor tells when the socket takes more.
    fn watch(&self, unsent: &Unsent, is_behind: bool) {
        if is_behind != self.is_behind.load(Ordering::Relaxed) {
            self.is_behind.store(is_behind, Ordering::Relaxed);
            let (data, events) = watched(if is_behind { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() });
            if epoll::modify(&self.readiness, &unsent.socket, data, events).is_err() {
                self.give_up();
            }
        }
    }

    /// Gives up the socket: nothing more is sent or received through it. The socket is readable from then on, so that a
    /// thread that polls finds this out.
    pub(super) fn give_up(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
        let _ = shutdown(&**lock(&self.socket), Shutdown::Both);
    }

    /// Called when a request is overdue.
    pub(super) fn is_late(&self, id: RqId) {
        // The lock of the sending side is held, so that no later socket is given up.
        let unsent = lock(&self.unsent);
        if unsent.phase.has_socket() && self.outstanding.iter().any(|outstanding| lock(outstanding).is_overdue(id)) {
            self.give_up();
        }
    }

    /// Takes replies, unless another thread is doing so. Returns whether the restorer has something to do: the
    /// connection is broken, or its server is about to end.
    #[must_use]
    pub(super) fn reap(&self, done: &mut Done<'_>) -> bool {
        // A thread that starts requests sends as well.
        if self.is_behind.load(Ordering::Relaxed)
            && let Some(mut unsent) = try_lock(&self.unsent)
        {
            self.send(&mut unsent);
        }
        let Some(mut received) = try_lock(&self.received) else { return false };
        if self.has_failures.load(Ordering::Relaxed) {
            self.fail_pending(done);
        }
        if !self.is_broken() && self.receive(&mut received, done).is_err() {
            self.give_up();
        }
        self.is_broken() || self.is_leaving()
    }

    /// Receives what is there.
    fn receive(&self, received: &mut Received, done: &mut Done<'_>) -> Result<(), Broken> {
        loop {
            let may_be_more = received.receive()?;
            self.take_replies(received, done)?;
            if !may_be_more {
                return Ok(());
            }
        }
    }

    /// Takes the replies that are there. The last one may be incomplete.
    fn take_replies(&self, received: &mut Received, done: &mut Done<'_>) -> Result<(), Broken> {
        loop {
            if let Some((tag, have)) = received.data {
                // The borrowed request is still there: only the thread that receives ends it.
                let mut outstanding = lock(&self.outstanding[usize::from(tag)]);
                let taken = outstanding.fill(have, received.here());
                received.take(taken);
                if have + taken < outstanding.len {
                    received.data = Some((tag, have + taken));
                    return Ok(());
                }
                received.data = None;
                outstanding.finish(Status::Ok, done);
            }
            let Some(reply) = received.next_reply()? else { return Ok(()) };
            received.data = self.take_reply(reply, done)?;
        }
    }

    /// Takes a reply without its data. If data comes next, returns its tag, and that 0 bytes of it are taken.
    fn take_reply(&self, reply: SimpleReply, done: &mut Done<'_>) -> Result<Option<(u16, usize)>, Broken> {
        let SimpleReply { errno, cookie } = reply;
        // The cookie of each request is its tag.
        let tag = u16::try_from(cookie).map_err(|_| Broken)?;
        let outstanding = self.outstanding.get(usize::from(tag)).map(lock);
        let mut outstanding = outstanding.filter(|outstanding| outstanding.is_sent).ok_or(Broken)?;
        if outstanding.is_read() && errno == 0 {
            return Ok(Some((tag, 0)));
        }
        if errno == blkmq_nbd::Errno::Shutdown.number() {
            // The server is about to end, and has not done the request. The next server is asked, if there is time.
            if self.keeps {
                outstanding.take_back();
            } else {
                outstanding.finish(Status::IoError, done);
            }
            drop(outstanding);
            self.leave();
        } else {
            self.note_answer(&outstanding, errno);
            outstanding.finish(blkmq_nbd::Errno::status(errno), done);
        }
        Ok(None)
    }

    fn note_answer(&self, outstanding: &Outstanding, errno: u32) {
        if errno == 0 && outstanding.is_flush() {
            self.cache.flushed(outstanding.covers);
        } else if errno == 0 && outstanding.may_be_cached() {
            self.cache.count(self.hctx);
        }
    }

    /// Ends requests that can never be answered. Called with `received` locked.
    #[cold]
    fn fail_pending(&self, done: &mut Done<'_>) {
        self.has_failures.store(false, Ordering::Relaxed);
        self.wakeup.drain();
        for outstanding in &self.outstanding {
            let mut outstanding = lock(outstanding);
            if outstanding.must_fail(self.cache.is_lost()) {
                outstanding.finish(Status::IoError, done);
            }
        }
    }

    /// Wakes a thread that polls, so that it calls [`fail_pending`](Self::fail_pending). Called with `received` locked.
    fn notify_failures(&self) {
        self.has_failures.store(true, Ordering::Relaxed);
        self.wakeup.notify();
    }

    /// Called when the server is about to end, and is sent no more requests.
    #[cold]
    pub(super) fn leave(&self) {
        let mut unsent = lock(&self.unsent);
        // Relaxed: the restorer stores true here, and afterwards looks at each request under the request's lock. A
        // thread that takes an answer later has the same lock later, so that thread loads true, and wakes the restorer.
        self.is_leaving.store(true, Ordering::Relaxed);
        if unsent.phase == Phase::Up {
            unsent.phase = Phase::Leaving;
            self.cut(&mut unsent);
        }
    }

    /// Removes from the unsent bytes each request of which the server has no byte. Such a request waits for the next
    /// server, or fails once the connection is down.
    fn cut(&self, unsent: &mut Unsent) {
        // The bytes begin with a request: bytes that are sent are removed only when all are sent.
        let (mut at, mut end) = (0, 0);
        while at < unsent.bytes.len() {
            let (tag, len) = outstanding::measure(&unsent.bytes[at..]);
            if at < unsent.sent {
                end = at + len;
            } else {
                lock(&self.outstanding[usize::from(tag)]).take_back();
            }
            at += len;
        }
        unsent.bytes.truncate(end);
        self.send(unsent);
    }

    /// Returns true if the server is about to end, as far as the device knows.
    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Relaxed)
    }

    /// Returns true if the server has nothing to answer.
    pub(super) fn is_idle(&self) -> bool {
        !self.outstanding.iter().any(|outstanding| lock(outstanding).is_sent)
    }

    /// Says goodbye to a server that is about to end and has answered everything.
    fn part(&self) {
        let unsent = lock(&self.unsent);
        if unsent.phase == Phase::Leaving && unsent.is_empty() && self.is_idle() {
            say_farewell(&unsent.socket);
        }
    }

    /// Called when the server cannot be reached. From now on requests wait for it, or fail.
    pub(super) fn go_down(&self, keeps: bool) {
        self.part();
        self.give_up();
        let mut received = lock(&self.received);
        let mut unsent = lock(&self.unsent);
        if unsent.phase.has_socket() {
            let _ = epoll::delete(&self.readiness, &unsent.socket);
            unsent.clear();
            self.is_behind.store(false, Ordering::Relaxed);
            received.clear();
            self.outstanding.iter().for_each(|outstanding| lock(outstanding).take_back());
        }
        unsent.phase = if keeps { Phase::Keeping } else { Phase::Failing };
        if !keeps {
            self.outstanding.iter().for_each(|outstanding| lock(outstanding).give_up());
            self.notify_failures();
        }
    }

    /// Fails each request that was sent to several servers and has waited since this time or longer.
    pub(super) fn give_up_since(&self, time: Instant) {
        let _received = lock(&self.received);
        for outstanding in &self.outstanding {
            let mut outstanding = lock(outstanding);
            if outstanding.waits_since().is_some_and(|since| since <= time) {
                outstanding.give_up();
                self.notify_failures();
            }
        }
    }

    /// Watches a socket to the server that is back. Closing the socket ends the watch.
    ///
    /// # Errors
    /// The system has no memory for that.
    pub(super) fn watch_next(&self, socket: &OwnedFd) -> io::Result<()> {
        let (data, events) = watched(epoll::EventFlags::empty());
        Ok(epoll::add(&self.readiness, socket, data, events)?)
    }

    /// Called when the server is back, at this socket, which is watched. Sends the requests that wait for it. The
    /// outage began at `since` or before.
    pub(super) fn come_up(&self, socket: OwnedFd, since: Instant) {
        let mut received = lock(&self.received);
        let mut unsent = lock(&self.unsent);
        assert!(!unsent.phase.has_socket(), "a connection that is up has a socket");
        let socket = Arc::new(socket);
        lock(&self.socket).clone_from(&socket);
        received.use_socket(Arc::clone(&socket));
        (unsent.socket, unsent.phase) = (socket, Phase::Up);
        self.is_broken.store(false, Ordering::Relaxed);
        self.is_leaving.store(false, Ordering::Relaxed);
        for outstanding in &self.outstanding {
            let mut outstanding = lock(outstanding);
            if outstanding.is_out() && !outstanding.must_fail(self.cache.is_lost()) {
                outstanding.send_again_to(&mut unsent.bytes, since);
            }
        }
        self.notify_failures();
        self.send(&mut unsent);
    }

    /// Returns true if the server has closed the socket, also if no thread has noticed yet.
    pub(super) fn is_closed(&self) -> bool {
        is_closed(&lock(&self.socket))
    }

    /// Returns true if the socket is given up.
    pub(super) fn is_broken(&self) -> bool {
        // Relaxed: a thread that acts on this first takes the locks of both sides.
        self.is_broken.load(Ordering::Relaxed)
    }

    /// Returns true if the connection has a socket to a server that stays, as far as any thread has noticed.
    pub(super) fn is_up(&self) -> bool {
        lock(&self.unsent).phase == Phase::Up
    }
}

/// Returns true if the other end has closed a non-blocking socket.
pub(super) fn is_closed(socket: &OwnedFd) -> bool {
    !matches!(recv(socket, &mut [0; 1][..], RecvFlags::PEEK), Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR))
}

/// Says goodbye. Servers can then tell a client that leaves from a connection that breaks.
fn say_farewell(socket: &OwnedFd) {
    let farewell = blkmq_nbd::Request { flags: 0, kind: commands::DISC, cookie: 0, offset: 0, length: 0 };
    let _ = send(socket, &farewell.encode(), SendFlags::NOSIGNAL);
}

impl Drop for Connection {
    fn drop(&mut self) {
        say_farewell(&lock(&self.socket));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Red if the call does not wait: a thread that sleeps would wake at once, again and again, while another thread
    /// receives.
    #[test]
    fn a_thread_that_is_about_to_sleep_waits_for_the_one_that_receives() {
        let (ours, _theirs) = UnixStream::pair().expect("there are descriptors");
        let config = Config { depth: 1, ..Config::new("nbd+unix:///?socket=a".parse().expect("it is a URI")) };
        let cache = Arc::new(Cache::new(false, 1));
        let connection = Connection::new(ours.into(), 0, &config, &cache).expect("there are descriptors");
        let received = lock(&connection.received);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| connection.fd());
            thread::sleep(Duration::from_millis(20));
            assert!(!sleeper.is_finished(), "it did not wait");
            drop(received);
        });
    }
}
