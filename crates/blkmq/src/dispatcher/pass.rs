//! Passing the scheduler by: while nothing waits it would hand a request straight back.
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

/// What requests that pass together have in common, if the scheduler is told of them: they are told in one report.
type Alike = (Op, bool, IoPriority);

fn told_of(rq: &Request<'_>) -> Alike {
    (rq.op(), rq.body().is_sync(), rq.priority())
}

impl Dispatcher {
    /// Starts the requests at the front of a plug that may pass the scheduler by, as far as there are tags. Returns how
    /// many operations these requests are, which have been counted.
    ///
    /// COST: per run of one class and hardware queue, a load of the queue's word, which is not written while requests
    /// pass, a read-modify-write of a tag word and a fence; per request, its slot and this thread's own lines.
    #[inline]
    pub(super) fn bypass(&mut self, starting: &Starting<'_>, mapping: &Mapping, plug: &mut RqList) -> u64 {
        debug_assert!(!plug.is_empty(), "there are requests that may pass");
        if starting.q.settings.is_plain() {
            self.bypass_as::<false, false>(starting, mapping, plug)
        } else if starting.q.has_reports() {
            self.bypass_told(starting, mapping, plug)
        } else {
            self.bypass_specially(starting, mapping, plug)
        }
    }

    #[inline(never)]
    fn bypass_specially(&mut self, starting: &Starting<'_>, mapping: &Mapping, plug: &mut RqList) -> u64 {
        self.bypass_as::<true, false>(starting, mapping, plug)
    }

    #[inline(never)]
    fn bypass_told(&mut self, starting: &Starting<'_>, mapping: &Mapping, plug: &mut RqList) -> u64 {
        self.bypass_as::<false, true>(starting, mapping, plug)
    }

    /// `SPECIAL`: the queue may be split, and the requests may need tokens. `TOLD`: the scheduler wants reports.
    #[inline]
    fn bypass_as<const SPECIAL: bool, const TOLD: bool>(
        &mut self,
        starting: &Starting<'_>,
        mapping: &Mapping,
        plug: &mut RqList,
    ) -> u64 {
        let q = starting.q;
        let mut entered = 0;
        while let Some(gate) = q.live.word.load().gate() {
            let (mut index, mut kind, mut like) = (None, None, None);
            let mut run = plug.take_while(&q.slots, |rq| {
                let hctx = mapping.assign(rq);
                rq.body().flush == FlushStep::None
                    && (rq.priority().class.index() == usize::from(gate.class())
                        || SPECIAL && gate.class() == Gate::ANY)
                    && !(gate.reads_only() && rq.op() != Op::Read)
                    && (!TOLD || gate.is_for(rq.body().client().place()))
                    && *index.get_or_insert(hctx) == hctx
                    && (!SPECIAL || *kind.get_or_insert(SchedDomain::of(rq.op())) == SchedDomain::of(rq.op()))
                    && (!TOLD || *like.get_or_insert_with(|| told_of(rq)) == told_of(rq))
            });
            let Some(index) = index else { return entered };
            let wanted = run.len();
            let passed = self.pass::<SPECIAL, TOLD>(starting, gate, index, &mut run);
            entered += passed.1;
            if q.is_concurrent {
                self.issue_directly(q, starting.now);
                // What the driver gave back comes before what is chosen from here on.
                self.park_requeued(q);
            }
            if !plug.is_empty() || passed.0 < wanted {
                // What is ordered behind these requests must not reach the driver before them.
                self.append_ready(q);
            }
            if passed.0 < wanted {
                run.append(std::mem::take(plug));
                *plug = run;
                return entered;
            }
            if plug.is_empty() {
                return entered;
            }
        }
        entered
    }

