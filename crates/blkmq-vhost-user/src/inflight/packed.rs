//! The part of a packed ring.
//!
//! A guest writes new descriptors over those that the device has taken. So the record has a copy of each descriptor
//! that was taken, in entries that form lists: one of each chain, and one of those that are free. Each number that
//! changes with a batch is there twice. The old one counts until the guest has seen the batch; the ring itself tells
//! whether it has.

use std::collections::VecDeque;

use super::{NR_AT, Part, VERSION, VERSION_AT};
use crate::ring::{Cursor, Descriptor, Fault, Packed};

/// Bytes of the header, and of an entry.
pub(super) const HEADER: usize = 32;
pub(super) const ENTRY: usize = 32;
/// In the header: the first free entry, as it is and as it was before the batch.
const FREE_AT: usize = 12;
const OLD_FREE_AT: usize = 14;
/// Both places: an index, the old one, a lap, and the old one, which fit into one number and are written at once.
const PLACES_AT: usize = 16;
/// In an entry: of the first one of a chain which entry is its last one, and how many it has; of each the one behind
/// it, and a copy of the descriptor.
const NEXT: usize = 2;
const LAST: usize = 4;
const NR: usize = 6;
const ID: usize = 16;
const FLAGS: usize = 18;
const LEN: usize = 20;
const ADDRESS: usize = 24;

/// A chain that was in progress when the last server ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Left {
    /// Its first entry.
    pub(crate) entry: u16,
    /// Its descriptors, which are not in the ring any more.
    pub(crate) copy: Vec<Descriptor>,
}

/// Keeps what is in progress in a packed ring. What it has to know of the lists, it has here too: the memory is never
/// believed while the ring works.
#[derive(Debug)]
pub(crate) struct Record {
    part: Part,
    ring_size: u16,
    counter: u64,
    /// The place of what is given back next, with the batch and without.
    used: Cursor,
    shown: Cursor,
    free: u16,
    /// Of each entry the one behind it, and of the first one of a chain the last one.
    next: Vec<u16>,
    last: Vec<u16>,
    /// Given back since the last [`published`](Self::published).
    batch: Vec<u16>,
}

impl Record {
    /// The record has so many entries. It is no smaller than the ring.
    pub(crate) fn new(part: Part, ring_size: u16) -> Self {
        let (used, shown) = (Cursor::default(), Cursor::default());
        let [next, last] = [(); 2].map(|()| vec![0; part.nr_entries.into()]);
        Self { part, ring_size, counter: 0, used, shown, free: 0, next, last, batch: Vec::new() }
    }

    /// The place of what is given back next, as it is and as it was before the batch.
    fn places(&self) -> Result<(Cursor, Cursor), Fault> {
        let bits = u64::from_le(self.part.area.read(PLACES_AT));
        let of = |index: u64, lap: u64| Cursor { index: index as u16, lap: lap as u8 != 0 };
        let (used, old) = (of(bits, bits >> 32), of(bits >> 16, bits >> 40));
        let is_inside = used.index < self.ring_size && old.index < self.ring_size;
        is_inside.then_some((used, old)).ok_or(Fault::Record)
    }

    /// One store, since an index with the lap of another one would be a wrong place.
    fn set_places(&self, used: Cursor, old: Cursor) {
        let used = u64::from(used.index) | u64::from(used.lap) << 32;
        let old = u64::from(old.index) << 16 | u64::from(old.lap) << 40;
        self.part.area.write(PLACES_AT, (used | old).to_le());
    }

    /// Returns what was in progress, the oldest first. The ring goes on behind what was given back.
    pub(crate) fn recover(&mut self, ring: &mut Packed) -> Result<VecDeque<Left>, Fault> {
        if self.part.short(VERSION_AT) == 0 {
            self.begin(ring.next_used());
            return Ok(VecDeque::new());
        }
        let (used, mut place) = self.places()?;
        if used != place && !ring.is_available(place) {
            // The last server has shown its batch to the guest, and ended before it had written that here.
            self.part.set_short(OLD_FREE_AT, self.part.short(FREE_AT));
            place = used;
            self.set_places(place, place);
        }
        // What it had written behind the place, the guest has not been shown.
        ring.go_on_at(place);
        ring.hide(place);
        (self.used, self.shown) = (place, place);
        let found = self.find()?;
        self.link(&found);
        self.part.set_short(FREE_AT, self.free);
        self.part.set_short(OLD_FREE_AT, self.free);
        self.set_places(place, place);
        Ok(found.into_iter().map(|(_, left, _)| left).collect())
    }

    /// Memory that is new: nothing is in progress.
    fn begin(&mut self, used: Cursor) {
        (self.used, self.shown) = (used, used);
        self.link(&[]);
        self.set_places(used, used);
        self.part.set_short(FREE_AT, self.free);
        self.part.set_short(OLD_FREE_AT, self.free);
        self.part.set_short(NR_AT, self.part.nr_entries);
        // At the end: memory without a version is new.
        self.part.set_short(VERSION_AT, VERSION);
    }

