//! Merging: a newcomer with a waiting request, and two waiting requests that have come to touch.

use super::MqDeadline;
use super::direction::Direction;
use crate::slab::{Index, Probe};
use crate::{Info, Join, Merge, MergeHow, MergeLevel};

/// How many requests that begin or end at the right sector one look-up tries. This bounds what a hostile client can
/// cost.
const TRIES: usize = 8;

impl<P: Probe> MqDeadline<P> {
    /// COST: the last request; then one hash bucket; then a walk down one tree; a merge redoes one or two places.
    pub(super) fn merge_newcomer(&mut self, info: &Info) -> Option<Merge> {
        let (host, how, grown) = self.find_host(info)?;
        self.grow(host, how, grown);
        let into = self.requests.get(host).id;
        let joined = if info.merge == MergeLevel::Full { self.join_neighbor(host, how) } else { None };
        Some(Merge { into, how, joined })
    }

    /// The waiting request that takes the newcomer in, and what that request then is.
    fn find_host(&self, info: &Info) -> Option<(Index, MergeHow, Info)> {
        let fit = |host: Index| {
            let (how, grown) = self.limits.merged(&self.requests.get(host).info, info)?;
            Some((host, how, grown))
        };
        if info.merge == MergeLevel::Never {
            return None;
        }
        if let found @ Some(_) = self.last_merge.and_then(fit) {
            return found;
        }
        if info.merge == MergeLevel::LastOnly {
            return None;
        }
        let ending_here = self.ends.find(&self.requests, info.sector).take(TRIES);
        if let found @ Some(_) = ending_here.map(|(host, _)| host).find_map(fit) {
            return found;
        }
        if self.tunables.front_merges { self.beginning_at(info).find_map(fit) } else { None }
    }

    /// Mergeable requests of the newcomer's class and direction that begin where it ends, the oldest in sector order
    /// first.
    fn beginning_at(&self, info: &Info) -> impl Iterator<Item = Index> {
        let sorted = &self.levels[info.priority.class.index()].queue(Direction::of(info.op)).sorted;
        let end = info.end();
        core::iter::successors(sorted.first_from(&self.requests, end), |item| sorted.next(&self.requests, *item))
            .take_while(move |item| self.requests.get(*item).info.sector == end)
            .take(TRIES)
            .filter(|item| self.requests.get(*item).info.merge == MergeLevel::Full)
    }

    /// Makes `host` what it has become, and redoes those of its places that this changes.
    pub(super) fn grow(&mut self, host: Index, how: MergeHow, grown: Info) {
        debug_assert!(
            self.requests.peek(host).is_of_queue(&grown),
            "a request keeps its class and direction when it grows"
        );
        let hashed = grown.merge == MergeLevel::Full;
        let sorted = &mut self.levels[grown.priority.class.index()].queue_mut(Direction::of(grown.op)).sorted;
        match how {
            MergeHow::Front => {
                sorted.remove(&mut self.requests, host);
                self.requests.get_mut(host).info = grown;
                sorted.insert(&mut self.requests, host);
            }
            MergeHow::Back | MergeHow::Discard => {
                if hashed {
                    self.ends.remove(&mut self.requests, host);
                }
                self.requests.get_mut(host).info = grown;
                if hashed {
                    self.ends.insert(&mut self.requests, host);
                }
            }
        }
        self.last_merge = Some(host);
    }

    /// After `host` grew: joins it with the neighbor on that side if they now touch.
    fn join_neighbor(&mut self, host: Index, how: MergeHow) -> Option<Join> {
        let info = &self.requests.get(host).info;
        let sorted = &self.levels[info.priority.class.index()].queue(Direction::of(info.op)).sorted;
        let (survivor, absorbed) = match how {
            MergeHow::Back => (host, sorted.next(&self.requests, host)?),
            MergeHow::Front => (sorted.prev(&self.requests, host)?, host),
            MergeHow::Discard => return None,
        };
        let [first, second] = [survivor, absorbed].map(|item| self.requests.get(item));
        if first.info.merge != MergeLevel::Full || second.info.merge != MergeLevel::Full {
            return None;
        }
        let (MergeHow::Back, grown) = self.limits.merged(&first.info, &second.info)? else { return None };
        let join = Join { survivor: first.id, absorbed: second.id };
        self.join(survivor, absorbed, grown);
        Some(join)
    }

    /// Lets `survivor` absorb the request behind it. The earlier of their two deadlines stays, in its place.
    pub(super) fn join(&mut self, survivor: Index, absorbed: Index, grown: Info) {
        debug_assert_ne!(survivor, absorbed, "a request does not absorb itself");
        debug_assert!(
            [survivor, absorbed].iter().all(|item| self.requests.peek(*item).is_of_queue(&grown)),
            "two requests that become one stand in one list"
        );
        let deadline = self.requests.get(absorbed).deadline;
        let class = grown.priority.class;
        self.levels[class.index()].merged += 1;
        self.note_queued(class);
        let level = &mut self.levels[class.index()];
        if deadline < self.requests.get(survivor).deadline {
            let fifo = &mut level.queue_mut(Direction::of(grown.op)).fifo;
            fifo.remove(&mut self.requests, survivor);
            fifo.insert_before(&mut self.requests, absorbed, survivor);
            self.requests.get_mut(survivor).deadline = deadline;
        }
        self.unsort(absorbed);
        self.requests.remove(absorbed);
        self.grow(survivor, MergeHow::Back, grown);
    }
}
