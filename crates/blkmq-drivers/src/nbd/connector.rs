//! The way to a server: sockets that are connected within a time limit, and only while the device is open.
//!
//! All sockets are non-blocking. A thread that waits for a socket also waits for the end of the device.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use blkmq::Notify;
use blkmq::event::EventFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::addr::SocketAddrArg;
use rustix::net::sockopt::{set_tcp_nodelay, socket_error};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::address::Endpoint;
use crate::lock;

/// How long a server may take to accept the connection and to send all answers of the handshake. An answer of the
/// resolver is used for as long.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

/// How long a server is left alone that has no room for one more client that waits to be accepted. No descriptor tells
/// when there is room.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// Connects sockets until the device is closed.
#[derive(Debug)]
pub(super) struct Connector {
    /// Readable once the device is closed.
    closed: EventFd,
    /// A look-up of the name that is in progress, or whose addresses no caller has taken.
    unfinished: Mutex<Option<Arc<LookUp>>>,
}

/// The look-up of a name by a thread of its own.
#[derive(Debug)]
struct LookUp {
    /// The addresses, or why there are none; and since when that is known. The cell stays empty if the thread panics.
    found: OnceLock<(Result<Vec<SocketAddr>, String>, Instant)>,
    /// Readable once the thread has ended.
    is_over: EventFd,
}

/// Tells, at the latest when it is dropped, that the thread that looks up a name has ended.
struct Resolver(Arc<LookUp>);

impl Drop for Resolver {
    fn drop(&mut self) {
        self.0.is_over.notify();
    }
}

impl LookUp {
    fn start(ask: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static) -> io::Result<Arc<Self>> {
        let look_up = Arc::new(Self { found: OnceLock::new(), is_over: EventFd::new()? });
        let resolver = Resolver(Arc::clone(&look_up));
        thread::Builder::new().name("nbd resolver".into()).spawn(move || {
            let Resolver(look_up) = &resolver;
            let found = ask().map_err(|error| error.to_string());
            look_up.found.set((found, Instant::now())).expect("one thread looks it up");
        })?;
        Ok(look_up)
    }

    /// Returns true if the addresses are so old that the name may have other ones now.
    fn is_old(&self) -> bool {
        self.found.get().is_some_and(|(_, when)| when.elapsed() > TIMEOUT)
    }
}

impl Connector {
    /// # Errors
    /// The system gives no descriptor.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { closed: EventFd::new()?, unfinished: Mutex::default() })
    }

    /// Called when the device is closed. Each thread that waits here, or is about to, goes on at once.
    pub(super) fn close(&self) {
        self.closed.notify();
    }

    /// Waits until that time, or until the device is closed. Returns whether the device is open.
    pub(super) fn rest_until(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(&self.closed, PollFlags::IN)];
        // A time that does not fit into the system's type is so long that it counts as no limit. An error means a
        // signal: then the rest is shorter.
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

    /// Calls a function that fails while a descriptor is not ready, until it succeeds, within this time. The function
    /// may fail even when the descriptor was reported as ready.
    pub(super) fn when_ready<T>(
        &self,
        fd: impl AsFd,
        events: PollFlags,
        until: Instant,
        mut act: impl FnMut() -> Result<T, Errno>,
    ) -> io::Result<T> {
        loop {
            self.wait(&fd, events, until)?;
            match act() {
                Err(Errno::AGAIN | Errno::INTR) => (),
                over => return Ok(over?),
            }
        }
    }

    /// Connects to a server within this time.
    pub(super) fn connect_to(&self, endpoint: &Endpoint, until: Instant) -> io::Result<OwnedFd> {
        match endpoint {
            Endpoint::Unix(path) => self.connect(AddressFamily::UNIX, &SocketAddrUnix::new(path)?, until),
            Endpoint::Tcp(host, port) => self.connect_any(&self.addresses(host, *port, until)?, until),
        }
    }

    /// Connects to the first of these addresses that accepts the connection within its share of the time.
    fn connect_any(&self, addresses: &[SocketAddr], until: Instant) -> io::Result<OwnedFd> {
        let mut said = None;
        for (address, nr_left) in addresses.iter().zip((1..=addresses.len()).rev()) {
            let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let left = until.saturating_duration_since(Instant::now());
            let share = left / u32::try_from(nr_left).unwrap_or(u32::MAX);
            match self.connect(family, address, Instant::now() + share) {
                Ok(socket) => {
                    set_tcp_nodelay(&socket, true)?;
                    return Ok(socket);
                }
                Err(error) => said = Some(error),
            }
        }
        Err(said.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
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

    fn addresses(&self, host: &str, port: u16, until: Instant) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let name = host.to_owned();
        self.look_up(move || Ok((name, port).to_socket_addrs()?.collect()), until).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => io::Error::other(format!(
                "'{host}' is still being looked up; see what the system's resolver waits for, or give an address in \
                 place of the name"
            )),
            _ => io::Error::other(format!("'{host}' cannot be looked up: {error}")),
        })
    }

    /// Returns the result of `ask`, within this time. The system's resolver has no time limit, so a thread of its own
    /// asks. There is only one such thread at a time, however many callers there are and however often the answer came
    /// too late. Each caller waits for this thread and takes its answer, because a device has only one name.
    fn look_up(
        &self,
        ask: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
        until: Instant,
    ) -> io::Result<Vec<SocketAddr>> {
        let look_up = self.join_look_up(ask)?;
        self.wait(&look_up.is_over, PollFlags::IN, until)?;
        // The answer is for the callers that have waited for it, and not for the next outage.
        lock(&self.unfinished).take_if(|unfinished| Arc::ptr_eq(unfinished, &look_up));
        match look_up.found.get() {
            Some((found, _)) => found.clone().map_err(io::Error::other),
            None => Err(io::Error::other("the thread that did that panicked")),
        }
    }

    /// Returns the look-up that is in progress, or a new one.
    fn join_look_up(
        &self,
        ask: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Arc<LookUp>> {
        let mut unfinished = lock(&self.unfinished);
        if let Some(look_up) = &*unfinished
            && !look_up.is_old()
        {
            return Ok(Arc::clone(look_up));
        }
        let started = LookUp::start(ask)
            .map_err(|error| io::Error::other(format!("the system gives no thread for that: {error}")))?;
        Ok(Arc::clone(unfinished.insert(started)))
    }
}

