//! What written blocks contain, and whether they still contain it when they are read.
//!
//! Each block begins with a header: the block's place, the thread that wrote it, the number of the write, and the
//! CRC-32C of the rest. If no other thread writes to a thread's area, that thread also knows which write it must find,
//! and so it notices a lost write.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, Hasher};

use super::pattern::Operation;
use super::plan::{HEADER, mix};
use crate::job::Direction;

/// Begins every header: `blkmq`, and the version of the header.
const MAGIC: u64 = u64::from_le_bytes(*b"blkmq\0\0\x01");

/// What one thread knows of the blocks that it wrote.
#[derive(Debug)]
pub(super) struct Verifier {
    /// Bytes of a block. 0 if each operation is one block.
    interval: u64,
    /// The number of the thread, which is new in each run.
    writer: u64,
    /// Writes so far.
    number: u64,
    /// No other thread writes to this thread's area.
    is_alone: bool,
    /// The job only reads: every block was written before, by any writer.
    only_reads: bool,
    /// Blocks that this thread wrote, by their first byte: length in bytes, and number of the write.
    written: BTreeMap<u64, (u64, u64)>,
    /// Operations that wrote, the oldest first: first byte, bytes, number.
    unread: VecDeque<(u64, u64, u64)>,
    /// Outstanding operations: first byte, and the byte after the last.
    in_flight: Vec<(u64, u64)>,
}

/// What begins a block: a magic number, these fields, and a checksum of all of it.
struct Header {
    place: u64,
    writer: u64,
    number: u64,
    len: u64,
    /// Of the rest of the block.
    crc: u32,
}

impl Header {
    fn write(&self, block: &mut [u8]) {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        [MAGIC, self.place, self.writer, self.number].iter().for_each(|number| put(&number.to_le_bytes()));
        put(&(self.len as u32).to_le_bytes());
        put(&self.crc.to_le_bytes());
        let crc = crc32c::crc32c(&block[..HEADER - 4]);
        block[HEADER - 4..HEADER].copy_from_slice(&crc.to_le_bytes());
    }

    fn read(block: &[u8]) -> Result<Self, &'static str> {
        let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes were asked for"));
        let half = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes were asked for"));
        if block.len() < HEADER || number(0) != MAGIC {
            return Err("it does not begin with a header");
        }
        if half(HEADER - 4) != crc32c::crc32c(&block[..HEADER - 4]) {
            return Err("its header does not match the header's checksum");
        }
        Ok(Self { place: number(8), writer: number(16), number: number(24), len: half(32).into(), crc: half(36) })
    }
}

impl Verifier {
    pub(super) fn new(interval: u64, seed: u64, is_alone: bool, only_reads: bool) -> Self {
        Self {
            interval,
            writer: mix(seed, RandomState::new().build_hasher().finish()),
            number: 0,
            is_alone,
            only_reads,
            written: BTreeMap::new(),
            unread: VecDeque::new(),
            in_flight: Vec::new(),
        }
    }

    /// Whether an operation has bytes in common with an outstanding one. Such operations must not be outstanding at
    /// the same time, because what they leave would depend on their order.
    pub(super) fn overlaps(&self, operation: &Operation) -> bool {
        self.in_flight.iter().any(|(first, last)| operation.at < *last && *first < operation.end())
    }

    /// Prepares the buffer of an operation that is submitted next.
    pub(super) fn prepare(&mut self, operation: &Operation, buffer: &mut [u8]) {
        if operation.direction == Direction::Write {
            self.number += 1;
        }
        let interval = if self.interval == 0 { operation.bytes } else { self.interval };
        let mut place = operation.at;
        for block in buffer.chunks_mut(usize::try_from(interval).unwrap_or(usize::MAX)) {
            match operation.direction {
                Direction::Write => self.fill(block, place),
                // Without this, bytes that the device does not fill might look right.
                Direction::Read | Direction::Trim => block[..HEADER].fill(0),
            }
            place += block.len() as u64;
        }
    }

