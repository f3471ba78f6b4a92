//! Which connections a rule is for, and what it makes of them.

use super::Network;
use crate::clients::Entry;

/// What becomes of some connections. A rule is for those for which all holds that it asks for, so one that asks for
/// nothing is for all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// Asks for the name in a certificate that was verified, compared whole.
    pub certificate: Option<String>,
    /// Asks for the user, by number, at the other end of a Unix socket.
    pub user: Option<u32>,
    /// Asks for an address of this network.
    pub address: Option<Network>,
    /// Asks for an export, by its name.
    pub export: Option<String>,
    /// The client's name. All connections of a queue with this name are one client. `None`: the name that it has
    /// without a rule.
    pub name: Option<String>,
    /// The client's weight, 1 to 1000. `None`: that of the export.
    pub weight: Option<u16>,
    /// The group that the client belongs to. `None`: none.
    pub group: Option<String>,
}

impl Rule {
    /// Returns true if the rule is for this connection to an export.
    pub(super) fn is_for(&self, entry: &Entry, export: &str) -> bool {
        let Self { certificate, user, address, export: asked, .. } = self;
        certificate.as_ref().is_none_or(|name| entry.is_certified(name))
            && user.is_none_or(|user| entry.user == Some(user))
            && address.is_none_or(|network| entry.address().is_some_and(|address| network.holds(address)))
            && asked.as_ref().is_none_or(|name| name == export)
    }
}
