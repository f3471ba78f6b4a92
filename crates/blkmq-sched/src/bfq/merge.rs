//! Merging of requests: a newcomer with a waiting request of its client's queue, and two that have come to touch.

use super::Bfq;
use super::request::{Request, is_sync};
use crate::mergeable::keep_deadline;
use crate::slab::Index;
use crate::{Info, Join, Merge, MergeHow, MergeLevel};

impl Bfq {
    /// COST: the last request; then one hash bucket; then a walk down one tree; a merge redoes one or two places.
    pub(super) fn merge_newcomer(&mut self, info: &Info) -> Option<Merge> {
        if info.merge == MergeLevel::Never || self.requests.len() == 0 {
            return None;
        }
        let queue = self.queue_of_newcomer(info)?;
        let sorted = &self.queues.get(queue).sorted;
        let suits = |rq: &Request| rq.home.queue == queue && is_sync(&rq.info) == is_sync(info);
        let (host, how, grown) = self.mergeable.find_host(&self.requests, Some(sorted), info, suits)?;
        self.grow(host, how, grown);
        let into = self.requests.get(host).id;
        let joined = if info.merge == MergeLevel::Full { self.join_neighbor(host, how) } else { None };
        Some(Merge { into, how, joined })
    }

    /// The queue in which the newcomer would wait, if it is there.
    pub(super) fn queue_of_newcomer(&self, info: &Info) -> Option<Index> {
        let client = self.clients.get(self.clients.place(info.client));
        if is_sync(info) {
            return client.sync;
        }
        self.named(client.latest_async?)
    }

    /// Makes `host` what it has become, and redoes those of its places that this changes.
    pub(super) fn grow(&mut self, host: Index, how: MergeHow, grown: Info) {
        let q = self.requests.get(host).home.queue;
        self.mergeable.grow(&mut self.requests, &mut self.queues.get_mut(q).sorted, host, how, grown);
        if how == MergeHow::Front {
            self.prefer(q, host);
        }
        let group = self.queues.get(q).group;
        self.groups.get_mut(group).counts.merged += 1;
    }

    /// A request that now begins earlier may be the next one of its queue.
    fn prefer(&mut self, q: Index, host: Index) {
        let next = self.queues.get(q).next;
        let chosen = self.better(next, Some(host), self.rate.last_position);
        if chosen != next {
            self.queues.get_mut(q).next = chosen;
            self.fit_budget(q);
        }
        self.place(q);
    }

    /// After `host` grew: joins it with the neighbor on that side if they now touch.
    fn join_neighbor(&mut self, host: Index, how: MergeHow) -> Option<Join> {
        let sorted = &self.queues.get(self.requests.get(host).home.queue).sorted;
        let (join, [survivor, absorbed], grown) = self.mergeable.touching(&self.requests, sorted, host, how)?;
        self.join_requests(survivor, absorbed, grown);
        Some(join)
    }

    /// Lets `survivor` absorb another request of its queue.
    pub(super) fn join_requests(&mut self, survivor: Index, absorbed: Index, grown: Info) {
        let [host, guest] = [survivor, absorbed].map(|item| self.requests.get(item).home);
        debug_assert_eq!(host.queue, guest.queue, "two requests that become one wait in one queue");
        let (q, client) = (host.queue, guest.client);
        keep_deadline(&mut self.requests, &mut self.queues.get_mut(q).fifo, survivor, absorbed);
        if self.queues.get(q).next == Some(absorbed) {
            self.queues.get_mut(q).next = Some(survivor);
        }
        self.take_out(q, absorbed, *self.now);
        self.requests.remove(absorbed);
        self.count_out(q, 1);
        self.clients.get_mut(client).outstanding -= 1;
        self.grow(survivor, MergeHow::Back, grown);
    }
}
