//! Why a placement is as it was.

use std::fmt;

use blkmq::QueueError;

use super::path::PathError;
use super::{MAX_CHANGED, MAX_GROUPS, MAX_RULES};

/// Why a placement is as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlacementError {
    /// A text cannot be the path of a group.
    Path(PathError),
    /// The group stands twice in the layout, or its parent does not stand before it.
    Order(String),
    /// A rule names a group that the layout does not have.
    UnknownGroup(String),
    /// A rule gives clients a name with a character in it that [is hidden](blkmq::is_hidden).
    Name(String),
    /// The weight is out of range.
    Weight(u16),
    /// There are [`MAX_GROUPS`] groups already.
    TooManyGroups,
    /// These are more than [`MAX_RULES`] rules.
    TooManyRules,
    /// [`MAX_CHANGED`] clients have a weight or group of their own already.
    TooManyChanged,
    /// A rule names the group, which therefore stays.
    IsNamed(String),
    /// Something is in the group, which therefore stays.
    NotEmpty {
        /// The group.
        group: String,
        /// The groups and clients in it.
        within: Vec<String>,
    },
    /// The queue refuses.
    Queue(QueueError),
}

impl From<QueueError> for PlacementError {
    fn from(error: QueueError) -> Self {
        Self::Queue(error)
    }
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(error) => error.fmt(f),
            Self::Order(path) => write!(f, "the group '{path}' is there twice, or its parent does not stand before it"),
            Self::UnknownGroup(path) => write!(f, "a rule names the group '{path}', which is not there"),
            Self::Name(name) => {
                write!(
                    f,
                    "a rule names clients {name:?}; a name has no characters that control a line or cannot be seen"
                )
            }
            Self::Weight(weight) => write!(f, "the weight {weight} is out of range; give a number from 1 to 1000"),
            Self::TooManyGroups => write!(f, "the queue has {MAX_GROUPS} groups, and there can be no more"),
            Self::TooManyRules => write!(f, "there can be at most {MAX_RULES} rules"),
            Self::TooManyChanged => write!(
                f,
                "the weights or groups of {MAX_CHANGED} clients are changed already, and there can be no more; a rule \
                 can be for many clients"
            ),
            Self::IsNamed(path) => {
                write!(f, "a rule places clients in the group '{path}'; take it out of the rules first")
            }
            Self::NotEmpty { group, within } => {
                let more = if within.len() > 3 { " and others" } else { "" };
                let within = within[..within.len().min(3)].join(", ");
                write!(f, "the group '{group}' has {within}{more} in it; move clients and remove groups first")
            }
            Self::Queue(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PlacementError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Path(error) => Some(error),
            Self::Queue(error) => Some(error),
            _ => None,
        }
    }
}
