//! The way to a server: sockets that are connected within a time, and no longer than the device is open.
//!
//! No socket blocks. A thread that waits for one waits for the end of the device too.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use blkmq::Notify;
use blkmq::event::EventFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::sockopt::{set_tcp_nodelay, socket_error};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::address::Place;
use crate::lock;

/// How long a server is left alone that has no room for one more client that waits to be accepted: no descriptor tells
/// when it has.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// The addresses of a name.
type Found = io::Result<Vec<SocketAddr>>;

/// Connects sockets until the device is closed.
#[derive(Debug)]
pub(super) struct Dialer {
    /// Readable once the device is closed.
    closed: EventFd,
    /// The name is being looked up still, though the thread that asked for it has gone on.
    unfinished: Mutex<Option<LookUp>>,
}

/// A name that a thread of its own looks up.
#[derive(Debug)]
struct LookUp {
    found: Receiver<Found>,
    /// Readable once the addresses are there.
    is_done: Arc<EventFd>,
}

impl LookUp {
    fn start(ask: impl FnOnce() -> Found + Send + 'static) -> io::Result<Self> {
        let (tell, found) = mpsc::channel();
        let is_done = Arc::new(EventFd::new()?);
        let done = Arc::clone(&is_done);
        thread::Builder::new().name("nbd resolver".into()).spawn(move || {
            // The receiver is gone if the device is closed.
            let _ = tell.send(ask());
            done.notify();
        })?;
        Ok(Self { found, is_done })
    }
}

