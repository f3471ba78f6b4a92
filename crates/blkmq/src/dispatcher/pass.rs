//! The bypass: requests go to the driver without entering the scheduler, because there is none, or because nothing
//! waits and it would dispatch them at once.
//!
//! The scheduler decides under its lock whether requests may bypass it, and of which class: one, or any with kyber. The
//! queue's word then publishes this as its gate. What follows is for a gate of one class. A thread counts the requests
//! that bypass on a cache line of its own, and a thread that shuts the gate reads those counts:
//! [`word`](blkmq_sync::word) shows the interleaving. So a thread that inserts a request of another class knows of
//! every request that bypassed, and strict classes stay strict.
//!
//! A request never overtakes one that waits for a tag, or that the scheduler holds back: such a request has set WAITING
//! in the word. It may overtake one that was inserted or published a moment ago, and for which a thread is about to
//! take a tag. While there are tags for both, their order does not matter. If there are not, WAITING is set, and
//! nothing bypasses until nothing waits. So a thread that is preempted in the scheduler keeps no other thread from
//! bypassing it while the device has tags. A request that bypasses may reach the driver before one that was dispatched
//! earlier and is still on a list of the thread that dispatched it.

use blkmq_sched::{Class, Op, SchedDomain};

use crate::dispatcher::Dispatcher;
use crate::queue::{BypassReport, Count, Mapping, Queue, StartBatch, TakenTokens};
use crate::request::{FlushStep, Location, Request, RqList, StatClass};
use blkmq_sync::word::Gate;
use blkmq_sync::{Stage, stage};

/// The requests that may bypass now. Without a scheduler all may, while nothing waits.
#[inline]
fn gate(q: &Queue) -> Option<Gate> {
    let seen = q.live.word.load();
    if q.settings.has_scheduler() { seen.gate() } else { seen.is_open().then_some(Gate::ALL) }
}

/// Requests at the front of a plug that may bypass and go to one hardware queue.
struct BypassRun {
    gate: Gate,
    hctx: u16,
    list: RqList,
}

impl BypassRun {
    /// Takes the run out of a plug. `belongs` further restricts which requests go together. Returns `None` if the first
    /// request may not bypass.
    #[inline(always)]
    fn take(
        q: &Queue,
        mapping: &Mapping,
        gate: Gate,
        plug: &mut RqList,
        belongs: impl Fn(&Request<'_>) -> bool,
    ) -> Option<Self> {
        let (class, reads_only, mut hctx) = (gate.class(), gate.reads_only(), None);
        let list = plug.take_while(&q.slots, |rq| {
            let assigned = mapping.assign(rq);
            rq.body().flush == FlushStep::None
                && (class == Gate::ANY || rq.priority().class.index() == usize::from(class))
                && !(reads_only && rq.op() != Op::Read)
                && belongs(rq)
                && *hctx.get_or_insert(assigned) == assigned
        });
        hctx.map(|hctx| Self { gate, hctx, list })
    }
}

/// What requests that bypass together need, besides tags.
trait Needs {
    /// Adds a request. Returns false if its need cannot be met.
    fn meet(&mut self, rq: &mut Request<'_>) -> bool;

    /// Called before the deciding check of the gate.
    fn note(&mut self, _q: &Queue) {}

    /// Called after that check. `passes`: the gate was still open. Returns whether the requests bypass.
    fn end(&mut self, passes: bool) -> bool {
        passes
    }
}

/// No needs: a plain queue.
struct NoNeeds;

impl Needs for NoNeeds {
    #[inline(always)]
    fn meet(&mut self, _rq: &mut Request<'_>) -> bool {
        true
    }
}

/// A depth token each, if the scheduler takes depth tokens.
impl Needs for Option<TakenTokens<'_>> {
    #[inline]
    fn meet(&mut self, rq: &mut Request<'_>) -> bool {
        debug_assert!(rq.body().token.is_none(), "a request gets one token: {rq:?}");
        let Some(tokens) = self else { return true };
        rq.body_mut().token = tokens.next();
        rq.body().token.is_some()
    }
}

/// One report to the scheduler.
impl Needs for Option<BypassReport<'_>> {
    fn meet(&mut self, rq: &mut Request<'_>) -> bool {
        self.iter_mut().for_each(|bypass_report| bypass_report.add(rq));
        true
    }

