//! Messages to the service manager that started the server, through the socket that the manager named.

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that names the socket. Programs that this one starts must not inherit it.
pub(super) const VARIABLE: &str = "NOTIFY_SOCKET";

/// Tells that the server serves.
pub(super) fn ready() {
    tell("READY=1\n");
}

/// Tells that the server has begun to end.
pub(super) fn stopping() {
    tell("STOPPING=1\n");
}

fn tell(state: &str) {
    if let Some(socket) = env::var_os(VARIABLE) {
        // A manager that cannot be notified reports its timeout itself.
        let _ = send(socket.as_bytes(), state);
    }
}

/// Sends a message to a socket, by its path or by `@` and its abstract name.
fn send(socket: &[u8], state: &str) -> io::Result<()> {
    let address = match socket.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(socket))?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_have_paths_or_abstract_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("blkmq-test-{}", std::process::id());
        let heard = |socket: UnixDatagram, named: &[u8]| {
            send(named, "READY=1\n").unwrap();
            let mut bytes = [0; 64];
            let length = socket.recv(&mut bytes).unwrap();
            bytes[..length].to_vec()
        };
        assert_eq!(heard(UnixDatagram::bind(&path).unwrap(), path.as_os_str().as_bytes()), b"READY=1\n");
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        assert_eq!(heard(UnixDatagram::bind_addr(&address).unwrap(), format!("@{name}").as_bytes()), b"READY=1\n");
    }
}
