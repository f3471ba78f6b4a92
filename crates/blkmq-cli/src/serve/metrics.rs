//! Where the metrics are read by TCP.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};

use blkmq_workbench::TextError;

use super::given::Given;
use blkmq_program::Failure;

/// Reads `PORT`, which this machine alone can reach, or `HOST:PORT`: other machines can reach the server's metrics only
/// if the operator names an address that they can reach.
pub(super) fn address(given: &Given) -> Result<SocketAddr, TextError> {
    let text = &given.text;
    if let Ok(port) = text.parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let wrong = |what: &str| {
        given
            .fault(format!("'{text}': {what}; give PORT, as in 9100, which this machine alone can reach, or HOST:PORT"))
    };
    if text.starts_with(':') || !text.contains(':') {
        return Err(wrong("no host or no port"));
    }
    let mut found = text.to_socket_addrs().map_err(|error| wrong(&error.to_string()))?;
    found.next().ok_or_else(|| wrong("the host has no address"))
}

/// Listens there.
pub(super) fn listen(given: &Given, address: SocketAddr) -> Result<TcpListener, Failure> {
    let failed = |error| Failure::Running(format!("{}: cannot listen at {address}: {error}", given.place));
    TcpListener::bind(address).map_err(failed)
}

/// Where they are found.
pub(super) fn url(listener: &TcpListener) -> String {
    listener.local_addr().map(|address| format!("http://{address}/metrics")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_one_of_loopback() {
        let read = |text: &str| address(&Given { text: text.to_owned(), place: "--metrics".to_owned() });
        assert_eq!(read("9100"), Ok(([127, 0, 0, 1], 9100).into()));
        assert_eq!(read("0.0.0.0:9100"), Ok(([0, 0, 0, 0], 9100).into()));
        assert_eq!(read("[::1]:1"), Ok((std::net::Ipv6Addr::LOCALHOST, 1).into()));
        for bad in ["", ":9100", "localhost", "127.0.0.1:", "127.0.0.1:99999", "99999", "http://localhost/metrics"] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--metrics: '{bad}': ")) && error.contains("give PORT"), "{error}");
        }
    }
}
