//! Merging of requests: a newcomer with a waiting request of its client's queue, and two that have come to touch.

use super::Bfq;
use super::request::is_sync;
use crate::merge::forced;
use crate::slab::Index;
use crate::{Info, Join, Merge, MergeHow, MergeLevel};

/// How many requests that begin or end at the right sector one look-up tries. This bounds what a hostile client can
/// cost.
const TRIES: usize = 8;

impl Bfq {
    /// COST: the last request; then one hash bucket; then a walk down one tree; a merge redoes one or two places.
    pub(super) fn merge_newcomer(&mut self, info: &Info) -> Option<Merge> {
        if info.merge == MergeLevel::Never || self.requests.len() == 0 {
            return None;
        }
        let queue = self.queue_of_newcomer(info)?;
        let (host, how, grown) = self.find_host(queue, info)?;
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

    /// The waiting request that takes the newcomer in, and what that request then is.
    fn find_host(&self, queue: Index, info: &Info) -> Option<(Index, MergeHow, Info)> {
        let fit = |host: Index| {
            let request = self.requests.get(host);
            if request.queue != queue || is_sync(&request.info) != is_sync(info) {
                return None;
            }
            let (how, grown) = self.limits.merged(&request.info, info)?;
            Some((host, how, grown))
        };
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
        self.beginning_at(queue, info.end()).find_map(fit)
    }

    /// Mergeable requests of a queue that begin where the newcomer ends, the oldest in sector order first.
    fn beginning_at(&self, queue: Index, end: u64) -> impl Iterator<Item = Index> {
        let sorted = &self.queues.get(queue).sorted;
        core::iter::successors(sorted.first_from(&self.requests, end), |item| sorted.next(&self.requests, *item))
            .take_while(move |item| self.requests.get(*item).info.sector == end)
            .take(TRIES)
            .filter(|item| self.requests.get(*item).info.merge == MergeLevel::Full)
    }

    /// Makes `host` what it has become, and redoes those of its places that this changes.
    pub(super) fn grow(&mut self, host: Index, how: MergeHow, grown: Info) {
        let q = self.requests.get(host).queue;
        let hashed = grown.merge == MergeLevel::Full;
        match how {
            MergeHow::Front => {
                let sorted = &mut self.queues.get_mut(q).sorted;
                sorted.remove(&mut self.requests, host);
                self.requests.get_mut(host).info = grown;
                sorted.insert(&mut self.requests, host);
                self.prefer(q, host);
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
        let group = self.queues.get(q).group;
        self.groups.get_mut(group).counts.merged += 1;
        self.last_merge = Some(host);
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
        let sorted = &self.queues.get(self.requests.get(host).queue).sorted;
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
        self.join_requests(survivor, absorbed, grown);
        Some(join)
    }

    /// Lets `survivor` absorb another request of its queue. The earlier of their two deadlines stays, in its place.
    pub(super) fn join_requests(&mut self, survivor: Index, absorbed: Index, grown: Info) {
        debug_assert_ne!(survivor, absorbed, "a request does not absorb itself");
        let [host, guest] = [survivor, absorbed].map(|item| self.requests.get(item));
        debug_assert_eq!(host.queue, guest.queue, "two requests that become one wait in one queue");
        let (q, deadline, client) = (host.queue, guest.deadline, guest.client);
        if deadline < host.deadline {
            let fifo = &mut self.queues.get_mut(q).fifo;
            fifo.remove(&mut self.requests, survivor);
            fifo.insert_before(&mut self.requests, absorbed, survivor);
            self.requests.get_mut(survivor).deadline = deadline;
        }
        if self.queues.get(q).next == Some(absorbed) {
            self.queues.get_mut(q).next = Some(survivor);
        }
        self.take_out(q, absorbed, self.now);
        self.requests.remove(absorbed);
        self.queues.get_mut(q).allocated -= 1;
        self.clients.get_mut(client).outstanding -= 1;
        self.grow(survivor, MergeHow::Back, grown);
    }

    /// Lets a request take in what another scheduler let it take in.
    pub(super) fn grow_forced(&mut self, host: Index, newcomer: &Info, how: MergeHow) {
        let grown = forced(&self.requests.get(host).info, newcomer, how);
        self.grow(host, how, grown);
    }
}
