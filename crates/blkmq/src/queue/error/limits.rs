//! What is wrong with a device's description of what it accepts.

use std::fmt;

/// What is wrong with a device's [`Limits`](crate::Limits).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitsError {
    /// This `logical_block_size` is no power of two, or outside of its bounds.
    LogicalBlock(u32),
    /// `max_sectors`, `max_segments` or `max_segment_size` is too small for one logical block of that many bytes.
    NoRoom(u32),
    /// This `boundary_sectors` lies within a logical block of that many sectors.
    Boundary {
        /// The boundary, in sectors.
        boundary: u32,
        /// The logical block, in sectors.
        block: u32,
    },
    /// These `missing_bytes` are too many, or the device cannot lack any.
    MissingBytes(u16),
    /// This `pages_align` is neither 0 nor a power of two.
    PagesAlign(u32),
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LogicalBlock(bytes) => {
                write!(f, "the logical block size is a power of two from 512 to 65536, not {bytes}")
            }
            Self::NoRoom(bytes) => {
                write!(f, "a request takes at least one logical block, which is {bytes} bytes, in one segment")
            }
            Self::Boundary { boundary, block } => {
                write!(f, "the boundary is a multiple of the logical block's {block} sectors, not {boundary}")
            }
            Self::PagesAlign(bytes) => {
                write!(f, "the alignment of data in pages is 0 or a power of two, not {bytes}")
            }
            Self::MissingBytes(bytes) => write!(
                f,
                "only the last sector may lack bytes, at most 511 and not {bytes}, and only with logical blocks of 512"
            ),
        }
    }
}

impl std::error::Error for LimitsError {}
