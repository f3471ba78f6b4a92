//! Operations in temporary files.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;

use blkmq::{Class, Flags, Op};

use super::Operation;
use crate::blktrace::{Category, Event};

/// Bytes of an operation in the file.
const RECORD_BYTES: usize = 31;

/// An operation as the file holds it: what the trace says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) time: u64,
    pub(super) unplugged: u64,
    pub(super) sector: u64,
    pub(super) bytes: u32,
    pub(super) category: Category,
    pub(super) class: Class,
}

impl Record {
    /// The operation that `event` begins.
    pub(super) fn new(event: &Event, time: u64, class: Class) -> Self {
        let Event { sector, bytes, category, .. } = *event;
        Self { time, unplugged: time, sector, bytes, category, class }
    }

    pub(super) fn op(&self) -> Op {
        let has = |bit| self.category.contains(bit);
        if self.bytes == 0 && has(Category::FLUSH) {
            Op::Flush
        } else if has(Category::DISCARD) {
            Op::Discard
        } else if has(Category::WRITE) {
            Op::Write
        } else {
            Op::Read
        }
    }

    /// A length that is not a multiple of a sector is rounded up.
    pub(super) fn nr_sectors(&self) -> u64 {
        u64::from(self.bytes).div_ceil(512)
    }

    pub(super) fn operation(&self) -> Operation {
        let Self { time, unplugged, class, .. } = *self;
        let has = |bit| self.category.contains(bit);
        let op = self.op();
        let flags = Flags {
            sync: has(Category::SYNC),
            preflush: op == Op::Write && has(Category::FLUSH),
            fua: has(Category::FUA),
            readahead: has(Category::AHEAD),
            meta: has(Category::META),
            ..Flags::default()
        };
        let sector = if op == Op::Flush { 0 } else { self.sector };
        Operation { time, unplugged, op, sector, nr_sectors: self.nr_sectors(), flags, class }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for long in [self.time, self.unplugged, self.sector] {
            out.write_all(&long.to_le_bytes())?;
        }
        out.write_all(&self.bytes.to_le_bytes())?;
        out.write_all(&self.category.0.to_le_bytes())?;
        out.write_all(&[self.class.index() as u8])
    }

    fn read(bytes: &[u8; RECORD_BYTES]) -> Self {
        let long = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Self {
            time: long(0),
            unplugged: long(8),
            sector: long(16),
            bytes: bytes[24..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)),
            category: Category(bytes[28..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))),
            class: Class::ALL[usize::from(bytes[30])],
        }
    }
}

/// The operations of one submitter, in a temporary file.
#[derive(Debug)]
pub(super) struct Spool {
    pub(super) file: BufWriter<File>,
    nr_operations: u64,
}

impl Spool {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { file: BufWriter::new(tempfile::tempfile()?), nr_operations: 0 })
    }

    /// Adds an operation.
    pub(super) fn push(&mut self, record: &Record) -> io::Result<()> {
        self.nr_operations += 1;
        record.write(&mut self.file)
    }

    /// Writes what is buffered. Called before anything is read.
    pub(super) fn flush(mut self) -> io::Result<Self> {
        self.file.flush()?;
        Ok(self)
    }
}

/// Reads a file from its beginning, whatever others read of it.
#[derive(Debug)]
struct Reading<'l> {
    file: &'l File,
    at: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(bytes, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}

/// Reads the operations of a spool in order.
#[derive(Debug)]
pub(crate) struct Cursor<'l> {
    records: BufReader<Reading<'l>>,
    /// Operations behind the next one.
    left: u64,
    next: Option<Operation>,
}

impl<'l> Cursor<'l> {
    /// # Errors
    /// The temporary file cannot be read.
    pub(super) fn new(spool: &'l Spool) -> io::Result<Self> {
        let records = BufReader::new(Reading { file: spool.file.get_ref(), at: 0 });
        let mut cursor = Self { records, left: spool.nr_operations, next: None };
        cursor.pop_front()?;
        Ok(cursor)
    }

    /// The next operation; `None` if there is none.
    pub(crate) const fn front(&self) -> Option<&Operation> {
        self.next.as_ref()
    }

    /// Removes the next operation, and reads the one behind it.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub(crate) fn pop_front(&mut self) -> io::Result<()> {
        self.next = None;
        if let Some(left) = self.left.checked_sub(1) {
            let mut record = [0; RECORD_BYTES];
            self.records.read_exact(&mut record)?;
            (self.left, self.next) = (left, Some(Record::read(&record).operation()));
        }
        Ok(())
    }

    /// Removes all operations.
    pub(crate) const fn clear(&mut self) {
        (self.left, self.next) = (0, None);
    }
}
