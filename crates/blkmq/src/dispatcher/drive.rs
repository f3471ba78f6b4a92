//! A thread's run through a queue: dispatch, issue and complete until nothing can proceed.

use blkmq_sched::Time;

use crate::dispatcher::outcome::Dispatched;
use crate::dispatcher::{DISPATCH_BUDGET, Dispatcher};
use crate::queue::{Layout, Queue};
use blkmq_sync::atomic::Ordering;
use blkmq_sync::unless_mutated;
use blkmq_sync::word::Snapshot;

impl Dispatcher {
    /// Dispatches, issues and completes until nothing can proceed, or until this thread has used its budget and defers
    /// to other threads. The budget is [`DISPATCH_BUDGET`] requests, or `own` if that is more. `dispatched` is the
    /// outcome of a dispatch that came before, if there was one. The caller is inside the queue (see
    /// `ThreadState::activity`).
    pub(super) fn run(&mut self, q: &Queue, own: usize, now: Time, dispatched: Option<Dispatched>) {
        debug_assert!(self.is_inside(q), "a thread runs inside the queue");
        debug_assert!(self.requeued.is_empty(), "what the driver gave back comes before what is dispatched next");
        let bound = own.max(DISPATCH_BUDGET);
        let (mut now, mut before) = (now, dispatched);
        let mut taken = 0;
        // Whether requests stay behind that could proceed.
        let leaves = loop {
            let dispatched = before.take().unwrap_or_else(|| self.dispatch(q, now, bound));
            let (chosen, gave_up) = (dispatched.chosen(), dispatched.gave_up);
            taken += chosen;
            self.issue_touched(q, now);
            // The device has its work. Now the submitters wake whose operations it has completed.
            self.wake_delivered(q);
            self.requeue_returned(q);
            if !self.finished.is_empty() {
                now = q.clock().now();
                self.complete(q, now);
            } else if chosen < bound && !gave_up {
                // Dispatching went as far as it could, and nothing has finished that would let more proceed. Requests
                // that the driver gave back are tried again at the next poll.
                break false;
            }
            if !gave_up && !self.goes_on(q) {
                break false;
            }
            if taken >= bound || gave_up {
                break true;
            }
        };
        self.wake_delivered(q);
        if leaves {
            // This thread may have nothing outstanding, and then it does not poll again.
            q.defer(self.thread);
        }
        debug_assert!(self.is_done(), "a thread that goes has passed on what it had in its hands");
    }

    /// Whether a request waits. Checked before another round: when something has finished, or this thread has not
    /// dispatched all that it could.
    fn goes_on(&self, q: &Queue) -> bool {
        self.must_dispatch
            || q.live.word.load().is_waiting()
            || (q.settings.has_scheduler() && q.has_waiting_for(self.thread))
    }

    /// Whether there is a reason to poll again: a quiescence that held this thread up has ended, another thread has
    /// deferred since this thread's last poll, or a time was planned that had come at that poll. This is the sleeper's
    /// last check in the interleaving of [`wake`](blkmq_sync::wake); the thread that ends the quiescence, defers, or
    /// plans a time is the waker there.
    pub(crate) fn may_go_on(&self, q: &Queue) -> bool {
        debug_assert!(!self.is_inside(q), "a freeze would wait for a thread that sleeps inside the queue");
        q.live.deferrals.read() != self.deferrals
            || self.saw_quiesced && !q.live.word.load().is_quiesced()
            || self.was_early(q)
    }

    /// Whether a time was planned that had come at this thread's last poll. This thread had no pending event then, and
    /// did not enter the scheduler, where another thread was. That thread had asked the scheduler as of an earlier
    /// time, and so planned for a time that had come meanwhile.
    fn was_early(&self, q: &Queue) -> bool {
        let planned = q.planned();
        planned != self.planned && planned <= self.looked.0
    }

    /// Polls, completes and runs once. Does nothing while the queue is quiesced. `hctxs` gives the hardware queues to
    /// poll. It is called inside the queue, where the layout cannot change.
    pub(crate) fn drive<I>(&mut self, q: &Queue, hctxs: impl FnOnce(Layout) -> I, now: Time)
    where
        I: Iterator<Item = u16> + Clone,
    {
        let activity = &self.thread(q).activity;
        activity.enter();
        self.drive_inside(q, hctxs, now, q.live.word.load());
        activity.leave();
    }

    /// Like [`drive`](Self::drive), for a caller that is inside the queue and has read the queue's word there as
    /// `seen`.
    pub(crate) fn drive_inside<I>(&mut self, q: &Queue, hctxs: impl FnOnce(Layout) -> I, now: Time, seen: Snapshot)
    where
        I: Iterator<Item = u16> + Clone,
    {
        debug_assert!(self.is_inside(q), "a thread drives a queue from the inside");
        debug_assert!(self.is_done(), "a thread has passed on what it had in its hands before it polls");
        let left = q.live.deferrals.read();
        // A time that has come, the end of a quiescence, or a deferral may let requests proceed. The thread in the
        // scheduler may have checked before that.
        let planned = q.planned();
        self.has_pending_event |= left != self.deferrals || self.saw_quiesced || planned <= now.0;
        (self.deferrals, self.planned) = (left, planned);
        self.saw_quiesced = seen.is_quiesced();
        if !self.saw_quiesced {
            self.looked = now;
            let hctxs = hctxs(q.hctxs.layout());
            for index in hctxs.clone() {
                self.poll_hctx(q, index, now);
            }
            self.scan_timeouts(q, now);
            if !self.finished.is_empty() {
                // Another thread may have issued a request after `now` that this poll has found. The limiter would take
                // such a read for one that took no time.
                let now = if q.settings.has_limiter() { q.clock().now() } else { now };
                self.complete(q, now);
            }
            let mut again =
                self.must_dispatch || (unless_mutated("dispatcher.kick") && q.live.word.load().is_waiting());
            for index in hctxs {
                let hctx = q.hctxs.get(index);
                let has_word = q.is_owned && hctx.inbox.take();
                if has_word || hctx.stalled.load(Ordering::Relaxed) {
                    self.touch(index);
                    again = true;
                }
            }
            if again {
                self.run(q, 0, now, None);
            } else {
                self.wake_delivered(q);
            }
        }
        debug_assert!(self.is_done(), "a thread that goes has passed on what it had in its hands");
    }
}
