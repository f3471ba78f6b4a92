//! Packed rings: one table of descriptors, in which the device writes what it has used over what was available.

use std::sync::atomic::{Ordering, fence};

use virtio_bindings::virtio_ring::{
    VRING_PACKED_DESC_F_AVAIL, VRING_PACKED_DESC_F_USED, VRING_PACKED_EVENT_F_WRAP_CTR, VRING_PACKED_EVENT_FLAG_DESC,
    VRING_PACKED_EVENT_FLAG_DISABLE, VRING_PACKED_EVENT_FLAG_ENABLE,
};

use super::chain::{Chain, DESCRIPTOR, Descriptor, NEXT};
use super::fault::Fault;
use super::{Layout, passes};
use crate::memory::{Area, Memory};

const AVAILABLE: u16 = 1 << VRING_PACKED_DESC_F_AVAIL;
const USED: u16 = 1 << VRING_PACKED_DESC_F_USED;
/// Where a descriptor has its id, and where its flags.
const ID: usize = 12;
const FLAGS: usize = 14;
/// The flags of a side's wish to be told: of all, of nothing, or of one descriptor.
const ALL: u16 = VRING_PACKED_EVENT_FLAG_ENABLE as u16;
const NOTHING: u16 = VRING_PACKED_EVENT_FLAG_DISABLE as u16;
const ONE: u16 = VRING_PACKED_EVENT_FLAG_DESC as u16;
/// The bit of the lap beside a number of a descriptor.
const LAP: u16 = 1 << VRING_PACKED_EVENT_F_WRAP_CTR;

/// A place in the ring, and the lap: whether it is an odd one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cursor {
    pub(crate) index: u16,
    pub(crate) lap: bool,
}

impl Cursor {
    fn of(bits: u16, size: u16) -> Option<Self> {
        let index = bits & !LAP;
        (index < size).then_some(Self { index, lap: bits & LAP != 0 })
    }

    fn bits(self) -> u16 {
        self.index | if self.lap { LAP } else { 0 }
    }

    /// `step` is at most the size.
    pub(crate) fn advance(&mut self, step: u16, size: u16) {
        let next = u32::from(self.index) + u32::from(step);
        if next >= u32::from(size) {
            self.lap = !self.lap;
        }
        self.index = (next % u32::from(size)) as u16;
    }

    /// Flags of a descriptor that is available, as seen here.
    fn is_available(self, flags: u16) -> bool {
        (flags & AVAILABLE != 0) == self.lap && (flags & USED != 0) != self.lap
    }

    fn used_flags(self) -> u16 {
        if self.lap { AVAILABLE | USED } else { 0 }
    }

    fn available_flags(self) -> u16 {
        if self.lap { AVAILABLE } else { USED }
    }
}

/// A packed ring.
#[derive(Debug)]
pub(crate) struct Packed {
    size: u16,
    descriptors: Area,
    driver: Area,
    device: Area,
    has_event_idx: bool,
    has_indirect: bool,
    next_available: Cursor,
    next_used: Cursor,
    /// Descriptors of the chains that the device has.
    nr_taken: u16,
    /// Descriptors given back since the last [`publish`](Self::publish).
    nr_hidden: u16,
    /// Where the first chain of these goes, and its flags, which are written last: so the guest sees all at once.
    first: Option<(usize, u16)>,
    wants_kicks: bool,
}

impl Packed {
    pub(crate) fn new(memory: &Memory, layout: &Layout, base: u32) -> Result<Self, Fault> {
        let Layout { size, descriptors, driver, device, has_event_idx, has_indirect, .. } = *layout;
        let area = |address, len, align| memory.area(address, len, align).map_err(Fault::Place);
        // The front-end has both places in one number, the used one in the upper half, which some leave out. A ring is
        // given back with nothing in progress, so the places are the same.
        let next = Cursor::of(base as u16, size).ok_or(Fault::Index(base as u16 & !LAP))?;
        Ok(Self {
            size,
            descriptors: area(descriptors, DESCRIPTOR * usize::from(size), 16)?,
            driver: area(driver, 4, 4)?,
            device: area(device, 4, 4)?,
            has_event_idx,
            has_indirect,
            next_available: next,
            next_used: next,
            nr_taken: 0,
            nr_hidden: 0,
            first: None,
            // What the last device has left there is not known: the first wish is written.
            wants_kicks: false,
        })
    }

    /// The flags of the next descriptor, if it is available.
    fn poll_available(&self) -> Option<u16> {
        let at = usize::from(self.next_available.index) * DESCRIPTOR + FLAGS;
        // Acquire: what the guest wrote before these flags is seen after this.
        let flags = self.descriptors.load(at, Ordering::Acquire);
        self.next_available.is_available(flags).then_some(flags)
    }

    /// Descriptors that a right guest can make available: not those that it has not been shown to be given back. The
    /// record of what is in progress has room for no more.
    fn nr_free(&self) -> u16 {
        self.size.saturating_sub(self.nr_taken).saturating_sub(self.nr_hidden)
    }

