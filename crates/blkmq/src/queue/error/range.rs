//! What is wrong with a range of sectors that is to be counted apart.

/// What is wrong with the ranges of sectors that are to be counted apart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// More ranges than a queue can have.
    #[error("{nr_ranges} ranges are more than {most}")]
    TooMany {
        /// The ranges.
        nr_ranges: usize,
        /// [`MAX_RANGES`](crate::MAX_RANGES).
        most: usize,
    },
    /// The name is empty, or has spaces or control characters in it.
    #[error("range {0:?}: a name has at least one character, and no spaces")]
    BadName(String),
    /// The range of this name has no sectors.
    #[error("range '{0}': a range has at least one sector")]
    Empty(String),
    /// A range ends behind the end of the device.
    #[error("range '{name}': {first}+{nr_sectors} ends behind the device's {capacity} sectors")]
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
    #[error("range '{0}': there are two of this name")]
    SameName(String),
    /// Two ranges have sectors in common.
    #[error("range '{name}' overlaps range '{other}'")]
    Overlap {
        /// One of them.
        name: String,
        /// The other one, which was given before.
        other: String,
    },
}
