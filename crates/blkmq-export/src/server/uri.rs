//! NBD URIs, with which clients name an export and the way to it.

use std::os::unix::ffi::OsStrExt;

use blkmq_engine::BoundAddress;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_encode};

/// The characters that are not safe in a path or a query.
const UNSAFE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

fn escape(bytes: &[u8]) -> PercentEncode<'_> {
    percent_encode(bytes, UNSAFE)
}

/// Returns the URI of an export that clients find at this place. Its first part tells them whether to encrypt.
pub(super) fn uri(is_secure: bool, place: &BoundAddress, export: &str) -> String {
    let (scheme, export) = (if is_secure { "nbds" } else { "nbd" }, escape(export.as_bytes()));
    match place {
        BoundAddress::Unix(path) => format!("{scheme}+unix:///{export}?socket={}", escape(path.as_os_str().as_bytes())),
        BoundAddress::Tcp(address) => format!("{scheme}://{address}/{export}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_escaped() {
        let unix = |path: &str| BoundAddress::Unix(path.into());
        let tcp = |address: &str| BoundAddress::Tcp(address.parse().unwrap());
        assert_eq!(uri(false, &unix("/run/a.sock"), ""), "nbd+unix:///?socket=/run/a.sock");
        assert_eq!(
            uri(true, &unix("/a b/%&?=é"), "x/y ?#"),
            "nbds+unix:///x/y%20%3F%23?socket=/a%20b/%25%26%3F%3D%C3%A9"
        );
        assert_eq!(uri(false, &tcp("127.0.0.1:10809"), "disk"), "nbd://127.0.0.1:10809/disk");
        assert_eq!(uri(true, &tcp("[::1]:1"), ""), "nbds://[::1]:1/");
    }
}
