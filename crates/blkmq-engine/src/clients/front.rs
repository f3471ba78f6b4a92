//! Through which front-end clients come.

/// A front-end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FrontEnd {
    /// The NBD protocol, through sockets.
    Nbd,
    /// Virtual machines, through shared memory and the protocol vhost-user.
    VhostUser,
    /// Block devices of this machine, through ublk.
    Ublk,
}

impl FrontEnd {
    /// All that there are.
    pub const ALL: [Self; 3] = [Self::Nbd, Self::VhostUser, Self::Ublk];

    /// Returns the word for it, as commands and statistics show it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Nbd => "nbd",
            Self::VhostUser => "vhost-user",
            Self::Ublk => "ublk",
        }
    }
}
