//! Networks of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// All addresses that begin with the same bits; a single address if all bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// The first address.
    address: IpAddr,
    /// How many of its bits count.
    bits: u8,
}

/// A text that names no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// It is not an address, nor an address with a number of bits behind it.
    #[error("'{0}' is no address; accepted: an address as in 10.0.0.7, or a network as in 10.0.0.0/8")]
    NotANetwork(String),
    /// Bits of the address do not count, and are not 0. The network that may be meant is named.
    #[error("'{0}' is an address within a network; its network is {1}")]
    Within(String, Network),
}

/// Returns the bits of an address, as an IPv6 address has them.
fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns how many bits stand before an address in what [`bits_of`] tells.
fn before(address: IpAddr) -> u8 {
    if address.is_ipv4() { 96 } else { 0 }
}

impl Network {
    fn mask(self) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(before(self.address) + self.bits)).unwrap_or(0)
    }

    /// Returns true if the address is one of the network. An IPv4 address in the form of an IPv6 address counts as
    /// IPv4.
    #[must_use]
    pub fn holds(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_alike = address.is_ipv4() == self.address.is_ipv4();
        is_alike && (bits_of(address) ^ bits_of(self.address)) & self.mask() == 0
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    /// Reads `10.0.0.7`, `10.0.0.0/8`, `2001:db8::7` or `2001:db8::/32`.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let wrong = || NetworkError::NotANetwork(text.to_owned());
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        // Clients with such an address count as IPv4.
        if address != address.to_canonical() {
            return Err(wrong());
        }
        let most = 128 - before(address);
        let bits = bits.map_or(Ok(most), |bits| bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong))?;
        let network = Self { address, bits };
        let first = bits_of(address) & network.mask();
        if first == bits_of(address) {
            return Ok(network);
        }
        let first = Ipv6Addr::from_bits(first);
        let address = if address.is_ipv4() { first.to_canonical() } else { first.into() };
        Err(NetworkError::Within(text.to_owned(), Self { address, bits }))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, bits } = self;
        write!(f, "{address}")?;
        if before(*address) + bits == 128 { Ok(()) } else { write!(f, "/{bits}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Red if a bit too many or too few counts, at either end of what is possible.
    #[test]
    fn a_network_holds_the_addresses_that_begin_as_it_does() {
        for (text, inside, outside) in [
            ("10.0.0.7", &["10.0.0.7", "::ffff:10.0.0.7"][..], &["10.0.0.6", "::10.0.0.7"][..]),
            ("10.0.0.0/8", &["10.0.0.0", "10.255.255.255"], &["11.0.0.0", "9.255.255.255", "::1"]),
            ("10.0.0.6/31", &["10.0.0.6", "10.0.0.7"], &["10.0.0.5", "10.0.0.8"]),
            ("0.0.0.0/0", &["1.2.3.4", "255.255.255.255"], &["::1", "2001:db8::1"]),
            ("2001:db8::/32", &["2001:db8::1", "2001:db8:ffff::"], &["2001:db9::", "32.1.13.184"]),
            ("::/0", &["::", "2001:db8::1"], &["1.2.3.4"]),
            ("2001:db8::1", &["2001:db8::1"], &["2001:db8::", "2001:db8::1:1"]),
        ] {
            let network = network(text);
            assert_eq!(network.to_string(), text);
            let holds = |address: &str| network.holds(address.parse().unwrap());
            assert!(inside.iter().all(|address| holds(address)), "{text}: {inside:?}");
            assert!(!outside.iter().any(|address| holds(address)), "{text}: {outside:?}");
        }
    }

    #[test]
    fn what_is_no_network_is_refused_with_what_would_be_one() {
        for bad in [
            "",
            "gold",
            "10.0.0",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/",
            "::/129",
            "10.0.0.0/8/8",
            "::ffff:10.0.0.7",
        ] {
            let error = bad.parse::<Network>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("'{bad}' is no address; accepted: ")), "{error}");
        }
        let within = "10.0.0.7/8".parse::<Network>().unwrap_err().to_string();
        assert_eq!(within, "'10.0.0.7/8' is an address within a network; its network is 10.0.0.0/8");
        let within = "2001:db8::1/32".parse::<Network>().unwrap_err();
        assert_eq!(within, NetworkError::Within("2001:db8::1/32".to_owned(), network("2001:db8::/32")));
    }
}
