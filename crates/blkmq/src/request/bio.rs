//! Operations as applications hand them in.

pub(crate) use blkmq_sched::{IoPriority, Op};

use crate::request::buffer::Buffers;

/// Bytes of a sector, the unit of every address here whatever the device's block size.
pub const SECTOR_SIZE: usize = 512;

/// What an operation asks for beyond its [`Op`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags {
    /// A thread waits for this write. Reads are always synchronous, and so are operations that ask for `preflush` or
    /// `fua`.
    pub sync: bool,
    /// Make the volatile cache durable before this write. Refused, as a flush is, by a device with
    /// [`no_flush`](crate::Limits::no_flush).
    pub preflush: bool,
    /// Complete only when the data is durable. Refused by a device with [`no_flush`](crate::Limits::no_flush) that has
    /// no [`fua`](crate::Limits::fua) either.
    pub fua: bool,
    /// The data may be wanted soon, but no thread waits for it yet.
    pub readahead: bool,
    /// File system metadata.
    pub meta: bool,
    /// Fail with [`Status::Again`](crate::Status::Again) instead of waiting for room or a tag.
    pub nowait: bool,
    /// Use a polled hardware queue if there is one.
    pub polled: bool,
    /// Go in front of everything that waits in the scheduler. Merging comes first, as in Linux: an operation that joins
    /// another request, in the plug or in the scheduler, goes where that request goes. With `nomerge` the operation
    /// goes to the head in any case.
    pub at_head: bool,
    /// Never merge this operation.
    pub nomerge: bool,
    /// Zeroes keep the room that they take up, or get room: no hole is left. A device that knows no way to do so
    /// refuses them as [`Status::Unsupported`](crate::Status::Unsupported). Without this flag the device chooses, and
    /// leaves a hole if it can.
    pub nounmap: bool,
}

/// One operation: what, where, and the buffers it owns until it completes.
// The order keeps the fields that are moved on their own, the buffer and the flags, within 16 bytes or at a multiple of
// them. A load that takes in the ends of two recent stores waits until both have left the processor.
#[repr(C)]
#[derive(Debug)]
pub struct Bio {
    /// A number of the application's own, handed back on completion.
    pub user_data: u64,
    /// Where the data comes from or goes to.
    pub buffers: Buffers,
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// Length in sectors of 512 bytes. For reads and writes it must equal the length of the buffers.
    pub nr_sectors: u64,
    /// How to do it.
    pub flags: Flags,
    /// What to do.
    pub op: Op,
    /// The operation's priority; `None` takes the client's.
    pub priority: Option<IoPriority>,
}

impl Flags {
    /// No flag.
    pub const NONE: Self = Self {
        sync: false,
        preflush: false,
        fua: false,
        readahead: false,
        meta: false,
        nowait: false,
        polled: false,
        at_head: false,
        nomerge: false,
        nounmap: false,
    };
}

impl Bio {
    /// An operation without flags, priority and user data.
    #[must_use]
    pub fn new(op: Op, sector: u64, nr_sectors: u64, buffers: Buffers) -> Self {
        Self { op, sector, nr_sectors, flags: Flags::default(), priority: None, buffers, user_data: 0 }
    }

    /// A read that fills `buffers`.
    #[must_use]
    pub fn read(sector: u64, buffers: impl Into<Buffers>) -> Self {
        let buffers = buffers.into();
        Self::new(Op::Read, sector, (buffers.len() / SECTOR_SIZE) as u64, buffers)
    }

    /// A write of `buffers`.
    #[must_use]
    pub fn write(sector: u64, buffers: impl Into<Buffers>) -> Self {
        let buffers = buffers.into();
        Self::new(Op::Write, sector, (buffers.len() / SECTOR_SIZE) as u64, buffers)
    }

    /// A flush of the volatile cache: what completed before it is submitted is durable when it completes.
    #[must_use]
    pub fn flush() -> Self {
        Self::new(Op::Flush, 0, 0, Buffers::None)
    }

    /// A discard.
    #[must_use]
    pub fn discard(sector: u64, nr_sectors: u64) -> Self {
        Self::new(Op::Discard, sector, nr_sectors, Buffers::None)
    }

    /// A write of zeroes without a buffer.
    #[must_use]
    pub fn write_zeroes(sector: u64, nr_sectors: u64) -> Self {
        Self::new(Op::WriteZeroes, sector, nr_sectors, Buffers::None)
    }

    /// The same operation with these flags.
    #[must_use]
    pub fn with_flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// The same operation with this priority.
    #[must_use]
    pub fn with_priority(mut self, priority: IoPriority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The same operation with this number of the application's own.
    #[must_use]
    pub fn with_user_data(mut self, user_data: u64) -> Self {
        self.user_data = user_data;
        self
    }

    /// True if the buffers fit the operation: whole sectors of the stated length for reads and writes, else none.
    pub(crate) fn buffers_fit(&self) -> bool {
        match self.op {
            Op::Read | Op::Write => {
                self.buffers.len() as u64 == self.nr_sectors.saturating_mul(SECTOR_SIZE as u64)
                    && self.buffers.iter().all(|buffer| buffer.len() % SECTOR_SIZE == 0)
            }
            Op::Flush | Op::Discard | Op::WriteZeroes => self.buffers.is_empty(),
        }
    }
}
