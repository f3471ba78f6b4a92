//! Why a placement is as it was.

use blkmq::QueueError;

use super::path::PathError;
use super::{MAX_CHANGED, MAX_GROUPS, MAX_RULES};

/// Why a placement is as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// A text cannot be the path of a group.
    #[error("{0}")]
    Path(#[source] PathError),
    /// The group stands twice in the layout, or its parent does not stand before it.
    #[error("the group '{0}' is there twice, or its parent does not stand before it")]
    Order(String),
    /// A rule names a group that the layout does not have.
    #[error("a rule names the group '{0}', which is not there")]
    UnknownGroup(String),
    /// A rule gives clients a name with a character in it that [is hidden](blkmq::is_hidden).
    #[error("a rule names clients {0:?}; a name has no characters that control a line or cannot be seen")]
    Name(String),
    /// The weight is out of range.
    #[error("the weight {0} is out of range; give a number from 1 to 1000")]
    Weight(u16),
    /// There are [`MAX_GROUPS`] groups already.
    #[error("the queue has {MAX_GROUPS} groups, and there can be no more")]
    TooManyGroups,
    /// These are more than [`MAX_RULES`] rules.
    #[error("there can be at most {MAX_RULES} rules")]
    TooManyRules,
    /// [`MAX_CHANGED`] clients have a weight or group of their own already.
    #[error(
        "the weights or groups of {MAX_CHANGED} clients are changed already, and there can be no more; a rule can be \
         for many clients"
    )]
    TooManyChanged,
    /// A rule names the group, which therefore stays.
    #[error("a rule places clients in the group '{0}'; take it out of the rules first")]
    IsNamed(String),
    /// Something is in the group, which therefore stays.
    #[error(
        "the group '{group}' has {}{} in it; move clients and remove groups first",
        within[..within.len().min(3)].join(", "),
        if within.len() > 3 { " and others" } else { "" }
    )]
    NotEmpty {
        /// The group.
        group: String,
        /// The groups and clients in it.
        within: Vec<String>,
    },
    /// The queue refuses.
    #[error("{0}")]
    Queue(#[from] QueueError),
}
