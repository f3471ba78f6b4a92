//! NBD URIs, by which clients name an export and the way to it.

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Every byte that is not safe in a path or a query, as `%XX`.
fn escape(bytes: &[u8]) -> String {
    let mut escaped = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("a string takes everything");
        }
    }
    escaped
}

/// The URI of an export behind a Unix socket.
pub(crate) fn unix(path: &Path, export: &str) -> String {
    format!("nbd+unix:///{}?socket={}", escape(export.as_bytes()), escape(path.as_os_str().as_bytes()))
}

/// The URI of an export behind a TCP port.
pub(crate) fn tcp(address: SocketAddr, export: &str) -> String {
    format!("nbd://{address}/{}", escape(export.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_escaped() {
        assert_eq!(unix(Path::new("/run/a.sock"), ""), "nbd+unix:///?socket=/run/a.sock");
        assert_eq!(
            unix(Path::new("/a b/%&?=é"), "x/y ?#"),
            "nbd+unix:///x/y%20%3F%23?socket=/a%20b/%25%26%3F%3D%C3%A9"
        );
        assert_eq!(tcp("127.0.0.1:10809".parse().unwrap(), "disk"), "nbd://127.0.0.1:10809/disk");
        assert_eq!(tcp("[::1]:1".parse().unwrap(), ""), "nbd://[::1]:1/");
    }
}
