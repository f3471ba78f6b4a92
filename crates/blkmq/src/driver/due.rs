//! When the requests of one submitter will be over.

use std::fmt;

use blkmq_sched::{RqId, Time};

use crate::request::{SlotIndex, Slots};

/// What a driver tells by [`Driver::due_times`](super::Driver::due_times). It keeps what concerns one submitter, which
/// is about to sleep.
pub struct DueTimes<'q> {
    slots: &'q Slots,
    /// The submitter's pool.
    pool: u16,
    /// How many requests of the submitter were told of, and the earliest and the latest of their times.
    pub(crate) nr: usize,
    pub(crate) earliest: Option<Time>,
    pub(crate) latest: Option<Time>,
}

impl<'q> DueTimes<'q> {
    /// Nothing has been told yet of the requests of this pool.
    pub(crate) const fn new(slots: &'q Slots, pool: u16) -> Self {
        Self { slots, pool, nr: 0, earliest: None, latest: None }
    }

    /// [`poll`](super::Driver::poll) will complete request `id` at this time, on the queue's clock.
    ///
    /// COST: for the submitter's own requests a look at the slot, for others a comparison.
    #[inline]
    pub fn add(&mut self, id: RqId, time: Time) {
        // A driver may still keep an id that the timeout scan has ended. The submitter waits for another operation by
        // now, which may have the same slot.
        if SlotIndex::of(id).pool() == self.pool && self.slots.is_with_driver(id) {
            self.nr += 1;
            self.earliest = Some(self.earliest.map_or(time, |earliest| earliest.min(time)));
            self.latest = self.latest.max(Some(time));
        }
    }
}

impl fmt::Debug for DueTimes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pool, nr, earliest, latest, .. } = self;
        let mut out = f.debug_struct("DueTimes");
        out.field("pool", pool).field("nr", nr).field("earliest", earliest).field("latest", latest).finish()
    }
}
