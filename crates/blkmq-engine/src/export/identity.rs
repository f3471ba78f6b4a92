//! How a client is identified.

use std::fmt;

use crate::clients::Entry;

/// How a client is identified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// The name in a certificate that was verified: the common name of its subject, or if it has none, the first of its
    /// alternative names that is text. The name is compared whole. Every authority that the server trusts can give out
    /// every name.
    Certificate(String),
    /// The user, by number, of the process at the other end of a Unix socket, at the time when the process connected.
    User(u32),
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(name) => write!(f, "the certificate {name:?}"),
            Self::User(user) => write!(f, "the user {user}"),
        }
    }
}

impl Identity {
    pub(super) fn is(&self, client: &Entry) -> bool {
        match self {
            Self::Certificate(name) => client.is_certified(name),
            Self::User(user) => client.user == Some(*user),
        }
    }
}
