//! Operations in a temporary file.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use blkmq::{Class, Flags, Op};

use super::Operation;
use crate::blktrace::{Category, Event};

/// Bytes of an operation in the file.
const RECORD_BYTES: usize = 31;

/// Operations of a block. A block is read and written at once.
const BLOCK_RECORDS: usize = 256;

/// Bytes of a block: its operations, then the place of the next block of its chain.
const BLOCK_BYTES: usize = BLOCK_RECORDS * RECORD_BYTES + 8;

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

    fn write(&self, out: &mut Vec<u8>) {
        [self.time, self.unplugged, self.sector].iter().for_each(|long| out.extend(long.to_le_bytes()));
        out.extend(self.bytes.to_le_bytes());
        out.extend(self.category.0.to_le_bytes());
        out.push(self.class.index() as u8);
    }

    fn read(bytes: &[u8]) -> Self {
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

/// The operations of one submitter: full blocks in the file, each with the place of the next one, and the rest in
/// memory.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// The place of the first block.
    first: u64,
    /// The place of the next block to be written.
    next: u64,
    /// Blocks in the file.
    nr_blocks: u64,
    /// Operations that are in no block yet.
    rest: Vec<u8>,
}

/// The file under construction.
#[derive(Debug, Default)]
pub(super) struct Spool {
    /// Made with the first full block.
    pub(super) file: Option<File>,
    /// Blocks in the file, and those that a chain goes on with.
    nr_blocks: u64,
}

impl Spool {
    /// Adds an operation to a chain.
    pub(super) fn push(&mut self, chain: &mut Chain, record: &Record) -> io::Result<()> {
        record.write(&mut chain.rest);
        if chain.rest.len() < BLOCK_RECORDS * RECORD_BYTES {
            return Ok(());
        }
        if chain.nr_blocks == 0 {
            chain.first = self.place();
            chain.next = chain.first;
        }
        let next = self.place();
        chain.rest.extend(next.to_le_bytes());
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        file.write_all_at(&chain.rest, chain.next)?;
        chain.next = next;
        chain.nr_blocks += 1;
        chain.rest.clear();
        Ok(())
    }

    /// The place of a new block.
    const fn place(&mut self) -> u64 {
        let at = self.nr_blocks * BLOCK_BYTES as u64;
        self.nr_blocks += 1;
        at
    }
}

/// Reads the operations of a chain in order.
#[derive(Debug)]
pub(crate) struct Cursor<'l> {
    chain: &'l Chain,
    file: Option<&'l File>,
    /// Blocks of the chain that have not been read, and the place of the next one.
    left: u64,
    next: u64,
    /// The rest of the chain has not been read.
    has_rest: bool,
    ready: VecDeque<Operation>,
}

impl<'l> Cursor<'l> {
    /// # Errors
    /// The temporary file cannot be read.
    pub(super) fn new(chain: &'l Chain, file: Option<&'l File>) -> io::Result<Self> {
        let (left, next) = (chain.nr_blocks, chain.first);
        let mut cursor = Self { chain, file, left, next, has_rest: true, ready: VecDeque::new() };
        cursor.refill()?;
        Ok(cursor)
    }

    /// The next operation; `None` if there is none.
    pub(crate) fn front(&self) -> Option<&Operation> {
        self.ready.front()
    }

    /// Removes the next operation, and reads on if that was the last one in memory.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub(crate) fn pop_front(&mut self) -> io::Result<()> {
        self.ready.pop_front();
        if self.ready.is_empty() { self.refill() } else { Ok(()) }
    }

    /// Removes all operations.
    pub(crate) fn clear(&mut self) {
        (self.left, self.has_rest) = (0, false);
        self.ready.clear();
    }

    fn refill(&mut self) -> io::Result<()> {
        if let Some(file) = self.file.filter(|_| self.left > 0) {
            let mut block = [0; BLOCK_BYTES];
            file.read_exact_at(&mut block, self.next)?;
            let (records, next) = block.split_at(BLOCK_RECORDS * RECORD_BYTES);
            self.ready.extend(operations(records));
            self.next = next.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            self.left -= 1;
        } else if std::mem::take(&mut self.has_rest) {
            self.ready.extend(operations(&self.chain.rest));
        }
        Ok(())
    }
}

fn operations(records: &[u8]) -> impl Iterator<Item = Operation> {
    records.chunks_exact(RECORD_BYTES).map(|bytes| Record::read(bytes).operation())
}
