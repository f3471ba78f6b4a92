//! The locking `batch`: one lock, for which threads wait, but one hold dispatches as many requests as there are tags:
//! Yu Kuai's series of 2025. The issue lists are appended to under the hold, so they keep the scheduler's order.

use blkmq_sched::Time;

use super::single;
use crate::dispatcher::Dispatcher;
use crate::dispatcher::outcome::Dispatched;
use crate::queue::{Domain, Queue};
use blkmq_sync::atomic::Ordering;

pub(super) use super::single::insert;

/// Dispatches as many requests under one hold as there are tags. While the device is busy, dispatches only one, which
/// is issued before the next one is dispatched.
///
/// COST: per batch one lock and unlock of the hold, a read-modify-write of a tag word, and an exchange of the issue
/// list.
pub(super) fn dispatch(dispatcher: &mut Dispatcher, q: &Queue, now: Time, bound: usize) -> Dispatched {
    single::dispatch_ordered(dispatcher, q, now, bound, |dispatcher, domain, bound| {
        dispatch_batches(dispatcher, q, domain, now, bound)
    })
}

fn dispatch_batches(dispatcher: &mut Dispatcher, q: &Queue, domain: &Domain, now: Time, bound: usize) -> usize {
    let (index, thread) = (domain.first_hctx(), dispatcher.thread(q));
    let first = q.hctxs.get(index);
    let mut dispatched = 0;
    // In a queue with several domains, this thread may hold requests that the driver gave back while the thread was in
    // another domain. They come before those dispatched from here on. This thread sets WAITING when it puts them on the
    // dispatch list, and then this domain is checked again.
    while dispatched < bound && domain.nr_waiting() > 0 && dispatcher.requeued.is_empty() {
        // As in Linux, this rule holds only if all requests that wait here go to one hardware queue.
        let is_busy = domain.is_for_first_hctx() && first.is_busy();
        if is_busy && first.stalled.load(Ordering::Relaxed) {
            dispatcher.touch(index);
            dispatcher.issue_touched(q, now);
            if !dispatcher.requeued.is_empty() {
                // Requests that the driver gave back come before those dispatched from here on.
                break;
            }
            if first.stalled.load(Ordering::Relaxed) {
                // The thread from which the driver takes the refused request, or that completes a request, continues.
                q.live.word.set_waiting();
                break;
            }
        }
        let limit = if is_busy { 1 } else { bound - dispatched };
        let got = domain.enter(q, thread, dispatcher, now, |section| {
            let got = section.dispatch_batch(limit);
            section.dispatcher.append_ready(q);
            got
        });
        dispatched += got.ready;
        if !got.goes_on {
            break;
        }
        if is_busy {
            dispatcher.issue_touched(q, now);
            if !dispatcher.requeued.is_empty() {
                // Requests that the driver gave back come before those dispatched from here on, and are tried again
                // later.
                break;
            }
        }
    }
    dispatched
}
