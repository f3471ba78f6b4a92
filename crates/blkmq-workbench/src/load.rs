//! What a trace asks of a device: its operations, when each was submitted, and how long each took.
//!
//! A [`Load`] takes the same memory whatever the trace's length. [`reader`] follows the operations that are outstanding
//! in the trace, [`lane`] puts those of each submitter in the order in which they are played, and [`spool`] keeps them
//! in temporary files, unless they are few. They cannot stay in the trace alone: submitters that are played as fast as
//! possible move apart without a limit, and one pass over the trace serves all of them only in its own order.

mod lane;
mod reader;
mod spool;
#[cfg(test)]
mod tests;

use std::io;

use blkmq::{Class, Flags, Op};
use nix::errno::Errno;

use self::reader::Reader;
pub(crate) use self::spool::Cursor;
use self::spool::Spool;
use crate::blktrace::{Action, Category, Event};
use crate::{Classes, Latencies, TextError};

/// The most submitters. With more processes, several processes share a submitter.
const MAX_LANES: usize = 128;

/// An operation is followed until it has completed, or so many later ones have begun.
const FOLLOWED: u64 = 131_072;

/// Which events of a trace are its operations. The first kind that occurs in a trace is its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Q: bios, as applications submitted them.
    Bios,
    /// I: requests as they were inserted, in a trace without Q.
    Insertions,
    /// D: requests as the device took them, in a trace without Q and I.
    Issues,
}

impl Source {
    /// The kind of operation that an event is in some traces.
    const fn of(action: Action) -> Option<Self> {
        match action {
            Action::Queue => Some(Self::Bios),
            Action::Insert => Some(Self::Insertions),
            Action::Issue => Some(Self::Issues),
            _ => None,
        }
    }
}

/// An operation of a trace. Times are nanoseconds since the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation {
    /// When it was submitted.
    pub(crate) time: u64,
    /// When the plug in which it waited was emptied; `time` if there was no plug.
    pub(crate) unplugged: u64,
    /// What to do.
    pub(crate) op: Op,
    /// First sector, in units of 512 bytes.
    pub(crate) sector: u64,
    /// Length in sectors.
    pub(crate) nr_sectors: u64,
    /// How to do it.
    pub(crate) flags: Flags,
    /// Its priority class.
    pub(crate) class: Class,
}

/// What happened to the operations under Linux.
///
/// A completion belongs to the oldest operation at its place. An operation that has not completed when 131,072 later
/// ones have begun counts as one that never completes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Traced {
    /// Operations whose completion is in the trace.
    pub completed: u64,
    /// Bios and requests that joined a request.
    pub merges: u64,
    /// Requests that the device took.
    pub requests: u64,
    /// Nanoseconds from the first operation to the last completion.
    pub duration: u64,
    /// From an operation to its completion.
    pub latencies: Latencies,
    /// The most operations that each process had outstanding.
    pub peaks: Vec<usize>,
}

/// The operations of a trace.
///
/// Memory is needed for the operations that are outstanding at one time, which are 131,072 at most, and for each
/// process. Each submitter with more than 264 operations has them in a temporary file, in the folder that the
/// environment's `TMPDIR` names, else `/tmp`: 31 bytes for each, which is less than the trace has for it. The files,
/// 128 at most, have no names and are removed with the load.
#[derive(Debug)]
pub struct Load {
    /// The kind of events that the operations were taken from.
    pub source: Source,
    /// What happened to them under Linux.
    pub traced: Traced,
    /// The number of operations.
    pub nr_operations: u64,
    /// True if an operation changes what the device holds: a write or a discard.
    pub has_changes: bool,
    /// The sector after the last one that an operation is about.
    pub end: u64,
    /// The operations of each submitter, in the order in which they are submitted.
    spools: Vec<Spool>,
}

impl Load {
    /// Takes the operations from `events`, ordered by time, and their priority classes from `classes`.
    ///
    /// # Errors
    /// The first error of `events`; or a temporary file cannot be written.
    pub fn read(events: impl Iterator<Item = Result<Event, TextError>>, classes: &Classes) -> Result<Self, TextError> {
        let mut reader = Reader::new(classes, Source::Issues);
        for event in events {
            let event = event?;
            if let Some(source) = Source::of(event.action).filter(|source| *source < reader.source()) {
                reader.restart(source);
            }
            if is_io(&event) {
                reader.step(&event).map_err(unspooled)?;
            }
        }
        reader.finish().map_err(unspooled)
    }

    /// The number of processes that submitted something.
    #[must_use]
    pub fn nr_processes(&self) -> usize {
        self.traced.peaks.len()
    }

    /// For each submitter the operations, and how many its processes had outstanding at most.
    ///
    /// # Errors
    /// A temporary file cannot be read.
    pub(crate) fn submitters(&self) -> io::Result<Vec<(Cursor<'_>, usize)>> {
        let submitter = |(lane, spool)| {
            let peaks = self.traced.peaks.iter().skip(lane).step_by(MAX_LANES);
            Ok((Cursor::new(spool)?, peaks.sum()))
        };
        self.spools.iter().enumerate().map(submitter).collect()
    }
}

fn unspooled(error: io::Error) -> TextError {
    let place = format!("a temporary file in {}", std::env::temp_dir().display());
    let advice = if error.raw_os_error() == Some(Errno::EMFILE as i32) {
        format!("up to {MAX_LANES} of them are open at a time, 'ulimit -n {}' allows that", 2 * MAX_LANES)
    } else {
        "the operations of the trace go there, TMPDIR names another folder".to_owned()
    };
    TextError { place, what: format!("{error}; {advice}") }
}

/// Whether an event is about I/O of the block layer's own operations.
fn is_io(event: &Event) -> bool {
    !matches!(event.action, Action::Notify | Action::Message) && !event.category.contains(Category::PASSTHROUGH)
}
