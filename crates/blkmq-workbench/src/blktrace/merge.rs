//! The files of all CPUs as one trace.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::BufRead;

use super::{Event, Records, TraceError, TraceFault};

/// How many records are read ahead, in all files together, to put them in the order of time.
pub const LOOK_AHEAD: usize = 32_768;

/// How many records of each file are read ahead, however many files there are. A record that is further behind its
/// place is refused.
pub const LOOK_AHEAD_PER_FILE: usize = 1024;

/// The records of several per-CPU files, ordered by time and then by sequence number. Of equal ones those of an earlier
/// file come first. Ends after the first error, which is that of the file of this number.
///
/// A CPU writes its records in the order of time, with few exceptions. So memory is needed for [`LOOK_AHEAD`] records
/// and not for all.
#[derive(Debug)]
pub struct Merge<R> {
    files: Vec<Ahead<R>>,
    /// Where each file goes on: time, sequence number, number of the file.
    next: BinaryHeap<Reverse<(u64, u32, usize)>>,
    /// How many records of each file are read ahead.
    look_ahead: usize,
    /// The time and sequence number of the last event.
    last: (u64, u32),
    fault: Option<(usize, TraceError)>,
}

/// A file, and the records of it that were read ahead, in order.
#[derive(Debug)]
struct Ahead<R> {
    records: Records<R>,
    ahead: VecDeque<Event>,
}

impl<R: BufRead> Merge<R> {
    /// Reads the beginning of each file.
    pub fn new(files: impl IntoIterator<Item = R>) -> Self {
        let ahead = |file| Ahead { records: Records::new(file), ahead: VecDeque::new() };
        let files: Vec<_> = files.into_iter().map(ahead).collect();
        let look_ahead = (LOOK_AHEAD / files.len().max(1)).max(LOOK_AHEAD_PER_FILE);
        let mut merge = Self { files, next: BinaryHeap::new(), look_ahead, last: (0, 0), fault: None };
        (0..merge.files.len()).for_each(|file| merge.advance(file));
        merge
    }

    /// What [`next`](Iterator::next) returns next.
    pub fn peek(&self) -> Option<Result<&Event, (usize, TraceError)>> {
        if let Some(fault) = self.fault {
            return Some(Err(fault));
        }
        let Reverse((.., file)) = self.next.peek()?;
        self.files[*file].ahead.front().map(Ok)
    }

    /// Reads a file on, and notes where it goes on.
    fn advance(&mut self, file: usize) {
        match self.files[file].fill(self.look_ahead, self.last) {
            Err(error) => self.fault = self.fault.or(Some((file, error))),
            Ok(()) => {
                let front = self.files[file].ahead.front().map(Event::order);
                self.next.extend(front.map(|(time, sequence)| Reverse((time, sequence, file))));
            }
        }
    }
}

impl<R: BufRead> Iterator for Merge<R> {
    type Item = Result<Event, (usize, TraceError)>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(fault) = self.fault.take() {
            self.next.clear();
            return Some(Err(fault));
        }
        let Reverse((time, sequence, file)) = self.next.pop()?;
        self.last = (time, sequence);
        let event = self.files[file].ahead.pop_front()?;
        self.advance(file);
        Some(Ok(event))
    }
}

impl<R: BufRead> Ahead<R> {
    /// Reads until so many records are ahead, or the file ends. `last` is what was returned last.
    fn fill(&mut self, look_ahead: usize, last: (u64, u32)) -> Result<(), TraceError> {
        while self.ahead.len() < look_ahead {
            let offset = self.records.offset();
            let Some(event) = self.records.next() else { return Ok(()) };
            let event = event?;
            if event.order() < last {
                let fault = TraceFault::Disorder { time: event.time, after: last.0, look_ahead };
                return Err(TraceError { offset, fault });
            }
            let at = match self.ahead.back() {
                Some(back) if event.order() < back.order() => {
                    self.ahead.partition_point(|other| other.order() <= event.order())
                }
                _ => self.ahead.len(),
            };
            self.ahead.insert(at, event);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record without a payload.
    fn record(time: u64, sequence: u32) -> Vec<u8> {
        let mut record = vec![0; 48];
        record[..4].copy_from_slice(&0x6561_7407_u32.to_le_bytes());
        record[4..8].copy_from_slice(&sequence.to_le_bytes());
        record[8..16].copy_from_slice(&time.to_le_bytes());
        record
    }

    fn merged(files: &[Vec<u8>]) -> Result<Vec<(u64, u32)>, (usize, TraceError)> {
        Merge::new(files.iter().map(|file| &file[..])).map(|event| event.map(|event| event.order())).collect()
    }

    /// Red if a file is taken to be in order, or if the files are read one behind the other.
    #[test]
    fn files_are_merged_by_time_and_sequence() {
        let file = |of: &[(u64, u32)]| of.iter().flat_map(|(time, sequence)| record(*time, *sequence)).collect();
        let files = [file(&[(3, 1), (1, 2), (9, 3), (4, 9), (4, 1)]), file(&[]), file(&[(4, 2), (2, 0)])];
        assert_eq!(merged(&files), Ok(vec![(1, 2), (2, 0), (3, 1), (4, 1), (4, 2), (4, 9), (9, 3)]));
    }

    /// Red if all of a file is sorted, which takes memory for all of it; or if records are returned out of order and
    /// nothing says so.
    #[test]
    fn a_record_further_behind_its_place_than_the_look_ahead_is_refused() {
        let file = |late: u64| -> Vec<u8> {
            let ahead = (1..=late).flat_map(|time| record(10 + time, 0));
            ahead.chain(record(10, 0)).chain(record(1 << 32, 0)).collect()
        };
        let limit = LOOK_AHEAD as u64;
        assert_eq!(merged(&[file(limit - 1)]).map(|events| events[0]), Ok((10, 0)));
        let (of, error) = merged(&[Vec::new(), file(limit / 2)]).unwrap_err();
        assert_eq!((of, error.offset), (1, 48 * limit / 2));
        let text = error.to_string();
        assert!(text.contains("the record of 10 ns follows one of 11 ns"), "{text}");
        assert!(text.contains("16384 records behind its place; 'blkparse -i NAME -d NEW'"), "{text}");
    }

    /// Red if the error of one file is taken for that of another, or if records follow it.
    #[test]
    fn a_broken_record_is_told_with_its_file_and_ends_the_trace() {
        let files = [[record(1, 0), record(2, 0)].concat(), [record(1, 1), vec![7; 60]].concat()];
        let mut merge = Merge::new(files.iter().map(|file| &file[..]));
        let (file, error) = merge.find_map(Result::err).expect("the second file is broken");
        assert_eq!((file, error.offset, error.fault), (1, 48, TraceFault::Magic(0x0707_0707)));
        assert!(merge.next().is_none());
    }
}
