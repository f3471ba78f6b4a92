//! The part of a split ring.

use super::{NR_AT, Part, VERSION, VERSION_AT};
use crate::memory::Area;

/// Bytes of the header, and of an entry.
pub(super) const HEADER: usize = 16;
pub(super) const ENTRY: usize = 16;
/// In the header: the chain that was given back last, and the index of what was used when all marks were right.
const LAST_AT: usize = 12;
const USED_AT: usize = 14;
/// In an entry: the chain that was given back before it.
const NEXT: usize = 6;

/// Keeps what is in progress in a split ring.
#[derive(Debug)]
pub(crate) struct Tracker {
    part: Part,
    size: u16,
    counter: u64,
    /// Given back since the last [`published`](Self::published).
    batch: Vec<u16>,
}

impl Tracker {
    /// The record has so many entries. It is no smaller than the ring.
    pub(super) fn new(area: Area, nr_entries: u16, size: u16) -> Self {
        let part = Part { area, header: HEADER, entry: ENTRY };
        if part.short(VERSION_AT) == 0 {
            part.set_short(NR_AT, nr_entries);
            part.set_short(VERSION_AT, VERSION);
        }
        Self { part, size, counter: 0, batch: Vec::new() }
    }

    /// What was in progress, the oldest first, given the index of what was used.
    pub(super) fn recover(&mut self, used: u16) -> Vec<u16> {
        // The last server may have shown a batch to the guest, and ended before it had removed the marks.
        let nr = used.wrapping_sub(self.part.short(USED_AT));
        let mut head = self.part.short(LAST_AT);
        for _ in 0..nr.min(self.size) {
            if head >= self.size {
                break;
            }
            self.part.mark(head, false);
            head = self.part.short(self.part.at(head, NEXT));
        }
        self.part.set_short(USED_AT, used);
        let mut found: Vec<_> = (0..self.size)
            .filter(|head| self.part.is_marked(*head))
            .map(|head| (self.part.counter(head), head))
            .collect();
        found.sort_unstable();
        self.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        found.into_iter().map(|(_, head)| head).collect()
    }

    /// Called when a chain has been taken, before anything is done about it.
    pub(super) fn taken(&mut self, head: u16) {
        self.part.set_counter(head, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.part.mark(head, true);
    }

    /// Called when a chain is given back, before the guest can see it.
    pub(super) fn put(&mut self, head: u16) {
        let last = self.part.short(LAST_AT);
        self.part.set_short(self.part.at(head, NEXT), last);
        self.part.set_short(LAST_AT, head);
        self.batch.push(head);
    }

    /// Called when the guest can see all that was given back, and what was used has this index.
    pub(super) fn published(&mut self, used: u16) {
        while let Some(head) = self.batch.pop() {
            self.part.mark(head, false);
        }
        self.part.set_short(USED_AT, used);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::super::Inflight;
    use super::*;
    use crate::protocol::message::InflightInfo;

    fn kept() -> (InflightInfo, OwnedFd) {
        Inflight::make(2, 8).unwrap()
    }

    /// What the next server sees.
    fn next(kept: &(InflightInfo, OwnedFd)) -> Tracker {
        let inflight = Inflight::take(kept.0, kept.1.try_clone().unwrap(), false).unwrap();
        match inflight.tracker(1, 8, false).unwrap() {
            Some(super::super::Tracker::Split(tracker)) => tracker,
            other => panic!("{other:?}"),
        }
    }

    /// Red if something in progress is forgotten, chain 0 included, or is begun in another order.
    #[test]
    fn what_is_in_progress_is_found_in_its_order() {
        let kept = kept();
        let mut tracker = next(&kept);
        assert!(tracker.recover(7).is_empty());
        [3, 0, 5, 1].into_iter().for_each(|head| tracker.taken(head));
        tracker.put(5);
        tracker.published(8);
        assert_eq!(next(&kept).recover(8), [3, 0, 1]);
        let mut second = next(&kept);
        assert_eq!(second.recover(8), [3, 0, 1]);
        second.taken(5);
        assert_eq!(next(&kept).recover(8), [3, 0, 1, 5], "what the second server took is newer");
    }

    /// Red if an end between two stores loses a chain, or does one twice that the guest has back.
    #[test]
    fn an_end_at_any_time_loses_nothing() {
        let kept = kept();
        let mut tracker = next(&kept);
        tracker.recover(0xfffe);
        [0, 1, 2, 3].into_iter().for_each(|head| tracker.taken(head));
        tracker.put(2);
        tracker.put(0);
        assert_eq!(next(&kept).recover(0xfffe), [0, 1, 2, 3], "the guest has seen nothing");
        assert_eq!(next(&kept).recover(0), [1, 3], "the guest has seen the batch, and the marks stand");
        assert_eq!(next(&kept).recover(0), [1, 3]);
    }

    /// Red if numbers in the memory are believed: the front-end has kept it, and may have changed it.
    #[test]
    fn memory_of_any_content_is_survived() {
        let kept = kept();
        let all = Inflight::take(kept.0, kept.1.try_clone().unwrap(), false).unwrap();
        let area = all.of(1);
        for at in 0..HEADER + 8 * ENTRY {
            area.write(at, 0xff_u8);
        }
        assert_eq!(next(&kept).recover(3), [0, 1, 2, 3, 4, 5, 6, 7]);
        let wrong = |change: fn(&mut InflightInfo)| {
            let mut info = kept.0;
            change(&mut info);
            Inflight::take(info, kept.1.try_clone().unwrap(), false).is_err()
        };
        assert!(wrong(|info| info.offset = 4) && wrong(|info| info.size = 64) && wrong(|info| info.nr_queues = 9));
        assert!(wrong(|info| info.offset = u64::MAX - 7), "an end beyond all addresses");
        assert!(all.tracker(2, 8, false).unwrap().is_none());
    }
}
