//! Completing: tags and tokens go back, the flush machine takes its steps, and every operation is handed to its
//! submitter.

use blkmq_sched::{Op, Time};

use crate::dispatcher::Dispatcher;
use crate::queue::{Count, Ending, FlowBatch, ReportBatch, RequestQueue, Steps, TokenBatch, mark_of_flush};
use crate::request::{FlushStep, Place, Request, RqList};
use blkmq_sync::tags::{Gathered, Hint, Tag};
use blkmq_sync::{Stage, kept, stage};

/// Tags that are to be put back, of one hardware queue at a time. So a batch of tags costs one operation on each tag
/// word.
struct TagBatch<'q> {
    hctx: u16,
    gathered: Option<Gathered<'q>>,
}

impl<'q> TagBatch<'q> {
    const fn new() -> Self {
        Self { hctx: 0, gathered: None }
    }

    #[inline]
    fn add(&mut self, q: &'q RequestQueue, hint: &mut Hint, hctx: u16, tag: Tag) {
        match &mut self.gathered {
            Some(gathered) if hctx == self.hctx => gathered.add(tag, hint),
            _ => self.turn_to(q, hctx).add(tag, hint),
        }
        if !kept("complete.tag_once") {
            q.hctx(hctx).tags.put(tag, hint);
        }
    }

    /// Puts back the tags gathered so far, and begins with another hardware queue.
    #[inline(never)]
    fn turn_to(&mut self, q: &'q RequestQueue, hctx: u16) -> &mut Gathered<'q> {
        self.put();
        self.hctx = hctx;
        self.gathered.insert(q.hctx(hctx).tags.gather())
    }

    #[inline]
    fn put(&mut self) {
        if let Some(gathered) = &mut self.gathered {
            gathered.put();
        }
    }
}

/// What is done for a request that is over, beside its tag. Three kinds of queue differ in this.
trait Beside {
    /// A request is over. `is_limited`: it is other than a read, and the scheduler had dispatched it.
    fn add(&mut self, q: &RequestQueue, rq: &mut Request<'_>, is_limited: bool);

    /// Operations are about to be delivered to other submitters.
    #[inline(always)]
    fn tell(&mut self, _q: &RequestQueue) {}

    /// All requests of a batch were added.
    fn put(&mut self, q: &RequestQueue);
}

/// Nothing: the queue has one domain, and its scheduler takes no tokens and wants no reports.
struct Nothing;

impl Beside for Nothing {
    #[inline(always)]
    fn add(&mut self, _q: &RequestQueue, rq: &mut Request<'_>, _is_limited: bool) {
        debug_assert!(rq.body().token.is_none(), "no scheduler has taken a token: {rq:?}");
    }

    #[inline(always)]
    fn put(&mut self, _q: &RequestQueue) {}
}

/// Tokens go back, and hardware queues count what their scheduler's bound is about.
struct Tokens<'q> {
    tokens: TokenBatch<'q>,
    /// Of so many requests of this hardware queue `is_limited` was true.
    hctx: u16,
    limited: u32,
}

impl Tokens<'_> {
    fn note_limited(&mut self, q: &RequestQueue) {
        if self.limited > 0 {
            q.hctx(self.hctx).note_limited(std::mem::take(&mut self.limited));
        }
    }
}

impl Beside for Tokens<'_> {
    #[inline]
    fn add(&mut self, q: &RequestQueue, rq: &mut Request<'_>, is_limited: bool) {
        let body = rq.body_mut();
        if let Some(token) = body.token.take() {
            self.tokens.add(token, body.submitted, body.issued);
        }
        if is_limited {
            if self.hctx != body.hctx {
                self.note_limited(q);
                self.hctx = body.hctx;
            }
            self.limited += 1;
        }
    }

    #[inline]
    fn put(&mut self, q: &RequestQueue) {
        self.note_limited(q);
        self.tokens.put(q);
    }
}

impl Beside for ReportBatch<'_> {
    #[inline]
    fn add(&mut self, q: &RequestQueue, rq: &mut Request<'_>, _is_limited: bool) {
        debug_assert!(rq.body().token.is_none(), "no scheduler has taken a token: {rq:?}");
        self.add(q, rq);
    }

    #[inline]
    fn tell(&mut self, q: &RequestQueue) {
        self.put(q);
    }

    #[inline]
    fn put(&mut self, q: &RequestQueue) {
        self.put(q);
    }
}

