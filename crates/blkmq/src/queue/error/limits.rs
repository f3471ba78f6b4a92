//! What is wrong with a device's description of what it accepts.

/// What is wrong with a device's [`Limits`](crate::Limits).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// This `logical_block_size` is no power of two, or outside of its bounds.
    #[error("the logical block size is a power of two from 512 to 65536, not {0}")]
    LogicalBlock(u32),
    /// `max_sectors`, `max_segments` or `max_segment_size` is too small for one logical block of that many bytes.
    #[error("a request takes at least one logical block, which is {0} bytes, in one segment")]
    NoRoom(u32),
    /// This `boundary_sectors` lies within a logical block of that many sectors.
    #[error("the boundary is a multiple of the logical block's {block} sectors, not {boundary}")]
    Boundary {
        /// The boundary, in sectors.
        boundary: u32,
        /// The logical block, in sectors.
        block: u32,
    },
    /// These `missing_bytes` are too many, or the device cannot lack any.
    #[error("only the last sector may lack bytes, at most 511 and not {0}, and only with logical blocks of 512")]
    MissingBytes(u16),
    /// This `pages_align` is neither 0 nor a power of two.
    #[error("the alignment of data in pages is 0 or a power of two, not {0}")]
    PagesAlign(u32),
}
