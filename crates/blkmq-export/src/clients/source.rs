//! Where clients come from, as far as clients of one machine or user are told from others.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::BorrowedFd;

/// Where a client comes from. Connections with the same source may be of the same client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A user of this machine, by number.
    User(u32),
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// The first half of an IPv6 address. One machine may have all addresses that begin with it.
    V6([u8; 8]),
}

impl Source {
    /// The user at the other end of a Unix socket.
    pub(crate) fn of_unix(socket: BorrowedFd<'_>) -> Self {
        Self::User(rustix::net::sockopt::socket_peercred(socket).map_or(u32::MAX, |peer| peer.uid.as_raw()))
    }

    /// The number of the user, if the source is a user.
    pub(super) fn user(self) -> Option<u32> {
        match self {
            // If the socket is not a Unix socket, the system gives this number for the other end.
            Self::User(u32::MAX) | Self::V4(_) | Self::V6(_) => None,
            Self::User(user) => Some(user),
        }
    }

    pub(crate) fn of_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(std::array::from_fn(|index| address.octets()[index])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the part of an address that a machine chooses itself counts, or if the part of its network does not
    /// count.
    #[test]
    fn one_machine_is_one_source_whatever_address_it_chooses() {
        let of = |text: &str| Source::of_address(text.parse().unwrap());
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8::1"));
    }
}
