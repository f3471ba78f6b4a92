//! The locking `staged`: Axboe's series of 2024, with each of its three measures selectable by itself, and with two of
//! its flaws mended. A request keeps its mark for the head wherever it waits, and requests in a bucket count as
//! waiting.
//!
//! # Liveness
//! A thread that finds another thread dispatching, or inserting, kicks that thread (see `staging`). The kicked thread
//! re-checks before it releases the word. In the series the next completion re-checked, or a timer where no completion
//! comes.
//!
//! A thread that only polls, and has no pending event, kicks no thread. Otherwise threads that poll, while the
//! scheduler holds its requests back, would keep one thread asking it forever. And the scheduler may hold back because
//! of requests that this very thread has dispatched and cannot issue meanwhile.

use blkmq_sched::Time;

use super::single;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::insert::Plug;
use crate::dispatcher::outcome::{Dispatched, Inserted};
use crate::dispatcher::section::Batch;
use crate::queue::{Count, Domain, Measures, Queue, StartBatch};
use crate::request::{Location, RqList};
use blkmq_sync::stack::Chain;
use blkmq_sync::staging::{Round, Staging};
use blkmq_sync::unless_mutated;

/// Inserts a plug, or publishes it in this submitter's bucket.
///
/// COST: without buckets as of `single`. With buckets and without contention two compare-exchanges of the shared word
/// and a lock and unlock of the hold; with contention an exchange of the own bucket's line, a fence, and at most one
/// exchange of the shared word. Not inlined, as of `single`.
#[inline(never)]
pub(super) fn insert(
    dispatcher: &mut Dispatcher,
    domain: &Domain,
    plug: &mut Plug<'_>,
    measures: Measures,
) -> Inserted {
    debug_assert!(domain.is_whole(), "the buckets belong to one domain");
    dispatcher.has_pending_event = true;
    if !measures.buckets {
        let looks_for_merges = !(measures.merges && domain.is_taken());
        return single::insert(dispatcher, domain, plug, looks_for_merges);
    }
    let &StartBatch { q, now, thread, .. } = plug.starting;
    let mut entered = 0;
    if let Some(published) = domain.inserting.try_hold() {
        let mut is_first = true;
        serve_buckets(dispatcher, domain, published, |dispatcher| {
            if !std::mem::take(&mut is_first) {
                return insert_buckets(dispatcher, q, domain, now, measures);
            }
            entered = domain.enter(q, thread, dispatcher, now, |section| {
                // This insertion looks for merges: the lock was free, or only a dispatcher had it.
                section.insert_in_turn(plug)
            });
        });
    } else {
        let list;
        (entered, list) = dispatcher.begin(domain, plug);
        thread.counters.count(Count::TrylockFailed, 1);
        thread.counters.count(Count::Staged, list.len() as u64);
        list.deliver(&q.slots, &thread.bucket);
        if let Some(published) = domain.inserting.hold_or_kick() {
            serve_buckets(dispatcher, domain, published, |dispatcher| {
                insert_buckets(dispatcher, q, domain, now, measures)
            });
        }
    }
    Inserted { entered, dispatched: None }
}

/// Dispatches one request after another, each under a lock of its own, unless another thread is dispatching.
pub(super) fn dispatch(
    dispatcher: &mut Dispatcher,
    q: &Queue,
    now: Time,
    bound: usize,
    measures: Measures,
) -> Dispatched {
    if measures.dispatch {
        single::dispatch_by(dispatcher, q, now, bound, |dispatcher, domain| dispatch_alone(dispatcher, q, domain, now))
    } else {
        single::dispatch(dispatcher, q, now, bound)
    }
}

/// Inserts, by `round`, until no bucket was filled meanwhile. Then the next thread may insert.
fn serve_buckets(
    dispatcher: &mut Dispatcher,
    domain: &Domain,
    published: Chain,
    mut round: impl FnMut(&mut Dispatcher),
) {
    let round = |_| {
        round(dispatcher);
        Round::DONE
    };
    let was_released = domain.inserting.serve(published, round, Staging::give_up);
    debug_assert!(was_released, "no round was the last");
}

/// Inserts the requests of all buckets.
fn insert_buckets(dispatcher: &mut Dispatcher, q: &Queue, domain: &Domain, now: Time, measures: Measures) {
    debug_assert!(measures.buckets, "requests lie in buckets only where the measure is taken");
    domain.enter(q, dispatcher.thread(q), dispatcher, now, |section| {
        for (_, thread) in q.threads.iter() {
            let mut list = RqList::default();
            list.take_over(&q.slots, thread.bucket.take_all(), Location::Staged);
            section.hold.backlog.add(list);
        }
        section.looks_for_merges = !measures.merges;
        section.retry_without_room();
        section.insert_backlog(usize::MAX);
    });
}

/// Dispatches one request under one hold, unless another thread is dispatching. If this thread has a pending event, the
/// other thread then asks the scheduler once more.
///
/// COST: beside the hold two exchanges of the shared word; for a thread that finds another one dispatching a load, a
/// fence and one exchange.
fn dispatch_alone(dispatcher: &mut Dispatcher, q: &Queue, domain: &Domain, now: Time) -> Batch {
    debug_assert!(domain.is_whole(), "one thread dispatches for the whole queue");
    let thread = dispatcher.thread(q);
    let kicks = dispatcher.has_pending_event || !unless_mutated("staged.pending_event");
    let held = if kicks { domain.dispatching.hold_or_kick() } else { domain.dispatching.try_hold() };
    let Some(published) = held else {
        thread.counters.count(Count::TrylockFailed, 1);
        return Batch::default();
    };
    // One round for each kick: as in the series, nothing bounds what one thread does for others here. The rounds end
    // nevertheless: nothing is issued meanwhile that could complete, and the number of requests that may be inserted is
    // bounded.
    let (mut batch, mut now): (Option<Batch>, _) = (None, now);
    let round = |_| {
        if batch.is_some() && unless_mutated("dispatch.time_anew") {
            // A thread may have kicked when a time had come. With the old time this thread would plan for that time
            // again, and the other thread would kick again.
            now = q.clock().now();
        }
        let got = domain.enter(q, thread, dispatcher, now, |section| section.dispatch_batch(1));
        let earlier = batch.unwrap_or_default();
        batch = Some(Batch { ready: earlier.ready + got.ready, ..got });
        Round { has_more: false, is_last: got.goes_on }
    };
    // If more can be dispatched, the caller calls again, and then finds what this thread was kicked for. Otherwise it
    // does not call again, and a kick needs another round.
    let _ = domain.dispatching.serve(published, round, Staging::give_up_and_look);
    batch.expect("there was a round")
}