    /// Called when the queue took an operation.
    pub(super) fn submitted(&mut self, operation: &Operation) {
        self.in_flight.push((operation.at, operation.end()));
        if operation.direction != Direction::Read {
            self.forget(operation);
        }
        if operation.direction == Direction::Write {
            self.unread.push_back((operation.at, operation.bytes, self.number));
            let interval = if self.interval == 0 { operation.bytes } else { self.interval };
            let mut at = operation.at;
            while at < operation.end() {
                self.written.insert(at, (interval, self.number));
                at += interval;
            }
        }
    }

    /// Forgets the blocks that an operation overwrites, also those of which it overwrites only a part.
    fn forget(&mut self, operation: &Operation) {
        let end = operation.end();
        while let Some((first, (bytes, _))) =
            self.written.range(..end).next_back().map(|(first, block)| (*first, *block))
            && first + bytes > operation.at
        {
            self.written.remove(&first);
        }
    }

    /// Writes a block's content and header. The content differs from write to write, so that a mixture is noticed.
    fn fill(&self, block: &mut [u8], place: u64) {
        let start = mix(self.writer ^ place, self.number);
        let (_, rest) = block.split_at_mut(HEADER);
        let mut word = start;
        for bytes in rest.chunks_mut(8) {
            word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
        let crc = crc32c::crc32c(rest);
        let len = block.len() as u64;
        Header { place, writer: self.writer, number: self.number, len, crc }.write(block);
    }

    /// Called when an operation has completed. Other operations no longer wait for it.
    pub(super) fn over(&mut self, at: u64, bytes: u64) {
        let range = (at, at + bytes);
        if let Some(at) = self.in_flight.iter().position(|other| *other == range) {
            self.in_flight.swap_remove(at);
        }
    }

    /// Checks what was read from byte `first` on. Returns how many blocks are not what was written, and what is wrong
    /// with the first one.
    pub(super) fn check(&self, first: u64, buffer: &[u8]) -> (u64, Option<String>) {
        let (mut wrong, mut what_first) = (0, None);
        let mut at = 0;
        while at < buffer.len() {
            let place = first + at as u64;
            let known = self.written.get(&place).copied();
            let len = self.block_len(known, &buffer[at..]);
            if at + len > buffer.len() {
                break;
            }
            let block = &buffer[at..at + len];
            let is_expected = self.only_reads || known.is_some_and(|(bytes, _)| bytes == len as u64);
            if is_expected && let Err(what) = self.check_block(place, block, known.map(|(_, number)| number)) {
                wrong += 1;
                what_first.get_or_insert_with(|| format!("the block at byte {place} is not what was written: {what}"));
            }
            at += len;
        }
        (wrong, what_first)
    }

    /// Length of the block with which `buffer` begins.
    fn block_len(&self, known: Option<(u64, u64)>, buffer: &[u8]) -> usize {
        let bytes = match known {
            _ if self.interval > 0 => self.interval,
            Some((bytes, _)) => bytes,
            None => Header::read(buffer)
                .ok()
                .map(|header| header.len)
                .filter(|len| *len >= HEADER as u64)
                .unwrap_or(buffer.len() as u64),
        };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    fn check_block(&self, place: u64, block: &[u8], number: Option<u64>) -> Result<(), String> {
        let header = Header::read(block)?;
        if header.place != place {
            return Err(format!("it was written for byte {}", header.place));
        }
        if header.len != block.len() as u64 {
            return Err(format!("it was written as {} bytes", header.len));
        }
        if crc32c::crc32c(&block[HEADER..]) != header.crc {
            return Err("its content does not match its checksum".to_owned());
        }
        let Some(number) = number else { return Ok(()) };
        if header.writer == self.writer && header.number != number {
            return Err(format!("it is of write {}, and write {number} came later", header.number));
        }
        if header.writer != self.writer && self.is_alone {
            return Err(format!("it is of an earlier run, and write {number} of this one came later"));
        }
        Ok(())
    }

    /// Operations that wrote and were not read back.
    pub(super) fn nr_unread(&self) -> usize {
        self.unread.len()
    }

    /// The read that shows what the oldest write left, unless it was overwritten meanwhile.
    pub(super) fn next_read(&mut self) -> Option<Operation> {
        while let Some((at, bytes, number)) = self.unread.pop_front() {
            if self.written.get(&at).is_some_and(|(_, latest)| *latest == number) {
                return Some(Operation { direction: Direction::Read, at, bytes });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verifier(interval: u64) -> Verifier {
        Verifier::new(interval, 1, true, false)
    }

    const WRITE: Operation = Operation { direction: Direction::Write, at: 32768, bytes: 8192 };

    fn written(verifier: &mut Verifier) -> Vec<u8> {
        let mut buffer = vec![0; 8192];
        verifier.prepare(&WRITE, &mut buffer);
        verifier.submitted(&WRITE);
        buffer
    }

    fn wrong(verifier: &Verifier, buffer: &[u8]) -> (u64, String) {
        let (wrong, what) = verifier.check(WRITE.at, buffer);
        (wrong, what.unwrap_or_default())
    }

    #[test]
    fn each_bit_of_a_block_counts() {
        for interval in [0, 4096, 512] {
            let mut verifier = verifier(interval);
            let mut buffer = written(&mut verifier);
            assert_eq!(wrong(&verifier, &buffer), (0, String::new()));
            for at in 0..8192 {
                buffer[at] ^= 1 << (at % 8);
                let (nr, what) = wrong(&verifier, &buffer);
                assert_eq!(nr, 1, "byte {at} of blocks of {interval}");
                let block = at as u64 - at as u64 % if interval == 0 { 8192 } else { interval };
                assert!(what.starts_with(&format!("the block at byte {} is not", WRITE.at + block)), "{what}");
                buffer[at] ^= 1 << (at % 8);
            }
        }
    }

    #[test]
    fn a_lost_write_is_noticed() {
        let mut verifier = verifier(0);
        let first = written(&mut verifier);
        let second = written(&mut verifier);
        assert_eq!(wrong(&verifier, &second).0, 0);
        assert!(wrong(&verifier, &first).1.ends_with("it is of write 1, and write 2 came later"));
        let mut other = Verifier::new(0, 2, true, false);
        assert!(wrong(&verifier, &written(&mut other)).1.ends_with("and write 2 of this one came later"));
        verifier.is_alone = false;
        assert_eq!(wrong(&verifier, &written(&mut other)).0, 0, "another thread may have written last");
    }

    #[test]
    fn what_was_trimmed_or_overwritten_in_part_is_not_expected() {
        let mut verifier = verifier(0);
        let buffer = written(&mut verifier);
        let trim = Operation { direction: Direction::Trim, at: WRITE.at + 4096, bytes: 4096 };
        verifier.submitted(&trim);
        assert_eq!(wrong(&verifier, &vec![0; buffer.len()]).0, 0);
        assert_eq!(verifier.next_read(), None);
    }

    #[test]
    fn operations_that_touch_overlap() {
        let mut verifier = verifier(0);
        written(&mut verifier);
        let read = |at, bytes| Operation { direction: Direction::Read, at, bytes };
        let (first, end) = (WRITE.at, WRITE.end());
        assert!(verifier.overlaps(&read(end - 1, 1)) && verifier.overlaps(&read(first - 9, 10)));
        assert!(verifier.overlaps(&read(0, 100_000)));
        assert!(!verifier.overlaps(&read(end, 1)) && !verifier.overlaps(&read(first - 9, 9)));
        verifier.over(WRITE.at, WRITE.bytes);
        assert!(!verifier.overlaps(&read(end - 1, 1)));
    }

    #[test]
    fn a_reader_knows_blocks_that_others_wrote() {
        let buffer = written(&mut verifier(0));
        let mut reader = Verifier::new(0, 3, true, true);
        assert_eq!(wrong(&reader, &buffer).0, 0);
        assert_eq!(wrong(&reader, &[0; 8192]).0, 1);
        assert!(
            reader
                .check(WRITE.at + 512, &buffer)
                .1
                .expect("it lies elsewhere")
                .ends_with("it was written for byte 32768")
        );
        let mut stale = buffer.clone();
        reader.prepare(&Operation { direction: Direction::Read, ..WRITE }, &mut stale);
        assert_eq!(wrong(&reader, &stale).0, 1, "a device that does not fill the buffer is noticed");
    }
}
