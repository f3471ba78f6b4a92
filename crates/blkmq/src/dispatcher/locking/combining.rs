//! The locking `combining`: one thread at a time, the combiner, inserts and merges for all threads and dispatches a
//! batch. Every other thread publishes its requests for the combiner and returns.
//!
//! # Liveness
//! A thread that finds a combiner changes the staging word: it publishes its requests there, or a kick. Unless the
//! combiner gives up, it releases the word only by a compare-exchange from the empty word. If something was published,
//! the exchange fails, and the combiner re-checks everything behind a fence: published requests, tags that came back,
//! requests that the scheduler held back, and dispatch lists. The steps of both threads are shown at
//! [`Staging::hold_or_kick`](blkmq_sync::staging::Staging::hold_or_kick).
//!
//! So a publisher may return at once, even if it published just before the combiner releases the word, and whether or
//! not anything is in flight. A preempted combiner delays published requests, and loses none.
//!
//! A thread that has no pending event, and only polls, does not touch the word: the last combiner has found everything
//! that this thread would find. A pending event is anything that may let a request proceed: a completion, a request on
//! a dispatch list, a time that has come, the end of a quiescence, or a deferral.
//!
//! A combiner that has used its budget while requests remain gives up. So does a combiner that has dispatched requests
//! on the fast path and cannot dispatch all others, so that the next combiner can use the fast path for these. A
//! combiner that gives up sets WAITING and releases the word. Published requests stay in the word, and those that the
//! combiner has taken over stay in the backlog. Then it [defers](blkmq_sync::liveness::Liveness::defer), so that a
//! thread that polls or sleeps continues (`Dispatcher::run`). Such a thread needs both: WAITING, and the count of
//! `defer` as its pending event. A combiner that may not dispatch, because the queue was quiesced when it entered,
//! inserts the published requests and releases the word as usual. Its caller defers (`Dispatcher::take_plug`).
//!
//! A request that waits for a tag, or that the scheduler holds back, is dispatched by the completer that changes that:
//! see [`liveness`](blkmq_sync::liveness). Under this locking only the combiner clears WAITING; the combiner sets it,
//! and so do threads that add to a dispatch list. So a combiner that finds WAITING set behind a fence need not set it
//! again.
//!
//! The scheduler changes only while the queue is frozen, drained, and quiesced. At that time no thread is in the
//! scheduler, and nothing is published.

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

/// Inserts a plug, and dispatches under the same hold; or publishes its requests for the thread that is in the
/// scheduler.
///
/// COST: without contention two compare-exchanges of the staging word and a lock and unlock of the hold, dispatch
/// included; with contention one exchange of the staging word, after up to 128 loads of the word if nothing is
/// published there yet. Either cost is paid once a plug.
pub(super) fn insert<'q>(dispatcher: &mut Dispatcher, domain: &Domain, plug: &mut Plug<'q>) -> Inserted {
    let &StartBatch { q, thread, now, .. } = plug.starting;
    if q.settings.stages_all() {
        return stage_all::insert(dispatcher, domain, plug);
    }
    let (staging, may_dispatch) = (&domain.staging, plug.may_dispatch);
    let own = plug.requests.len();
    let may_dispatch_fast = may_dispatch && q.settings.is_plain();
    let is_noted = may_dispatch_fast && dispatcher.note_fast_batch(domain, plug);
    // The plug's requests once they have begun and can be published, and how many operations they are.
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
                    // Published requests come first.
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
        if !std::mem::replace(&mut has_looked, true) && staging.is_released_soon() {
            continue;
        }
        let (entered, list) = begun.take().unwrap_or_else(|| dispatcher.begin(domain, plug));
        let requests = list.len() as u64;
        match list.publish(&q.slots, staging) {
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
/// COST: not inlined, because most plugs of this locking take another path.
#[inline(never)]
fn insert_own<'q>(section: &mut Section<'q, '_>, plug: &mut Plug<'q>) -> u64 {
    section.insert_plug(plug)
}

/// Inserts the published requests and dispatches, or makes sure that the thread in the scheduler does.
///
/// COST: as of [`insert`].
pub(super) fn dispatch(dispatcher: &mut Dispatcher, q: &Queue, now: Time, bound: usize) -> Dispatched {
    if std::mem::take(&mut dispatcher.must_dispatch) {
        // So that the combiner checks the dispatch lists.
        q.live.word.set_waiting();
        dispatcher.has_pending_event = true;
    }
    // A thread without a pending event would find what the last combiner found. But a request that the driver gave back
    // is tried at each poll.
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

/// Inserts the published requests of a domain and dispatches, or makes sure that the thread in the scheduler does.
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

/// Combines until the word can be released. `bound` is the combiner's budget, both for requests that it dispatches and
/// for published requests that it inserts. `share` is what remains of the second; each further round costs one too.
/// `enter` inserts the combiner's own requests, which do not count, and returns how many of them were dispatched on the
/// fast path.
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
    // The dispatch lists of other hardware queues belong to other domains, and this thread must check them afterwards.
    let owes = !domain.is_whole() && std::mem::take(&mut dispatcher.must_dispatch);
    let (mut enter, mut now) = (Some(enter), now);
    let (mut chosen, mut share) = (0, bound);
    // Whether anything was dispatched on the fast path under this hold.
    let mut has_dispatched_fast = false;
    let round = |published| {
        if enter.is_none() {
            // Each round costs a part of the budget, so that the rounds end even if other threads continue to kick. The
            // clock is read again, because a thread may have kicked when a time had come.
            share -= 1;
            now = q.clock().now();
        }
        let has_more = domain.enter(q, thread, dispatcher, now, |section| {
            section.take_over(published);
            section.check_waiting();
            // Requests that arrived earlier get room first.
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
            // The next combiner, which has a whole budget, may dispatch the rest on the fast path. It could not if a
            // part of the rest were in the scheduler by then.
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
    let was_released = domain.staging.serve(published, round, |staging| q.live.give_up(staging));
    dispatcher.must_dispatch |= owes;
    Dispatched::new(chosen, !was_released)
}

/// Dispatches under the lock: first from the dispatch lists, then from the scheduler. Returns how many requests became
/// ready.
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
