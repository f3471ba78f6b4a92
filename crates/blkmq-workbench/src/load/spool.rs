//! Operations in memory while they are few, else in temporary files.

use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;

use blkmq::{Class, Flags, Op};
use tempfile::{SpooledData, SpooledTempFile};

use super::Operation;
use crate::blktrace::{Category, Event};

/// Bytes of an operation in the file.
const RECORD_BYTES: usize = 31;

/// The most bytes of a submitter's operations that stay in memory. With more, all of them are in a temporary file, so a
/// trace of many processes with few operations each needs no open files.
const MEMORY_BYTES: usize = 8192;

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

/// Writes the operations of one submitter.
#[derive(Debug)]
pub(super) struct SpoolWriter {
    file: BufWriter<SpooledTempFile>,
    nr_operations: u64,
}

impl SpoolWriter {
    pub(super) fn new() -> Self {
        Self { file: BufWriter::new(SpooledTempFile::new(MEMORY_BYTES)), nr_operations: 0 }
    }

    /// Adds an operation.
    pub(super) fn push(&mut self, record: &Record) -> io::Result<()> {
        self.nr_operations += 1;
        record.write(&mut self.file)
    }

    /// Ends the spool, so that it can be read.
    pub(super) fn finish(self) -> io::Result<Spool> {
        Ok(Spool { data: self.file.into_inner()?.into_inner(), nr_operations: self.nr_operations })
    }
}

/// The operations of one submitter.
#[derive(Debug)]
pub(super) struct Spool {
    pub(super) data: SpooledData,
    nr_operations: u64,
}

/// Reads a spool from its beginning, with an offset of its own.
#[derive(Debug)]
struct Reading<'l> {
    data: &'l SpooledData,
    at: u64,
}

impl Read for Reading<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = match self.data {
            SpooledData::InMemory(data) => (&data.get_ref()[self.at as usize..]).read(bytes)?,
            SpooledData::OnDisk(file) => file.read_at(bytes, self.at)?,
        };
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
    /// A temporary file cannot be read.
    pub(super) fn new(spool: &'l Spool) -> io::Result<Self> {
        let records = BufReader::new(Reading { data: &spool.data, at: 0 });
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
    /// A temporary file cannot be read.
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
