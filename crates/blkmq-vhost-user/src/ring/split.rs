//! Split rings: a table of descriptors, a ring of what is available, and a ring of what was used.

use std::sync::atomic::{Ordering, fence};

use virtio_bindings::virtio_ring::{VRING_AVAIL_F_NO_INTERRUPT, VRING_USED_F_NO_NOTIFY};

use super::chain::{Chain, DESCRIPTOR, Descriptor, NEXT};
use super::fault::Fault;
use super::{Layout, passes};
use crate::memory::{Area, Memory};

/// Where the index is in both rings, and where their entries begin.
const INDEX: usize = 2;
const ENTRIES: usize = 4;
/// Bytes of an entry of what was used.
const USED: usize = 8;

/// A split ring.
#[derive(Debug)]
pub(crate) struct Split {
    size: u16,
    descriptors: Area,
    available: Area,
    used: Area,
    has_event_idx: bool,
    has_indirect: bool,
    /// The next entry to be taken.
    next_available: u16,
    /// The index of what is available, as it was last read.
    seen: u16,
    /// The next entry to be given back.
    next_used: u16,
    /// What the guest has last been shown.
    shown: u16,
    /// The chains that the device has, by their first descriptor.
    is_taken: Vec<bool>,
    wants_kicks: bool,
}

impl Split {
    pub(crate) fn new(memory: &Memory, layout: &Layout, base: u32) -> Result<Self, Fault> {
        let size = usize::from(layout.size);
        let event = if layout.has_event_idx { 2 } else { 0 };
        let area = |address, len, align| memory.area(address, len, align).map_err(Fault::Place);
        let used = area(layout.device, ENTRIES + USED * size + event, 4)?;
        // Acquire: as for what is available. Only a device writes this index, and here it is the last one.
        let next_used = used.load(INDEX, Ordering::Acquire);
        let next_available = base as u16;
        Ok(Self {
            size: layout.size,
            descriptors: area(layout.descriptors, DESCRIPTOR * size, 16)?,
            available: area(layout.driver, ENTRIES + 2 * size + event, 2)?,
            used,
            has_event_idx: layout.has_event_idx,
            has_indirect: layout.has_indirect,
            next_available,
            seen: next_available,
            next_used,
            shown: next_used,
            is_taken: vec![false; size],
            // What the last device has left there is not known: the first wish is written.
            wants_kicks: false,
        })
    }

    /// How many chains are available, by an index that was read once.
    fn poll_available(&mut self) -> Result<u16, Fault> {
        if self.seen == self.next_available {
            // Acquire: what the guest wrote before it moved the index is seen after this.
            self.seen = self.available.load(INDEX, Ordering::Acquire);
        }
        let nr = self.seen.wrapping_sub(self.next_available);
        if nr > self.size { Err(Fault::TooManyAvailable(nr)) } else { Ok(nr) }
    }

    pub(crate) fn take(&mut self, memory: &Memory, chain: &mut Chain) -> Result<bool, Fault> {
        if self.poll_available()? == 0 {
            return Ok(false);
        }
        let entry = usize::from(self.next_available % self.size);
        let head = self.available.load(ENTRIES + 2 * entry, Ordering::Relaxed);
        self.read_chain(memory, chain, head)?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(true)
    }

    /// Takes a chain that was in progress when another device had the ring.
    pub(crate) fn resume(&mut self, memory: &Memory, chain: &mut Chain, head: u16) -> Result<(), Fault> {
        self.read_chain(memory, chain, head)?;
        self.next_available = self.next_available.wrapping_add(1);
        self.seen = self.next_available;
        Ok(())
    }

    fn read_chain(&mut self, memory: &Memory, chain: &mut Chain, head: u16) -> Result<(), Fault> {
        let is_taken = self.is_taken.get_mut(usize::from(head)).ok_or(Fault::Index(head))?;
        if std::mem::replace(is_taken, true) {
            return Err(Fault::Repeated(head));
        }
        chain.begin();
        chain.id = head;
        let mut index = head;
        loop {
            // A chain is no longer than the ring. So a loop ends here.
            if index >= self.size {
                return Err(Fault::Index(index));
            }
            if chain.nr_descriptors == self.size {
                return Err(Fault::TooLong);
            }
            let descriptor = Descriptor::of(self.descriptors.read(usize::from(index) * DESCRIPTOR), false);
            chain.add(memory, descriptor, self.has_indirect, false)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
        }
    }

    pub(crate) fn put(&mut self, head: u16, len: u32) {
        self.is_taken[usize::from(head)] = false;
        let entry = ENTRIES + USED * usize::from(self.next_used % self.size);
        self.used.write(entry, (u64::from(head) | u64::from(len) << 32).to_le());
        self.next_used = self.next_used.wrapping_add(1);
    }

    pub(crate) fn publish(&mut self) -> bool {
        let (old, new) = (self.shown, self.next_used);
        if old == new {
            return false;
        }
        self.shown = new;
        // Release: the guest that sees the index sees the entries, the data and the status.
        self.used.store(INDEX, new, Ordering::Release);
        // SeqCst: the index is visible before the event is read. Otherwise the guest could look at the index, wait for
        // the event, and both sides would believe that the other one knows.
        fence(Ordering::SeqCst);
        if self.has_event_idx {
            let event = self.available.load(ENTRIES + 2 * usize::from(self.size), Ordering::Relaxed);
            passes(event, new, old)
        } else {
            self.available.load(0, Ordering::Relaxed) & VRING_AVAIL_F_NO_INTERRUPT as u16 == 0
        }
    }

    /// The index of what was used, as the guest sees it.
    pub(crate) fn used_index(&self) -> u16 {
        self.shown
    }

    /// Goes on behind what was used.
    pub(crate) fn go_on_at(&mut self, next: u16) {
        self.next_available = next;
        self.seen = next;
    }

    pub(crate) fn ask_for_kicks(&mut self) -> Result<bool, Fault> {
        if self.has_event_idx {
            let event = ENTRIES + USED * usize::from(self.size);
            self.used.store(event, self.next_available, Ordering::Relaxed);
        } else if !self.wants_kicks {
            self.used.store(0, 0, Ordering::Relaxed);
        }
        self.wants_kicks = true;
        // SeqCst: the wish is visible before the index is read once more.
        fence(Ordering::SeqCst);
        Ok(self.poll_available()? > 0)
    }

    pub(crate) fn refuse_kicks(&mut self) {
        // With an event index, the old one stays, which the guest has passed.
        if !self.has_event_idx && self.wants_kicks {
            // Relaxed: a guest that sees it late kicks once too often.
            self.used.store(0, VRING_USED_F_NO_NOTIFY as u16, Ordering::Relaxed);
        }
        self.wants_kicks = false;
    }

    pub(crate) fn base(&self) -> u32 {
        self.next_available.into()
    }
}
