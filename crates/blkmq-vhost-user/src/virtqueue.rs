//! A virtqueue: a ring, with the record of what is in progress in it if the front-end keeps one.

use std::collections::VecDeque;

use crate::inflight::{Inflight, packed, split};
use crate::memory::Memory;
use crate::ring::{Chain, Fault, Layout, MAX_SIZE, Packed, Split};

/// A chain that the device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Taken {
    /// The number by which the guest knows the chain.
    pub(crate) id: u16,
    /// Descriptors of the ring, without those of tables.
    pub(crate) nr_descriptors: u16,
    /// The chain's first entry in the record, if there is one.
    pub(crate) entry: u16,
}

/// One of the two kinds of virtqueues. `left` are the chains that were in progress when the last server ended, the
/// oldest first.
#[derive(Debug)]
pub(crate) enum Virtqueue {
    Split { ring: Split, record: Option<split::Record>, left: VecDeque<u16> },
    Packed { ring: Packed, record: Option<packed::Record>, left: VecDeque<packed::Left> },
}

impl Virtqueue {
    /// The virtqueue of this number in the guest's memory. Without a record it goes on at `base`, as the front-end has
    /// it, and otherwise behind what the last server has given back.
    pub(crate) fn new(
        number: u16,
        memory: &Memory,
        layout: &Layout,
        base: u32,
        inflight: Option<&Inflight>,
    ) -> Result<Self, Fault> {
        let Layout { size, is_packed, .. } = *layout;
        let is_size = if is_packed { size > 0 } else { size.is_power_of_two() };
        if !is_size || size > MAX_SIZE {
            return Err(Fault::Size(size));
        }
        let part = inflight.map(|inflight| inflight.part(number, size, is_packed)).transpose()?.flatten();
        if is_packed {
            let mut ring = Packed::new(memory, layout, base)?;
            let mut record = part.map(|part| packed::Record::new(part, size));
            let left = record.as_mut().map(|record| record.recover(&mut ring)).transpose()?.unwrap_or_default();
            Ok(Self::Packed { ring, record, left })
        } else {
            let mut ring = Split::new(memory, layout, base)?;
            let mut record = part.map(|part| split::Record::new(part, size));
            let left = record.as_mut().map(|record| record.recover(&mut ring)).unwrap_or_default();
            Ok(Self::Split { ring, record, left })
        }
    }

    /// Whether what is in progress is recorded.
    pub(crate) fn has_record(&self) -> bool {
        match self {
            Self::Split { record, .. } => record.is_some(),
            Self::Packed { record, .. } => record.is_some(),
        }
    }

    /// Takes the next chain: one that was in progress when the last server ended, or one that the guest has made
    /// available. It is in the record before anything is done about it.
    pub(crate) fn take(&mut self, memory: &Memory, chain: &mut Chain) -> Result<Option<Taken>, Fault> {
        let entry = match self {
            Self::Split { ring, record, left } => {
                if let Some(head) = left.pop_front() {
                    ring.resume(memory, chain, head)?;
                } else if !ring.take(memory, chain)? {
                    return Ok(None);
                } else if let Some(record) = record {
                    record.taken(chain.id);
                }
                chain.id
            }
            Self::Packed { ring, record, left } => {
                if let Some(left) = left.pop_front() {
                    ring.resume(memory, chain, &left.copy)?;
                    left.entry
                } else if ring.take(memory, chain)? {
                    record.as_mut().map_or(0, |record| record.taken(&chain.copy))
                } else {
                    return Ok(None);
                }
            }
        };
        Ok(Some(Taken { id: chain.id, nr_descriptors: chain.nr_descriptors, entry }))
    }

    /// Gives a chain back, of which `len` bytes were written: first in the record, then in the ring. The guest may find
    /// it after [`publish`](Self::publish).
    pub(crate) fn put(&mut self, Taken { id, nr_descriptors, entry }: Taken, len: u32) {
        match self {
            Self::Split { ring, record, .. } => {
                record.iter_mut().for_each(|record| record.put(entry));
                ring.put(id, len);
            }
            Self::Packed { ring, record, .. } => {
                record.iter_mut().for_each(|record| record.put(entry, nr_descriptors));
                ring.put(id, nr_descriptors, len);
            }
        }
    }

    /// Shows the guest all that was given back. Returns whether the guest wants to be told.
    pub(crate) fn publish(&mut self) -> bool {
        match self {
            Self::Split { ring, record, .. } => {
                let wants = ring.publish();
                record.iter_mut().for_each(|record| record.published(ring.used_index()));
                wants
            }
            Self::Packed { ring, record, .. } => {
                record.iter_mut().for_each(packed::Record::publish);
                let wants = ring.publish();
                record.iter_mut().for_each(packed::Record::published);
                wants
            }
        }
    }

    /// Asks the guest to kick when it makes something available. Returns true if there is something to take already.
    pub(crate) fn ask_for_kicks(&mut self) -> Result<bool, Fault> {
        match self {
            Self::Split { ring, left, .. } => Ok(ring.ask_for_kicks()? || !left.is_empty()),
            Self::Packed { ring, left, .. } => Ok(ring.ask_for_kicks()? || !left.is_empty()),
        }
    }

    /// Tells the guest that it need not kick.
    pub(crate) fn refuse_kicks(&mut self) {
        match self {
            Self::Split { ring, .. } => ring.refuse_kicks(),
            Self::Packed { ring, .. } => ring.refuse_kicks(),
        }
    }

    /// Where the ring goes on, as the front-end has it.
    pub(crate) fn base(&self) -> u32 {
        match self {
            Self::Split { ring, .. } => ring.base(),
            Self::Packed { ring, .. } => ring.base(),
        }
    }
}
