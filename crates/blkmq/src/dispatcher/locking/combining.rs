//! The locking `combining`: one thread at a time, the combiner, inserts and merges for all threads and dispatches a
//! batch. Every other thread leaves its requests with the combiner and goes on.
//!
//! # Liveness
//! A thread that finds another thread at the scheduler changes the staging word: it leaves its requests there, or a
//! kick. Unless the combiner gives up, it lets go only by an exchange from the word in which nothing was left. If
//! something was left, the exchange fails, and the combiner looks again, behind a fence, at everything: what was left,
//! tags that came back, what the scheduler held back, dispatch lists. The steps of both threads are shown at
//! [`Staging::hold_or_kick`](blkmq_sync::staging::Staging::hold_or_kick).
//!
//! So a publisher may return at once, even if it published just before the combiner releases the word, and whether or
//! not anything is in flight. A combiner that is preempted delays what was left, and loses nothing.
//!
//! A thread that has no pending event, and only polls, does not touch the word: the last combiner has found all that
//! this thread would find. News is whatever may let a request go: a completion, a request on a dispatch list, a time
//! that has come, the end of a quiescence, and what another thread left.
//!
//! A combiner that has done its share while something is left gives up. So does a combiner that has handed requests
//! through the scheduler and has to leave others, so that the next combiner can hand these through. A combiner that
//! gives up sets WAITING and lets go. What was left stays in the word, and what the combiner has taken over stays in
//! the backlog. Then the combiner [defers](blkmq_sync::liveness::Liveness::defer), so that a thread that polls or
//! sleeps goes on (`Dispatcher::run`). Such a thread needs both: WAITING, and the count of `defer` as its pending
//! event. A combiner that may not dispatch, because the queue was quiesced when it came in, works off what was left and
//! lets go as usual. Its caller defers (`Dispatcher::take_plug`).
//!
//! A request that stays behind without a tag, or held back by the scheduler, is found by the completer that changes
//! that: see [`liveness`](blkmq_sync::liveness). Under this locking only the combiner clears WAITING; the combiner sets
//! it, and so do threads that park something. So a combiner that finds WAITING set behind a fence need not set it
//! again.
//!
//! The scheduler changes only while the queue is frozen, drained, and quiesced. At that time no thread is at the
//! scheduler, and nothing is left.

use blkmq_sched::Time;

use super::stage_all;
use crate::dispatcher::insert::Plug;
use crate::dispatcher::outcome::{Dispatched, Inserted};
use crate::dispatcher::section::Section;
use crate::dispatcher::{DISPATCH_BUDGET, Dispatcher};
use crate::queue::{Count, Domain, Queue, StartBatch};
use blkmq_sync::atomic::Ordering;
use blkmq_sync::stack::Chain;
use blkmq_sync::staging::Round;
use blkmq_sync::unless_mutated;

/// Gets a plug's requests into the scheduler: this thread inserts them, in one hold with dispatch, or leaves them to
/// the thread that is at the scheduler.
///
/// COST: without contention two compare-exchanges of the staging word and a lock and unlock of the hold, dispatch
/// included; with contention one exchange of the staging word, behind up to 128 loads of the word if nothing was left
/// there yet. Either cost comes once a plug.
pub(super) fn insert<'q>(dispatcher: &mut Dispatcher, domain: &Domain, plug: &mut Plug<'q>) -> Inserted {
    let &StartBatch { q, thread, now, .. } = plug.starting;
    if q.settings.stages_all() {
        return stage_all::insert(dispatcher, domain, plug);
    }
    let (staging, may_dispatch) = (&domain.staging, plug.may_dispatch);
    let own = plug.requests.len();
    let may_dispatch_fast = may_dispatch && q.settings.is_plain();
    let is_noted = may_dispatch_fast && dispatcher.note_fast_batch(domain, plug);
    // The plug's requests once they have begun, so that they can be left, and how many operations they are.
    let mut begun = None;
    let mut has_looked = false;
    loop {
        if let Some(published) = staging.try_hold() {
            let mut entered = 0;
            let enter = |section: &mut Section<'q, '_>| {
                let mut fast = 0;
                if let Some((operations, list)) = begun.take() {
                    entered = operations;
                    section.hold.backlog.add(list);
                } else if section.hold.backlog.is_untried() {
                    // What was left came first.
                    let list;
                    (entered, list) = section.dispatcher.begin(domain, plug);
                    section.hold.backlog.add(list);
                } else {
                    if is_noted {
                        (entered, fast) = section.dispatch_own_fast(plug);
                    }
                    if fast == 0 {
                        entered = insert_own(section, plug);
                    }
                }
                fast
            };
            let bound = DISPATCH_BUDGET.max(own) + own;
            let dispatched = serve(dispatcher, q, domain, published, now, bound, may_dispatch, enter);
            return Inserted { entered, dispatched: Some(dispatched) };
        }
        if !std::mem::replace(&mut has_looked, true) && staging.is_let_go_soon() {
            continue;
        }
        let (entered, list) = begun.take().unwrap_or_else(|| dispatcher.begin(domain, plug));
        let requests = list.len() as u64;
        match list.leave(&q.slots, staging) {
            Ok(()) => {
                thread.counters.count(Count::TrylockFailed, 1);
                thread.counters.count(Count::Staged, requests);
                return Inserted { entered, dispatched: Some(Dispatched::all(0)) };
            }
            Err(list) => begun = Some((entered, list)),
        }
    }
}

/// Inserts the combiner's own plug into the scheduler.
///
/// COST: not inlined, since most plugs of this locking go another way.
#[inline(never)]
fn insert_own<'q>(section: &mut Section<'q, '_>, plug: &mut Plug<'q>) -> u64 {
    section.insert_plug(plug)
}

