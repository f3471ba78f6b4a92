//! Which of another server's sockets a server uses when it takes the other's place.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::absolute;

use blkmq_export::Address;
use rustix::net::{SocketAddrUnix, getsockname};

/// Whether a socket listens at an address.
fn is_at(socket: &OwnedFd, address: &Address) -> bool {
    let Ok(name) = getsockname(socket) else { return false };
    match address {
        Address::Unix { path, .. } => {
            let Ok(name) = SocketAddrUnix::try_from(name) else { return false };
            name.path_bytes()
                .is_some_and(|name| absolute(path).is_ok_and(|path| path.as_os_str().as_encoded_bytes() == name))
        }
        Address::Tcp(address) => SocketAddr::try_from(name).is_ok_and(|name| name == *address),
        _ => false,
    }
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
