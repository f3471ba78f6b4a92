//! What requests write into sectors.

use blkmq_sched::{Op, RqId};

use super::super::event::Event;
use super::table::Table;

/// First sector, length, and what each of these sectors then holds.
pub(super) type Run = (u64, u32, u64);

/// What each request that was offered writes, and where. A read writes nothing.
#[derive(Debug)]
pub(super) struct Runs(Table<Vec<Run>>);

impl Runs {
    pub(super) const fn new() -> Self {
        Self(Table::new())
    }

    /// Follows an event.
    pub(super) fn see(&mut self, event: &Event<'_>) {
        let Event::Offered { rq, op, sector, nr_sectors, ranges, data, .. } = *event else { return };
        let entry = self.0.entry(rq);
        // The list of the request that had this slot before is used again.
        let mut runs = entry.take().map_or_else(Vec::new, |(_, runs)| runs);
        runs.clear();
        match op {
            Op::Read | Op::Flush => {}
            Op::Write => {
                let mut at = sector;
                for own in data.chunk_by(|one, next| one == next) {
                    runs.push((at, own.len() as u32, own[0]));
                    at += own.len() as u64;
                }
            }
            Op::Discard | Op::WriteZeroes if ranges.is_empty() => runs.push((sector, nr_sectors, 0)),
            Op::Discard | Op::WriteZeroes => {
                runs.extend(ranges.iter().map(|(sector, nr_sectors)| (*sector, *nr_sectors, 0)));
            }
        }
        *entry = Some((rq, runs));
    }

    pub(super) fn get(&self, rq: RqId) -> &[Run] {
        self.0.get(rq).map_or(&[], Vec::as_slice)
    }
}

/// The range of indices that these sectors have in a list of all sectors.
pub(super) fn places(sector: u64, nr_sectors: u64) -> std::ops::Range<usize> {
    sector as usize..(sector + nr_sectors) as usize
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    #[test]
    fn equal_neighbours_are_one_run() {
        let mut runs = Runs::new();
        let rq = id(1, 0, 0);
        runs.see(&offered(rq, Op::Write, 8, 5, &[7, 7, 9, 9, 9]));
        assert_eq!(runs.get(rq), [(8, 2, 7), (10, 3, 9)]);
        runs.see(&offered(id(1, 0, 1), Op::Discard, 8, 5, &[]));
        assert_eq!((runs.get(rq), runs.get(id(1, 0, 1))), (&[][..], &[(8, 5, 0)][..]));
        runs.see(&offered(id(1, 0, 2), Op::Read, 8, 5, &[]));
        assert!(runs.get(id(1, 0, 2)).is_empty());
    }
}