    /// The chains in progress in their order, with their entries, and no mark on what is free.
    fn find(&mut self) -> Result<Vec<(u64, Left, Vec<u16>)>, Fault> {
        let mut index = self.part.short(OLD_FREE_AT);
        for _ in 0..self.part.nr_entries {
            if index >= self.part.nr_entries {
                break;
            }
            if self.part.is_marked(index) {
                self.part.mark(index, false);
            }
            index = self.part.short(self.part.at(index, NEXT));
        }
        let mut found = Vec::new();
        let mut is_seen = vec![false; self.next.len()];
        for entry in (0..self.part.nr_entries).filter(|entry| self.part.is_marked(*entry)) {
            let mut left = Left { entry, copy: Vec::new() };
            let mut entries = Vec::new();
            let mut index = entry;
            for _ in 0..self.part.short(self.part.at(entry, NR)) {
                let is_seen = is_seen.get_mut(usize::from(index)).ok_or(Fault::Record)?;
                if std::mem::replace(is_seen, true) {
                    return Err(Fault::Record);
                }
                left.copy.push(Descriptor {
                    address: u64::from_le_bytes(self.part.area.read(self.part.at(index, ADDRESS))),
                    len: u32::from_le_bytes(self.part.area.read(self.part.at(index, LEN))),
                    next: self.part.short(self.part.at(index, ID)),
                    flags: self.part.short(self.part.at(index, FLAGS)),
                });
                entries.push(index);
                index = self.part.short(self.part.at(index, NEXT));
            }
            if entries.is_empty() {
                return Err(Fault::Record);
            }
            found.push((self.part.counter(entry), left, entries));
        }
        found.sort_unstable_by_key(|(counter, left, _)| (*counter, left.entry));
        self.counter = found.last().map_or(0, |(counter, ..)| counter.wrapping_add(1));
        Ok(found)
    }

    /// Makes one list of all entries that no chain has. Free ones lead to free ones at any time.
    fn link(&mut self, found: &[(u64, Left, Vec<u16>)]) {
        let mut is_free = vec![true; self.next.len()];
        for (_, left, entries) in found {
            self.last[usize::from(left.entry)] = *entries.last().unwrap_or(&left.entry);
            for pair in entries.windows(2) {
                self.next[usize::from(pair[0])] = pair[1];
            }
            entries.iter().for_each(|entry| is_free[usize::from(*entry)] = false);
        }
        self.free = self.part.nr_entries;
        for entry in (0..self.part.nr_entries).rev().filter(|entry| is_free[usize::from(*entry)]) {
            self.lead(entry, self.free);
            self.free = entry;
        }
    }

    fn lead(&mut self, entry: u16, next: u16) {
        self.next[usize::from(entry)] = next;
        self.part.set_short(self.part.at(entry, NEXT), next);
    }

    /// Called when a chain has been taken, before anything is done about it. Returns its first entry.
    pub(crate) fn taken(&mut self, descriptors: &[Descriptor]) -> u16 {
        let head = self.free;
        let mut last = head;
        for descriptor in descriptors {
            // A ring has no more descriptors than the record has entries.
            last = self.free;
            self.part.area.write(self.part.at(last, ADDRESS), descriptor.address.to_le_bytes());
            self.part.area.write(self.part.at(last, LEN), descriptor.len.to_le_bytes());
            self.part.set_short(self.part.at(last, FLAGS), descriptor.flags);
            self.part.set_short(self.part.at(last, ID), descriptor.next);
            self.free = self.next[usize::from(last)];
        }
        self.last[usize::from(head)] = last;
        self.part.set_short(self.part.at(head, LAST), last);
        self.part.set_short(self.part.at(head, NR), descriptors.len() as u16);
        self.part.set_counter(head, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.part.mark(head, true);
        self.part.set_short(FREE_AT, self.free);
        // At the end: until then the entries are free, and what is free is not in progress.
        self.part.set_short(OLD_FREE_AT, self.free);
        head
    }

    /// Called when a chain is given back, before anything of that is in the ring.
    pub(crate) fn put(&mut self, entry: u16, nr_descriptors: u16) {
        self.batch.push(entry);
        self.used.advance(nr_descriptors, self.ring_size);
        self.set_places(self.used, self.shown);
    }

    /// Called before the guest can see what was given back. Nothing is taken until [`published`](Self::published).
    pub(crate) fn publish(&mut self) {
        for at in 0..self.batch.len() {
            let entry = self.batch[at];
            self.lead(self.last[usize::from(entry)], self.free);
            self.free = entry;
        }
        self.part.set_short(FREE_AT, self.free);
    }

    /// Called when the guest can see all that was given back.
    pub(crate) fn published(&mut self) {
        while let Some(entry) = self.batch.pop() {
            self.part.mark(entry, false);
        }
        self.part.set_short(OLD_FREE_AT, self.free);
        self.shown = self.used;
        self.set_places(self.used, self.used);
    }
}
