//! The volatile write cache: the data that is to be written, sorted by position and joined where it touches.

/// Neighbouring sectors that the cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Segments of the cache that it takes, one or more per write.
    pub(super) segments: usize,
}

impl Extent {
    pub(super) fn nr_sectors(&self) -> u64 {
        self.end - self.start
    }
}

/// The cache. A write takes room, in sectors and in segments, from when it is admitted until it is on the platter. A
/// cache tracks a number of writes, however small they are, and overwriting data that waits gives no segment back.
#[derive(Debug)]
pub(super) struct Cache {
    /// Sorted, without overlap and without neighbours that touch. There are no more extents than segments.
    extents: Vec<Extent>,
    free_segments: usize,
    free_sectors: u64,
    nr_segments: usize,
    nr_sectors: u64,
}

impl Cache {
    pub(super) fn new(nr_segments: usize, nr_sectors: u64) -> Self {
        Self {
            extents: Vec::with_capacity(nr_segments),
            free_segments: nr_segments,
            free_sectors: nr_sectors,
            nr_segments,
            nr_sectors,
        }
    }

    /// Takes room for a write; false if there is none.
    pub(super) fn reserve(&mut self, nr_sectors: u64) -> bool {
        let fits = self.free_segments > 0 && self.free_sectors >= nr_sectors;
        if fits {
            self.free_segments -= 1;
            self.free_sectors -= nr_sectors;
        }
        fits
    }

    /// The data of a write that has room arrived.
    ///
    /// COST: a binary search, and moving the extents behind: some kilobytes at most.
    pub(super) fn insert(&mut self, start: u64, end: u64) {
        let first = self.extents.partition_point(|extent| extent.end < start);
        let behind = self.extents.partition_point(|extent| extent.start <= end);
        let touched = &self.extents[first..behind];
        let covered: u64 = touched.iter().map(Extent::nr_sectors).sum();
        let mut joined = Extent { start, end, segments: 1 };
        for extent in touched {
            joined.start = joined.start.min(extent.start);
            joined.end = joined.end.max(extent.end);
            joined.segments += extent.segments;
        }
        // Data that is written twice before it gets to the platter takes room once.
        self.free_sectors += covered + (end - start) - joined.nr_sectors();
        self.extents.splice(first..behind, [joined]);
    }

    /// The next piece to write for heads at `position`: the nearest one onwards, or the first of all. The piece is no
    /// longer than `most` sectors. The piece's room is taken until the piece is [`written`](Self::written).
    pub(super) fn take(&mut self, position: u64, most: u64) -> Option<Extent> {
        let onwards = self.extents.partition_point(|extent| extent.start < position);
        let at = if onwards < self.extents.len() { onwards } else { 0 };
        let extent = self.extents.get_mut(at)?;
        let nr_sectors = extent.nr_sectors();
        if nr_sectors <= most {
            return Some(self.extents.remove(at));
        }
        let segments = (extent.segments as u128 * u128::from(most) / u128::from(nr_sectors)) as usize;
        let piece = Extent { start: extent.start, end: extent.start + most, segments };
        extent.start = piece.end;
        extent.segments -= segments;
        Some(piece)
    }

    /// A piece is on the platter.
    pub(super) fn written(&mut self, piece: Extent) {
        self.free_segments += piece.segments;
        self.free_sectors += piece.nr_sectors();
    }

    /// Whether the cache can answer a read of these sectors.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        let at = self.extents.partition_point(|extent| extent.end < end);
        self.extents.get(at).is_some_and(|extent| extent.start <= start && end <= extent.end)
    }

    /// Whether no write has room: there is neither waiting data, nor any on its way to or from the cache.
    pub(super) fn is_clean(&self) -> bool {
        self.free_segments == self.nr_segments
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.extents.capacity()
    }

    pub(super) fn dirty_sectors(&self) -> u64 {
        self.nr_sectors - self.free_sectors
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn write(cache: &mut Cache, start: u64, end: u64) {
        assert!(cache.reserve(end - start));
        cache.insert(start, end);
    }

    #[test]
    fn neighbours_are_joined_and_taken_onwards_from_the_heads() {
        let mut cache = Cache::new(8, 1000);
        for (start, end) in [(100, 110), (300, 310), (110, 120), (90, 100), (200, 210)] {
            write(&mut cache, start, end);
        }
        assert!(cache.covers(95, 115) && !cache.covers(119, 121) && !cache.covers(205, 305));
        let taken: Vec<_> = std::iter::from_fn(|| cache.take(150, 100)).collect();
        let extent = |start, end, segments| Extent { start, end, segments };
        assert_eq!(taken, [extent(200, 210, 1), extent(300, 310, 1), extent(90, 120, 3)]);
        assert!(!cache.is_clean());
        taken.into_iter().for_each(|piece| cache.written(piece));
        assert!(cache.is_clean());
    }

    #[test]
    fn a_long_extent_is_written_in_pieces_and_gives_its_room_back_by_and_by() {
        let mut cache = Cache::new(4, 400);
        for at in 0..4 {
            write(&mut cache, 100 * at, 100 * at + 100);
        }
        assert!(!cache.reserve(1), "the cache is full");
        let piece = cache.take(0, 200).unwrap();
        assert_eq!(piece, Extent { start: 0, end: 200, segments: 2 });
        assert!(!cache.reserve(1), "room comes when the piece is written");
        cache.written(piece);
        assert!(cache.reserve(200) && !cache.reserve(1), "no sector is left");
        assert_eq!(cache.take(200, 300), Some(Extent { start: 200, end: 400, segments: 2 }));
    }

    #[test]
    fn small_writes_use_up_the_segments_before_the_sectors() {
        let mut cache = Cache::new(2, 1000);
        write(&mut cache, 0, 1);
        write(&mut cache, 1, 2);
        assert!(!cache.reserve(1));
    }

    proptest! {
        #![proptest_config(crate::driver::tests::random_cases(256))]

        /// Whatever is written and taken, the cache holds the same as a set of sectors, and no room is lost.
        #[test]
        fn the_cache_is_a_set_of_sectors(steps in prop::collection::vec((0..400u64, 1..30u64, 0..4u8), 1..200)) {
            let mut cache = Cache::new(16, 200);
            let mut model = BTreeSet::new();
            for (at, length, kind) in steps {
                if kind > 0 {
                    if cache.reserve(length) {
                        cache.insert(at, at + length);
                        model.extend(at..at + length);
                    }
                } else if let Some(piece) = cache.take(at, length) {
                    prop_assert!(piece.nr_sectors() <= length);
                    for sector in piece.start..piece.end {
                        prop_assert!(model.remove(&sector), "{sector} was not there");
                    }
                    cache.written(piece);
                }
                prop_assert!(cache.extents.len() <= 16);
                prop_assert!(cache.extents.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert_eq!(cache.dirty_sectors(), model.len() as u64);
                prop_assert_eq!(cache.covers(at, at + 3), (at..at + 3).all(|sector| model.contains(&sector)));
            }
            while let Some(piece) = cache.take(0, 7) {
                cache.written(piece);
            }
            prop_assert!(cache.is_clean());
        }
    }
}
