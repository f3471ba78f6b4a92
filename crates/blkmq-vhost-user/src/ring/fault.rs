//! What a guest or a front-end does that cannot be.

use crate::memory::NoMemory;

/// What is wrong with a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The number of descriptors.
    #[error("a ring of {0} descriptors")]
    Size(u16),
    /// A part of the ring lies where there is no memory, or not at a multiple of its alignment.
    #[error("a ring at {:#x}, where it cannot be", .0.address)]
    Place(NoMemory),
    /// More chains are available than there are descriptors.
    #[error("{0} chains available in a ring with fewer descriptors")]
    TooManyAvailable(u16),
    /// A number of a descriptor that is not in its table.
    #[error("descriptor {0} is not in its table")]
    Index(u16),
    /// A chain comes back to itself, or is longer than a chain may be.
    #[error("a chain of descriptors that is too long, or a loop")]
    TooLong,
    /// A chain that the device has already.
    #[error("chain {0} is available although the device has it")]
    Repeated(u16),
    /// A table inside a table, a table that goes on, or a table where none was agreed on.
    #[error("an indirect table where none may be")]
    Table,
    /// The length of a table.
    #[error("an indirect table of {0} bytes")]
    TableLength(u32),
    /// A descriptor that leads nowhere.
    #[error("a descriptor of {} bytes at {:#x}", .0.len, .0.address)]
    Memory(NoMemory),
    /// A descriptor without bytes.
    #[error("a descriptor without bytes")]
    Empty,
    /// What the device reads comes behind what it writes.
    #[error("a descriptor to be read behind one to be written")]
    Order,
    /// No place for the request's header.
    #[error("a request without a whole header")]
    NoHeader,
    /// No place for the answer's status.
    #[error("a request without a place for its status")]
    NoStatus,
    /// A chain of packed descriptors that was not made available as a whole.
    #[error("a chain that is not available as a whole")]
    Unfinished,
    /// A ring has more descriptors than the record of what is in progress.
    #[error("a ring of {ring} descriptors, and a record of what is in progress for {record}")]
    RecordSize { ring: u16, record: u16 },
    /// What stands in the record of what is in progress cannot be.
    #[error("a record of what is in progress that contradicts itself")]
    Record,
}
