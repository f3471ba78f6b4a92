//! Dispatching under the lock: one request, or as many as there are tags, in the scheduler's order.

use super::Section;
use crate::queue::Count;
use crate::request::Request;
use blkmq_sync::tags::Tag;
use blkmq_sync::{Stage, stage};

/// The most tags that a thread takes at a time, in an array on its stack.
const TAGS: usize = 32;

/// The outcome of dispatching under one hold.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::dispatcher) struct Batch {
    /// Requests that the scheduler dispatched.
    pub(in crate::dispatcher) chosen: usize,
    /// Requests that became ready: those of them that got a tag, and those of a dispatch list that got an unused one.
    pub(in crate::dispatcher) ready: usize,
    /// As many were dispatched as were wanted, so there may be more.
    pub(in crate::dispatcher) goes_on: bool,
}

/// Why dispatching ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StopReason {
    /// As many were dispatched as were wanted.
    AtBound,
    /// The scheduler holds its requests back.
    HeldBack,
    /// Nothing waits, or there are no tags.
    Lacking,
}

impl<'q> Section<'q, '_> {
    /// The scheduler's next request, unless it holds back.
    #[inline(always)]
    fn dispatch(&mut self) -> Option<Request<'q>> {
        self.hold.dispatch(self.q, self.now)
    }

    /// The scheduler's next request. If the scheduler holds back, sets WAITING, then reads the feedback, and asks once
    /// more.
    fn dispatch_or_wait(&mut self) -> Option<Request<'q>> {
        let (live, waiter_present) = (&self.q.live, self.waiter_present);
        self.dispatch().or_else(|| live.prepare_to_wait_unless(waiter_present, || self.dispatch()))
    }

    /// Dispatches up to `bound` requests, as far as there are tags: they become ready.
    pub(in crate::dispatcher) fn dispatch_batch(&mut self, bound: usize) -> Batch {
        let entered = self.now;
        let mut batch = Batch::default();
        self.show();
        loop {
            let waiting = self.hold.nr_waiting();
            let bound = bound.saturating_sub(batch.chosen.max(batch.ready));
            if waiting == 0 || bound == 0 {
                break;
            }
            let (got, ended) = if self.hold.is_for_first_hctx() {
                self.dispatch_for_one(waiting.min(bound))
            } else {
                self.dispatch_for_many(bound)
            };
            let is_held_back = ended == StopReason::HeldBack;
            self.plan(is_held_back);
            // Includes a request that went to the dispatch list because there was no tag.
            let chosen = waiting - self.hold.nr_waiting();
            if chosen > 0 {
                self.thread.counters.count(Count::DispatchBatches, 1);
                self.thread.counters.count(Count::Dispatched, chosen as u64);
            }
            let goes_on = ended == StopReason::AtBound;
            batch = Batch { chosen: batch.chosen + chosen, ready: batch.ready + got, goes_on };
            // A thread that polled because this time had come may have found no tag, because this thread held it, and
            // returned: see [`Domain::has_come`](crate::queue::Domain::has_come).
            if !(is_held_back && self.domain.has_come(self.q, &mut self.now)) {
                break;
            }
        }
        self.now = entered;
        stage(Stage::Choose, batch.ready);
        batch
    }

    /// Dispatches while all waiting requests go to one hardware queue: takes tags first, then dispatches `wanted`
    /// requests, at most the number that waits. Returns how many requests became ready, and why dispatching ended.
    fn dispatch_for_one(&mut self, wanted: usize) -> (usize, StopReason) {
        debug_assert!(
            wanted <= self.hold.nr_waiting() && self.hold.is_for_first_hctx(),
            "{wanted} wait for the first queue"
        );
        let q = self.q;
        let index = self.domain.first_hctx();
        let hctx = q.hctxs.get(index);
        let mut batch = [Tag(0); TAGS];
        let mut chosen = 0;
        loop {
            let wanted = (wanted - chosen).min(TAGS);
            if wanted == 0 {
                return (chosen, StopReason::AtBound);
            }
            let got = self.dispatcher.tags_or_wait(q, hctx, &mut batch[..wanted], self.waiter_present);
            if got == 0 {
                return (chosen, StopReason::Lacking);
            }
            for (taken, tag) in batch[..got].iter().enumerate() {
                let Some(rq) = self.dispatch_or_wait() else {
                    chosen += self.dispatcher.put_back(q, hctx, &batch[taken..got]);
                    return (chosen, StopReason::HeldBack);
                };
                debug_assert_eq!(rq.body().hctx, index, "the tag is of the hardware queue that the request goes to");
                self.dispatcher.make_ready(q, rq, *tag);
                chosen += 1;
            }
        }
    }

    /// Dispatches while requests wait for several hardware queues: the scheduler chooses first, because its choice
    /// decides whose tag is needed. A request whose queue has no tag goes to the dispatch list, and the next one is
    /// dispatched. Ends when a queue would get a second request there. Returns the same as
    /// [`dispatch_for_one`](Self::dispatch_for_one).
    fn dispatch_for_many(&mut self, bound: usize) -> (usize, StopReason) {
        debug_assert!(
            bound > 0 && self.domain.is_whole() && !self.hold.is_for_first_hctx(),
            "requests wait for several hardware queues"
        );
        let q = self.q;
        let mut ready = 0;
        for _ in 0..bound {
            if self.hold.is_empty() || q.hctxs.all_have_dispatch() {
                return (ready, StopReason::Lacking);
            }
            let Some(rq) = self.dispatch_or_wait() else { return (ready, StopReason::HeldBack) };
            let (got, goes_on) = self.dispatcher.give_tag(q, rq, self.waiter_present);
            ready += got;
            if !goes_on {
                return (ready, StopReason::Lacking);
            }
        }
        (ready, StopReason::AtBound)
    }
}
