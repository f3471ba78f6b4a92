//! Reads the binary traces that Linux's blktrace writes: one file for each CPU, with records of 48 bytes and a payload
//! after each.

use std::fmt;

/// Bytes of a record before its payload.
const RECORD_BYTES: usize = 48;
/// The upper three bytes of a record's first word. The lowest byte of that word is the version.
const MAGIC: u32 = 0x6561_7400;
/// The only version that was ever released.
const VERSION: u32 = 7;

/// What happened to a bio or request; blkparse's letter in brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// A bio was submitted (Q).
    Queue,
    /// A bio or a request joined the end of a request (M).
    BackMerge,
    /// A bio joined the front of a request (F).
    FrontMerge,
    /// A request was allocated for a bio (G).
    GetRequest,
    /// A submitter waited for a request (S).
    SleepRequest,
    /// The driver gave a request back (R).
    Requeue,
    /// The device took a request (D).
    Issue,
    /// A request completed (C).
    Complete,
    /// A plug was opened (P).
    Plug,
    /// A plug was emptied by its owner (U); the payload counts its requests.
    Unplug,
    /// A plug was emptied because its owner went to sleep (UT); the payload counts its requests.
    UnplugTimer,
    /// A request entered the scheduler (I).
    Insert,
    /// A bio was split (X).
    Split,
    /// A bio's pages were copied to reachable memory (B).
    Bounce,
    /// A bio was mapped to another device or place (A).
    Remap,
    /// Not about I/O: a process name or a time of day.
    Notify,
    /// A text that the kernel or a program wrote into the trace.
    Message,
    /// An action this reader does not know, by the kernel's number.
    Other(u8),
}

impl Action {
    fn new(action: u32) -> Self {
        if Category((action >> 16) as u16).contains(Category::NOTIFY) {
            return if action & 0xff == 2 { Self::Message } else { Self::Notify };
        }
        // Bit 8 says that the payload begins with a control group. The number of the action is below that bit.
        match (action & 0xff) as u8 {
            1 => Self::Queue,
            2 => Self::BackMerge,
            3 => Self::FrontMerge,
            4 => Self::GetRequest,
            5 => Self::SleepRequest,
            6 => Self::Requeue,
            7 => Self::Issue,
            8 => Self::Complete,
            9 => Self::Plug,
            10 => Self::Unplug,
            11 => Self::UnplugTimer,
            12 => Self::Insert,
            13 => Self::Split,
            14 => Self::Bounce,
            15 => Self::Remap,
            other => Self::Other(other),
        }
    }
}

/// What kind of I/O an event is about: a set of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Category(pub u16);

impl Category {
    /// A read.
    pub const READ: Self = Self(1);
    /// A write, a discard, or any other operation that is not a read.
    pub const WRITE: Self = Self(1 << 1);
    /// A flush, or a write with a flush before it.
    pub const FLUSH: Self = Self(1 << 2);
    /// A thread waits for the operation.
    pub const SYNC: Self = Self(1 << 3);
    /// A command that a program sends to the device directly, not as an operation of the block layer.
    pub const PASSTHROUGH: Self = Self(1 << 9);
    /// The record is a notice, not an event of I/O.
    pub const NOTIFY: Self = Self(1 << 10);
    /// Read-ahead.
    pub const AHEAD: Self = Self(1 << 11);
    /// File-system metadata.
    pub const META: Self = Self(1 << 12);
    /// A discard.
    pub const DISCARD: Self = Self(1 << 13);
    /// Forced unit access.
    pub const FUA: Self = Self(1 << 15);

    /// True if every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// One record of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The record's number on its CPU.
    pub sequence: u32,
    /// Nanoseconds since the machine started.
    pub time: u64,
    /// First sector, in units of 512 bytes.
    pub sector: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// What happened.
    pub action: Action,
    /// The kind of I/O that it happened to.
    pub category: Category,
    /// The task that ran at that moment. For a completion this is often a task that has nothing to do with the request.
    pub pid: u32,
    /// The device, as the kernel packs major and minor number.
    pub device: u32,
    /// The CPU that wrote the record.
    pub cpu: u32,
    /// The error of a completion, as a positive errno; 0 for success.
    pub error: u16,
    /// The payload begins with the number of a control group.
    pub has_group: bool,
    /// The payload, whose meaning depends on the action.
    pub payload: &'a [u8],
}

impl<'a> Event<'a> {
    /// Length in sectors of 512 bytes.
    #[must_use]
    pub const fn nr_sectors(&self) -> u32 {
        self.bytes / 512
    }