fn closed() -> io::Error {
    io::Error::other("the device is closed")
}

/// Returns the time that is left. An error if none is left.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;

    use rustix::net::{bind, listen};

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(3600);

    fn connector() -> Connector {
        Connector::new().expect("there are descriptors")
    }

    /// Hangs if there is no limit to the time for connecting.
    #[test]
    fn a_server_that_accepts_nobody_is_waited_for_for_a_time() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("socket");
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let (endpoint, connector) = (Endpoint::Unix(path), connector());
        // The first client waits in the server's queue. There is no room for a second one.
        let _first = connector.connect_to(&endpoint, Instant::now() + LONG).unwrap();
        let error = connector.connect_to(&endpoint, Instant::now() + LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        connector.close();
        assert_eq!(
            connector.connect_to(&endpoint, Instant::now() + LONG).unwrap_err().to_string(),
            "the device is closed"
        );
    }

    /// Hangs if there is no time limit for the resolver. Red if each try leaves a thread behind.
    #[test]
    fn a_name_is_looked_up_for_a_time_by_one_thread_that_the_next_try_waits_for() {
        let connector = connector();
        let (answer, answers) = mpsc::channel();
        let slow = move || answers.recv().expect("the test answers");
        let error = connector.look_up(slow, Instant::now() + LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let another = || panic!("there is a thread that asks already");
        let error = connector.look_up(another, Instant::now() + LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        answer.send(Ok(vec![address])).unwrap();
        assert_eq!(connector.look_up(another, Instant::now() + LONG).unwrap(), [address]);
        let next = SocketAddr::from(([127, 0, 0, 1], 8));
        assert_eq!(
            connector.look_up(move || Ok(vec![next]), Instant::now() + LONG).unwrap(),
            [next],
            "an answer is old once"
        );
    }

    /// Red if the second caller starts a thread of its own: the first thread is then lost, and its answer too.
    #[test]
    fn all_that_wait_for_a_name_wait_for_one_thread() {
        let connector = connector();
        let (answer, answers) = mpsc::channel();
        let slow = move || answers.recv().expect("the test answers");
        connector.look_up(slow, Instant::now() + LIMIT).unwrap_err();
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        thread::scope(|scope| {
            let ask = || {
                let ask = || Ok(vec![SocketAddr::from(([127, 0, 0, 1], 8))]);
                connector.look_up(ask, Instant::now() + LONG).unwrap()
            };
            let callers = [scope.spawn(ask), scope.spawn(ask)];
            // The look-up is shared by each caller, the device, and the thread that does it.
            let nr_waiting = || lock(&connector.unfinished).as_ref().map(|look_up| Arc::strong_count(look_up) - 2);
            while nr_waiting().is_some_and(|nr| nr < 2) && !callers.iter().any(|caller| caller.is_finished()) {
                thread::yield_now();
            }
            answer.send(Ok(vec![address])).unwrap();
            assert_eq!(callers.map(|caller| caller.join().unwrap()), [[address], [address]]);
        });
    }

    /// Red if an answer that no caller took is used forever: the next outage may be days later.
    #[test]
    fn an_old_answer_is_not_taken() {
        let (connector, found) = (connector(), OnceLock::new());
        let (old, new) = (SocketAddr::from(([127, 0, 0, 1], 7)), SocketAddr::from(([127, 0, 0, 1], 8)));
        let long_ago = Instant::now().checked_sub(2 * TIMEOUT).expect("the machine runs for longer");
        found.set((Ok(vec![old]), long_ago)).unwrap();
        let look_up = LookUp { found, is_over: EventFd::new().expect("there are descriptors") };
        look_up.is_over.notify();
        *lock(&connector.unfinished) = Some(Arc::new(look_up));
        assert_eq!(connector.look_up(move || Ok(vec![new]), Instant::now() + LONG).unwrap(), [new]);
    }

    /// Hangs if a thread that panics does not tell that it has ended.
    #[test]
    fn a_resolver_that_panics_is_not_waited_for() {
        let connector = connector();
        let error = connector.look_up(|| panic!("on purpose"), Instant::now() + LONG).unwrap_err();
        assert_eq!(error.to_string(), "the thread that did that panicked");
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        assert_eq!(connector.look_up(move || Ok(vec![address]), Instant::now() + LONG).unwrap(), [address]);
    }

    /// Red if the operator is not told what to do about a name.
    #[test]
    fn a_name_that_is_not_found_in_time_is_told_with_what_would_be_right() {
        let connector = connector();
        let (_never, answers) = mpsc::channel();
        let slow = move || answers.recv().expect("the test does not answer");
        connector.look_up(slow, Instant::now() + LIMIT).unwrap_err();
        let error = connector.addresses("far.example", 7, Instant::now() + LIMIT).unwrap_err().to_string();
        assert!(
            error.contains("'far.example' is still being looked up") && error.contains("give an address"),
            "{error}"
        );
    }

    /// Red if the first address may use up all the time, so that the second one, which works, has none.
    #[test]
    fn each_address_of_a_name_has_its_share_of_the_time() {
        let deaf = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&deaf, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&deaf, 0).unwrap();
        let deaf = TcpListener::from(deaf);
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let (first, second) = (deaf.local_addr().unwrap(), good.local_addr().unwrap());
        let connector = connector();
        // This client fills the queue of clients that wait to be accepted. Linux does not answer the next one.
        let _waits = connector.connect_any(&[first], Instant::now() + LONG).unwrap();
        let error = connector.connect_any(&[first], Instant::now() + LIMIT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "it does not answer");
        connector.connect_any(&[first, second], Instant::now() + Duration::from_secs(4)).unwrap();
    }

    /// Red if it is an error that a descriptor refuses although it was reported as ready.
    #[test]
    fn what_is_not_ready_after_all_is_waited_for_again() {
        let (connector, ready) = (connector(), EventFd::new().expect("there are descriptors"));
        ready.notify();
        let mut answers = [Err(Errno::AGAIN), Err(Errno::INTR), Ok(7)].into_iter();
        let act = || answers.next().expect("the third is good");
        assert_eq!(connector.when_ready(&ready, PollFlags::IN, Instant::now() + LONG, act).unwrap(), 7);
        let act = || Err::<(), _>(Errno::AGAIN);
        let error = connector.when_ready(&ready, PollFlags::IN, Instant::now() + LIMIT, act).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// Hangs if a thread that waits does not notice that the device is closed.
    #[test]
    fn the_end_of_the_device_is_waited_for_too() {
        let connector = connector();
        thread::scope(|scope| {
            let never = EventFd::new().expect("there are descriptors");
            let connector = &connector;
            let waits = scope.spawn(move || connector.wait(&never, PollFlags::IN, Instant::now() + LONG));
            let rests = scope.spawn(|| connector.rest_until(Instant::now() + LONG));
            connector.close();
            assert_eq!(waits.join().unwrap().unwrap_err().to_string(), "the device is closed");
            assert!(!rests.join().unwrap());
        });
    }

    /// Red if an address is not taken for one, or a name leads nowhere.
    #[test]
    fn hosts_are_addresses_or_names() {
        let connector = connector();
        let found = |host| connector.addresses(host, 7, Instant::now() + LONG).unwrap();
        assert_eq!(found("127.0.0.1"), [SocketAddr::from(([127, 0, 0, 1], 7))]);
        assert_eq!(found("::1"), [SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 7))]);
        let local = found("localhost");
        assert!(!local.is_empty() && local.iter().all(|at| at.ip().is_loopback() && at.port() == 7), "{local:?}");
    }
}