    fn note(&mut self, q: &Queue) {
        self.iter_mut().for_each(|bypass_report| bypass_report.note(q));
    }

    fn end(&mut self, passes: bool) -> bool {
        self.take().map_or(passes, |bypass_report| bypass_report.end(passes))
    }
}

impl Dispatcher {
    /// Starts the requests at the front of a plug that may bypass, as far as there are tags. Returns their number of
    /// operations. Each is counted before the driver gets it, so that a driver that panics leaves no request that
    /// completed but never entered.
    ///
    /// COST: per run of one class and hardware queue, a load of the queue's word, which is not written while requests
    /// pass, a read-modify-write of a tag word and, with a gate of one class, a fence; per request, its slot and this
    /// thread's own lines.
    #[inline(always)]
    pub(super) fn pass(&mut self, starting: &StartBatch<'_>, mapping: &Mapping, plug: &mut RqList) -> u64 {
        debug_assert!(!plug.is_empty(), "there are requests that may pass");
        let q = starting.q;
        let mut entered = 0;
        while let Some(gate) = gate(q) {
            let Some((operations, goes_on)) = self.pass_run(starting, mapping, gate, plug) else { break };
            entered += operations;
            if q.is_concurrent {
                self.issue_directly(q, starting.now);
                // Requests that the driver gave back come before those dispatched from here on.
                self.requeue_returned(q);
            }
            if plug.is_empty() {
                break;
            }
            // Requests that are ordered behind these must not reach the driver before them.
            self.append_ready(q);
            if !goes_on {
                break;
            }
        }
        entered
    }

    /// Starts the requests at the front of a plug that may bypass and go to one hardware queue, as far as there are
    /// tags. Returns their number of operations, and whether the requests behind them may bypass too. Returns `None` if
    /// the first request may not bypass.
    #[inline(always)]
    fn pass_run(
        &mut self,
        starting: &StartBatch<'_>,
        mapping: &Mapping,
        gate: Gate,
        plug: &mut RqList,
    ) -> Option<(u64, bool)> {
        let q = starting.q;
        if q.settings.is_plain() {
            let run = BypassRun::take(q, mapping, gate, plug, |_| true)?;
            Some(self.start(starting, run, plug, &mut NoNeeds))
        } else if q.settings.wants_reports() {
            self.pass_reported(starting, mapping, gate, plug)
        } else {
            self.pass_with_tokens(starting, mapping, gate, plug)
        }
    }

    /// Starts a run of requests that go together into one report.
    #[inline(never)]
    fn pass_reported(
        &mut self,
        starting: &StartBatch<'_>,
        mapping: &Mapping,
        gate: Gate,
        plug: &mut RqList,
    ) -> Option<(u64, bool)> {
        let q = starting.q;
        let alike = |rq: &Request<'_>| (rq.op(), rq.body().is_sync(), rq.priority());
        let like = plug.with_first(&q.slots, alike)?;
        let run =
            BypassRun::take(q, mapping, gate, plug, |rq| gate.is_for(rq.body().client().place()) && alike(rq) == like)?;
        let bypass_report = run.list.with_first(&q.slots, |rq| BypassReport::new(q, self.thread, rq, starting.now));
        Some(self.start(starting, run, plug, &mut bypass_report.flatten()))
    }

    /// Starts a run of requests of one kind, each with a token if the scheduler takes tokens.
    #[inline(never)]
    fn pass_with_tokens(
        &mut self,
        starting: &StartBatch<'_>,
        mapping: &Mapping,
        gate: Gate,
        plug: &mut RqList,
    ) -> Option<(u64, bool)> {
        let q = starting.q;
        let of = plug.with_first(&q.slots, |rq| SchedDomain::of(rq.op()))?;
        let run = BypassRun::take(q, mapping, gate, plug, |rq| SchedDomain::of(rq.op()) == of)?;
        let mut tokens = q.pools().map(|pools| pools.take_some(of, self.thread, run.list.len()));
        let (operations, goes_on) = self.start(starting, run, plug, &mut tokens);
        // If a tag or a depth token is missing, others may have been claimed that no request got.
        if tokens.is_some_and(TakenTokens::end) || !goes_on {
            self.note_empty_claim(q);
        }
        Some((operations, goes_on))
    }