    pub(crate) fn take(&mut self, memory: &Memory, chain: &mut Chain) -> Result<bool, Fault> {
        let Some(mut flags) = self.poll_available() else { return Ok(false) };
        chain.begin();
        let mut cursor = self.next_available;
        loop {
            if chain.nr_descriptors >= self.nr_free() {
                let is_long = chain.nr_descriptors == self.size;
                return Err(if is_long { Fault::TooLong } else { Fault::TooManyAvailable(self.size) });
            }
            let bits = self.descriptors.read(usize::from(cursor.index) * DESCRIPTOR);
            // These flags were read already, and those that are read now may be others.
            let descriptor = Descriptor { flags, ..Descriptor::of(bits, true) };
            chain.add(memory, descriptor, self.has_indirect, true)?;
            cursor.advance(1, self.size);
            if flags & NEXT == 0 {
                chain.id = descriptor.next;
                break;
            }
            flags = self.descriptors.load(usize::from(cursor.index) * DESCRIPTOR + FLAGS, Ordering::Relaxed);
            if !cursor.is_available(flags) {
                return Err(Fault::Unfinished);
            }
        }
        self.nr_taken += chain.nr_descriptors;
        self.next_available = cursor;
        Ok(true)
    }

    /// Takes a chain that was in progress when another device had the ring: a copy of its descriptors.
    pub(crate) fn resume(&mut self, memory: &Memory, chain: &mut Chain, copy: &[Descriptor]) -> Result<(), Fault> {
        chain.begin();
        for descriptor in copy {
            if chain.nr_descriptors >= self.nr_free() {
                return Err(Fault::TooManyAvailable(self.size));
            }
            chain.add(memory, *descriptor, self.has_indirect, true)?;
            chain.id = descriptor.next;
        }
        self.nr_taken += chain.nr_descriptors;
        self.next_available.advance(chain.nr_descriptors, self.size);
        Ok(())
    }

    /// Where the next chain is given back.
    pub(crate) fn next_used(&self) -> Cursor {
        self.next_used
    }

    /// Goes on here: nothing that was made available from here on is taken, or given back.
    pub(crate) fn go_on_at(&mut self, place: Cursor) {
        (self.next_available, self.next_used) = (place, place);
    }

    /// Whether the descriptor is available, and the guest finds nothing there that was given back.
    pub(crate) fn is_available(&self, place: Cursor) -> bool {
        // Relaxed: the flags alone are asked for.
        let flags = self.descriptors.load(usize::from(place.index) * DESCRIPTOR + FLAGS, Ordering::Relaxed);
        place.is_available(flags)
    }

    /// Takes back what another device has given back from this place on, of which the guest has seen nothing: it looks
    /// at this place first. Without this, once something is given back at this place, the guest would go on to the old
    /// flags behind it.
    pub(crate) fn hide(&self, mut place: Cursor) {
        for _ in 0..self.size {
            let at = usize::from(place.index) * DESCRIPTOR + FLAGS;
            let flags = self.descriptors.load(at, Ordering::Relaxed);
            if flags & (AVAILABLE | USED) == place.used_flags() {
                // Relaxed: the guest does not look here before it has seen the place before, which is Release.
                self.descriptors.store(at, place.available_flags(), Ordering::Relaxed);
            }
            place.advance(1, self.size);
        }
    }

    pub(crate) fn put(&mut self, id: u16, nr_descriptors: u16, len: u32) {
        let at = usize::from(self.next_used.index) * DESCRIPTOR;
        let flags = self.next_used.used_flags() | if len > 0 { super::chain::WRITE } else { 0 };
        self.descriptors.write(at + 8, len.to_le());
        self.descriptors.write(at + ID, id.to_le());
        if self.first.is_none() {
            self.first = Some((at + FLAGS, flags));
        } else {
            // Release: as for the first one below. The guest does not look here before it has seen the first one.
            self.descriptors.store(at + FLAGS, flags, Ordering::Release);
        }
        self.next_used.advance(nr_descriptors, self.size);
        self.nr_taken -= nr_descriptors;
        self.nr_hidden += nr_descriptors;
    }

    pub(crate) fn publish(&mut self) -> bool {
        let Some((at, flags)) = self.first.take() else { return false };
        let nr = std::mem::take(&mut self.nr_hidden);
        // Release: the guest that sees the flags sees what stands beside them, the data and the status.
        self.descriptors.store(at, flags, Ordering::Release);
        // SeqCst: the flags are visible before the guest's wish is read, as in a split ring.
        fence(Ordering::SeqCst);
        let flags = self.driver.load(2, Ordering::Acquire);
        if flags == ONE && self.has_event_idx {
            let bits = self.driver.load(0, Ordering::Relaxed);
            let is_this_lap = (bits & LAP != 0) == self.next_used.lap;
            let event = (bits & !LAP).wrapping_sub(if is_this_lap { 0 } else { self.size });
            passes(event, self.next_used.index, self.next_used.index.wrapping_sub(nr))
        } else {
            flags != NOTHING
        }
    }

    pub(crate) fn ask_for_kicks(&mut self) -> Result<bool, Fault> {
        if self.has_event_idx {
            self.device.store(0, self.next_available.bits(), Ordering::Relaxed);
            // Release: the guest that sees the flags sees the place.
            self.device.store(2, ONE, Ordering::Release);
        } else {
            self.device.store(2, ALL, Ordering::Relaxed);
        }
        self.wants_kicks = true;
        // SeqCst: the wish is visible before the flags of the next descriptor are read once more.
        fence(Ordering::SeqCst);
        Ok(self.poll_available().is_some())
    }

    pub(crate) fn refuse_kicks(&mut self) {
        if self.wants_kicks {
            // Relaxed: a guest that sees it late kicks once too often.
            self.device.store(2, NOTHING, Ordering::Relaxed);
        }
        self.wants_kicks = false;
    }

    pub(crate) fn base(&self) -> u32 {
        u32::from(self.next_available.bits()) | u32::from(self.next_used.bits()) << 16
    }
}
