//! Named ranges of a device's sectors with statistics of their own: Linux's partitions.

use std::sync::OnceLock;

use blkmq_sched::Time;

use super::gauge::Gauge;
use crate::queue::error::RangeError;
use crate::queue::experiments::Accounting;
use blkmq_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use blkmq_sync::{Mutex, place_anew};

/// Ranges that a queue can have.
pub const MAX_RANGES: usize = 64;

/// A named range of sectors whose requests are also counted apart, as Linux counts those of a partition.
///
/// A request belongs to the range in which its first sector lies when it enters the queue, as a bio belongs to the
/// partition it was sent to. Operations without sectors belong to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectorRange {
    /// What the range is called; no spaces.
    pub name: String,
    /// First sector, in units of 512 bytes.
    pub first: u64,
    /// Length in sectors of 512 bytes, at least one.
    pub nr_sectors: u64,
}

impl SectorRange {
    /// The first sector behind the range.
    const fn end(&self) -> u64 {
        self.first.saturating_add(self.nr_sectors)
    }
}

/// Checks ranges against each other and the device.
pub(crate) fn check_ranges(ranges: &[SectorRange], capacity: u64) -> Result<(), RangeError> {
    if ranges.len() > MAX_RANGES {
        return Err(RangeError::TooMany { nr_ranges: ranges.len(), most: MAX_RANGES });
    }
    for (at, range) in ranges.iter().enumerate() {
        let SectorRange { name, first, nr_sectors } = range;
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(RangeError::BadName(name.clone()));
        }
        if *nr_sectors == 0 {
            return Err(RangeError::Empty(name.clone()));
        }
        if first.checked_add(*nr_sectors).is_none_or(|end| end > capacity) {
            return Err(RangeError::BehindEnd { name: name.clone(), first: *first, nr_sectors: *nr_sectors, capacity });
        }
        for other in &ranges[..at] {
            if other.name == *name {
                return Err(RangeError::SameName(name.clone()));
            }
            if other.first < range.end() && *first < other.end() {
                return Err(RangeError::Overlap { name: name.clone(), other: other.name.clone() });
            }
        }
    }
    Ok(())
}

/// Where a range's sectors lie, and where its sums are.
#[derive(Debug, Default)]
struct Bound {
    first: AtomicU64,
    end: AtomicU64,
    place: AtomicUsize,
}

/// The ranges of a queue. A range keeps its place, and so its sums, as long as it keeps its name.
///
/// The ranges change only while the queue is frozen, drained and quiesced: no request has a place then, and no thread
/// looks one up or counts.
#[derive(Debug)]
pub(in crate::queue) struct Ranges {
    /// The ranges by place.
    named: Mutex<Vec<Option<SectorRange>>>,
    /// The ranges in the order of their sectors; the first `len` are in use.
    bounds: Box<[Bound]>,
    len: AtomicUsize,
    gauges: OnceLock<Box<[Gauge]>>,
}

impl Ranges {
    pub(super) fn new() -> Self {
        Self {
            named: Mutex::new(Vec::new()),
            bounds: (0..MAX_RANGES).map(|_| Bound::default()).collect(),
            len: AtomicUsize::new(0),
            gauges: OnceLock::new(),
        }
    }

    /// Names what lies on no line of its own, for rigs. The queue has its place.
    pub(in crate::queue) fn name_places(&self) {
        place_anew("account.nr_ranges", &self.len);
        place_anew("account.ranges", &*self.bounds);
        place_anew("account.range_names", &self.named);
    }

    /// Whether the queue has any ranges.
    ///
    /// COST: one load of a line that is written when the ranges change.
    #[inline]
    pub(in crate::queue) fn any(&self) -> bool {
        self.len.load(Ordering::Relaxed) > 0
    }

    /// Whether the queue ever had a range, so that threads need sums for it.
    pub(in crate::queue) fn ever(&self) -> bool {
        self.gauges.get().is_some()
    }

    pub(in crate::queue) fn gauge(&self, place: usize) -> &Gauge {
        &self.gauges.get().expect("gauges are made before a range has a place")[place]
    }

