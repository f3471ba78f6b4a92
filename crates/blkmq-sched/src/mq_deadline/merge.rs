//! Merging: a newcomer with a waiting request, and two waiting requests that have come to touch.

use super::MqDeadline;
use crate::direction::Direction;
use crate::mergeable::keep_deadline;
use crate::slab::Index;
use crate::tree::Tree;
use crate::{Info, Join, Merge, MergeHow, MergeLevel};

impl MqDeadline {
    /// COST: the last request; then one hash bucket; then a walk down one tree; a merge redoes one or two places.
    pub(super) fn merge_newcomer(&mut self, info: &Info) -> Option<Merge> {
        let sorted = self.tunables.front_merges.then(|| self.sorted(info));
        let (host, how, grown) = self.mergeable.find_host(&self.requests, sorted, info, |_| true)?;
        self.grow(host, how, grown);
        let into = self.requests.get(host).id;
        let joined = if info.merge == MergeLevel::Full { self.join_neighbor(host, how) } else { None };
        Some(Merge { into, how, joined })
    }

    /// The tree of requests of this one's class and direction.
    fn sorted(&self, info: &Info) -> &Tree {
        &self.levels[info.priority.class.index()].queue(Direction::of(info.op)).sorted
    }

    /// Makes `host` what it has become, and redoes those of its places that this changes.
    pub(super) fn grow(&mut self, host: Index, how: MergeHow, grown: Info) {
        debug_assert!(
            self.requests.peek(host).is_of_queue(&grown),
            "a request keeps its class and direction when it grows"
        );
        let sorted = &mut self.levels[grown.priority.class.index()].queue_mut(Direction::of(grown.op)).sorted;
        self.mergeable.grow(&mut self.requests, sorted, host, how, grown);
    }

    /// After `host` grew: joins it with the neighbor on that side if they now touch.
    fn join_neighbor(&mut self, host: Index, how: MergeHow) -> Option<Join> {
        let sorted = self.sorted(&self.requests.get(host).info);
        let (join, [survivor, absorbed], grown) = self.mergeable.touching(&self.requests, sorted, host, how)?;
        self.join(survivor, absorbed, grown);
        Some(join)
    }

    /// Lets `survivor` absorb the request behind it.
    pub(super) fn join(&mut self, survivor: Index, absorbed: Index, grown: Info) {
        debug_assert!(
            [survivor, absorbed].iter().all(|item| self.requests.peek(*item).is_of_queue(&grown)),
            "two requests that become one stand in one list"
        );
        let class = grown.priority.class;
        self.levels[class.index()].counts.merged += 1;
        self.note_queued(class);
        let fifo = &mut self.levels[class.index()].queue_mut(Direction::of(grown.op)).fifo;
        keep_deadline(&mut self.requests, fifo, survivor, absorbed);
        self.unsort(absorbed);
        self.requests.remove(absorbed);
        self.grow(survivor, MergeHow::Back, grown);
    }
}
