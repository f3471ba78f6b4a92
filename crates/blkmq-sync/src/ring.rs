//! A bounded ring of records: one thread writes, and the thread in the scheduler takes the records of all threads.
//!
//! [`PendingEvents`] says whose rings have something, so that the thread at the scheduler reads one word and not every
//! ring.
//!
//! # On trial
//! A thread notes that its requests bypass the scheduler before it knows whether they may: see the gate of
//! [`word`](crate::word). Such a record is *on trial*.
//!
//! ```text
//!     the thread that passes               the thread at the scheduler
//!  1. notes a record that is on trial   a. shuts the gate
//!  2. fence                             b. fence
//!  3. looks at the gate once more       c. takes the records; one that is on trial it refuses
//!  4. confirms the record
//! ```
//!
//! Steps c and 4 are exchanges of one word. If 4 comes first, c finds a record like any other. If c comes first, 4
//! fails, and the requests turn back. So a request was reported if and only if it bypassed. If c does not find the
//! record, 2 came behind b, and 3 finds the gate shut.

use crate::platform::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::platform::{Line, order, place_anew};

/// Words of a record.
pub const WORDS: usize = 4;

/// A record. The two lowest bits of its last word are the ring's own, and 0.
pub type Record = [u64; WORDS];

/// What became of a record, in the lowest bits of its last word.
const STATE: u64 = 0b11;
const SURE: u64 = 0;
const ON_TRIAL: u64 = 1;
const WITHDRAWN: u64 = 2;

/// A ring with room for so many records, which is a power of two.
#[derive(Debug)]
pub struct Ring {
    records: Box<[[AtomicU64; WORDS]]>,
    /// How many records were noted so far, wrapping. Written by the thread that notes.
    noted: Line<AtomicU32>,
    /// How many of them were taken. Written by the thread that takes.
    taken: Line<AtomicU32>,
}

/// A record that is on trial. It is ended by the thread that noted it, before that thread notes another one.
#[derive(Debug)]
#[must_use = "a record on trial is confirmed or withdrawn"]
pub struct Trial(u32);

impl Ring {
    /// An empty ring.
    ///
    /// # Panics
    /// If `len` is no power of two.
    #[must_use]
    pub fn new(len: usize) -> Self {
        assert!(len.is_power_of_two(), "positions wrap");
        let records: Box<[_]> = (0..len).map(|_| [(); WORDS].map(|()| AtomicU64::new(0))).collect();
        place_anew("ring.records", &*records);
        Self {
            records,
            noted: Line::new("ring.noted", AtomicU32::new(0)),
            taken: Line::new("ring.taken", AtomicU32::new(0)),
        }
    }

    fn cells(&self, position: u32) -> &[AtomicU64; WORDS] {
        &self.records[position as usize & (self.records.len() - 1)]
    }

    /// Whether there is no room for another record. Only the thread that notes asks.
    #[inline]
    #[must_use]
    pub fn is_full(&self) -> bool {
        // Acquire pairs with the Release of `take`: what was there has been read before it is overwritten.
        let taken = self.taken.load(order("ring.is_full", Ordering::Acquire));
        self.noted.load(Ordering::Relaxed).wrapping_sub(taken) as usize == self.records.len()
    }

    /// Writes a record. The caller has made sure that the ring is not full, and notifies [`PendingEvents`] afterwards.
    ///
    /// COST: stores to lines of this thread, and a load of a line that is written when records are taken.
    #[inline]
    pub fn note(&self, record: Record) {
        let _ = self.put(record, SURE);
    }

    /// Notes a record on trial, as [`note`](Self::note) does.
    #[inline]
    pub fn try_note(&self, record: Record) -> Trial {
        Trial(self.put(record, ON_TRIAL))
    }

    #[inline]
    fn put(&self, mut record: Record, state: u64) -> u32 {
        debug_assert!(!self.is_full(), "there is room for a record that is noted");
        debug_assert_eq!(record[WORDS - 1] & STATE, 0, "these bits are the ring's");
        record[WORDS - 1] |= state;
        let position = self.noted.load(Ordering::Relaxed);
        for (cell, word) in self.cells(position).iter().zip(record) {
            cell.store(word, Ordering::Relaxed);
        }
        // Release publishes the record; pairs with the Acquire of `take`.
        self.noted.store(position.wrapping_add(1), order("ring.note", Ordering::Release));
        position
    }

    /// Confirms a tentative record. Returns false if it was refused: then it was not reported.
    #[inline]
    #[must_use]
    pub fn confirm(&self, trial: Trial) -> bool {
        self.end(trial, SURE)
    }

    /// Withdraws a tentative record: it is not reported.
    #[inline]
    pub fn withdraw(&self, trial: Trial) {
        let _ = self.end(trial, WITHDRAWN);
    }