/// Works off what other threads left and dispatches, or makes sure that the thread at the scheduler does.
///
/// COST: as of [`insert`].
pub(super) fn dispatch(dispatcher: &mut Dispatcher, q: &Queue, now: Time, bound: usize) -> Dispatched {
    if std::mem::take(&mut dispatcher.must_dispatch) {
        // So that the combiner looks at the dispatch lists.
        q.live.word.set_waiting();
        dispatcher.has_pending_event = true;
    }
    // A thread that has no pending event would find what the last combiner found. But a request that the driver gave
    // back is tried at each poll.
    let gave_back = || q.hctxs.iter().any(|(_, hctx)| hctx.gave_back.load(Ordering::Relaxed));
    if !std::mem::take(&mut dispatcher.has_pending_event) && !gave_back() {
        return Dispatched::all(0);
    }
    let (mut due, mut dispatched) = (q.due_domains(dispatcher.thread), Dispatched::all(0));
    while let Some(domain) = due.next() {
        let next = dispatch_from(dispatcher, q, domain, now, bound - dispatched.chosen());
        if next.chosen() > 0 {
            due.note_given();
        }
        dispatched = dispatched.and(next);
        if dispatched.chosen() >= bound {
            break;
        }
    }
    dispatched
}

/// Works off what was left in a domain and dispatches, or makes sure that the thread at the scheduler does.
#[inline]
fn dispatch_from(dispatcher: &mut Dispatcher, q: &Queue, domain: &Domain, now: Time, bound: usize) -> Dispatched {
    let staging = &domain.staging;
    let held = if unless_mutated("combine.kick") { staging.hold_or_kick() } else { staging.try_hold() };
    match held {
        Some(published) => serve(dispatcher, q, domain, published, now, bound, true, |_| 0),
        None => {
            dispatcher.thread(q).counters.count(Count::TrylockFailed, 1);
            Dispatched::all(0)
        }
    }
}

/// What the combiner does until it can let go. `bound` is the combiner's share, and limits two numbers: how many
/// requests the combiner chooses, and how many requests that were left it works on. `share` is the remaining budget of
/// published requests; each further round costs one too. What `enter` inserts directly takes nothing from it. `enter`
/// inserts the combiner's own requests, and returns how many of them went through at once.
#[expect(clippy::too_many_arguments, reason = "what a combiner works with; two callers")]
fn serve<'q>(
    dispatcher: &mut Dispatcher,
    q: &'q Queue,
    domain: &Domain,
    published: Chain,
    now: Time,
    bound: usize,
    may_dispatch: bool,
    enter: impl FnOnce(&mut Section<'q, '_>) -> usize,
) -> Dispatched {
    debug_assert!(bound > 0, "the combiner has a share");
    let thread = dispatcher.thread(q);
    // The dispatch lists of other hardware queues are another domain's business, and this thread owes a look at them
    // afterwards.
    let owes = !domain.is_whole() && std::mem::take(&mut dispatcher.must_dispatch);
    let (mut enter, mut now) = (Some(enter), now);
    let (mut chosen, mut share) = (0, bound);
    // Whether anything has gone through the scheduler under this hold without being inserted.
    let mut has_dispatched_fast = false;
    let round = |published| {
        if enter.is_none() {
            // Each round costs a part of the share, so that the rounds end even if other threads go on kicking. The
            // clock is read again, because a thread may have kicked when a time had come.
            share -= 1;
            now = q.clock().now();
        }
        let has_more = domain.enter(q, thread, dispatcher, now, |section| {
            section.take_over(published);
            section.hear();
            // What came before has the room first.
            section.retry_without_room();
            if let Some(enter) = enter.take() {
                chosen += enter(section);
                has_dispatched_fast = chosen > 0;
            }
            let mut fast = 0;
            if may_dispatch {
                fast = section.dispatch_published_fast(share.min(bound - chosen));
                (share, chosen) = (share - fast, chosen + fast);
                has_dispatched_fast |= fast > 0;
            }
            let may_go = has_dispatched_fast && share < bound && section.could_dispatch_fast(share.min(bound - chosen));
            // The next combiner, which has a whole share, may hand the rest through. It could not if a part of the rest
            // were in the scheduler by then.
            let is_for_the_next = fast > 0 || may_dispatch && may_go;
            if !is_for_the_next {
                share -= section.insert_backlog(share);
            }
            if may_dispatch {
                chosen += dispatch_held(section, bound - chosen);
            }
            section.settle(chosen == bound || !may_dispatch || is_for_the_next);
            section.hold.backlog.is_untried()
        });
        debug_assert!(chosen <= bound, "the combiner chooses {chosen} requests, at most {bound}");
        Round { has_more, is_last: share == 0 || chosen == bound }
    };
    let has_let_go = domain.staging.serve(published, round, |staging| q.live.give_up(staging));
    dispatcher.must_dispatch |= owes;
    Dispatched::new(chosen, !has_let_go)
}

/// Dispatches under the lock: first the dispatch lists, then what the scheduler chooses. Returns how many requests
/// became ready.
fn dispatch_held(section: &mut Section<'_, '_>, bound: usize) -> usize {
    let (q, domain) = (section.q, section.domain);
    let mut chosen = 0;
    let is_waiting = q.live.word.load().is_waiting();
    loop {
        if std::mem::take(&mut section.dispatcher.must_dispatch) || is_waiting {
            chosen += section.dispatcher.dispatch_listed(q, domain.hctxs(q), section.waiter_present);
        }
        chosen += section.dispatch_batch(bound.saturating_sub(chosen)).ready;
        if !section.dispatcher.must_dispatch {
            break;
        }
    }
    section.dispatcher.append_ready(q);
    chosen.min(bound)
}