impl Dialer {
    /// # Errors
    /// The system gives no descriptor.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { closed: EventFd::new()?, unfinished: Mutex::default() })
    }

    /// The device is closed: each thread that waits here, or is about to, goes on at once.
    pub(super) fn close(&self) {
        self.closed.notify();
    }

    /// Waits until that time, or the end of the device. Returns whether the device is open.
    pub(super) fn rest_until(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(&self.closed, PollFlags::IN)];
        // A time too long for the system's type is as good as none. An error is a signal: the rest is shorter then.
        let _ = poll(&mut polled, Timespec::try_from(left).ok().as_ref());
        polled[0].revents().is_empty()
    }

    /// Waits for the descriptor to become ready.
    ///
    /// # Errors
    /// The time is over, or the device is closed.
    pub(super) fn wait(&self, fd: impl AsFd, events: PollFlags, until: Instant) -> io::Result<()> {
        loop {
            let left = left(until)?;
            let mut polled = [PollFd::new(&self.closed, PollFlags::IN), PollFd::new(&fd, events)];
            match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
                Ok(_) if !polled[0].revents().is_empty() => return Err(closed()),
                Ok(0) | Err(Errno::INTR) => (),
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Connects to a server within that time.
    pub(super) fn dial(&self, place: &Place, until: Instant) -> io::Result<OwnedFd> {
        match place {
            Place::Unix(path) => self.connect(AddressFamily::UNIX, &SocketAddrUnix::new(path)?, until),
            Place::Tcp(host, port) => {
                let mut said = None;
                for address in self.addresses(host, *port, until)? {
                    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
                    match self.connect(family, &address, until) {
                        Ok(socket) => {
                            set_tcp_nodelay(&socket, true)?;
                            return Ok(socket);
                        }
                        Err(error) => said = Some(error),
                    }
                }
                Err(said.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
            }
        }
    }

    fn connect(&self, family: AddressFamily, at: &impl SocketAddrArg, until: Instant) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        loop {
            match connect(&socket, at) {
                Ok(()) => return Ok(socket),
                Err(Errno::INPROGRESS) => {
                    self.wait(&socket, PollFlags::OUT, until)?;
                    socket_error(&socket)??;
                    return Ok(socket);
                }
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) => {
                    left(until)?;
                    if !self.rest_until(until.min(Instant::now() + FULL_PAUSE)) {
                        return Err(closed());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn addresses(&self, host: &str, port: u16, until: Instant) -> Found {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let name = host.to_owned();
        self.look_up(move || Ok((name, port).to_socket_addrs()?.collect()), until).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => io::Error::other(format!("'{host}' is still being looked up")),
            _ => error,
        })
    }

    /// What `ask` finds, within that time. The system's resolver knows no limit, so a thread of its own asks. There is
    /// one such thread at a time, however often it was too late: the next caller waits for it and takes its answer, for
    /// a device has one name.
    fn look_up(&self, ask: impl FnOnce() -> Found + Send + 'static, until: Instant) -> Found {
        let earlier = lock(&self.unfinished).take();
        let look_up = earlier.map_or_else(|| LookUp::start(ask), Ok)?;
        if let Err(error) = self.wait(&*look_up.is_done, PollFlags::IN, until) {
            *lock(&self.unfinished) = Some(look_up);
            return Err(error);
        }
        look_up.found.try_recv().unwrap_or_else(|_| Err(io::Error::other("the resolver finds nothing")))
    }
}

fn closed() -> io::Error {
    io::Error::other("the device is closed")
}

/// The time that is left; an error if there is none.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use rustix::net::{bind, listen};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(3600);

    fn dialer() -> Dialer {
        Dialer::new().expect("there are descriptors")
    }

    /// Hangs if there is no limit to how long it takes to connect.
    #[test]
    fn a_server_that_accepts_nobody_is_waited_for_for_a_time() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("socket");
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let (place, dialer) = (Place::Unix(path), dialer());
        // The first one waits in the server's queue; there is no room for a second.
        let _first = dialer.dial(&place, Instant::now() + LONG).unwrap();
        let error = dialer.dial(&place, Instant::now() + LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        dialer.close();
        assert_eq!(dialer.dial(&place, Instant::now() + LONG).unwrap_err().to_string(), "the device is closed");
    }

    /// Hangs if the resolver is waited for without a limit. Red if each try leaves a thread behind.
    #[test]
    fn a_name_is_looked_up_for_a_time_by_one_thread_that_the_next_try_waits_for() {
        let dialer = dialer();
        let (answer, answers) = mpsc::channel();
        let slow = move || answers.recv().expect("the test answers");
        let error = dialer.look_up(slow, Instant::now() + LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let another = || panic!("there is a thread that asks already");
        let error = dialer.look_up(another, Instant::now() + LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        answer.send(Ok(vec![address])).unwrap();
        assert_eq!(dialer.look_up(another, Instant::now() + LONG).unwrap(), [address]);
        let next = SocketAddr::from(([127, 0, 0, 1], 8));
        assert_eq!(
            dialer.look_up(move || Ok(vec![next]), Instant::now() + LONG).unwrap(),
            [next],
            "an answer is old once"
        );
    }

    /// Hangs if a thread that waits does not see that the device is closed.
    #[test]
    fn the_end_of_the_device_is_waited_for_too() {
        let dialer = dialer();
        thread::scope(|scope| {
            let never = EventFd::new().expect("there are descriptors");
            let dialer = &dialer;
            let waits = scope.spawn(move || dialer.wait(&never, PollFlags::IN, Instant::now() + LONG));
            let rests = scope.spawn(|| dialer.rest_until(Instant::now() + LONG));
            dialer.close();
            assert_eq!(waits.join().unwrap().unwrap_err().to_string(), "the device is closed");
            assert!(!rests.join().unwrap());
        });
    }

    /// Red if an address is not taken for one, or a name leads nowhere.
    #[test]
    fn hosts_are_addresses_or_names() {
        let dialer = dialer();
        let found = |host| dialer.addresses(host, 7, Instant::now() + LONG).unwrap();
        assert_eq!(found("127.0.0.1"), [SocketAddr::from(([127, 0, 0, 1], 7))]);
        assert_eq!(found("::1"), [SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 7))]);
        let local = found("localhost");
        assert!(!local.is_empty() && local.iter().all(|at| at.ip().is_loopback() && at.port() == 7), "{local:?}");
    }
}
