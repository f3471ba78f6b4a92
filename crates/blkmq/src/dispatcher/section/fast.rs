//! Handing requests through: requests that come under a hold, while nothing waits, and get tags, leave under the same
//! hold. Such requests are put in the scheduler's order without ever being put into the scheduler.
//!
//! A scheduler that takes a token for each choice is not asked: no request may go without one. Nor is a scheduler that
//! wants reports, because it hands nothing through.
//!
//! Nothing is decided here. The scheduler names the order in which it would have handed the requests out after
//! inserting all of them. Where that order is not simple to tell, the scheduler declines (`Scheduler::dispatch_fast`).
//! Requests that it declines, or that find no tags, are inserted in the usual way.
//!
//! Requests that were left with the combiner go in the order in which they were left, and not in rounds of their
//! submitters, because all of them go at once, or all that the rounds would take.

use blkmq_sched::MOST_NEWCOMERS;

use super::Section;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::insert::Plug;
use crate::queue::{Count, ROUNDS, StartBatch};
use crate::request::{Location, Request, RqList};
use blkmq_sync::tags::Tag;
use blkmq_sync::{Stage, peek, stage};

impl<'q> Section<'q, '_> {
    /// Hands through a whole plug that was noted, if that is possible. Otherwise the plug stays as it is. Returns how
    /// many operations and how many requests went through.
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

    /// Hands through what was left with the combiner, if that is possible: all of it, or the [`ROUNDS`] requests that
    /// were left first, if there are more. Otherwise all of it stays there. Returns how many requests went through.
    ///
    /// COST: as of [`dispatch_own_fast`](Self::hand_own_through). Tags are taken for one run of requests after the
    /// other, in the order in which the requests were left, and a run ends where the hardware queue changes. So
    /// requests of several hardware queues that alternate cost a call of `get_batch` each, which is a read-modify-write
    /// of a tag word at least; and another one each to put the tags back, if the scheduler declines.
    #[inline]
    pub(in crate::dispatcher) fn dispatch_published_fast(&mut self, share: usize) -> usize {
        let most = self.hold.backlog.len().min(ROUNDS);
        if most == 0 || most > share || !self.may_dispatch_published_fast() {
            0
        } else {
            self.dispatch_some_published_fast(most)
        }
    }

    /// Whether more was left than `share`, and a combiner with a greater share could hand it through, as far as this
    /// one can tell.
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

    /// Asks for the lines of the newcomers' hardware queues that are written under the hold. So they come together.
    fn fetch_hctxs(&self) {
        let mut next = 0;
        while let Some((index, places)) = self.dispatcher.fast_batch.run(next) {
            next = places.end;
            let hctx = self.q.hctxs.get(index);
            hctx.tags.fetch(&self.dispatcher.hint);
            hctx.issue.fetch();
        }
    }

    /// Hands through a run that was noted: each request gets a tag, the run is put in the scheduler's order, and is
    /// then ready. Returns how many operations went through. Returns nothing, and leaves the run as it was, if that is
    /// not possible. `starting`: the requests begin with this.
    fn dispatch_fast(&mut self, run: &mut RqList, starting: Option<&StartBatch<'q>>) -> Option<u64> {
        debug_assert_eq!(run.len(), self.dispatcher.fast_batch.known.len(), "the run is what was noted");
        debug_assert!(
            peek(|| self.q.pools().is_none() && !self.q.settings.wants_reports()),
            "no request goes without its token, and none goes untold"
        );
        let like = self.dispatcher.fast_batch.known.first()?.info;
        let number = run.len();
        let (mut tags, mut order) = ([Tag(0); MOST_NEWCOMERS], [0; MOST_NEWCOMERS]);
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

    /// Takes a tag for each newcomer, and asks the scheduler for the order in which they go. Returns false if a tag is
    /// lacking, or the scheduler declines; then all tags are back.
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

    /// Puts back the tags of the newcomers that have one: of those that came first.
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

    /// Puts the newcomers in their order, gives them their tags, and makes them ready. Returns how many operations
    /// they are.
    #[inline(always)]
    fn make_fast_ready(
        &mut self,
        run: &mut RqList,
        tags: &[Tag],
        order: &[u8],
        starting: Option<&StartBatch<'q>>,
    ) -> u64 {
        debug_assert!(run.len() == tags.len() && run.len() == order.len(), "each newcomer has a tag and a place");
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
                    domain.tell_staged(std::mem::take(&mut body.issued), now);
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

    /// Whether requests that were left may be handed through, as far as the combiner can tell at once.
    #[inline]
    fn may_dispatch_published_fast(&self) -> bool {
        self.q.pools().is_none() && !self.q.settings.wants_reports() && self.hold.may_dispatch_fast()
    }
}

#[cfg(test)]
mod tests;
