//! What is wrong with a client or a group of clients.

use std::fmt;

use blkmq_sched::{ClientId, GroupId, MAX_WEIGHT, MIN_WEIGHT};

/// What is wrong with a client or a group of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TenantError {
    /// A weight is out of range.
    Weight {
        /// The client or group that was to have it.
        name: String,
        /// The weight.
        weight: u16,
    },
    /// No client has this name.
    UnknownClient(String),
    /// No group has this name.
    UnknownGroup(String),
    /// The client with this id has left.
    NoClient(ClientId),
    /// The group with this id was removed.
    NoGroup(GroupId),
    /// There is a group of this name.
    GroupExists(String),
    /// The name is empty, longer than 4096 bytes, or has a character in it that [`is_hidden`](crate::is_hidden). Its
    /// first 64 characters are here.
    BadGroupName(String),
    /// The name has a character in it that [`is_hidden`](crate::is_hidden). Its first 64 characters are here.
    BadClientName(String),
    /// Each place for a group is taken.
    TooManyGroups {
        /// How many there can be.
        most: usize,
    },
    /// The group would lie in too many others.
    TooDeep {
        /// The group.
        name: String,
        /// How deep groups can lie in each other.
        most: usize,
    },
    /// The root has no weight, and cannot be removed.
    Root,
}

impl fmt::Display for TenantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight { name, weight } => {
                write!(f, "the weight of {name:?}: {weight} is not within {MIN_WEIGHT}..{MAX_WEIGHT}")
            }
            Self::UnknownClient(name) => write!(f, "no client {name:?} is there"),
            Self::UnknownGroup(name) => write!(f, "there is no group {name:?}"),
            Self::NoClient(id) => write!(f, "the client with the id {:#x} is not there any more", id.0),
            Self::NoGroup(id) => write!(f, "the group with the id {:#x} is not there any more", id.0),
            Self::GroupExists(name) => write!(f, "there is a group {name:?} already"),
            Self::BadGroupName(name) => write!(
                f,
                "group {name:?}: a name has at least one character, at most 4096 bytes, and no characters that control \
                 a line or cannot be seen"
            ),
            Self::BadClientName(name) => {
                write!(f, "client {name:?}: a name has no characters that control a line or cannot be seen")
            }
            Self::TooManyGroups { most } => write!(f, "a queue has at most {most} groups"),
            Self::TooDeep { name, most } => write!(f, "group {name:?}: groups lie in each other at most {most} deep"),
            Self::Root => f.write_str("the root group has no weight and cannot be removed"),
        }
    }
}

impl std::error::Error for TenantError {}
