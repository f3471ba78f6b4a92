//! Which operation has which sectors. Of two operations that overlap, both are outstanding at once only if both are
//! reads, so it is certain what each read must find.

use std::ops::Range;

/// Sectors that an operation has until it is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    sectors: Range<usize>,
    is_read: bool,
}

/// The sectors of a device, and what is outstanding on each.
#[derive(Debug)]
pub(crate) struct Claims(Vec<u16>);

/// The mark of a sector with an outstanding write. Any other value is the number of outstanding reads.
const WRITE: u16 = u16::MAX;

impl Claims {
    /// Nothing is outstanding on a device of so many sectors.
    pub(crate) fn new(nr_sectors: u64) -> Self {
        Self(vec![0; usize::try_from(nr_sectors).expect("a world's device is small")])
    }

    /// Takes sectors for an operation. `None` if another outstanding operation is in the way, or if the sectors reach
    /// past the end of the device.
    pub(crate) fn take(&mut self, sector: u64, nr_sectors: u64, is_read: bool) -> Option<Claim> {
        let (start, len) = (usize::try_from(sector).ok()?, usize::try_from(nr_sectors).ok()?);
        let sectors = start..start.checked_add(len)?;
        let marks = self.0.get_mut(sectors.clone())?;
        if !marks.iter().all(|mark| if is_read { *mark < WRITE - 1 } else { *mark == 0 }) {
            return None;
        }
        marks.iter_mut().for_each(|mark| *mark = if is_read { *mark + 1 } else { WRITE });
        Some(Claim { sectors, is_read })
    }

    /// Gives the sectors back when the operation is over.
    pub(crate) fn give_back(&mut self, claim: &Claim) {
        for mark in &mut self.0[claim.sectors.clone()] {
            *mark = if claim.is_read { *mark - 1 } else { 0 };
        }
    }
}
