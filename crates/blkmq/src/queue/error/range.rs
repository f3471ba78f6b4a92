//! What is wrong with a range of sectors that is to be counted apart.

use std::fmt;

/// What is wrong with the ranges of sectors that are to be counted apart.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeError {
    /// More ranges than a queue can have.
    TooMany {
        /// The ranges.
        nr_ranges: usize,
        /// [`MAX_RANGES`](crate::MAX_RANGES).
        most: usize,
    },
    /// The name is empty, or has spaces or control characters in it.
    BadName(String),
    /// The range of this name has no sectors.
    Empty(String),
    /// A range ends behind the end of the device.
    BehindEnd {
        /// The range.
        name: String,
        /// Its first sector.
        first: u64,
        /// Its length in sectors.
        nr_sectors: u64,
        /// The sectors that the device has.
        capacity: u64,
    },
    /// There are two ranges of this name.
    SameName(String),
    /// Two ranges have sectors in common.
    Overlap {
        /// One of them.
        name: String,
        /// The other one, which was given before.
        other: String,
    },
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { nr_ranges, most } => write!(f, "{nr_ranges} ranges are more than {most}"),
            Self::BadName(name) => write!(f, "range {name:?}: a name has at least one character, and no spaces"),
            Self::Empty(name) => write!(f, "range '{name}': a range has at least one sector"),
            Self::BehindEnd { name, first, nr_sectors, capacity } => {
                write!(f, "range '{name}': {first}+{nr_sectors} ends behind the device's {capacity} sectors")
            }
            Self::SameName(name) => write!(f, "range '{name}': there are two of this name"),
            Self::Overlap { name, other } => write!(f, "range '{name}' overlaps range '{other}'"),
        }
    }
}

impl std::error::Error for RangeError {}
