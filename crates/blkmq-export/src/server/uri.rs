//! NBD URIs, with which clients name an export and the way to it.

use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_encode};

/// The characters that are not safe in a path or a query.
const UNSAFE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

fn escape(bytes: &[u8]) -> PercentEncode<'_> {
    percent_encode(bytes, UNSAFE)
}

/// Returns the first part of a URI, which tells clients whether to encrypt.
fn scheme(is_secure: bool) -> &'static str {
    if is_secure { "nbds" } else { "nbd" }
}

/// Returns the URI of an export behind a Unix socket.
pub(super) fn unix(is_secure: bool, path: &Path, export: &str) -> String {
    let scheme = scheme(is_secure);
    format!("{scheme}+unix:///{}?socket={}", escape(export.as_bytes()), escape(path.as_os_str().as_bytes()))
}

/// Returns the URI of an export behind a TCP port.
pub(super) fn tcp(is_secure: bool, address: SocketAddr, export: &str) -> String {
    format!("{}://{address}/{}", scheme(is_secure), escape(export.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_escaped() {
        assert_eq!(unix(false, Path::new("/run/a.sock"), ""), "nbd+unix:///?socket=/run/a.sock");
        assert_eq!(
            unix(true, Path::new("/a b/%&?=é"), "x/y ?#"),
            "nbds+unix:///x/y%20%3F%23?socket=/a%20b/%25%26%3F%3D%C3%A9"
        );
        assert_eq!(tcp(false, "127.0.0.1:10809".parse().unwrap(), "disk"), "nbd://127.0.0.1:10809/disk");
        assert_eq!(tcp(true, "[::1]:1".parse().unwrap(), ""), "nbds://[::1]:1/");
    }
}
