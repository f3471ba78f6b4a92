//! Where clients come from, as far as clients of one machine or user are told from others.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// Where a client comes from. Connections with the same source may be of the same client. Of an IPv6 address the first
/// half counts, since one machine may have all addresses that begin with it.
#[derive(Debug, Clone, Copy)]
pub enum Source {
    /// A user of this machine, by number.
    User(u32),
    /// An address. An IPv4 address is not in the form of an IPv6 address.
    Address(IpAddr),
}

impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::User(user), Self::User(other)) => user == other,
            (Self::Address(IpAddr::V6(address)), Self::Address(IpAddr::V6(other))) => {
                address.octets()[..8] == other.octets()[..8]
            }
            (Self::Address(address), Self::Address(other)) => address == other,
            _ => false,
        }
    }
}

impl Source {
    /// The source of what comes from no other process.
    pub(super) const NONE: Self = Self::User(u32::MAX);

    /// The user at the other end of a Unix socket.
    #[must_use]
    pub fn of_unix(socket: BorrowedFd<'_>) -> Self {
        Self::User(getsockopt(&socket, PeerCredentials).map_or(u32::MAX, |peer| peer.uid()))
    }

    /// Returns the number of the user, if the source is a user.
    pub(super) fn user(self) -> Option<u32> {
        match self {
            // If the socket is not a Unix socket, the system gives this number for the other end.
            Self::User(u32::MAX) | Self::Address(_) => None,
            Self::User(user) => Some(user),
        }
    }

    /// Returns the whole address, if the source is one.
    pub(super) fn address(self) -> Option<IpAddr> {
        match self {
            Self::User(_) => None,
            Self::Address(address) => Some(address),
        }
    }

    /// Creates an address, of which an IPv4 address may be in the form of an IPv6 address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        Self::Address(address.to_canonical())
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
