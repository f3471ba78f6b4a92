//! NBD URIs: the way to a server, and the name of an export.
//!
//! Nothing is looked up here; [`Connector`](super::connector::Connector) does that.

use std::fmt;
use std::num::NonZeroU16;
use std::path::{PathBuf, absolute};
use std::str::FromStr;

use blkmq::driver::spec::SpecError;
use percent_encoding::percent_decode_str;

/// The port of servers that name none.
const PORT: u16 = 10809;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Endpoint {
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

/// An export of a server, by its URI: `nbd+unix:///NAME?socket=PATH` or `nbd://HOST:PORT/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    uri: String,
    pub(super) endpoint: Endpoint,
    /// The name of the export.
    pub(super) export: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.uri)
    }
}

impl Address {
    /// Returns which export this is, whatever folder the process is in.
    pub(super) fn identity(&self) -> String {
        let server = match &self.endpoint {
            // Without a folder there is no socket either.
            Endpoint::Unix(path) => absolute(path).unwrap_or_default().display().to_string(),
            Endpoint::Tcp(host, port) => format!("{host}:{port}"),
        };
        format!("nbd {server} {}", self.export)
    }
}

fn decoded(text: &str) -> Result<String, String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) if !text.contains('\0') => Ok(text.into_owned()),
        Ok(_) => Err("there is no byte 0 in a URI".to_owned()),
        Err(_) => Err("what %XX stands for in a URI is UTF-8".to_owned()),
    }
}

fn tcp(authority: &str) -> Result<Endpoint, String> {
    // The colons of an IPv6 address are within brackets.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    if bare.is_none() && host.contains(['[', ']', ':']) {
        return Err(format!("'{host}' is no host; an address of IPv6 is within brackets"));
    }
    let host = bare.unwrap_or(host);
    if host.is_empty() {
        return Err("a host is missing".to_owned());
    }
    let port = match port {
        Some(port) => port.parse::<NonZeroU16>().map_err(|_| format!("'{port}' is not a port, 1 to 65535"))?.get(),
        None => PORT,
    };
    Ok(Endpoint::Tcp(decoded(host)?, port))
}

impl FromStr for Address {
    type Err = SpecError;

    fn from_str(uri: &str) -> Result<Self, SpecError> {
        let wrong = |what: &str| {
            const EXAMPLES: &str = "nbd+unix:///name?socket=disk.sock or nbd://host:10809/name";
            SpecError::new(format!("'{uri}': {what}; as in {EXAMPLES}"))
        };
        let (scheme, rest) = uri.split_once("://").ok_or_else(|| wrong("this is no URI"))?;
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        let (authority, name) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoint = match scheme {
            "nbd" if !query.is_empty() => return Err(wrong("nbd:// takes no parameters")),
            "nbd" => tcp(authority).map_err(|what| wrong(&what))?,
            "nbd+unix" if !authority.is_empty() => return Err(wrong("nbd+unix:// has no host")),
            "nbd+unix" => match query.strip_prefix("socket=") {
                Some(path) if !path.is_empty() && !path.contains('&') => {
                    Endpoint::Unix(decoded(path).map_err(|what| wrong(&what))?.into())
                }
                _ => return Err(wrong("nbd+unix:// takes one parameter, the socket")),
            },
            "nbds" | "nbds+unix" => return Err(wrong("there is no TLS here")),
            _ => return Err(wrong("the scheme is nbd or nbd+unix")),
        };
        Ok(Self { uri: uri.to_owned(), endpoint, export: decoded(name).map_err(|what| wrong(&what))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_server_and_an_export() {
        let unix = |path: &str| Endpoint::Unix(path.into());
        let tcp = |host: &str, port| Endpoint::Tcp(host.to_owned(), port);
        for (uri, endpoint, export) in [
            ("nbd+unix:///?socket=/run/a.sock", unix("/run/a.sock"), ""),
            ("nbd+unix:///x/y%20%3F?socket=a%20b", unix("a b"), "x/y ?"),
            ("nbd://localhost", tcp("localhost", 10809), ""),
            ("nbd://localhost:1/disk", tcp("localhost", 1), "disk"),
            ("nbd://[::1]:7/a", tcp("::1", 7), "a"),
            ("nbd://[::1]/a", tcp("::1", 10809), "a"),
        ] {
            let address: Address = uri.parse().unwrap();
            assert_eq!((&address.endpoint, address.export.as_str()), (&endpoint, export), "{uri}");
            assert_eq!(address.to_string(), uri);
        }
    }

    /// Red if two sockets or exports count as one, or if the folder of the process is not a part of a relative path.
    #[test]
    fn an_export_is_known_by_its_server_from_any_folder() {
        let identity = |uri: &str| uri.parse::<Address>().unwrap().identity();
        let here = std::env::current_dir().unwrap();
        assert_eq!(identity("nbd+unix:///x?socket=a"), format!("nbd {} x", here.join("a").display()));
        assert_eq!(identity("nbd+unix:///?socket=/a/b"), "nbd /a/b ");
        assert_eq!(identity("nbd://localhost/x"), "nbd localhost:10809 x");
    }

    #[test]
    fn what_is_no_uri_is_refused_with_an_example() {
        for (uri, words) in [
            ("", "no URI"),
            ("/run/a.sock", "no URI"),
            ("http://a", "scheme"),
            ("nbds://a", "no TLS"),
            ("nbd://", "host is missing"),
            ("nbd://a:b", "'b' is not a port"),
            ("nbd://a:0", "'0' is not a port"),
            ("nbd://[::1", "within brackets"),
            ("nbd://::1/", "within brackets"),
            ("nbd+unix:///a?socket=%00", "no byte 0"),
            ("nbd://a?socket=b", "no parameters"),
            ("nbd+unix:///a", "one parameter"),
            ("nbd+unix:///a?socket=", "one parameter"),
            ("nbd+unix:///a?socket=b&c=d", "one parameter"),
            ("nbd+unix://host/a?socket=b", "no host"),
            ("nbd+unix:///%FF?socket=b", "UTF-8"),
        ] {
            let error = uri.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("as in nbd+unix:///name"), "{uri}: {error}");
        }
    }
}