    fn end(&self, Trial(position): Trial, state: u64) -> bool {
        let cell = &self.cells(position)[WORDS - 1];
        let word = cell.load(Ordering::Relaxed);
        // Relaxed: both threads exchange this one word, and nothing else depends on it.
        word & STATE == ON_TRIAL
            && cell.compare_exchange(word, word & !STATE | state, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Takes all records, in the order in which they were noted, and hands those to `each` that are sure. One thread at
    /// a time takes: the one that has the scheduler.
    pub fn take(&self, mut each: impl FnMut(Record)) {
        let mut position = self.taken.load(Ordering::Relaxed);
        // Acquire pairs with the Release of `put`.
        let noted = self.noted.load(order("ring.take", Ordering::Acquire));
        while position != noted {
            let cells = self.cells(position);
            if self.end(Trial(position), WITHDRAWN) {
                // Refused.
            } else {
                let mut record = [0; WORDS];
                record.iter_mut().zip(cells).for_each(|(word, cell)| *word = cell.load(Ordering::Relaxed));
                if record[WORDS - 1] & STATE == SURE {
                    each(record);
                }
            }
            position = position.wrapping_add(1);
        }
        // Release: what is overwritten from here on has been read; pairs with the Acquire of `is_full`.
        self.taken.store(position, order("ring.taken", Ordering::Release));
    }
}

/// Which rings have records: a bit for each ring, which rings whose numbers are equal modulo 64 share.
#[derive(Debug)]
pub struct PendingEvents(Line<AtomicU64>);

impl Default for PendingEvents {
    fn default() -> Self {
        Self(Line::new("queue.new_reports", AtomicU64::new(0)))
    }
}

impl PendingEvents {
    /// Something was noted in the ring with this number.
    ///
    /// COST: a read-modify-write of a shared line, for all records that are written together. A check whether the bit
    /// is set would not do: a thread that takes may just have cleared it, and have read the ring before.
    #[inline]
    pub fn add(&self, ring: u16) {
        // Release: the thread that takes the bit finds the record; pairs with the Acquire of `take`.
        self.0.fetch_or(1 << (ring % 64), order("reports.add", Ordering::Release));
    }

    /// The bits of the rings that have records; they are clear afterwards. The caller then takes from these rings.
    ///
    /// COST: a load while there is nothing.
    #[inline]
    #[must_use]
    pub fn take(&self) -> u64 {
        // Acquire pairs with the Release of `tell`.
        if self.0.load(Ordering::Relaxed) == 0 { 0 } else { self.0.swap(0, order("reports.take", Ordering::Acquire)) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn taken(ring: &Ring) -> Vec<u64> {
        let mut all = Vec::new();
        ring.take(|record| {
            assert_eq!(record, [record[0]; WORDS].map(|word| word & !STATE));
            all.push(record[0]);
        });
        all
    }

    fn record(number: u64) -> Record {
        [number * 4; WORDS]
    }

    /// Red if a ring loses its order or a record where positions wrap, or if it takes more than it has room for.
    #[test]
    fn records_come_out_in_order_however_often_the_ring_is_full() {
        let ring = Ring::new(4);
        for position in [&*ring.noted, &*ring.taken] {
            position.store(u32::MAX - 5, Ordering::Relaxed);
        }
        for round in 0..5 {
            for number in 0..4 {
                assert!(!ring.is_full());
                ring.note(record(round * 4 + number));
            }
            assert!(ring.is_full());
            assert_eq!(taken(&ring), [0, 1, 2, 3].map(|number| (round * 4 + number) * 4));
            assert!(taken(&ring).is_empty() && !ring.is_full());
        }
    }

    /// Red if a record that was withdrawn or refused is told, or one that was confirmed is not, or is refused later.
    #[test]
    fn of_a_record_on_trial_either_both_sides_know_or_none() {
        let ring = Ring::new(4);
        ring.note(record(1));
        let trial = ring.try_note(record(2));
        assert!(ring.confirm(trial));
        let trial = ring.try_note(record(3));
        ring.withdraw(trial);
        assert_eq!(taken(&ring), [4, 8]);
        let trial = ring.try_note(record(4));
        assert!(taken(&ring).is_empty());
        assert!(!ring.confirm(trial), "it was refused");
        let trial = ring.try_note(record(5));
        assert!(taken(&ring).is_empty());
        ring.withdraw(trial);
        ring.note(record(6));
        assert_eq!(taken(&ring), [24]);
    }

    #[test]
    fn pending_events_are_taken_once() {
        let pending = PendingEvents::default();
        assert_eq!(pending.take(), 0);
        [3, 67, 64].into_iter().for_each(|ring| pending.add(ring));
        assert_eq!((pending.take(), pending.take()), (0b1001, 0));
    }
}
