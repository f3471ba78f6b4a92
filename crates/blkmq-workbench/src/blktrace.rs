//! Reads the binary traces that Linux's blktrace writes: one file for each CPU, with records of 48 bytes and a payload
//! after each. [`Records`] reads one file, [`Merge`] the files of all CPUs in the order of time. Both read as they are
//! asked, so a trace takes the same memory whatever its length.

mod merge;
mod records;

pub use self::merge::{LOOK_AHEAD, LOOK_AHEAD_PER_FILE, Merge};
pub use self::records::{Records, TraceError, TraceFault, read};

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
    /// The actions about I/O by the kernel's number, from 1.
    #[rustfmt::skip]
    const NUMBERED: [Self; 15] = [
        Self::Queue, Self::BackMerge, Self::FrontMerge, Self::GetRequest, Self::SleepRequest, Self::Requeue,
        Self::Issue, Self::Complete, Self::Plug, Self::Unplug, Self::UnplugTimer, Self::Insert, Self::Split,
        Self::Bounce, Self::Remap,
    ];

    fn new(action: u32) -> Self {
        if Category((action >> 16) as u16).contains(Category::NOTIFY) {
            return if action & 0xff == 2 { Self::Message } else { Self::Notify };
        }
        // Bit 8 says that the payload begins with a control group. The number of the action is below that bit.
        let number = action as u8;
        Self::NUMBERED.get(usize::from(number).wrapping_sub(1)).copied().unwrap_or(Self::Other(number))
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
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
    pub payload: Box<[u8]>,
}

#[cfg(test)]
impl Event {
    /// An event of a read of 512 bytes at the beginning of a device, at time 0.
    pub(crate) fn of_test(pid: u32, action: Action) -> Self {
        Self {
            sequence: 0,
            time: 0,
            sector: 0,
            bytes: 512,
            action,
            category: Category::READ,
            pid,
            device: 1,
            cpu: 0,
            error: 0,
            has_group: false,
            payload: Box::default(),
        }
    }
}

impl Event {
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
    pub fn message(&self) -> Option<&str> {
        if self.action != Action::Message {
            return None;
        }
        let text = if self.has_group { self.payload.get(8..)? } else { &self.payload[..] };
        let text = std::str::from_utf8(text).ok()?;
        Some(text.trim_end_matches(|end: char| end == '\0' || end.is_whitespace()))
    }

    /// The key that orders the events of a trace.
    const fn order(&self) -> (u64, u32) {
        (self.time, self.sequence)
    }
}
