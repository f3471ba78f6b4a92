//! What is wrong with a client or a group of clients.

use blkmq_sched::{ClientId, GroupId, MAX_WEIGHT, MIN_WEIGHT};

/// What is wrong with a client or a group of clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TenantError {
    /// A weight is out of range.
    #[error("the weight of {name:?}: {weight} is not within {MIN_WEIGHT}..{MAX_WEIGHT}")]
    Weight {
        /// The client or group that was to have it.
        name: String,
        /// The weight.
        weight: u16,
    },
    /// No client has this name.
    #[error("no client {0:?} is there")]
    UnknownClient(String),
    /// No group has this name.
    #[error("there is no group {0:?}")]
    UnknownGroup(String),
    /// The client with this id has left.
    #[error("the client with the id {:#x} is not there any more", .0.0)]
    NoClient(ClientId),
    /// The group with this id was removed.
    #[error("the group with the id {:#x} is not there any more", .0.0)]
    NoGroup(GroupId),
    /// There is a group of this name.
    #[error("there is a group {0:?} already")]
    GroupExists(String),
    /// The name is empty, longer than 4096 bytes, or has a character in it that [`is_hidden`](crate::is_hidden). Its
    /// first 64 characters are here.
    #[error(
        "group {0:?}: a name has at least one character, at most 4096 bytes, and no characters that control a line or \
         cannot be seen"
    )]
    BadGroupName(String),
    /// The name has a character in it that [`is_hidden`](crate::is_hidden). Its first 64 characters are here.
    #[error("client {0:?}: a name has no characters that control a line or cannot be seen")]
    BadClientName(String),
    /// Each place for a group is taken.
    #[error("a queue has at most {most} groups")]
    TooManyGroups {
        /// How many there can be.
        most: usize,
    },
    /// The group would lie in too many others.
    #[error("group {name:?}: groups lie in each other at most {most} deep")]
    TooDeep {
        /// The group.
        name: String,
        /// How deep groups can lie in each other.
        most: usize,
    },
    /// The root has no weight, and cannot be removed.
    #[error("the root group has no weight and cannot be removed")]
    Root,
}
