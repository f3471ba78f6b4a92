//! Passing: requests go to the driver without a scheduler, because there is none, or because nothing waits and it would
//! hand them straight back.
//!
//! The scheduler says under its lock whether it would do so, and for which one class. The queue's word then shows this
//! class as its gate. A thread that passes counts its requests on a line of its own, and a thread that shuts the gate
//! reads those counts: [`word`](blkmq_sync::word) shows the interleaving. So a thread that inserts a request of another
//! class knows of everything that has passed, and strict classes stay strict.
//!
//! A request never passes what lacks something or is held back: that has set WAITING in the word. It may pass what
//! another thread, or this one, inserted or left a moment ago, for which a thread is about to look for a tag. While
//! there are tags for both it does not matter which comes first, and if there are not, WAITING is set, and nothing
//! passes until nothing waits. So while the device takes what comes, a thread that is at the scheduler, or lost its
//! processor there, keeps no other thread from passing. A request that passes may reach the driver before one that was
//! chosen earlier and is still in a list of the thread that chose it.

use blkmq_sched::{Class, IoPriority, Op, SchedDomain};

use crate::dispatcher::Dispatcher;
use crate::queue::{Count, Mapping, Passage, RequestQueue, Starting, TakenTokens};
use crate::request::{FlushStep, Mark, Place, Request, RqList};
use blkmq_sync::word::Gate;
use blkmq_sync::{Stage, stage};

/// Which requests may pass now. Without a scheduler all may while nothing waits.
#[inline]
fn gate(q: &RequestQueue) -> Option<Gate> {
    let seen = q.live.word.load();
    if q.settings.has_scheduler() { seen.gate() } else { seen.is_open().then_some(Gate::ALL) }
}

