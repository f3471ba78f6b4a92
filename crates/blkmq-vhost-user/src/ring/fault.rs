//! What a guest or a front-end does that cannot be.

use std::{error, fmt};

use crate::memory::NoMemory;

/// What is wrong with a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The number of descriptors.
    Size(u16),
    /// A part of the ring lies where there is no memory, or not at a multiple of its alignment.
    Place(NoMemory),
    /// More chains are available than there are descriptors.
    TooManyAvailable(u16),
    /// A number of a descriptor that is not in its table.
    Index(u16),
    /// A chain comes back to itself, or is longer than a chain may be.
    TooLong,
    /// A chain that the device has already.
    Repeated(u16),
    /// A table inside a table, a table that goes on, or a table where none was agreed on.
    Table,
    /// The length of a table.
    TableLength(u32),
    /// A descriptor that leads nowhere.
    Memory(NoMemory),
    /// A descriptor without bytes.
    Empty,
    /// What the device reads comes behind what it writes.
    Order,
    /// No place for the request's header.
    NoHeader,
    /// No place for the answer's status.
    NoStatus,
    /// A chain of packed descriptors that was not made available as a whole.
    Unfinished,
    /// A ring has more descriptors than the record of what is in progress.
    RecordSize { ring: u16, record: u16 },
    /// What stands in the record of what is in progress cannot be.
    Record,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => write!(f, "a ring of {size} descriptors"),
            Self::Place(NoMemory { address, .. }) => write!(f, "a ring at {address:#x}, where it cannot be"),
            Self::TooManyAvailable(nr) => write!(f, "{nr} chains available in a ring with fewer descriptors"),
            Self::Index(index) => write!(f, "descriptor {index} is not in its table"),
            Self::TooLong => f.write_str("a chain of descriptors that is too long, or a loop"),
            Self::Repeated(head) => write!(f, "chain {head} is available although the device has it"),
            Self::Table => f.write_str("an indirect table where none may be"),
            Self::TableLength(len) => write!(f, "an indirect table of {len} bytes"),
            Self::Memory(NoMemory { address, len }) => write!(f, "a descriptor of {len} bytes at {address:#x}"),
            Self::Empty => f.write_str("a descriptor without bytes"),
            Self::Order => f.write_str("a descriptor to be read behind one to be written"),
            Self::NoHeader => f.write_str("a request without a whole header"),
            Self::NoStatus => f.write_str("a request without a place for its status"),
            Self::Unfinished => f.write_str("a chain that is not available as a whole"),
            Self::RecordSize { ring, record } => {
                write!(f, "a ring of {ring} descriptors, and a record of what is in progress for {record}")
            }
            Self::Record => f.write_str("a record of what is in progress that contradicts itself"),
        }
    }
}

impl error::Error for Fault {}
