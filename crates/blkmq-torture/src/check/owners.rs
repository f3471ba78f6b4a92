//! Which outstanding operation changes a sector. No two outstanding operations other than reads overlap.

use std::collections::BTreeMap;

use super::super::event::Asked;

/// The operations by their first sector, each with the first sector after it.
#[derive(Debug)]
pub(super) struct Owners(BTreeMap<u64, (u64, u64)>);

impl Owners {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Called when an operation with sectors begins that the queue can take.
    pub(super) fn begin(&mut self, bio: u64, asked: &Asked) {
        self.0.insert(asked.sector, (asked.sector + asked.nr_sectors, bio));
    }

    /// Called when an operation is over. The operation may be unknown here.
    pub(super) fn end(&mut self, bio: u64, asked: &Asked) {
        if self.0.get(&asked.sector).is_some_and(|(_, owner)| *owner == bio) {
            self.0.remove(&asked.sector);
        }
    }

    /// The operation that changes a sector.
    pub(super) fn of(&self, sector: u64) -> Option<u64> {
        let (_, &(end, bio)) = self.0.range(..=sector).next_back()?;
        (sector < end).then_some(bio)
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Op;

    use super::super::testing::asked;
    use super::*;

    #[test]
    fn a_sector_belongs_to_the_operation_that_covers_it() {
        let mut owners = Owners::new();
        let (first, second) = (asked(Op::Discard, 8, 8), asked(Op::Discard, 20, 4));
        owners.begin(1, &first);
        owners.begin(2, &second);
        let found = [7, 8, 15, 16, 19, 20, 23, 24].map(|sector| owners.of(sector));
        assert_eq!(found, [None, Some(1), Some(1), None, None, Some(2), Some(2), None]);
        owners.end(3, &first);
        assert_eq!(owners.of(8), Some(1));
        owners.end(1, &first);
        assert_eq!((owners.of(8), owners.of(20)), (None, Some(2)));
    }
}
