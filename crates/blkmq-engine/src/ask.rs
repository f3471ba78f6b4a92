//! What a front-end asks the engine for.

use blkmq::IoPriority;

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ask {
    /// Read.
    Read,
    /// Write.
    Write {
        /// Over only when the data is durable.
        fua: bool,
    },
    /// Make completed data durable.
    #[default]
    Flush,
    /// Discard the blocks that lie whole within the range.
    Discard {
        /// Over only when the discard is durable.
        fua: bool,
    },
    /// Write zeroes. If the device cannot make them itself, they are sent to it as data, unless this is to be `fast`.
    WriteZeroes {
        /// Over only when the zeroes are durable.
        fua: bool,
        /// Leave no hole.
        no_hole: bool,
        /// Fail if the device cannot make them itself. Parts of blocks are sent to it in any case.
        fast: bool,
    },
    /// Read, and keep nothing of what was read.
    Cache,
    /// No operation of the queue: the front-end answers from what it knows. The request takes a place among the others,
    /// and memory for its answer.
    Tell {
        /// The most bytes of memory that the answer needs ([`Session::answer`](crate::Session::answer)).
        bytes: u32,
    },
}

impl Ask {
    /// Returns true if it changes nothing, so that only the client that gets its answer uses it.
    #[must_use]
    pub const fn only_tells(self) -> bool {
        matches!(self, Self::Read | Self::Cache | Self::Tell { .. })
    }

    /// Returns true if it changes the contents of the device.
    #[must_use]
    pub const fn changes(self) -> bool {
        matches!(self, Self::Write { .. } | Self::Discard { .. } | Self::WriteZeroes { .. })
    }
}

/// What a client says of a request beside what is to be done. It helps schedulers alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints {
    /// Metadata of a file system.
    pub meta: bool,
    /// A program waits for this read. Reads do not count as such by themselves, and changes always do.
    pub sync: bool,
}

/// A request, as a front-end hands it to a [`Session`](crate::Session).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<F> {
    /// What is to be done.
    pub ask: Ask,
    /// First byte. A flush has none.
    pub offset: u64,
    /// Length in bytes. A flush has none.
    pub length: u64,
    /// The priority of the request's operations; `None` takes that of the queue's client.
    pub priority: Option<IoPriority>,
    /// What else the client says of it.
    pub hints: Hints,
    /// What the front-end needs to answer the request, as the client's own number for it. The engine hands it back, and
    /// does not look at it.
    pub own: F,
}

impl<F> Request<F> {
    /// Makes a request with the priority of the queue's client and without hints.
    pub fn new(ask: Ask, offset: u64, length: u64, own: F) -> Self {
        Self { ask, offset, length, priority: None, hints: Hints::default(), own }
    }
}