/// A window learns of each request, whatever else is done for it.
struct Watched<'q, B> {
    flows: FlowBatch<'q>,
    other: B,
}

impl<B: Beside> Beside for Watched<'_, B> {
    #[inline]
    fn add(&mut self, q: &RequestQueue, rq: &mut Request<'_>, is_limited: bool) {
        self.flows.add(rq);
        self.other.add(q, rq, is_limited);
    }

    #[inline]
    fn tell(&mut self, q: &RequestQueue) {
        self.other.tell(q);
    }

    #[inline]
    fn put(&mut self, q: &RequestQueue) {
        self.flows.publish();
        self.other.put(q);
    }
}

impl Dispatcher {
    /// Completes what has finished. Afterwards [`parked`](Self::parked) says whether flush steps wait for dispatch. The
    /// caller then [wakes](Self::wake_delivered) the submitters to which operations were delivered.
    ///
    /// COST: per batch one operation on each tag word concerned, for each other submitter one on its completion ring,
    /// and one fence for what was brought; per operation the two lines of its slot and this thread's counters.
    pub(super) fn complete(&mut self, q: &RequestQueue, now: Time) {
        debug_assert!(!self.finished.is_empty(), "something has finished");
        let requests = self.finished.len();
        if q.settings.has_window() {
            self.complete_watched(q, now);
        } else if q.settings.is_plain() {
            self.complete_with(q, Nothing, now);
        } else if q.has_reports() {
            self.complete_with(q, ReportBatch::new(q, self.member, now), now);
        } else {
            let tokens = TokenBatch::new(q, &self.member(q).latencies, now);
            self.complete_with(q, Tokens { tokens, hctx: 0, limited: 0 }, now);
        }
        // The caller looks at WAITING.
        q.live.brought();
        self.has_news = true;
        stage(Stage::Complete, requests);
    }

    /// Wakes the threads of the submitters to which this thread has delivered operations.
    #[inline]
    pub(super) fn wake_delivered(&mut self, q: &RequestQueue) {
        self.outbox.wake(q, self.member);
    }

    /// As [`complete`](Self::complete), for a queue with a window.
    fn complete_watched(&mut self, q: &RequestQueue, now: Time) {
        let flows = FlowBatch::new(&self.member(q).flows, now);
        if q.has_reports() {
            let other = ReportBatch::new(q, self.member, now);
            self.complete_with(q, Watched { flows, other }, now);
        } else {
            self.complete_with(q, Watched { flows, other: Nothing }, now);
        }
        q.look_at_window(self.member, now);
    }

    #[inline]
    fn complete_with(&mut self, q: &RequestQueue, mut beside: impl Beside, now: Time) {
        let mut tags = TagBatch::new();
        let mut ending = Ending::new(q, self.member(q), now);
        loop {
            while self.complete_run(q, &mut tags, &mut beside, &mut ending, now) {}
            let Some(mut rq) = self.finished.pop_front(&q.slots) else { break };
            let hctx = rq.body().hctx;
            rq.body_mut().completed = now;
            let is_limited = rq.op() != Op::Read;
            if rq.body().ordered {
                self.member(q).counters.ordered(rq.priority().class, is_limited);
            }
            let is_ordered = rq.body().ordered;
            beside.add(q, &mut rq, is_ordered && is_limited);
            if let Some(tag) = rq.body_mut().tag.take() {
                tags.add(q, &mut self.hint, hctx, tag);
            }
            beside.tell(q);
            if rq.body().flush == FlushStep::None {
                self.deliver(q, rq, &mut ending);
            } else {
                if rq.body().flush == FlushStep::Flush {
                    ending.add_flush(&rq);
                }
                let steps = q.complete_flush(rq, now);
                self.take_steps(q, steps, &mut ending);
            }
        }
        tags.put();
        beside.put(q);
        self.outbox.send(q, &mut ending, self.member);
    }

