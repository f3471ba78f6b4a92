//! Where clients of a socket come in: listening sockets, and the loop of the thread that accepts at them.

mod listener;

use std::io;
use std::thread;
use std::time::Duration;

use blkmq::event::EventFd;
use rustix::event::PollFlags;
use rustix::io::Errno;

pub use self::listener::{Accepted, Address, BoundAddress, Listener, SocketError};
use crate::clients::{Clients, Reason};
use crate::wait::{Watch, wait};

/// How long an acceptor accepts nothing after the system had no descriptor, thread or memory for a client.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts the clients of listening sockets, each socket in its turn.
///
/// A front-end's thread repeats [`accept`](Self::accept) until its server ends. Whatever ends the server, or makes room
/// for clients, rings the bell.
#[derive(Debug)]
pub struct Acceptor<'a> {
    listeners: &'a [Listener],
    bell: &'a EventFd,
    /// Counts rejected clients; if `None`, clients wait.
    counter: Option<&'a Clients>,
    /// A descriptor that is kept for the case that none is left. With it the next client can be accepted, and its
    /// connection closed at once. Otherwise that client would wait until another one leaves.
    reserve: Option<EventFd>,
    pauses: bool,
    /// The listener that is looked at first.
    next: usize,
}

impl<'a> Acceptor<'a> {
    /// Creates an acceptor that `bell` wakes. A client that comes when the system has no descriptor left waits.
    #[must_use]
    pub fn new(listeners: &'a [Listener], bell: &'a EventFd) -> Self {
        Self { listeners, bell, counter: None, reserve: None, pauses: false, next: 0 }
    }

    /// Closes the connections of clients that come when the system has no descriptor left, and counts them as
    /// [`Reason::NoDescriptor`].
    #[must_use]
    pub fn turning_away(self, counter: &'a Clients) -> Self {
        Self { counter: Some(counter), reserve: EventFd::new().ok(), ..self }
    }

    /// Waits for a client and calls `serve` with it, or returns when the bell rings. `is_open`: clients are accepted
    /// now; otherwise they wait. After an error the next call accepts nothing for 100 ms.
    ///
    /// # Errors
    /// The client could not be accepted, or `serve` returns this error.
    pub fn accept(&mut self, is_open: bool, serve: impl FnOnce(Accepted) -> io::Result<()>) -> io::Result<()> {
        let pauses = std::mem::take(&mut self.pauses);
        // A listener that is watched for nothing would still end the wait if it was shut down.
        let watched = if is_open && !pauses { self.listeners } else { &[] };
        let mut watches: Vec<_> = watched.iter().map(|listener| Watch::new(listener, PollFlags::IN)).collect();
        match wait(&mut watches, self.bell, &[], pauses.then_some(PAUSE)) {
            // The server may be about to end, and leave its clients to the next one.
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                thread::sleep(PAUSE);
                return Err(error.into());
            }
        }
        if self.counter.is_some() && self.reserve.is_none() {
            self.reserve = EventFd::new().ok();
        }
        let (later, first) = (self.next..watches.len(), 0..self.next.min(watches.len()));
        let Some(index) = later.chain(first).find(|index| !watches[*index].ready.is_empty()) else {
            return Ok(());
        };
        self.next = index + 1;
        let accepted = self.listeners[index].accept().inspect_err(|error| self.turn_away(index, error));
        let served = accepted.and_then(|accepted| accepted.map_or(Ok(()), serve));
        self.pauses = served.is_err();
        served
    }

    /// Closes the connection of the next client that waits, if the lack of descriptors is why it was not accepted.
    fn turn_away(&mut self, index: usize, error: &io::Error) {
        if let (Some(counter), Some(Errno::MFILE | Errno::NFILE)) = (self.counter, Errno::from_io_error(error)) {
            drop(self.reserve.take());
            // Another thread may have taken the free descriptor first. Then the client waits until the next try.
            if let Ok(Some(_)) = self.listeners[index].accept() {
                counter.reject(Reason::NoDescriptor);
            }
            self.reserve = EventFd::new().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use blkmq::Notify;

    use super::*;

    /// Red if a socket whose clients never stop coming keeps out those of another one, if clients are accepted while
    /// the acceptor is closed or pauses, or if the bell does not end the wait.
    #[test]
    #[cfg_attr(miri, ignore = "there are no sockets")]
    fn each_socket_has_its_turn_and_none_while_the_acceptor_is_closed() {
        let listeners = [(); 2].map(|()| Listener::open(&Address::loopback(0)).expect("there are ports left"));
        let bell = EventFd::new().expect("there are descriptors left");
        let ports = listeners.each_ref().map(|listener| match listener.address() {
            BoundAddress::Tcp(address) => *address,
            BoundAddress::Unix(path) => panic!("{path:?} is no port"),
        });
        let _clients = [0, 0, 0, 1].map(|index: usize| TcpStream::connect(ports[index]).expect("it listens"));
        let mut acceptor = Acceptor::new(&listeners, &bell);
        let mut accept = |is_open, fails: bool| {
            let mut port = None;
            let served = acceptor.accept(is_open, |client| {
                let address = TcpStream::from(client.socket).local_addr()?;
                port = ports.iter().position(|other| *other == address);
                if fails { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
            });
            assert_eq!(served.is_err(), fails);
            port
        };
        bell.notify();
        assert_eq!(accept(false, false), None, "the bell ends the wait");
        bell.notify();
        assert_eq!(accept(true, false), None, "and comes before clients");
        assert_eq!([accept(true, false), accept(true, true)], [Some(0), Some(1)]);
        assert_eq!([accept(true, false), accept(true, false)], [None, Some(0)], "it pauses after an error");
    }

    /// Red if the acceptor does not wait while it pauses: a listener that another process has shut down is always
    /// ready.
    #[test]
    #[cfg_attr(miri, ignore = "there are no sockets")]
    fn an_acceptor_pauses_at_a_socket_that_was_shut_down() {
        let listeners = [Listener::open(&Address::loopback(0)).expect("there are ports left")];
        let bell = EventFd::new().expect("there are descriptors left");
        rustix::net::shutdown(&listeners[0], rustix::net::Shutdown::Both).expect("it listens");
        let mut acceptor = Acceptor::new(&listeners, &bell);
        assert!(acceptor.accept(true, |_| Ok(())).is_err(), "it accepts nothing");
        let before = std::time::Instant::now();
        acceptor.accept(true, |_| Ok(())).expect("the pause is no error");
        assert!(before.elapsed() >= PAUSE);
    }
}