    /// The place of the range in which a sector lies.
    ///
    /// COST: a search by halves over the ranges.
    pub(in crate::queue) fn find(&self, sector: u64) -> Option<usize> {
        let bounds = &self.bounds[..self.len.load(Ordering::Relaxed)];
        let behind = bounds.partition_point(|bound| bound.first.load(Ordering::Relaxed) <= sector);
        let bound = &bounds[behind.checked_sub(1)?];
        (sector < bound.end.load(Ordering::Relaxed)).then(|| bound.place.load(Ordering::Relaxed))
    }
}

/// The control path.
impl Ranges {
    /// The ranges with their places, in the order of their sectors.
    pub(in crate::queue) fn by_sector(&self) -> Vec<(SectorRange, usize)> {
        let named = self.named.lock();
        let known = named.iter().enumerate().filter_map(|(place, range)| Some((range.clone()?, place)));
        let mut known: Vec<_> = known.collect();
        known.sort_by_key(|(range, _)| range.first);
        known
    }

    /// Makes what ranges count on, once the queue has any.
    pub(in crate::queue) fn make_gauges(&self, accounting: Accounting, now: Time) {
        let _ = self.gauges.get_or_init(|| (0..MAX_RANGES).map(|_| Gauge::new(accounting, now)).collect());
    }

    /// Replaces the ranges, which were [checked](check_ranges). The sums of a range go on if a range of the same name
    /// was there; otherwise `reset` is called with its place. The queue is frozen, drained and quiesced, or no other
    /// thread has it yet.
    pub(in crate::queue) fn replace(&self, mut new: Vec<SectorRange>, now: Time, reset: impl Fn(usize)) {
        debug_assert!(new.len() <= MAX_RANGES, "{} ranges were checked", new.len());
        debug_assert!(new.is_empty() || self.ever(), "gauges are made before a range has a place");
        new.sort_by_key(|range| range.first);
        debug_assert!(
            new.is_sorted_by(|first, second| first.end() <= second.first),
            "ranges were checked, and do not overlap"
        );
        let mut named = self.named.lock();
        named.resize(MAX_RANGES, None);
        for range in named.iter_mut() {
            range.take_if(|known| new.iter().all(|new| new.name != known.name));
        }
        for (bound, range) in self.bounds.iter().zip(&new) {
            let is_it = |known: &Option<SectorRange>| known.as_ref().is_some_and(|known| known.name == range.name);
            let place = named.iter().position(is_it).unwrap_or_else(|| {
                let place = named.iter().position(Option::is_none).expect("there are places for the most ranges");
                self.gauge(place).reset(now);
                reset(place);
                place
            });
            named[place] = Some(range.clone());
            bound.first.store(range.first, Ordering::Relaxed);
            bound.end.store(range.end(), Ordering::Relaxed);
            bound.place.store(place, Ordering::Relaxed);
        }
        self.len.store(new.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(name: &str, first: u64, nr_sectors: u64) -> SectorRange {
        SectorRange { name: name.to_owned(), first, nr_sectors }
    }

    #[test]
    fn bad_ranges_are_refused_with_a_reason() {
        let refused = |ranges: &[SectorRange]| check_ranges(ranges, 1000).expect_err("the ranges are bad").to_string();
        assert_eq!(refused(&[range("a b", 0, 1)]), "range \"a b\": a name has at least one character, and no spaces");
        assert_eq!(refused(&[range("", 0, 1)]), "range \"\": a name has at least one character, and no spaces");
        assert_eq!(refused(&[range("a", 5, 0)]), "range 'a': a range has at least one sector");
        assert_eq!(refused(&[range("a", 999, 2)]), "range 'a': 999+2 ends behind the device's 1000 sectors");
        assert!(refused(&[range("a", u64::MAX, 2)]).contains("ends behind"));
        assert_eq!(refused(&[range("a", 0, 8), range("b", 7, 8)]), "range 'b' overlaps range 'a'");
        assert_eq!(refused(&[range("b", 7, 8), range("a", 0, 8)]), "range 'a' overlaps range 'b'");
        assert_eq!(refused(&[range("a", 0, 8), range("a", 8, 8)]), "range 'a': there are two of this name");
        let many: Vec<_> = (0..65).map(|at| range(&at.to_string(), at, 1)).collect();
        assert_eq!(refused(&many), "65 ranges are more than 64");
        assert_eq!(check_ranges(&many[..64], 1000), Ok(()));
        assert_eq!(check_ranges(&[range("b", 8, 992), range("a", 0, 8)], 1000), Ok(()));
    }
}
