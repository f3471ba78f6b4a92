//! Handing requests through: requests that come under a hold, while nothing waits, and get tags, leave under the same
//! hold. Such requests are put in the scheduler's order without ever being put into the scheduler.
//!
//! A scheduler that takes a token for each choice is not asked: no request may go without one. Nor is a scheduler that
//! wants reports, because it hands nothing through.
//!
//! Nothing is decided here. The scheduler names the order in which it would have handed the requests out after
//! inserting all of them. Where that order is not simple to tell, the scheduler declines (`Scheduler::hand_through`).
//! Requests that it declines, or that find no tags, are inserted in the usual way.
//!
//! Requests that were left with the holder go in the order in which they were left, and not in rounds of their
//! submitters, because all of them go at once.

use blkmq_sched::MOST_NEWCOMERS;

use super::section::Section;
use crate::device::Runner;
use crate::queue::{Count, Domain, Mapping, RequestQueue, Starting};
use crate::request::{Place, RqList};
use blkmq_sync::tags::Tag;
use blkmq_sync::{Stage, stage};

impl Runner {
    /// Notes a plug's requests, if all of them may go together. Called before the hold, so that the hold is shorter.
    #[inline]
    pub(super) fn note_newcomers(
        &mut self,
        q: &RequestQueue,
        domain: &Domain,
        mapping: &Mapping,
        plug: &mut RqList,
    ) -> bool {
        if plug.len() > MOST_NEWCOMERS || domain.has_waiting() {
            return false;
        }
        let noted = self.newcomers.note_front(plug, &q.slots, |rq| _ = mapping.assign(rq));
        let rest = std::mem::replace(plug, noted);
        let all_may_go = rest.is_empty();
        debug_assert_eq!(plug.len(), self.newcomers.known.len(), "each request that may go was noted");
        plug.append(rest);
        all_may_go
    }
}

impl<'q> Section<'q, '_> {
    /// Hands through a whole plug that was noted, if that is possible. Otherwise the plug stays as it is. Returns how
    /// many operations and how many requests went through.
    ///
    /// COST: beside the scheduler's own work the slots, and a read-modify-write of a tag word. If the scheduler
    /// declines, this thread has put tags back and passed a fence for nothing.
    #[inline]
    pub(super) fn hand_own_through(&mut self, starting: &Starting<'q>, plug: &mut RqList) -> (u64, usize) {
        let requests = plug.len();
        if !self.may_hand_through(requests) {
            return (0, 0);
        }
        let operations = self.hand_through(plug, Some(starting));
        operations.map_or((0, 0), |operations| (operations, requests))
    }

    /// Hands through all that was left with the holder, if that is possible. Otherwise all of it stays there. Returns
    /// how many requests went through.
    ///
    /// COST: as of [`hand_own_through`](Self::hand_own_through).
    #[inline]
    pub(super) fn hand_left_through(&mut self, share: usize) -> usize {
        let left = self.hold.backlog.len();
        let is_told = self.q.has_reports();
        if left == 0 || self.q.pools().is_some() || is_told || left > share || !self.may_hand_through(left) {
            0
        } else {
            self.hand_some_left_through()
        }
    }

    #[inline(never)]
    fn hand_some_left_through(&mut self) -> usize {
        let slots = &self.q.slots;
        let Some(mut left) = self.hold.backlog.take_all() else { return 0 };
        let mut run = self.runner.newcomers.note_front(&mut left, slots, |_| ());
        let requests = run.len();
        if left.is_empty() && self.hand_through(&mut run, None).is_some() {
            return requests;
        }
        run.append(left);
        self.hold.backlog.add(run);
        0
    }

    /// Hands through a run that was noted: each request gets a tag, the run is put in the scheduler's order, and is
    /// then ready. Returns how many operations went through. Returns nothing, and leaves the run as it was, if that is
    /// not possible. `starting`: the requests begin with this.
    fn hand_through(&mut self, run: &mut RqList, starting: Option<&Starting<'q>>) -> Option<u64> {
        let Self { q, member, domain, hold, runner, now, .. } = self;
        let q = *q;
        debug_assert_eq!(run.len(), runner.newcomers.known.len(), "the run is what was noted");
        let like = runner.newcomers.known.first()?.info;
        let (number, index) = (run.len(), runner.newcomers.hctx);
        let hctx = q.hctx(index);
        if hctx.nr_parked() > 0 || !hold.may_hand_through_like(q, &like) {
            return None;
        }
        let (mut tags, mut order) = ([Tag(0); MOST_NEWCOMERS], [0; MOST_NEWCOMERS]);
        let (tags, order) = (&mut tags[..number], &mut order[..number]);
        let got = hctx.tags.get_batch(&mut runner.hint, tags);
        let is_ordered = got == number && hold.order_through(&runner.newcomers.known, *now, order);
        // There are no more tags than `nr_requests` allows requests, so a request that has a tag has room.
        if !is_ordered {
            runner.put_back(q, hctx, &tags[..got]);
            return None;
        }
        run.reorder(order);
        runner.make_ready_on(q, index);
        let mut tags = tags.iter();
        let observed = if starting.is_none() { domain.observed_now() } else { None };
        let mut operations = 0;
        let through = run.take_while(&q.slots, |rq| {
            if let Some(starting) = starting {
                starting.add(rq);
            }
            let body = rq.body_mut();
            debug_assert!(body.tag.is_none(), "a request gets one tag");
            if let Some(now) = observed {
                domain.tell_staged(std::mem::take(&mut body.issued), now);
            }
            operations += u64::from(body.nr_parts);
            (body.tag, body.ordered) = (tags.next().copied(), true);
            rq.rest_at(Place::IssueList);
            true
        });
        runner.ready.append(through);
        hold.note_through(&like, number);
        member.counters.count(Count::DispatchBatches, 1);
        self.plan(false);
        stage(Stage::Through, number);
        Some(operations)
    }

    /// Whether so many requests may be handed through together, as far as the scheduler's holder can tell at once.
    #[inline]
    fn may_hand_through(&self, number: usize) -> bool {
        number <= MOST_NEWCOMERS && self.hold.may_hand_through()
    }
}
