//! The operations of one submitter, in the order in which they are submitted: that in which plugs were emptied.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use super::spool::{Record, SpoolWriter};

/// The operations of one submitter on their way into the spool.
#[derive(Debug)]
pub(super) struct Lane {
    /// The operations that may still be in a plug, in order: number, and when they were submitted.
    plugged: VecDeque<(u64, u64)>,
    /// The operations that left their plug, by when that was and by number, behind one that may still be in a plug and
    /// may come first.
    unplugged: BTreeMap<(u64, u64), Record>,
    pub(super) spool: SpoolWriter,
}

impl Lane {
    pub(super) fn new() -> Self {
        Self { plugged: VecDeque::new(), unplugged: BTreeMap::new(), spool: SpoolWriter::new() }
    }

    /// Called when an operation is submitted at this time.
    pub(super) fn begin(&mut self, number: u64, time: u64) {
        self.plugged.push_back((number, time));
    }

    /// Called when an operation left its plug. Operations that no other one can come before any more go to the spool.
    pub(super) fn unplug(&mut self, number: u64, record: Record) -> io::Result<()> {
        if let Ok(at) = self.plugged.binary_search_by_key(&number, |(number, _)| *number) {
            self.plugged.remove(at);
        }
        self.unplugged.insert((record.unplugged, number), record);
        // An operation in a plug leaves it at the time of its submission or later.
        let first = self.plugged.front().map(|(number, time)| (*time, *number));
        while let Some(next) = self.unplugged.first_entry().filter(|next| first.is_none_or(|first| *next.key() < first))
        {
            self.spool.push(&next.remove())?;
        }
        Ok(())
    }
}
