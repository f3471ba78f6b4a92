//! Merging of requests: a newcomer with a waiting request of its flow, and two that have come to touch.

use super::Fair;
use super::flow::Request;
use crate::direction::Direction;
use crate::mergeable::keep_deadline;
use crate::slab::Index;
use crate::{Info, Join, Merge, MergeHow, MergeLevel};

impl Fair {
    /// COST: the last request; then one hash bucket; then a walk down one tree; a merge redoes one or two places.
    pub(super) fn merge_newcomer(&mut self, info: &Info) -> Option<Merge> {
        if info.merge == MergeLevel::Never || self.requests.len() == 0 {
            return None;
        }
        let flow = self.flow_of(info);
        let direction = Direction::of(info.op);
        let sorted = &self.flows.get(flow).queues[direction as usize].sorted;
        let suits = |rq: &Request| rq.home == flow && Direction::of(rq.info.op) == direction;
        let (host, how, grown) = self.mergeable.find_host(&self.requests, Some(sorted), info, suits)?;
        self.grow(host, how, grown);
        // Ranges of a discard are counted when it goes.
        self.window.ordered += u64::from(how != MergeHow::Discard);
        let into = self.requests.get(host).id;
        let joined = if info.merge == MergeLevel::Full { self.join_neighbor(host, how) } else { None };
        Some(Merge { into, how, joined })
    }

    fn grow(&mut self, host: Index, how: MergeHow, grown: Info) {
        let rq = self.requests.get(host);
        let sorted = &mut self.flows.get_mut(rq.home).queues[Direction::of(rq.info.op) as usize].sorted;
        self.mergeable.grow(&mut self.requests, sorted, host, how, grown);
    }

    /// After `host` grew: joins it with the neighbor on that side if they now touch.
    fn join_neighbor(&mut self, host: Index, how: MergeHow) -> Option<Join> {
        let rq = self.requests.get(host);
        let sorted = &self.flows.get(rq.home).queues[Direction::of(rq.info.op) as usize].sorted;
        let (join, [survivor, absorbed], grown) = self.mergeable.touching(&self.requests, sorted, host, how)?;
        let flow = self.requests.get(survivor).home;
        let queue = &mut self.flows.get_mut(flow).queues[Direction::of(grown.op) as usize];
        keep_deadline(&mut self.requests, &mut queue.fifo, survivor, absorbed);
        self.take_out(flow, absorbed);
        self.requests.remove(absorbed);
        self.grow(survivor, MergeHow::Back, grown);
        Some(join)
    }
}
