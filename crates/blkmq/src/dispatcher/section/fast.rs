//! The fast path: requests that arrive under a hold while nothing waits, and get tags, are dispatched under the same
//! hold, in the scheduler's order but without being inserted.
//!
//! A scheduler that takes depth tokens is not asked, because each request needs a token. Nor is a scheduler that wants
//! reports, because it has no fast path.
//!
//! The scheduler names the order in which it would have dispatched the requests after inserting all of them. If that
//! order is not simple to compute, it declines (`Scheduler::dispatch_fast`). Requests that it declines, or for which
//! there are no tags, are inserted as usual.
//!
//! Published requests are dispatched in the order of their publication, and not in rounds of their submitters, because
//! all of them go at once, or all that the rounds would take.

use blkmq_sched::MAX_FAST_BATCH;

use super::Section;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::insert::Plug;
use crate::queue::{Count, ROUNDS, StartBatch};
use crate::request::{Location, Request, RqList};
use blkmq_sync::tags::Tag;
use blkmq_sync::{Stage, stage};

impl<'q> Section<'q, '_> {
    /// Dispatches a whole noted plug on the fast path, if possible. Otherwise the plug is unchanged. Returns how many
    /// operations and how many requests were dispatched.
    ///
    /// COST: beside the scheduler's own work the slots, and a read-modify-write of a tag word. If the scheduler
    /// declines, this thread has put tags back and passed a fence for nothing.
    #[inline]
    pub(in crate::dispatcher) fn dispatch_own_fast(&mut self, plug: &mut Plug<'q>) -> (u64, usize) {
        let number = plug.requests.len();
        if !self.hold.may_dispatch_fast() {
            return (0, 0);
        }
        let operations = self.dispatch_fast(&mut plug.requests, Some(plug.starting));
        operations.map_or((0, 0), |operations| (operations, number))
    }

    /// Dispatches the published requests on the fast path, if possible: all of them, or the [`ROUNDS`] oldest, if there
    /// are more. Otherwise they stay in the backlog. Returns how many requests were dispatched.
    ///
    /// COST: as of [`dispatch_own_fast`](Self::dispatch_own_fast). Tags are taken for one run of requests after the
    /// other, in the order of publication, and a run ends where the hardware queue changes. So requests of several
    /// hardware queues that alternate cost a call of `get_batch` each, which is a read-modify-write of a tag word at
    /// least; and another one each to put the tags back, if the scheduler declines.
    #[inline]
    pub(in crate::dispatcher) fn dispatch_published_fast(&mut self, share: usize) -> usize {
        let most = self.hold.backlog.len().min(ROUNDS);
        if most == 0 || most > share || !self.may_dispatch_published_fast() {
            0
        } else {
            self.dispatch_some_published_fast(most)
        }
    }

    /// Whether more than `share` requests were published, and a combiner with a larger budget could dispatch them on
    /// the fast path, as far as this one can tell.
    #[inline]
    pub(in crate::dispatcher) fn could_dispatch_fast(&self, share: usize) -> bool {
        let backlog = &self.hold.backlog;
        backlog.len() > share && backlog.is_between_rounds() && self.may_dispatch_published_fast()
    }

    #[inline(never)]
    fn dispatch_some_published_fast(&mut self, most: usize) -> usize {
        debug_assert!((1..=ROUNDS).contains(&most), "{most} requests were left, at most {ROUNDS} of which go together");
        let slots = &self.q.slots;
        let Some(mut left) = self.hold.backlog.take_all() else { return 0 };
        let mut run = self.dispatcher.fast_batch.note_front(&mut left, slots, most, |_| ());
        let mut fast = 0;
        if run.len() == most {
            self.fetch_hctxs();
            fast = self.dispatch_fast(&mut run, None).map_or(0, |_| most);
        }
        run.append(left);
        self.hold.backlog.add(run);
        fast
    }

    /// Prefetches the cache lines of the requests' hardware queues that are written under the hold.
    fn fetch_hctxs(&self) {
        let mut next = 0;
        while let Some((index, places)) = self.dispatcher.fast_batch.run(next) {
            next = places.end;
            let hctx = self.q.hctxs.get(index);
            hctx.tags.fetch(&self.dispatcher.hint);
            hctx.issue.fetch();
        }
    }

    /// Dispatches a noted run on the fast path: each request gets a tag, and the run becomes ready in the scheduler's
    /// order. Returns how many operations were dispatched, or `None`, with the run unchanged, if that is not possible.
    /// `starting`: the batch with which the requests begin.
    fn dispatch_fast(&mut self, run: &mut RqList, starting: Option<&StartBatch<'q>>) -> Option<u64> {
        debug_assert_eq!(run.len(), self.dispatcher.fast_batch.known.len(), "the run is what was noted");
        debug_assert!(
            self.q.pools().is_none() && !self.q.settings.wants_reports(),
            "no request goes without its token, and none goes untold"
        );
        let like = self.dispatcher.fast_batch.known.first()?.info;
        let number = run.len();
        let (mut tags, mut order) = ([Tag(0); MAX_FAST_BATCH], [0; MAX_FAST_BATCH]);
        let (tags, order) = (&mut tags[..number], &mut order[..number]);
        if !self.hold.may_dispatch_fast_like(self.q, &like) || !self.take_tags(tags, order) {
            return None;
        }
        let operations = self.make_fast_ready(run, tags, order, starting);
        self.hold.note_fast(&like, number);
        self.thread.counters.count(Count::DispatchBatches, 1);
        self.thread.counters.count(Count::DispatchedFast, number as u64);
        self.plan(false);
        stage(Stage::Through, number);
        Some(operations)
    }

    /// Takes a tag for each request, and asks the scheduler for their order. Returns false, with all tags put back, if
    /// there are too few tags or the scheduler declines.
    #[inline(always)]
    fn take_tags(&mut self, tags: &mut [Tag], order: &mut [u8]) -> bool {
        let Self { q, hold, dispatcher, now, .. } = self;
        let Dispatcher { fast_batch, hint, .. } = &mut **dispatcher;
        let mut got = 0;
        while let Some((index, places)) = fast_batch.run(got) {
            let (hctx, wanted) = (q.hctxs.get(index), places.end);
            if hctx.nr_dispatch() == 0 {
                got += hctx.tags.get_batch(hint, &mut tags[places]);
            }
            if got < wanted {
                break;
            }
        }
        // There are no more tags than `nr_requests` allows requests, so a request that has a tag has room.
        let is_ordered = got == tags.len() && hold.order_fast(&fast_batch.known, *now, order);
        if is_ordered {
            fast_batch.gather(order);
        } else {
            self.put_tags_back(&tags[..got]);
        }
        is_ordered
    }

    /// Puts back the tags that were taken, which are those of the first requests.
    #[cold]
    fn put_tags_back(&mut self, tags: &[Tag]) {
        let mut next = 0;
        while next < tags.len()
            && let Some((index, places)) = self.dispatcher.fast_batch.run(next)
        {
            next = places.end.min(tags.len());
            self.dispatcher.put_back(self.q, self.q.hctxs.get(index), &tags[places.start..next]);
        }
    }

    /// Makes the requests ready with their tags, in the scheduler's order. Returns how many operations they are.
    #[inline(always)]
    fn make_fast_ready(
        &mut self,
        run: &mut RqList,
        tags: &[Tag],
        order: &[u8],
        starting: Option<&StartBatch<'q>>,
    ) -> u64 {
        debug_assert!(run.len() == tags.len() && run.len() == order.len(), "each request has a tag and a place");
        let Self { q, domain, dispatcher, .. } = self;
        let q = *q;
        run.reorder(order);
        let mut tag_of = order.iter().map(|place| tags[usize::from(*place)]);
        let observed = if starting.is_none() { domain.observed_now() } else { None };
        let mut operations = 0;
        while let Some(index) = run.with_first(&q.slots, Request::hctx) {
            dispatcher.make_ready_on(q, index);
            let fast = run.take_while(&q.slots, |rq| {
                if rq.hctx() != index {
                    return false;
                }
                if let Some(starting) = starting {
                    starting.add(rq);
                }
                let body = rq.body_mut();
                debug_assert!(body.tag.is_none(), "a request gets one tag");
                if let Some(now) = observed {
                    domain.record_staged_wait(std::mem::take(&mut body.issued), now);
                }
                operations += u64::from(body.nr_parts);
                (body.tag, body.ordered) = (tag_of.next(), true);
                rq.rest_at(Location::IssueList);
                true
            });
            dispatcher.ready.append(fast);
        }
        operations
    }

    /// Whether published requests may take the fast path, as far as the combiner can tell at once.
    #[inline]
    fn may_dispatch_published_fast(&self) -> bool {
        self.q.pools().is_none() && !self.q.settings.wants_reports() && self.hold.may_dispatch_fast()
    }
}

#[cfg(test)]
mod tests;
