//! Issuing: from a hardware queue's issue list, in order, into the driver.
//!
//! # Liveness
//! A thread that appends to an issue list drains it, or finds that another thread drains it: see `handover`. What the
//! driver refuses stays at the head of the list, and the hardware queue is marked as stalled. Every thread that polls a
//! stalled hardware queue tries it again. Threads that sleep are woken, so that they plan for the next try.
//!
//! If a hardware queue has an owner, only the owner drains its issue list. Any other thread that appends sets the flag
//! of the owner's inbox and wakes the owner. The owner clears the flag before it drains, and checks it last, behind its
//! fence, before it sleeps.

use blkmq_sched::Time;

use crate::dispatcher::Dispatcher;
use crate::driver::{Batch, Offer};
use crate::queue::{Count, HwCtx, Queue};
use crate::request::{Location, RqList};
use blkmq_sync::atomic::Ordering;
use blkmq_sync::unless_mutated;
use blkmq_sync::{Stage, stage};

/// The most rounds in which a drainer takes what other threads appended, before it leaves the rest to them.
const DRAIN_ROUNDS: u32 = 64;

impl Dispatcher {
    /// Drains a hardware queue's issue list, unless another thread drains or owns it.
    pub(super) fn issue(&mut self, q: &Queue, index: u16, now: Time) {
        let hctx = q.hctxs.get(index);
        if q.is_owned && unless_mutated("issue.owner") {
            let owner = q.hctxs.layout().owner(index);
            if owner != self.thread {
                if hctx.inbox.leave() {
                    q.threads.wake_owner(owner, self.thread);
                }
                return;
            }
        }
        // A thread that fell asleep after the mark was set plans for another try. So only a new mark is an event.
        let mut is_new = false;
        let unwinding = PanicGuard { q, thread: self.thread, index, pending: RqList::default() };
        let mut mark = |stalled| is_new |= !hctx.stalled.swap(stalled, Ordering::Relaxed) && stalled;
        let drained = hctx.issue.drain(DRAIN_ROUNDS, |pending, chain| {
            pending.take_over(&q.slots, chain, Location::IssueList);
            let refused = !pending.is_empty() && self.offer(q, index, pending, now);
            // Only a thread that holds the issue list clears the mark, and only if nothing stays at the head. Two
            // threads set the mark after they have released the list: this thread below, if its rounds have run out,
            // and a thread in which the driver panicked (`PanicGuard`). At worst a poll then finds the list empty.
            if hctx.stalled.load(Ordering::Relaxed) != refused {
                mark(refused);
            }
        });
        let _ = unwinding.end();
        if !drained {
            mark(true);
        }
        self.report_started(q);
        if is_new {
            q.wake_sleepers(self.thread);
        }
    }

    /// Issues the ready requests without the issue list. For drivers that take concurrent calls, when no order is kept.
    #[inline]
    pub(super) fn issue_directly(&mut self, q: &Queue, now: Time) {
        debug_assert!(q.is_concurrent, "requests go past the issue list only to a driver that takes concurrent calls");
        let index = self.ready_hctx;
        let mut unwinding = PanicGuard { q, thread: self.thread, index, pending: std::mem::take(&mut self.ready) };
        let refused = !unwinding.pending.is_empty() && self.offer(q, index, &mut unwinding.pending, now);
        let pending = unwinding.end();
        if refused {
            pending.hand_over(&q.slots, &q.hctxs.get(index).issue);
            self.touch(index);
        }
        self.report_started(q);
    }

    /// Wakes the threads that must plan for requests which the driver has started. Called when the driver has the
    /// requests, so that its next event counts them, and under no lock.
    #[inline]
    fn report_started(&mut self, q: &Queue) {
        if self.started.any {
            self.wake_for_started(q);
        }
    }

    #[inline(never)]
    fn wake_for_started(&mut self, q: &Queue) {
        let started = std::mem::take(&mut self.started);
        q.wake_for_started(started.threads(), self.thread);
    }

    /// Offers requests to the driver. Returns whether the driver refused one. The refused request and those behind it
    /// stay in `pending`.
    fn offer(&mut self, q: &Queue, index: u16, pending: &mut RqList, now: Time) -> bool {
        debug_assert!(!pending.is_empty(), "the driver is offered something");
        let hctx: &HwCtx = q.hctxs.get(index);
        let offered = pending.len();
        let given_back = self.requeued.len();
        let offer = Offer::new(self.thread, now, now.after(q.settings.timeout_ns()));
        let Self { finished, requeued, started, .. } = self;
        let mut batch = Batch::new(&q.slots, &hctx.started, pending, finished, requeued, started, offer);
        q.driver().queue_rqs(index, &mut batch, now);
        if self.requeued.len() == given_back && hctx.gave_back.load(Ordering::Relaxed) {
            hctx.clear_gave_back();
        }
        let issued = offered - pending.len();
        self.thread(q).counters.count(Count::Issued, issued as u64);
        stage(Stage::Issue, issued);
        let refused = !pending.is_empty();
        hctx.note_offer(refused);
        refused
    }
}

/// Cleans up if the driver panics in `queue_rqs`. This thread works for other submitters too: requests that it has not
/// given to the driver yet, and those that other threads appended meanwhile, stay for the next thread that polls.
struct PanicGuard<'q> {
    q: &'q Queue,
    thread: u16,
    index: u16,
    /// Requests that are on no issue list.
    pending: RqList,
}

impl PanicGuard<'_> {
    /// The driver has returned. Returns the requests that the driver did not take.
    ///
    /// COST: none. Nothing is dropped here.
    #[inline]
    fn end(mut self) -> RqList {
        let pending = std::mem::take(&mut self.pending);
        std::mem::forget(self);
        pending
    }
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "the driver has not returned");
        std::mem::take(&mut self.pending).hand_over(&self.q.slots, &self.q.hctxs.get(self.index).issue);
        // All of them: this thread owes a drain of each list to which it has appended. Where it has not, the next poll
        // finds nothing, and clears the mark.
        //
        // This thread has released the issue list. If another thread holds the list by now, that thread may clear this
        // mark. It then checks the list once more, behind its fence, and finds what this thread has appended: the fence
        // pairs with this Release.
        self.q.hctxs.iter().for_each(|(_, hctx)| hctx.stalled.store(true, Ordering::Release));
        self.q.notify_others(self.thread);
    }
}
