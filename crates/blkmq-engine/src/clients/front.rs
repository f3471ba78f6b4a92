//! Through which front-end clients come.

/// Defines the front-ends, so that none is left out of `ALL` or has no word.
macro_rules! front_ends {
    ($(#[doc = $doc:literal] $name:ident: $word:literal,)*) => {
        /// A front-end.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FrontEnd {
            $(#[doc = $doc] $name,)*
        }

        impl FrontEnd {
            /// All that there are.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$name),*];

            /// Returns the word for it, as commands and statistics show it.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

front_ends! {
    /// The NBD protocol, through sockets.
    Nbd: "nbd",
    /// Virtual machines, through shared memory and the protocol vhost-user.
    VhostUser: "vhost-user",
    /// Block devices of this machine, through ublk.
    Ublk: "ublk",
}
