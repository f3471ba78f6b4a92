//! Which of another server's sockets a server uses when it takes the other's place, and whether it can use them.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, absolute};

use blkmq_export::{Address, set_socket_mode};
use rustix::net::{SocketAddrUnix, getsockname};

/// Calls `see` with the path of a Unix socket. `None` for other sockets.
fn with_path<T>(socket: &OwnedFd, see: impl FnOnce(&Path) -> T) -> Option<T> {
    let name = SocketAddrUnix::try_from(getsockname(socket).ok()?).ok()?;
    Some(see(Path::new(OsStr::from_bytes(name.path_bytes()?))))
}

/// Whether a socket listens at an address.
fn is_at(socket: &OwnedFd, address: &Address) -> bool {
    match address {
        Address::Unix { path, .. } => {
            absolute(path).is_ok_and(|path| with_path(socket, |name| name == path).unwrap_or(false))
        }
        Address::Tcp(address) => {
            getsockname(socket).is_ok_and(|name| SocketAddr::try_from(name).is_ok_and(|name| name == *address))
        }
        _ => false,
    }
}

/// Checks that this server may change who connects to the sockets that it will use: the permissions of their files
/// follow its own configuration.
pub(super) fn check_files(sockets: &[OwnedFd], addresses: &[Address]) -> io::Result<()> {
    let is_used = |socket: &&OwnedFd| addresses.is_empty() || addresses.iter().any(|address| is_at(socket, address));
    sockets.iter().filter(is_used).filter_map(|socket| with_path(socket, check_file)).collect()
}

/// Sets the permissions that a socket's file has, which takes the right to set others.
fn check_file(path: &Path) -> io::Result<()> {
    let wrong =
        |error| io::Error::other(format!("the permissions of the socket {} cannot be set: {error}", path.display()));
    set_socket_mode(path, None).map(drop).map_err(wrong)
}

/// The sockets that listen at these addresses, and the addresses for which there is no socket. Without addresses, all
/// sockets. The others are closed.
pub(super) fn choose(sockets: Vec<OwnedFd>, addresses: Vec<Address>) -> (Vec<OwnedFd>, Vec<Address>) {
    if addresses.is_empty() {
        return (sockets, addresses);
    }
    let is_there = |address: &Address| sockets.iter().any(|socket| is_at(socket, address));
    let new = addresses.iter().filter(|address| !is_there(address)).cloned().collect();
    let kept = sockets.into_iter().filter(|socket| addresses.iter().any(|address| is_at(socket, address))).collect();
    (kept, new)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Red if the check changes the file to which a link leads that has taken the place of the socket's file.
    #[test]
    fn the_check_of_a_sockets_file_changes_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let [path, secret] = ["socket", "secret"].map(|name| folder.path().join(name));
        let socket: OwnedFd = UnixListener::bind(&path).unwrap().into();
        assert!(check_files(&[socket.try_clone().unwrap()], &[]).is_ok());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&secret, "").unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        let error = check_files(&[socket], &[]).unwrap_err().to_string();
        assert!(error.ends_with("cannot be set: the file at its path is no socket"), "{error}");
    }

    #[test]
    fn sockets_are_told_apart_by_their_addresses() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = Address::Tcp(tcp.local_addr().unwrap());
        let sockets = || -> Vec<OwnedFd> {
            let unix = |name: &str| UnixListener::bind(path(name)).unwrap().into();
            let [a, b] = ["a", "b"].map(unix);
            ["a", "b"].into_iter().for_each(|name| std::fs::remove_file(path(name)).unwrap());
            vec![a, b, tcp.try_clone().unwrap().into()]
        };
        let wanted = vec![port.clone(), Address::unix(path("b")), Address::unix(path("c")), Address::loopback(1)];
        let (kept, new) = choose(sockets(), wanted);
        let places = [Address::unix(path("b")), port.clone()];
        assert!(kept.len() == 2 && kept.iter().zip(&places).all(|(socket, place)| is_at(socket, place)));
        assert_eq!(new, [Address::unix(path("c")), Address::loopback(1)]);
        let (kept, new) = choose(sockets(), Vec::new());
        assert_eq!((kept.len(), new.len()), (3, 0));
    }
}
