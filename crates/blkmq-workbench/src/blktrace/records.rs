//! The records of one file, read one by one.

use std::io::{self, BufRead};

use super::{Action, Category, Event};

/// Bytes of a record before its payload.
const RECORD_BYTES: usize = 48;
/// The upper three bytes of a record's first word. The lowest byte of that word is the version.
const MAGIC: u32 = 0x6561_7400;
/// The only version that was ever released.
const VERSION: u32 = 7;

/// The records of one per-CPU file, in the order they were written. Ends after the first error.
#[derive(Debug, Clone)]
pub struct Records<R> {
    file: R,
    offset: u64,
    is_over: bool,
}

impl<R: BufRead> Records<R> {
    /// Reads `file` from its beginning. An empty one is the file of a CPU that was idle.
    #[must_use]
    pub const fn new(file: R) -> Self {
        Self { file, offset: 0, is_over: false }
    }

    /// The bytes of the records read so far, which is where the next record starts.
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads the next record; `None` at the end of the file.
    fn read(&mut self) -> Result<Option<Event>, TraceFault> {
        let mut header = [0; RECORD_BYTES];
        let left = fill(&mut self.file, &mut header)?;
        if left == 0 {
            return Ok(None);
        }
        // The first word is checked before the length, so that a short file of another kind gets the right error.
        if left >= 4 {
            check_magic(word(&header, 0))?;
        }
        if left < RECORD_BYTES {
            return Err(TraceFault::Truncated { left });
        }
        let stated = (word(&header, 44) >> 16) as usize;
        let mut payload = vec![0; stated].into_boxed_slice();
        let left = fill(&mut self.file, &mut payload)?;
        if left < stated {
            return Err(TraceFault::Payload { stated, left });
        }
        self.offset += (RECORD_BYTES + stated) as u64;
        Ok(Some(decode(&header, payload)))
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let record = self.read().map_err(|fault| TraceError { offset: self.offset, fault }).transpose();
        self.is_over = !matches!(record, Some(Ok(_)));
        record
    }
}

/// The events of one per-CPU file, in the order they were written.
///
/// # Errors
/// The first record that cannot be read.
pub fn read(file: &[u8]) -> Result<Vec<Event>, TraceError> {
    Records::new(file).collect()
}

/// Fills `buffer` from `file`. Returns how many bytes that were, which is fewer only at the end of the file.
fn fill(file: &mut impl BufRead, buffer: &mut [u8]) -> Result<usize, TraceFault> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(TraceFault::Unreadable(error.kind())),
        }
    }
    Ok(filled)
}

fn word(header: &[u8; RECORD_BYTES], at: usize) -> u32 {
    header[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn decode(header: &[u8; RECORD_BYTES], payload: Box<[u8]>) -> Event {
    let long = |at: usize| header[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let action = word(header, 28);
    Event {
        sequence: word(header, 4),
        time: long(8),
        sector: long(16),
        bytes: word(header, 24),
        action: Action::new(action),
        category: Category((action >> 16) as u16),
        pid: word(header, 32),
        device: word(header, 36),
        cpu: word(header, 40),
        error: (word(header, 44) & 0xffff) as u16,
        has_group: action & 0x100 != 0,
        payload,
    }
}

fn check_magic(word: u32) -> Result<(), TraceFault> {
    if word & 0xffff_ff00 == MAGIC {
        let version = word & 0xff;
        return if version == VERSION { Ok(()) } else { Err(TraceFault::Version(version)) };
    }
    Err(if word.swap_bytes() & 0xffff_ff00 == MAGIC { TraceFault::Swapped } else { TraceFault::Magic(word) })
}

/// Where and why a trace could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {fault}")]
pub struct TraceError {
    /// The byte at which the bad record starts.
    pub offset: u64,
    /// What is wrong with it.
    pub fault: TraceFault,
}

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceFault {
    /// The file ends within the record.
    #[error("the trace is truncated: {left} bytes are left, a record has {RECORD_BYTES}")]
    Truncated {
        /// Bytes from the record's start to the end of the file.
        left: usize,
    },
    /// The first word is not that of a record.
    #[error("not a blktrace record: it starts with {0:#010x} instead of {expected:#010x}", expected = MAGIC | VERSION)]
    Magic(u32),
    /// The first word is that of a record with its bytes reversed.
    #[error("the bytes are swapped: the trace is from a big-endian machine, only little-endian is accepted")]
    Swapped,
    /// The record has a version that does not exist.
    #[error("blktrace version {0} is unknown, only version {VERSION} is accepted")]
    Version(u32),
    /// The payload is longer than the rest of the file.
    #[error("the trace is truncated: a payload of {stated} bytes is stated, {left} bytes are left")]
    Payload {
        /// Bytes of payload that the record states.
        stated: usize,
        /// Bytes after the record's header up to the end of the file.
        left: usize,
    },
    /// The record is earlier than one that [`Merge`](super::Merge) returned before it, so it is further behind its
    /// place than the look-ahead.
    #[error(
        "the record of {time} ns follows one of {after} ns, and is more than {look_ahead} records behind its place; \
         'blkparse -i NAME -d NEW' writes a trace in the order of time"
    )]
    Disorder {
        /// When the record was written, in nanoseconds.
        time: u64,
        /// When the record was written that was returned last.
        after: u64,
        /// How many records of the file are read ahead.
        look_ahead: usize,
    },
    /// The file could not be read.
    #[error("{0}")]
    Unreadable(io::ErrorKind),
}
