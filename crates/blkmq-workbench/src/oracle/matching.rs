//! Which of Linux's expirations have one of ours near them.

use std::collections::{HashMap, VecDeque};

use blkmq_sched::Reason;

use super::share::Share;
use crate::order::{Expired, Queue};

/// An expiry of ours is Linux's if it is no further from it, in nanoseconds.
const NEAR_NS: u64 = 4_000_000;

/// Linux's expirations and ours, each until no other one can be near it any more.
#[derive(Debug, Default)]
pub(super) struct Matching {
    /// Linux's that wait for those of ours that may still come.
    linux: VecDeque<Expired>,
    /// The times of ours that belong to none of Linux's.
    ours: HashMap<(Queue, Reason), Vec<u64>>,
    /// Everything before this time is known, in nanoseconds.
    known: u64,
}

impl Matching {
    /// Linux expired a queue, no earlier than the one before.
    pub(super) fn linux(&mut self, expired: Expired) {
        self.linux.push_back(expired);
    }

    /// Our scheduler expired a queue.
    pub(super) fn ours(&mut self, expired: &Expired) {
        let horizon = self.linux.front().map_or(self.known, |first| first.time.min(self.known)).saturating_sub(NEAR_NS);
        let times = self.ours.entry((expired.queue, expired.reason)).or_default();
        times.retain(|time| *time >= horizon);
        times.push(expired.time);
    }

    /// Counts in `share` those of Linux's that are so long past that all of ours near them are known at `now`.
    pub(super) fn count_before(&mut self, now: u64, share: &mut Share) {
        self.known = now;
        while let Some(expired) = self.linux.front().copied()
            && expired.time.saturating_add(NEAR_NS) < now
        {
            self.linux.pop_front();
            share.add(self.has_match(&expired));
        }
    }

    /// Counts in `share` all of Linux's that are left.
    pub(super) fn count_all(mut self, share: &mut Share) {
        while let Some(expired) = self.linux.pop_front() {
            share.add(self.has_match(&expired));
        }
    }

    /// Whether one of ours is near that belongs to no other.
    fn has_match(&mut self, expired: &Expired) -> bool {
        let Some(times) = self.ours.get_mut(&(expired.queue, expired.reason)) else { return false };
        // Linux's next ones are no earlier.
        times.retain(|time| *time >= expired.time.saturating_sub(NEAR_NS));
        let nearest = (0..times.len()).min_by_key(|at| times[*at].abs_diff(expired.time));
        let nearest = nearest.filter(|at| times[*at].abs_diff(expired.time) <= NEAR_NS);
        nearest.map(|at| times.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn expired(ms: u64) -> Expired {
        Expired { time: ms * MS, queue: Queue::Sync(1), reason: Reason::TooIdle }
    }

    /// Red if one of ours counts twice, if the nearest is not taken, or if one counts that is too far or of another
    /// queue; or if Linux's are counted before all of ours that can be near them are known.
    #[test]
    fn each_expiry_of_linux_has_the_nearest_of_ours_that_is_left() {
        let (mut matching, mut share) = (Matching::default(), Share::default());
        matching.ours(&Expired { queue: Queue::Async, ..expired(30) });
        matching.ours(&expired(11));
        matching.ours(&expired(14));
        [10, 12, 15, 30].into_iter().for_each(|ms| matching.linux(expired(ms)));
        matching.count_before(14 * MS, &mut share);
        assert_eq!(share, Share::default(), "one of ours at 14 ms can still come");
        matching.count_before(17 * MS, &mut share);
        assert_eq!(share, Share { all: 2, alike: 2 }, "11 is nearest to 10, and 14 is left for 12");
        matching.ours(&expired(18));
        matching.count_all(&mut share);
        assert_eq!(share, Share { all: 4, alike: 3 }, "18 is near 15, and none is near 30");
    }

    /// Red if ours are kept forever where Linux expires nothing.
    #[test]
    fn ours_that_no_expiry_of_linux_can_be_near_any_more_are_forgotten() {
        let (mut matching, mut share) = (Matching::default(), Share::default());
        for ms in 0..10_000 {
            matching.ours(&expired(ms));
            matching.count_before(ms * MS, &mut share);
        }
        let kept: usize = matching.ours.values().map(Vec::len).sum();
        assert!(kept <= 6, "{kept} are kept");
    }
}
