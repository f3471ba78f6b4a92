//! The part of a split ring.

use std::collections::VecDeque;

use super::{NR_AT, Part, VERSION, VERSION_AT};
use crate::ring::Split;

/// Bytes of the header, and of an entry.
pub(super) const HEADER: usize = 16;
pub(super) const ENTRY: usize = 16;
/// In the header: the chain that was given back last, and the index of what was used when all marks were right.
const LAST_AT: usize = 12;
const USED_AT: usize = 14;
/// In an entry: the chain that was given back before it.
const NEXT: usize = 6;

/// Keeps what is in progress in a split ring.
#[derive(Debug)]
pub(crate) struct Record {
    part: Part,
    size: u16,
    counter: u64,
    /// Given back since the last [`published`](Self::published).
    batch: Vec<u16>,
}

impl Record {
    /// The record has so many entries. It is no smaller than the ring.
    pub(crate) fn new(part: Part, size: u16) -> Self {
        if part.short(VERSION_AT) == 0 {
            part.set_short(NR_AT, part.nr_entries);
            part.set_short(VERSION_AT, VERSION);
        }
        Self { part, size, counter: 0, batch: Vec::new() }
    }

    /// Returns what was in progress, the oldest first. The ring goes on behind what was given back.
    pub(crate) fn recover(&mut self, ring: &mut Split) -> VecDeque<u16> {
        let used = ring.used_index();
        // What was taken and is not in progress was given back, and what follows is not taken yet.
        ring.go_on_at(used);
        // The last server may have shown a batch to the guest, and ended before it had removed the marks.
        let nr = used.wrapping_sub(self.part.short(USED_AT));
        let mut head = self.part.short(LAST_AT);
        for _ in 0..nr.min(self.size) {
            if head >= self.size {
                break;
            }
            self.part.mark(head, false);
            head = self.part.short(self.part.at(head, NEXT));
        }
        self.part.set_short(USED_AT, used);
        let mut found: Vec<_> = (0..self.size)
            .filter(|head| self.part.is_marked(*head))
            .map(|head| (self.part.counter(head), head))
            .collect();
        found.sort_unstable();
        self.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        found.into_iter().map(|(_, head)| head).collect()
    }

    /// Called when a chain has been taken, before anything is done about it.
    pub(crate) fn taken(&mut self, head: u16) {
        self.part.set_counter(head, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.part.mark(head, true);
    }

    /// Called when a chain is given back, before the guest can see it.
    pub(crate) fn put(&mut self, head: u16) {
        let last = self.part.short(LAST_AT);
        self.part.set_short(self.part.at(head, NEXT), last);
        self.part.set_short(LAST_AT, head);
        self.batch.push(head);
    }

    /// Called when the guest can see all that was given back, and what was used has this index.
    pub(crate) fn published(&mut self, used: u16) {
        while let Some(head) = self.batch.pop() {
            self.part.mark(head, false);
        }
        self.part.set_short(USED_AT, used);
    }
}
