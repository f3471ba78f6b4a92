//! Sockets that wait for clients.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{PathBuf, absolute};
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay, socket_acceptconn,
    socket_domain, socket_type,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, acceptfrom_with};

use crate::clients::Source;
use crate::files::{SocketFile, set_socket_mode};

/// The most connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Three values: how long a TCP client may say nothing before the system asks whether it is still there; the time until
/// the system asks again; and how many unanswered questions end the connection. So a dead machine is noticed after two
/// minutes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(10), 6);

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// A Unix socket, whose file is removed when the server ends.
    Unix {
        /// The file, which is made when the server starts. A socket that is already there is replaced if no process
        /// listens at it.
        path: PathBuf,
        /// The file's permissions.
        mode: u32,
    },
    /// A TCP port. With port 0 the system chooses a free port.
    Tcp(SocketAddr),
}

impl Address {
    /// Creates a Unix socket that only its owner may use.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::Unix { path: path.into(), mode: 0o600 }
    }

    /// Creates a TCP port that only this machine can reach, on 127.0.0.1.
    #[must_use]
    pub const fn loopback(port: u16) -> Self {
        Self::Tcp(SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { path, .. } => write!(f, "the socket {path:?}"),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// The address at which a socket listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoundAddress {
    /// This file, as an absolute path.
    Unix(PathBuf),
    /// This port.
    Tcp(SocketAddr),
}

/// A client that has connected.
#[derive(Debug)]
pub struct Accepted {
    /// The connection, which does not block.
    pub socket: OwnedFd,
    /// Where the client comes from, for people: address and port, or process and user.
    pub peer: String,
    /// Where the client comes from, used to tell clients apart.
    pub source: Source,
}

impl Accepted {
    /// Creates the client at the other end of a connected Unix socket.
    #[must_use]
    pub fn of_unix(socket: OwnedFd) -> Self {
        let peer = match getsockopt(&socket, PeerCredentials) {
            // The number that the system gives for a process outside of this one's namespace.
            Ok(peer) if peer.pid() == 0 => format!("a process of another namespace, of user {}", peer.uid()),
            Ok(peer) => format!("process {} of user {}", peer.pid(), peer.uid()),
            Err(_) => "an unknown process".to_owned(),
        };
        let source = Source::of_unix(socket.as_fd());
        Self { socket, peer, source }
    }
}

/// A listening socket, which does not block.
#[derive(Debug)]
pub struct Listener {
    /// The file, if it has to be removed at the end. Dropped before the socket: while the socket is open, no other file
    /// gets its inode.
    file: Option<SocketFile>,
    socket: OwnedFd,
    address: BoundAddress,
    /// If set, only this user and root are served: clients may have queued before the mode was tightened.
    allowed_uid: Option<u32>,
}

impl Listener {
    /// Listens at an address.
    ///
    /// # Errors
    /// As those of [`SocketFile::listen`], or the system refuses.
    pub fn open(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix { path, mode } => {
                // At the path as it is given: a socket's address takes no long one.
                let (listener, file) = SocketFile::listen(path.clone(), *mode, BACKLOG)?;
                let address = BoundAddress::Unix(absolute(path)?);
                Ok(Self { file: Some(file), socket: listener.into(), address, allowed_uid: None })
            }
            Address::Tcp(address) => Self::tcp(TcpListener::bind(address)?),
        }
    }

    /// Takes a socket that already listens. The socket's file, if there is one, stays when the server ends. `mode`: the
    /// permissions that the file gets.
    ///
    /// # Errors
    /// The socket is of another kind, the descriptor is no socket, or the permissions cannot be set.
    pub fn adopt(socket: OwnedFd, mode: Option<u32>) -> Result<Self, SocketError> {
        let kind = socket_type(&socket).map_err(io::Error::from)?;
        if kind != SocketType::STREAM || !socket_acceptconn(&socket).map_err(io::Error::from)? {
            return Err(SocketError::NoListener);
        }
        let domain = socket_domain(&socket).map_err(io::Error::from)?;
        if domain == AddressFamily::UNIX {
            let listener = UnixListener::from(socket);
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            let path = absolute(address.as_pathname().ok_or(SocketError::NoPath)?)?;
            let found = mode.map(|mode| set_socket_mode(&path, Some(mode))).transpose()?;
            let lets_others = mode.is_none_or(|mode| mode & 0o022 != 0);
            let allowed_uid = found.filter(|_| !lets_others).map(|found| found.uid());
            return Ok(Self { file: None, socket: listener.into(), address: BoundAddress::Unix(path), allowed_uid });
        }
        if domain != AddressFamily::INET && domain != AddressFamily::INET6 {
            return Err(SocketError::Family);
        }
        Ok(Self::tcp(TcpListener::from(socket))?)
    }

    fn tcp(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = BoundAddress::Tcp(listener.local_addr()?);
        Ok(Self { file: None, socket: listener.into(), address, allowed_uid: None })
    }

    /// Accepts a client. `None` if no client waits, or if the client that waited has left or is not served here.
    pub(super) fn accept(&self) -> io::Result<Option<Accepted>> {
        let (socket, address) = match acceptfrom_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(accepted) => accepted,
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if let BoundAddress::Unix(_) = self.address {
            let client = Accepted::of_unix(socket);
            let is_served = self.allowed_uid.is_none_or(|owner| [owner, 0].map(Source::User).contains(&client.source));
            return Ok(is_served.then_some(client));
        }
        // Replies are sent when they are ready. Replies that are ready together are already sent together.
        set_tcp_nodelay(&socket, true)?;
        let (idle, interval, count) = KEEPALIVE;
        set_socket_keepalive(&socket, true)?;
        set_tcp_keepidle(&socket, idle)?;
        set_tcp_keepintvl(&socket, interval)?;
        set_tcp_keepcnt(&socket, count)?;
        let address = SocketAddr::try_from(address.ok_or(Errno::NOTCONN)?)?;
        Ok(Some(Accepted { socket, peer: address.to_string(), source: Source::of_address(address.ip()) }))
    }

    /// Returns the same socket, for a server that takes the place of this one. The socket's file stays from now on.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        let socket = self.socket.try_clone()?;
        if let Some(file) = &self.file {
            file.keep();
        }
        Ok(socket)
    }

    /// Returns the address at which the socket listens.
    #[must_use]
    pub fn address(&self) -> &BoundAddress {
        &self.address
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What is wrong with a socket that was handed over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// It is no stream socket, or does not listen.
    #[error("it does not listen for streams")]
    NoListener,
    /// It is a Unix socket without a path.
    #[error("it has no path")]
    NoPath,
    /// It is neither a Unix socket nor one for TCP.
    #[error("it is neither a Unix socket nor one for TCP")]
    Family,
    /// The system refused to say, or to do something with it.
    #[error("{0}")]
    System(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::process::Command;

    use rustix::net::sockopt;
    use rustix::net::{SocketAddrUnix, bind, listen, socket_with};
    use rustix::process::getuid;
    use rustix::thread::{Uid, set_thread_res_uid};

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("there is room for a folder")
    }

    #[test]
    fn the_file_has_its_mode_and_goes_with_the_listener() {
        let folder = folder();
        let path = folder.path().join("socket");
        for mode in [0o600, 0o660] {
            let listener = Listener::open(&Address::Unix { path: path.clone(), mode }).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
            UnixStream::connect(&path).unwrap();
            drop(listener);
            assert!(!path.exists());
        }
        assert_eq!(Address::unix("a"), Address::Unix { path: "a".into(), mode: 0o600 });
    }

    /// The line that the part of the next test in the other namespace prints begins with this.
    const TOLD: &str = "the peer is ";

    /// Red if the number 0, which the system gives for a process that this one cannot see, is taken for a process' own.
    #[test]
    fn a_peer_of_another_namespace_has_no_number() {
        if std::env::var_os("BLKMQ_INHERITED_PEER").is_some() {
            let socket = io::stdin().as_fd().try_clone_to_owned().expect("it was inherited");
            println!("{TOLD}{}", Accepted::of_unix(socket).peer);
            return;
        }
        let (ours, theirs) = UnixStream::pair().expect("there is a descriptor left");
        let name = "acceptor::listener::tests::a_peer_of_another_namespace_has_no_number";
        let run = Command::new("unshare")
            .args(if getuid().is_root() { &[][..] } else { &["--user", "--map-root-user"] })
            .args(["--pid", "--fork"])
            .arg(std::env::current_exe().expect("this is a program"))
            .args(["--exact", "--nocapture", name])
            .env("BLKMQ_INHERITED_PEER", "1")
            .stdin(OwnedFd::from(theirs))
            .output()
            .expect("util-linux is installed");
        let (told, complaint) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        if complaint.contains("unshare failed") {
            println!("SKIP: this user may make no namespace of processes: {complaint}");
            return;
        }
        let peer = told.lines().find_map(|line| line.split_once(TOLD)).unwrap_or_else(|| panic!("{told}{complaint}")).1;
        assert!(peer.starts_with("a process of another namespace, of user "), "{peer}");
        assert!(Accepted::of_unix(ours.into()).peer.starts_with(&format!("process {} of user", std::process::id())));
    }

    #[test]
    fn only_a_stale_socket_is_replaced() {
        let folder = folder();
        let path = folder.path().join("socket");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "it is stale");
        let listener = Listener::open(&Address::unix(&path)).unwrap();
        let error = Listener::open(&Address::unix(&path)).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (io::ErrorKind::AddrInUse, "another server listens there; choose another path")
        );
        drop(listener);
        fs::write(&path, "precious").unwrap();
        let error = Listener::open(&Address::unix(&path)).unwrap_err();
        assert!(error.to_string().contains("is no socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    /// Red if a listener that is closed removes the file at its path, whatever it is: the next server's socket, or any
    /// other file, would be gone.
    #[test]
    fn a_file_that_took_the_place_of_the_socket_stays() {
        let folder = folder();
        let path = folder.path().join("socket");
        let first = Listener::open(&Address::unix(&path)).unwrap();
        fs::remove_file(&path).unwrap();
        let listener = Listener::open(&Address::unix(&path)).unwrap();
        drop(first);
        UnixStream::connect(&path).expect("the second server's socket is there");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        drop(listener);
        assert!(path.exists());
    }

    #[test]
    fn a_tcp_client_that_is_dead_will_be_noticed() {
        let listener = Listener::open(&Address::loopback(0)).unwrap();
        let BoundAddress::Tcp(address) = listener.address() else { panic!("it is TCP") };
        let _client = std::net::TcpStream::connect(address).unwrap();
        let client = std::iter::repeat_with(|| listener.accept().unwrap()).find_map(|accepted| accepted).unwrap();
        let socket = client.socket;
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket).unwrap(), Duration::from_secs(60));
        assert_eq!(sockopt::tcp_keepintvl(&socket).unwrap(), Duration::from_secs(10));
        assert_eq!(sockopt::tcp_keepcnt(&socket).unwrap(), 6);
    }

    #[test]
    fn a_socket_that_listens_is_taken_as_it_is_and_no_other() {
        let folder = folder();
        let path = folder.path().join("socket");
        let listener = Listener::adopt(UnixListener::bind(&path).unwrap().into(), None).unwrap();
        assert_eq!(*listener.address(), BoundAddress::Unix(path.clone()));
        let client = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some() && listener.accept().unwrap().is_none(), "it does not block");
        drop(listener);
        assert!(path.exists(), "it belongs to who made it");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = BoundAddress::Tcp(tcp.local_addr().unwrap());
        assert_eq!(*Listener::adopt(tcp.into(), None).unwrap().address(), place);

        let refused = |fd: OwnedFd| Listener::adopt(fd, None).unwrap_err().to_string();
        assert_eq!(refused(client.into()), "it does not listen for streams");
        assert_eq!(refused(std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into()), "it does not listen for streams");
        assert!(refused(fs::File::open("/dev/null").unwrap().into()).contains("non-socket"));
        let nameless = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
        bind(&nameless, &SocketAddrUnix::new_unnamed()).unwrap();
        listen(&nameless, 1).unwrap();
        assert_eq!(refused(nameless), "it has no path");
    }

    /// Red if a client is served that connected while the file of a socket let every user in, and waited until a server
    /// took it over that lets only the owner in; or if the file keeps its mode.
    #[test]
    fn a_user_that_waits_in_a_socket_that_becomes_private_is_not_served() {
        let folder = folder();
        let path = folder.path().join("socket");
        let socket = UnixListener::bind(&path).unwrap();
        for (path, mode) in [(folder.path(), 0o755), (&path, 0o666)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let own = UnixStream::connect(&path).unwrap();
        let foreign = std::thread::scope(|scope| {
            let connect = || {
                // The thread alone becomes another user, which only root may do.
                let uid = Uid::from_raw(65534);
                set_thread_res_uid(uid, uid, uid).ok()?;
                Some(UnixStream::connect(&path).unwrap())
            };
            scope.spawn(connect).join().unwrap()
        });
        if foreign.is_none() {
            println!("SKIP: only root can connect as another user");
            return;
        }
        let listener = Listener::adopt(socket.into(), Some(0o600)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(listener.accept().unwrap().is_some(), "the server's own user waited too");
        assert!(listener.accept().unwrap().is_none());
        let mut foreign = foreign.unwrap();
        assert_eq!(io::Read::read(&mut foreign, &mut [0]).unwrap(), 0, "it is closed");
        drop((own, listener));
    }

    /// Red if a link that has taken the place of a socket's file leads to a file that gets other permissions.
    #[test]
    fn only_a_sockets_file_gets_the_mode_of_a_socket() {
        let folder = folder();
        let [path, secret] = ["socket", "secret"].map(|name| folder.path().join(name));
        let socket = UnixListener::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&secret, "").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o400)).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        assert!(Listener::adopt(socket.into(), Some(0o666)).is_err());
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode() & 0o777, 0o400);
    }
}
