//! The locking `single`: one lock around each insertion and around each dispatch of one request, and threads wait for
//! it, as in Linux.

use blkmq_sched::Time;

use crate::dispatcher::Dispatcher;
use crate::dispatcher::insert::Plug;
use crate::dispatcher::outcome::{Dispatched, Inserted};
use crate::dispatcher::section::Batch;
use crate::queue::{Domain, Queue, StartBatch};
use blkmq_sync::{Stage, stage};

/// Inserts the whole plug in one hold. Without `looks_for_merges` a request that could join another one does not.
///
/// COST: one lock and unlock of the hold; per request the scheduler's look-up and insertion. Not inlined, so that a
/// plug that takes another path does not pay for saving this function's registers.
#[inline(never)]
pub(super) fn insert(
    dispatcher: &mut Dispatcher,
    domain: &Domain,
    plug: &mut Plug<'_>,
    looks_for_merges: bool,
) -> Inserted {
    let &StartBatch { q, thread, now, .. } = plug.starting;
    let entered = domain.enter(q, thread, dispatcher, now, |section| {
        section.looks_for_merges = looks_for_merges;
        section.insert_in_turn(plug)
    });
    Inserted { entered, dispatched: None }
}

/// Dispatches one request after another, each under a lock of its own.
///
/// COST: per request one lock and unlock of the hold, the scheduler's own work, the slot's two lines, and a
/// read-modify-write of a tag word.
pub(super) fn dispatch(dispatcher: &mut Dispatcher, q: &Queue, now: Time, bound: usize) -> Dispatched {
    let thread = dispatcher.thread(q);
    dispatch_by(dispatcher, q, now, bound, |dispatcher, domain| {
        domain.enter(q, thread, dispatcher, now, |section| section.dispatch_batch(1))
    })
}

/// Dispatches one request after another by `dispatch_one`.
pub(super) fn dispatch_by<'q>(
    dispatcher: &mut Dispatcher,
    q: &'q Queue,
    now: Time,
    bound: usize,
    mut dispatch_one: impl FnMut(&mut Dispatcher, &'q Domain) -> Batch,
) -> Dispatched {
    dispatch_ordered(dispatcher, q, now, bound, |dispatcher, domain, bound| {
        let mut ready = 0;
        while ready < bound && domain.nr_waiting() > 0 {
            let batch = dispatch_one(dispatcher, domain);
            ready += batch.ready;
            stage(Stage::Ready, batch.ready);
            if !batch.goes_on {
                break;
            }
        }
        ready
    })
}

/// Dispatches where each thread does so for itself, in each domain that is due: inserts requests of the backlog, then
/// dispatches by `dispatch_from`, up to a bound.
#[inline]
pub(super) fn dispatch_ordered<'q>(
    dispatcher: &mut Dispatcher,
    q: &'q Queue,
    now: Time,
    bound: usize,
    mut dispatch_from: impl FnMut(&mut Dispatcher, &'q Domain, usize) -> usize,
) -> Dispatched {
    Dispatched::all(dispatcher.dispatch_for_itself(q, bound, |dispatcher, bound| {
        let (mut due, mut dispatched) = (q.due_domains(dispatcher.thread), 0);
        while let Some(domain) = due.next() {
            // Without a pending event there is no more room than the last thread found.
            if domain.nr_backlog() > 0 && dispatcher.has_pending_event {
                insert_without_room(dispatcher, q, domain, now);
            }
            let got = dispatch_from(dispatcher, domain, bound.saturating_sub(dispatched));
            if got > 0 {
                due.note_given();
            }
            dispatched += got;
            if dispatched >= bound {
                break;
            }
        }
        dispatched
    }))
}

/// Inserts requests of the backlog, as far as there is room now.
fn insert_without_room(dispatcher: &mut Dispatcher, q: &Queue, domain: &Domain, now: Time) {
    debug_assert!(
        dispatcher.has_pending_event,
        "without a pending event there is no more room than the last thread found"
    );
    let has_changed = domain.enter(q, dispatcher.thread(q), dispatcher, now, |section| {
        let nr_backlog = section.hold.backlog.len();
        section.retry_without_room();
        section.insert_backlog(usize::MAX);
        section.hold.backlog.len() != nr_backlog
    });
    dispatcher.has_pending_event |= has_changed;
}
