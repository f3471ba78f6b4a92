//! Completing: tags and depth tokens go back, the flush machine takes its steps, and every operation is delivered to
//! its submitter.

use blkmq_sched::{Op, Time};

use crate::dispatcher::Dispatcher;
use crate::queue::{Count, EndBatch, FlowBatch, Queue, ReportBatch, Steps, ThreadState, TokenBatch, mark_of_flush};
use crate::request::{FlushStep, Location, Request, RqList};
use blkmq_sync::tags::{Hint, PutBatch, Tag};
use blkmq_sync::{Stage, stage, unless_mutated};

/// Tags to put back, of one hardware queue at a time, so that a batch costs one operation on each tag word.
struct TagBatch<'q> {
    hctx: u16,
    gathered: Option<PutBatch<'q>>,
}

impl<'q> TagBatch<'q> {
    const fn new() -> Self {
        Self { hctx: 0, gathered: None }
    }

    #[inline]
    fn add(&mut self, q: &'q Queue, hint: &mut Hint, hctx: u16, tag: Tag) {
        match &mut self.gathered {
            Some(gathered) if hctx == self.hctx => gathered.add(tag, hint),
            _ => self.turn_to(q, hctx).add(tag, hint),
        }
        if !unless_mutated("complete.tag_once") {
            q.hctxs.get(hctx).tags.put(tag, hint);
        }
    }

    /// Puts back the tags gathered so far, and begins with another hardware queue.
    #[inline(never)]
    fn turn_to(&mut self, q: &'q Queue, hctx: u16) -> &mut PutBatch<'q> {
        self.put();
        self.hctx = hctx;
        self.gathered.insert(q.hctxs.get(hctx).tags.gather())
    }

    #[inline]
    fn put(&mut self) {
        if let Some(gathered) = &mut self.gathered {
            gathered.put();
        }
    }
}

/// The feedback for completed requests, in a queue that is not plain or has a limiter.
struct Feedback<'q> {
    kind: FeedbackTarget<'q>,
    /// What the limiter learns of each request.
    flows: Option<FlowBatch<'q>>,
}