    /// Starts as many requests of a run as there are tags, and leaves the others in the run. Starts none if the gate is
    /// shut before they are through. Returns how many requests were started, and how many operations these are.
    fn pass<const SPECIAL: bool, const TOLD: bool>(
        &mut self,
        starting: &Starting<'_>,
        gate: Gate,
        index: u16,
        run: &mut RqList,
    ) -> (usize, u64) {
        debug_assert!(!run.is_empty(), "a run has requests");
        let q = starting.q;
        let hctx = q.hctx(index);
        // In a split queue nothing is told to the scheduler, and so nothing is counted.
        let is_counted = !SPECIAL || gate.class() != Gate::ANY;
        self.make_ready_on(q, index);
        let (mut limited, mut operations, mut is_special) = (0, 0, false);
        let mut tokens = q.pools().filter(|_| SPECIAL).map(|pools| {
            let of = run.with_first(&q.slots, |rq| SchedDomain::of(rq.op())).expect("a run has requests");
            pools.take_some(of, self.member, run.len())
        });
        let member = self.member;
        let mut passage = if TOLD {
            run.with_first(&q.slots, |rq| Passage::new(q, member, rq, starting.now)).flatten()
        } else {
            None
        };
        let mut tags = hctx.tags.take(&mut self.hint, run.len());
        let mut tagged = run.take_while(&q.slots, |rq| {
            let token = match &mut tokens {
                None => None,
                Some(tokens) => match tokens.next() {
                    None => return false,
                    token => token,
                },
            };
            let Some(tag) = tags.next() else {
                tokens.iter_mut().for_each(TakenTokens::take_back);
                return false;
            };
            debug_assert!(
                rq.body().tag.is_none() && rq.body().token.is_none(),
                "a request gets one tag and one token: {rq:?}"
            );
            if SPECIAL {
                rq.body_mut().token = token;
            }
            is_special |= starting.mark(rq);
            let body = rq.body_mut();
            (body.tag, body.ordered) = (Some(tag), is_counted);
            operations += u64::from(body.nr_parts);
            limited += u64::from(rq.op() != Op::Read);
            if let Some(passage) = &mut passage {
                passage.add(rq);
            }
            rq.rest_at(Place::IssueList);
            true
        });
        drop(tags);
        if let Some(tokens) = tokens {
            self.end_tokens(q, tokens, !run.is_empty());
        }
        if tagged.is_empty() {
            return (0, 0);
        }
        let requests = tagged.len();
        let counters = &self.member(q).counters;
        if is_counted {
            let class = Class::ALL[usize::from(gate.class())];
            let passes = q.live.word.pass(gate, || {
                counters.bypassing(class, requests as u64, limited);
                if let Some(passage) = &mut passage {
                    passage.note(q);
                }
            });
            if !passage.map_or(passes, |passage| passage.end(passes)) {
                counters.turned_back(class, requests as u64, limited);
                self.turn_back(q, index, &mut tagged);
                tagged.append(std::mem::take(run));
                *run = tagged;
                return (0, 0);
            }
        }
        counters.count(Count::Passed, requests as u64);
        counters.entered(operations);
        if is_special {
            tagged = tagged.take_while(&q.slots, |rq| {
                starting.add(rq);
                true
            });
        }
        self.ready.append(tagged);
        stage(Stage::Start, requests);
        (requests, operations)
    }

    /// Puts back the tokens that were claimed and are not needed. If some were, or if tags may have been claimed for
    /// which there were no tokens, this thread owes what a completer owes: another thread may have lacked them.
    #[inline]
    fn end_tokens(&mut self, q: &RequestQueue, tokens: TakenTokens<'_>, is_short: bool) {
        if tokens.end() || is_short {
            q.live.brought();
            // What waits may wait in another domain, where this thread does not come otherwise.
            self.parked |= q.live.word.load().is_waiting();
        }
    }

    /// Called when the gate was shut meanwhile. The tags go back as a completer puts them back, and the requests are as
    /// they were.
    #[cold]
    fn turn_back(&mut self, q: &RequestQueue, index: u16, tagged: &mut RqList) {
        debug_assert!(!tagged.is_empty(), "requests are turned back that were about to pass");
        let hctx = q.hctx(index);
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