/// What requests that pass together need beside tags, in a queue that is not plain.
enum Extra<'q> {
    /// Tokens of one kind, if the scheduler takes tokens.
    Tokens(SchedDomain, Option<TakenTokens<'q>>),
    /// One report to the scheduler.
    Report((Op, bool, IoPriority), Gate, Passage<'q>),
}

fn alike(rq: &Request<'_>) -> (Op, bool, IoPriority) {
    (rq.op(), rq.body().is_sync(), rq.priority())
}

impl<'q> Extra<'q> {
    /// For `most` requests like this one.
    #[inline]
    fn new(starting: &Starting<'q>, member: u16, gate: Gate, first: &Request<'_>, most: usize) -> Self {
        if let Some(passage) = Passage::new(starting.q, member, first, starting.now) {
            return Self::Report(alike(first), gate, passage);
        }
        let of = SchedDomain::of(first.op());
        Self::Tokens(of, starting.q.pools().map(|pools| pools.take_some(of, member, most)))
    }

    /// Whether the request may go with the others.
    #[inline]
    fn is_for(&self, rq: &Request<'_>) -> bool {
        match self {
            Self::Tokens(of, _) => SchedDomain::of(rq.op()) == *of,
            Self::Report(like, gate, _) => gate.is_for(rq.body().client().place()) && alike(rq) == *like,
        }
    }

    /// Adds a request that has its tag. Returns false if it needs a token, and there is none.
    #[inline]
    fn add(&mut self, rq: &mut Request<'_>) -> bool {
        debug_assert!(rq.body().token.is_none(), "a request gets one token: {rq:?}");
        match self {
            Self::Tokens(_, None) => true,
            Self::Tokens(_, Some(tokens)) => {
                rq.body_mut().token = tokens.next();
                rq.body().token.is_some()
            }
            Self::Report(_, _, passage) => {
                passage.add(rq);
                true
            }
        }
    }

    /// No further requests come. Returns whether tokens went back that were not needed, and the report.
    #[inline]
    fn end(self) -> (bool, Option<Passage<'q>>) {
        match self {
            Self::Tokens(_, tokens) => (tokens.is_some_and(TakenTokens::end), None),
            Self::Report(_, _, passage) => (false, Some(passage)),
        }
    }
}

impl Dispatcher {
    /// Starts the requests at the front of a plug that may pass, as far as there are tags. Returns how many operations
    /// these requests are, which have been counted: each before it is given to the driver, so that a driver that panics
    /// leaves no request that is over but never entered.
    ///
    /// COST: per run of one class and hardware queue, a load of the queue's word, which is not written while requests
    /// pass, a read-modify-write of a tag word and, with a scheduler, a fence; per request, its slot and this thread's
    /// own lines.
    #[inline(always)]
    pub(super) fn pass(&mut self, starting: &Starting<'_>, mapping: &Mapping, plug: &mut RqList) -> u64 {
        debug_assert!(!plug.is_empty(), "there are requests that may pass");
        let q = starting.q;
        let mut entered = 0;
        while let Some(gate) = gate(q) {
            let Some((operations, goes_on)) = self.pass_run(starting, mapping, gate, plug) else { break };
            entered += operations;
            if q.is_concurrent {
                self.issue_directly(q, starting.now);
                // What the driver gave back comes before what is chosen from here on.
                self.park_requeued(q);
            }
            if plug.is_empty() {
                break;
            }
            // What is ordered behind these requests must not reach the driver before them.
            self.append_ready(q);
            if !goes_on {
                break;
            }
        }
        entered
    }

    /// Starts the requests at the front of a plug that may pass and go to one hardware queue, as far as there are tags.
    /// Returns how many operations they are, and whether those behind them may pass too. Returns nothing if the first
    /// request may not pass. Starts none if the gate is shut before they are through.
    #[inline]
    fn pass_run(
        &mut self,
        starting: &Starting<'_>,
        mapping: &Mapping,
        gate: Gate,
        plug: &mut RqList,
    ) -> Option<(u64, bool)> {
        let q = starting.q;
        let (class, reads_only) = (gate.class(), gate.reads_only());
        // Where all may pass, the scheduler is told nothing, and so nothing is counted for it.
        let is_counted = class != Gate::ANY;
        let may_pass = |rq: &Request<'_>| {
            rq.body().flush == FlushStep::None
                && (!is_counted || rq.priority().class.index() == usize::from(class))
                && !(reads_only && rq.op() != Op::Read)
        };
        let (is_plain, member, wanted) = (q.settings.is_plain(), self.member, plug.len());
        let first = plug.with_first(&q.slots, |rq| {
            let extra = || (!is_plain).then(|| Extra::new(starting, member, gate, rq, wanted));
            may_pass(rq).then(|| (mapping.hctx_of(rq), extra()))
        });
        let (index, mut extra) = first.flatten()?;
        let hctx = q.hctxs.get(index);
        self.make_ready_on(q, index);
        let (mut limited, mut operations, mut is_special) = (0, 0, false);
        let (mut is_short, mut lacks_token) = (false, false);
        let mut tags = hctx.tags.take(&mut self.hint, wanted);
        let mut tagged = plug.take_while(&q.slots, |rq| {
            if mapping.assign(rq) != index || !may_pass(rq) || extra.as_ref().is_some_and(|extra| !extra.is_for(rq)) {
                return false;
            }
            let Some(tag) = tags.next() else {
                is_short = true;
                return false;
            };
            if let Some(extra) = &mut extra
                && !extra.add(rq)
            {
                tags.take_back(tag);
                (is_short, lacks_token) = (true, true);
                return false;
            }
            is_special |= starting.mark(rq);
            let body = rq.body_mut();
            debug_assert!(body.tag.is_none(), "a request gets one tag");
            (body.tag, body.ordered) = (Some(tag), is_counted);
            operations += u64::from(body.nr_parts);
            limited += u64::from(rq.op() != Op::Read);
            rq.rest_at(Place::IssueList);
            true
        });
        drop(tags);
        let (is_left, mut passage) = extra.map_or((false, None), Extra::end);
        // Where the run ends before the plug does, more tags may have been claimed than were given out.
        if is_left || lacks_token || !is_short && tagged.len() < wanted {
            self.note_taken_in_vain(q);
        }
        if tagged.is_empty() {
            return Some((0, false));
        }
        let requests = tagged.len();
        let counters = &self.member(q).counters;
        if is_counted {
            let class = Class::ALL[usize::from(class)];
            let passes = q.live.word.pass(gate, || {
                counters.bypassing(class, requests as u64, limited);
                if let Some(passage) = &mut passage {
                    passage.note(q);
                }
            });
            if !passage.map_or(passes, |passage| passage.end(passes)) {
                counters.turned_back(class, requests as u64, limited);
                self.turn_back(q, index, &mut tagged);
                tagged.append(std::mem::take(plug));
                *plug = tagged;
                return Some((0, false));
            }
        }
        if q.settings.has_scheduler() {
            counters.count(Count::Passed, requests as u64);
        } else {
            counters.count(Count::DispatchBatches, 1);
        }
        counters.entered(operations);
        if is_special {
            tagged = tagged.take_while(&q.slots, |rq| {
                starting.add(rq);
                true
            });
        }
        self.ready.append(tagged);
        stage(Stage::Start, requests);
        Some((operations, !is_short))
    }

    /// Tags or tokens may have been claimed, and are back unused. This thread owes what a completer owes: another
    /// thread may have lacked them.
    #[inline(never)]
    fn note_taken_in_vain(&mut self, q: &RequestQueue) {
        q.live.brought();
        self.has_news = true;
        // What waits may wait in another domain, where this thread does not come otherwise.
        self.parked |= q.live.word.load().is_waiting();
    }

    /// Called when the gate was shut meanwhile. The tags go back as a completer puts them back, and the requests are as
    /// they were.
    #[cold]
    fn turn_back(&mut self, q: &RequestQueue, index: u16, tagged: &mut RqList) {
        debug_assert!(!tagged.is_empty(), "requests are turned back that were about to pass");
        let hctx = q.hctxs.get(index);
        for _ in 0..tagged.len() {
            let Some(mut rq) = tagged.pop_front(&q.slots) else { break };
            let body = rq.body_mut();
            (body.ordered, body.mark) = (false, Mark::default());
            if let (Some(pools), Some(token)) = (q.pools(), body.token.take()) {
                pools.put(token);
            }
            if let Some(tag) = body.tag.take() {
                hctx.tags.put(tag, &mut self.hint);
            }
            tagged.push_back(rq, Place::Plugged);
        }
        // Another thread may have lacked one of these tags. Or the scheduler may have held a request back because these
        // requests were counted as passed. This thread fences, and looks at the scheduler next, when it inserts these
        // requests. That look finds the other thread's request.
        q.live.brought();
    }
}
