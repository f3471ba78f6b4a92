//! The addresses of slots.

use blkmq_sched::RqId;

/// The pool whose slots are the queue's own flushes, one per hardware queue.
pub(crate) const FLUSH_POOL: u16 = 0;

/// The address of a slot: its pool in the upper half, its place there in the lower half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SlotIndex(pub(super) u32);

/// The address of no slot.
pub(super) const NIL: SlotIndex = SlotIndex(u32::MAX);

impl SlotIndex {
    pub(crate) const fn new(pool: u16, slot: u16) -> Self {
        Self((pool as u32) << 16 | slot as u32)
    }

    pub(crate) const fn pool(self) -> u16 {
        (self.0 >> 16) as u16
    }

    pub(crate) const fn slot(self) -> u16 {
        self.0 as u16
    }

    pub(super) const fn with_generation(self, generation: u32) -> RqId {
        RqId((generation as u64) << 32 | self.0 as u64)
    }

    pub(crate) const fn of(id: RqId) -> Self {
        Self(id.0 as u32)
    }
}

pub(super) const fn generation_of(id: RqId) -> u32 {
    (id.0 >> 32) as u32
}