    /// True if the event is about a write, or about any other operation that is not a read.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        self.category.contains(Category::WRITE)
    }

    /// The number of requests in the plug that this event emptied; `None` for other events.
    #[must_use]
    pub fn plugged(&self) -> Option<u64> {
        match self.action {
            Action::Unplug | Action::UnplugTimer => Some(u64::from_be_bytes(self.payload.last_chunk().copied()?)),
            _ => None,
        }
    }

    /// The text of a message; `None` for other events, and for a text that is not UTF-8.
    #[must_use]
    pub fn message(&self) -> Option<&'a str> {
        if self.action != Action::Message {
            return None;
        }
        let text = if self.has_group { self.payload.get(8..)? } else { self.payload };
        let text = std::str::from_utf8(text).ok()?;
        Some(text.trim_end_matches(|end: char| end == '\0' || end.is_whitespace()))
    }

    /// Decodes the record that starts at `offset`.
    fn read(file: &'a [u8], offset: usize) -> Result<Self, TraceError> {
        let fault = |fault| TraceError { offset, fault };
        let record = &file[offset..];
        let word = |at: usize| record[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let long = |at: usize| record[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        // The first word is checked before the length, so that a short file of another kind gets the right error.
        if record.len() >= 4 {
            check_magic(word(0)).map_err(fault)?;
        }
        if record.len() < RECORD_BYTES {
            return Err(fault(TraceFault::Truncated { left: record.len() }));
        }
        let action = word(28);
        let (error, payload_len) = ((word(44) & 0xffff) as u16, (word(44) >> 16) as usize);
        let payload = record[RECORD_BYTES..]
            .get(..payload_len)
            .ok_or_else(|| fault(TraceFault::Payload { stated: payload_len, left: record.len() - RECORD_BYTES }))?;
        Ok(Self {
            sequence: word(4),
            time: long(8),
            sector: long(16),
            bytes: word(24),
            action: Action::new(action),
            category: Category((action >> 16) as u16),
            pid: word(32),
            device: word(36),
            cpu: word(40),
            error,
            has_group: action & 0x100 != 0,
            payload,
        })
    }
}

fn check_magic(word: u32) -> Result<(), TraceFault> {
    if word & 0xffff_ff00 == MAGIC {
        let version = word & 0xff;
        return if version == VERSION { Ok(()) } else { Err(TraceFault::Version(version)) };
    }
    Err(if word.swap_bytes() & 0xffff_ff00 == MAGIC { TraceFault::Swapped } else { TraceFault::Magic(word) })
}

/// The records of one per-CPU file, in the order they were written. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    file: &'a [u8],
    offset: usize,
}

impl<'a> Records<'a> {
    /// Reads `file`, the whole content of a per-CPU file. An empty one is the file of a CPU that was idle.
    #[must_use]
    pub const fn new(file: &'a [u8]) -> Self {
        Self { file, offset: 0 }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Event<'a>, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.file.len() {
            return None;
        }
        let event = Event::read(self.file, self.offset);
        self.offset = match &event {
            Ok(event) => self.offset + RECORD_BYTES + event.payload.len(),
            Err(_) => self.file.len(),
        };
        Some(event)
    }
}

/// The events of one per-CPU file.
///
/// # Errors
/// The first record that cannot be read.
pub fn read(file: &[u8]) -> Result<Vec<Event<'_>>, TraceError> {
    Records::new(file).collect()
}

/// Makes one trace of the events of each CPU, ordered by time and then by sequence number.
#[must_use]
pub fn merge(cpus: Vec<Vec<Event<'_>>>) -> Vec<Event<'_>> {
    let mut events: Vec<Event<'_>> = cpus.into_iter().flatten().collect();
    events.sort_by_key(|event| (event.time, event.sequence));
    events
}

/// Where and why a trace could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceError {
    /// The byte at which the bad record starts.
    pub offset: usize,
    /// What is wrong with it.
    pub fault: TraceFault,
}

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFault {
    /// The file ends within the record.
    Truncated {
        /// Bytes from the record's start to the end of the file.
        left: usize,
    },
    /// The first word is not that of a record.
    Magic(u32),
    /// The first word is that of a record with its bytes reversed.
    Swapped,
    /// The record has a version that does not exist.
    Version(u32),
    /// The payload is longer than the rest of the file.
    Payload {
        /// Bytes of payload that the record states.
        stated: usize,
        /// Bytes after the record's header up to the end of the file.
        left: usize,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: ", self.offset)?;
        match self.fault {
            TraceFault::Truncated { left } => {
                write!(f, "the trace is truncated: {left} bytes are left, a record has {RECORD_BYTES}")
            }
            TraceFault::Magic(word) => {
                write!(f, "not a blktrace record: it starts with {word:#010x} instead of {:#010x}", MAGIC | VERSION)
            }
            TraceFault::Swapped => {
                write!(
                    f,
                    "the bytes are swapped: the trace is from a big-endian machine, only little-endian is accepted"
                )
            }
            TraceFault::Version(version) => {
                write!(f, "blktrace version {version} is unknown, only version {VERSION} is accepted")
            }
            TraceFault::Payload { stated, left } => {
                write!(f, "the trace is truncated: a payload of {stated} bytes is stated, {left} bytes are left")
            }
        }
    }
}

impl std::error::Error for TraceError {}