    /// Starts the requests of a run, as far as there are tags and their other needs are met. The others go back to the
    /// front of the plug. Starts none if the gate is shut meanwhile. Returns how many operations were started, and
    /// whether all were.
    #[inline(always)]
    fn start(
        &mut self,
        starting: &StartBatch<'_>,
        run: BypassRun,
        plug: &mut RqList,
        needs: &mut impl Needs,
    ) -> (u64, bool) {
        let (q, BypassRun { gate, hctx, mut list }) = (starting.q, run);
        debug_assert!(!list.is_empty(), "a run has requests");
        // Where all requests may bypass, the scheduler gets no feedback, so nothing is counted for it.
        let is_counted = gate.class() != Gate::ANY;
        self.make_ready_on(q, hctx);
        let (mut limited, mut operations, mut is_special) = (0, 0, false);
        let mut tags = q.hctxs.get(hctx).tags.take(&mut self.hint, list.len());
        let mut tagged = list.take_while(&q.slots, |rq| {
            let Some(tag) = tags.next() else { return false };
            if !needs.meet(rq) {
                tags.take_back(tag);
                return false;
            }
            is_special |= starting.mark(rq);
            let body = rq.body_mut();
            debug_assert!(body.tag.is_none(), "a request gets one tag");
            (body.tag, body.ordered) = (Some(tag), is_counted);
            operations += u64::from(body.nr_parts);
            limited += u64::from(rq.op() != Op::Read);
            rq.rest_at(Location::IssueList);
            true
        });
        drop(tags);
        let is_short = !list.is_empty();
        if is_short {
            plug.prepend(list);
        }
        if tagged.is_empty() {
            return (0, false);
        }
        let requests = tagged.len();
        let counters = &self.thread(q).counters;
        if is_counted {
            let class = Class::ALL[usize::from(gate.class())];
            let passes = q.live.word.pass(gate, || {
                counters.bypassing(class, requests as u64, limited);
                needs.note(q);
            });
            if !needs.end(passes) {
                counters.turned_back(class, requests as u64, limited);
                self.turn_back(q, hctx, &mut tagged);
                plug.prepend(tagged);
                return (0, false);
            }
        }
        if q.settings.has_scheduler() {
            counters.count(Count::Passed, requests as u64);
        } else {
            counters.count(Count::DispatchBatches, 1);
        }
        counters.entered(operations);
        if is_special {
            tagged.each(&q.slots, |rq| starting.add(rq));
        }
        self.ready.append(tagged);
        stage(Stage::Start, requests);
        (operations, !is_short)
    }

    /// Tags or depth tokens may have been claimed and put back unused. Fences and checks WAITING, as a completer does,
    /// because another thread may have needed them.
    #[inline(never)]
    fn note_empty_claim(&mut self, q: &Queue) {
        q.live.fence_before_notify();
        self.has_pending_event = true;
        // The waiting request may be in another domain, which this thread would not visit otherwise.
        self.must_dispatch |= q.live.word.load().is_waiting();
    }

    /// Called when the gate was shut meanwhile. Puts the tags back as a completer does, and restores the requests.
    #[cold]
    fn turn_back(&mut self, q: &Queue, index: u16, tagged: &mut RqList) {
        debug_assert!(!tagged.is_empty(), "requests are turned back that were about to pass");
        let hctx = q.hctxs.get(index);
        for _ in 0..tagged.len() {
            let Some(mut rq) = tagged.pop_front(&q.slots) else { break };
            let body = rq.body_mut();
            (body.ordered, body.mark) = (false, StatClass::default());
            if let (Some(pools), Some(token)) = (q.pools(), body.token.take()) {
                pools.put(token);
            }
            if let Some(tag) = body.tag.take() {
                hctx.tags.put(tag, &mut self.hint);
            }
            tagged.push_back(rq, Location::Plugged);
        }
        // Another thread may have needed one of these tags. Or the scheduler may have held a request back because these
        // requests were counted as in flight. This thread fences, and enters the scheduler next, to insert these
        // requests. There it finds the other thread's request.
        q.live.fence_before_notify();
    }
}