    /// Completes the requests at the front that are one operation each and belong to one submitter. The whole list of
    /// them moves on at once. Returns whether there were any.
    fn complete_run<'q>(
        &mut self,
        q: &'q RequestQueue,
        tags: &mut TagBatch<'q>,
        beside: &mut impl Beside,
        ending: &mut Ending<'_>,
        now: Time,
    ) -> bool {
        let Some(member) = self.finished.with_first(&q.slots, |rq| rq.index().pool()) else { return false };
        let counters = &self.member(q).counters;
        let hint = &mut self.hint;
        let mut failed = 0;
        let run = self.finished.take_while(&q.slots, |rq| {
            let (pool, body) = (rq.index().pool(), rq.body());
            if pool != member || body.nr_parts > 1 || body.flush != FlushStep::None {
                return false;
            }
            if body.ordered {
                counters.ordered(rq.priority().class, rq.op() != Op::Read);
            }
            let is_limited = rq.body().ordered && rq.op() != Op::Read;
            beside.add(q, rq, is_limited);
            let body = rq.body_mut();
            body.completed = now;
            if let Some(tag) = body.tag.take() {
                tags.add(q, hint, body.hctx, tag);
            }
            failed += u64::from(!body.status.is_ok());
            ending.add(rq);
            rq.rest_at(Place::Completed);
            true
        });
        if run.is_empty() {
            return false;
        }
        counters.completed(run.len() as u64);
        if failed > 0 && kept("complete.count_failed") {
            counters.count(Count::Errors, failed);
        }
        if member == self.member || !kept("complete.owner") {
            self.completed.append(run);
        } else {
            if !self.outbox.has_room_for(member) {
                beside.tell(q);
                self.outbox.send(q, ending, self.member);
            }
            self.outbox.add(member, run);
        }
        true
    }

    /// Does what the flush machine asks for.
    fn take_steps(&mut self, q: &RequestQueue, mut steps: Steps, ending: &mut Ending<'_>) {
        while let Some(mut rq) = steps.dispatch.pop_front(&q.slots) {
            if rq.body().flush == FlushStep::Flush {
                rq.body_mut().mark = mark_of_flush(q);
            }
            q.hctx(rq.body().hctx).park(rq);
            self.parked = true;
        }
        while let Some(rq) = steps.finished.pop_front(&q.slots) {
            self.deliver(q, rq, ending);
        }
    }

    /// Puts requests into the flush machine.
    pub(super) fn insert_flushes(&mut self, q: &RequestQueue, mut flushes: RqList, now: Time) {
        while let Some(rq) = flushes.pop_front(&q.slots) {
            self.insert_flush(q, rq, now);
        }
    }

    /// Puts a request into the flush machine.
    pub(super) fn insert_flush(&mut self, q: &RequestQueue, rq: Request<'_>, now: Time) {
        let steps = q.begin_flush(rq, now);
        let mut ending = Ending::new(q, self.member(q), now);
        self.take_steps(q, steps, &mut ending);
        debug_assert!(self.outbox.is_empty(), "nothing finishes on entering the flush machine");
    }

    /// Hands each operation of a request to its submitter: this thread's own operations to this thread, the others to
    /// the completion rings of their submitters.
    fn deliver(&mut self, q: &RequestQueue, rq: Request<'_>, ending: &mut Ending<'_>) {
        ending.add(&rq);
        debug_assert!(
            rq.body().tag.is_none() && rq.body().token.is_none(),
            "tag and token go back before the operations go to their submitters: {rq:?}"
        );
        let (failed, nr_parts) = (!rq.body().status.is_ok(), rq.body().nr_parts);
        let mut parts = 0;
        rq.into_parts(|part| {
            parts += 1;
            if part.index().pool() == self.member || !kept("complete.owner") {
                self.completed.push_back(part, Place::Completed);
            } else {
                let member = part.index().pool();
                if !self.outbox.has_room_for(member) {
                    self.outbox.send(q, ending, self.member);
                }
                let mut list = RqList::default();
                list.push_back(part, Place::Completed);
                self.outbox.add(member, list);
            }
        });
        debug_assert_eq!(parts, u64::from(nr_parts), "a request has the operations that it counted");
        let counters = &self.member(q).counters;
        counters.completed(parts);
        if failed && kept("complete.count_failed") {
            counters.count(Count::Errors, parts);
        }
    }
}
