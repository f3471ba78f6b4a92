//! The operations of one submitter, in the order in which they are submitted: that in which plugs were emptied.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;

use super::spool::{Chain, Record, Spool};

/// The operations of one submitter on their way into a chain.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The operations that may still be in a plug, in order: number, and when they were submitted.
    plugged: VecDeque<(u64, u64)>,
    /// The operations that left their plug, behind one that may still be in a plug and may come first.
    unplugged: BinaryHeap<Reverse<Unplugged>>,
    pub(super) chain: Chain,
}

/// An operation that left its plug, ordered by when that was, and then by its number.
#[derive(Debug)]
struct Unplugged {
    number: u64,
    record: Record,
}

impl Unplugged {
    const fn order(&self) -> (u64, u64) {
        (self.record.unplugged, self.number)
    }
}

impl PartialEq for Unplugged {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Unplugged {}

impl PartialOrd for Unplugged {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Unplugged {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl Lane {
    /// Called when an operation is submitted at this time.
    pub(super) fn begin(&mut self, number: u64, time: u64) {
        self.plugged.push_back((number, time));
    }

    /// Called when an operation left its plug. Operations that no other one can come before any more go to the chain.
    pub(super) fn unplug(&mut self, number: u64, record: Record, spool: &mut Spool) -> io::Result<()> {
        if let Ok(at) = self.plugged.binary_search_by_key(&number, |(number, _)| *number) {
            self.plugged.remove(at);
        }
        self.unplugged.push(Reverse(Unplugged { number, record }));
        // An operation in a plug leaves it at the time of its submission or later.
        let first = self.plugged.front().map(|(number, time)| (*time, *number));
        while let Some(Reverse(next)) = self.unplugged.peek()
            && first.is_none_or(|first| next.order() < first)
        {
            spool.push(&mut self.chain, &next.record)?;
            self.unplugged.pop();
        }
        Ok(())
    }
}