enum FeedbackTarget<'q> {
    Nothing,
    /// Depth tokens go back, and hardware queues count the requests that their scheduler limits: the number of those
    /// for which `is_limited` was true.
    Tokens(TokenBatch<'q>, u16, u32),
    /// The scheduler gets a report.
    Reports(ReportBatch<'q>),
}

impl<'q> Feedback<'q> {
    /// The feedback that this queue needs, if any.
    #[inline]
    fn of(q: &'q Queue, thread: &'q ThreadState, by: u16, now: Time) -> Option<Self> {
        let (is_plain, has_limiter) = (q.settings.is_plain(), q.settings.has_limiter());
        if is_plain && !has_limiter {
            return None;
        }
        let flows = has_limiter.then(|| FlowBatch::new(&thread.flows, now));
        let kind = if is_plain {
            FeedbackTarget::Nothing
        } else if q.settings.wants_reports() {
            FeedbackTarget::Reports(ReportBatch::new(q, by, now))
        } else {
            FeedbackTarget::Tokens(TokenBatch::new(q, &thread.latencies, now), 0, 0)
        };
        Some(Self { kind, flows })
    }

    /// A request has completed. `is_limited`: it is not a read, and the scheduler had dispatched it.
    #[inline(always)]
    fn add(&mut self, q: &Queue, rq: &mut Request<'_>, is_limited: bool) {
        if let Some(flows) = &mut self.flows {
            flows.add(rq);
        }
        match &mut self.kind {
            FeedbackTarget::Nothing => {}
            FeedbackTarget::Reports(reports) => reports.add(q, rq),
            FeedbackTarget::Tokens(tokens, hctx, limited) => {
                let body = rq.body_mut();
                if let Some(token) = body.token.take() {
                    tokens.add(token, body.submitted, body.issued);
                }
                if is_limited {
                    if *hctx != body.hctx {
                        note_limited(q, *hctx, limited);
                        *hctx = body.hctx;
                    }
                    *limited += 1;
                }
            }
        }
        debug_assert!(rq.body().token.is_none(), "the token of a request that is over goes back: {rq:?}");
    }

    /// Operations are about to be delivered to other submitters.
    #[inline]
    fn put_reports(&mut self, q: &Queue) {
        if let FeedbackTarget::Reports(reports) = &mut self.kind {
            reports.put(q);
        }
    }

    /// All requests of a batch were added.
    #[inline]
    fn put(&mut self, q: &Queue) {
        if let Some(flows) = &mut self.flows {
            flows.publish();
        }
        self.put_reports(q);
        if let FeedbackTarget::Tokens(tokens, hctx, limited) = &mut self.kind {
            note_limited(q, *hctx, limited);
            tokens.put(q);
        }
    }
}

fn note_limited(q: &Queue, hctx: u16, limited: &mut u32) {
    if *limited > 0 {
        q.hctxs.get(hctx).note_limited(std::mem::take(limited));
    }
}

impl Dispatcher {
    /// Completes what has finished. Afterwards [`must_dispatch`](Self::must_dispatch) says whether flush steps wait for
    /// dispatch. The caller then [wakes](Self::wake_delivered) the submitters to which operations were delivered.
    ///
    /// COST: per batch one operation on each tag word concerned, for each other submitter one on its completion ring,
    /// and one fence for what was freed; per operation the two lines of its slot and this thread's counters.
    pub(super) fn complete(&mut self, q: &Queue, now: Time) {
        debug_assert!(!self.finished.is_empty(), "something has finished");
        let requests = self.finished.len();
        self.complete_all(q, now);
        if q.settings.has_limiter() {
            q.limiter_look.look(q, self.thread, now);
        }
        // The caller checks WAITING.
        q.live.fence_before_notify();
        self.has_pending_event = true;
        stage(Stage::Complete, requests);
    }

    /// Wakes the threads of the submitters to which this thread has delivered operations.
    #[inline]
    pub(super) fn wake_delivered(&mut self, q: &Queue) {
        self.outbox.wake(q, self.thread);
    }

    #[inline]
    fn complete_all(&mut self, q: &Queue, now: Time) {
        let mut feedback = Feedback::of(q, self.thread(q), self.thread, now);
        let mut tags = TagBatch::new();
        let mut ending = EndBatch::new(q, self.thread(q), now);
        loop {
            while let Some(run) = match &mut feedback {
                None => self.complete_run(q, &mut tags, &mut ending, |_, _| {}),
                Some(feedback) => {
                    self.complete_run(q, &mut tags, &mut ending, |rq, limited| feedback.add(q, rq, limited))
                }
            } {
                self.deliver_run(q, run, &mut feedback, &mut ending);
            }
            let Some(mut rq) = self.finished.pop_front(&q.slots) else { break };
            let hctx = rq.body().hctx;
            rq.body_mut().completed = now;
            let is_limited = rq.op() != Op::Read;
            if rq.body().ordered {
                self.thread(q).counters.ordered(rq.priority().class, is_limited);
            }
            let is_ordered = rq.body().ordered;
            if let Some(feedback) = &mut feedback {
                feedback.add(q, &mut rq, is_ordered && is_limited);
                feedback.put_reports(q);
            }
            if let Some(tag) = rq.body_mut().tag.take() {
                tags.add(q, &mut self.hint, hctx, tag);
            }
            if rq.body().flush == FlushStep::None {
                self.deliver(q, rq, &mut ending);
            } else {
                if rq.body().flush == FlushStep::Flush {
                    ending.add_flush(&rq);
                }
                let steps = Steps::complete(q, rq, now);
                self.take_steps(q, steps, &mut ending);
            }
        }
        tags.put();
        if let Some(feedback) = &mut feedback {
            feedback.put(q);
        }
        self.outbox.send(q, &mut ending, self.thread);
    }

    /// Completes the requests at the front that are one operation each and belong to one submitter. `feed_back` is
    /// called for each; its second argument is true if the request is not a read and the scheduler had dispatched it.
    /// Returns the requests, if there are any, and their submitter.
    #[inline]
    fn complete_run<'q>(
        &mut self,
        q: &'q Queue,
        tags: &mut TagBatch<'q>,
        ending: &mut EndBatch<'_>,
        mut feed_back: impl FnMut(&mut Request<'_>, bool),
    ) -> Option<(u16, RqList)> {
        let thread = self.finished.with_first(&q.slots, |rq| rq.index().pool())?;
        let counters = &self.thread(q).counters;
        let (hint, mut failed) = (&mut self.hint, 0);
        let run = self.finished.take_while(&q.slots, |rq| {
            let (pool, body) = (rq.index().pool(), rq.body());
            if pool != thread || body.nr_parts > 1 || body.flush != FlushStep::None {
                return false;
            }
            let (is_ordered, is_limited) = (body.ordered, rq.op() != Op::Read);
            if is_ordered {
                counters.ordered(rq.priority().class, is_limited);
            }
            feed_back(rq, is_ordered && is_limited);
            let body = rq.body_mut();
            body.completed = ending.now;
            if let Some(tag) = body.tag.take() {
                tags.add(q, hint, body.hctx, tag);
            }
            failed += u64::from(!body.status.is_ok());
            ending.add(rq);
            rq.rest_at(Location::Completed);
            true
        });
        if failed > 0 && unless_mutated("complete.count_failed") {
            counters.count(Count::Errors, failed);
        }
        (!run.is_empty()).then_some((thread, run))
    }

    /// Delivers completed operations to their submitter.
    #[inline]
    fn deliver_run(
        &mut self,
        q: &Queue,
        (thread, run): (u16, RqList),
        feedback: &mut Option<Feedback<'_>>,
        ending: &mut EndBatch<'_>,
    ) {
        self.thread(q).counters.completed(run.len() as u64);
        if thread == self.thread || !unless_mutated("complete.owner") {
            return self.completed.append(run);
        }
        if !self.outbox.has_room_for(thread) {
            if let Some(feedback) = feedback {
                feedback.put_reports(q);
            }
            self.outbox.send(q, ending, self.thread);
        }
        self.outbox.add(thread, run);
    }

    /// Carries out the steps of the flush machine.
    fn take_steps(&mut self, q: &Queue, mut steps: Steps, ending: &mut EndBatch<'_>) {
        while let Some(mut rq) = steps.dispatch.pop_front(&q.slots) {
            if rq.body().flush == FlushStep::Flush {
                rq.body_mut().mark = mark_of_flush(q);
            }
            q.hctxs.get(rq.body().hctx).add_to_dispatch_list(rq);
            self.must_dispatch = true;
        }
        while let Some(rq) = steps.finished.pop_front(&q.slots) {
            self.deliver(q, rq, ending);
        }
    }

    /// Puts requests into the flush machine.
    pub(super) fn insert_flushes(&mut self, q: &Queue, mut flushes: RqList, now: Time) {
        while let Some(rq) = flushes.pop_front(&q.slots) {
            self.insert_flush(q, rq, now);
        }
    }

    /// Puts a request into the flush machine.
    pub(super) fn insert_flush(&mut self, q: &Queue, rq: Request<'_>, now: Time) {
        let steps = Steps::begin(q, rq, now);
        let mut ending = EndBatch::new(q, self.thread(q), now);
        self.take_steps(q, steps, &mut ending);
        debug_assert!(self.outbox.is_empty(), "nothing finishes on entering the flush machine");
    }

    /// Delivers each operation of a request to its submitter: this thread's own operations to this thread, the others
    /// to the completion rings of their submitters.
    fn deliver(&mut self, q: &Queue, rq: Request<'_>, ending: &mut EndBatch<'_>) {
        ending.add(&rq);
        debug_assert!(
            rq.body().tag.is_none() && rq.body().token.is_none(),
            "tag and token go back before the operations go to their submitters: {rq:?}"
        );
        let (failed, nr_parts) = (!rq.body().status.is_ok(), rq.body().nr_parts);
        let mut parts = 0;
        rq.into_parts(|part| {
            parts += 1;
            if part.index().pool() == self.thread || !unless_mutated("complete.owner") {
                self.completed.push_back(part, Location::Completed);
            } else {
                let thread = part.index().pool();
                if !self.outbox.has_room_for(thread) {
                    self.outbox.send(q, ending, self.thread);
                }
                let mut list = RqList::default();
                list.push_back(part, Location::Completed);
                self.outbox.add(thread, list);
            }
        });
        debug_assert_eq!(parts, u64::from(nr_parts), "a request has the operations that it counted");
        let counters = &self.thread(q).counters;
        counters.completed(parts);
        if failed && unless_mutated("complete.count_failed") {
            counters.count(Count::Errors, parts);
        }
    }
}
