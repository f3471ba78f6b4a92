//! The dispatcher: what brings requests from a plug to the driver, and back to their submitters.
//!
//! A [`Dispatcher`] is a thread's dispatch context: its lists, its hint for tags, and what it saw last. A submitter has
//! one, and a background thread has one too. Work that a thread does not finish stays where another thread is certain
//! to find it: see [`tags`] and [`issue`].
//!
//! A request takes these steps:
//! 1. take: [`insert`] takes it out of the plug;
//! 2. order: the scheduler, under its lock (a [`section`]), merges it, or inserts and dispatches it;
//! 3. ready: it gets a tag ([`tags`]), and goes to the issue list of its hardware queue;
//! 4. issue: [`issue`] gives it to the driver;
//! 5. complete: [`complete`] takes it back, and [`deliver`] delivers its operations to their submitters.
//!
//! Requests reach the driver in two ways. A request is *dispatched* if the scheduler chose it. It *bypasses* the
//! scheduler if there is none, or if the scheduler would dispatch it at once ([`pass`]). The
//! [`Locking`](crate::queue::Locking) decides which thread enters the scheduler, how many requests that thread
//! dispatches under one hold, and where other threads publish their requests ([`locking`]).
//!
//! [`drive`] repeats these steps until nothing can proceed. Submitters and [`background`] threads call it.

mod background;
mod complete;
mod deliver;
mod dispatch;
mod drive;
mod fast_batch;
mod index_set;
mod insert;
mod issue;
mod locking;
mod outcome;
mod pass;
mod requeue;
mod section;
mod tags;
mod timeout;

use std::sync::Arc;

use blkmq_sched::Time;

use deliver::Outbox;
use fast_batch::FastBatch;
use index_set::IndexSet;

pub use background::Background;

use crate::driver::{Done, Started};
use crate::queue::{OwnThreadState, Queue, ThreadState};
use crate::request::limits::MAX_HW_QUEUES;
use crate::request::{Location, Request, RqList};
use blkmq_sync::tags::{Hint, Tag};

/// A thread's budget, in requests. A thread that has dispatched so many, or as many as it inserted if those are more,
/// defers the rest to other threads and returns to its own work. Under `combining`, a combiner that inserts may
/// dispatch as many more as it inserted.
const DISPATCH_BUDGET: usize = 64;

/// A thread's dispatch context: the lists that it works on, and its hint for the next tag.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    /// The thread's number among the queue's threads.
    thread: u16,
    own: OwnThreadState,
    hint: Hint,
    /// Dispatched requests with tags, to be appended to the issue list of `ready_hctx`.
    ready: RqList,
    ready_hctx: u16,
    /// The hardware queues with requests to issue.
    touched: IndexSet,
    /// The requests of a fast-path dispatch, while the scheduler orders them.
    fast_batch: FastBatch,
    /// Finished requests, to be completed.
    finished: RqList,
    /// The threads to notify of requests that the driver has started.
    started: Started,
    /// Requests that the driver gave back.
    requeued: RqList,
    /// Completed operations of this thread's own submitter, not yet reaped.
    completed: RqList,
    /// Completed operations of other submitters, not yet delivered.
    outbox: Outbox,
    /// This thread must dispatch once more before it returns: it has put a request on a dispatch list, or has put back
    /// unused tags for which requests may have waited.
    must_dispatch: bool,
    /// Since this thread last entered the scheduler, it has put tags back or added to a dispatch list, or the scheduler
    /// may dispatch what it held back. If another thread is in the scheduler, that thread must re-check.
    has_pending_event: bool,
    /// The queue was quiesced at this thread's last poll, so that poll did nothing.
    saw_quiesced: bool,
    /// The number of deferrals that this thread read at its last poll.
    deferrals: u32,
    /// The time at which the scheduler will dispatch what it holds back, as read at this thread's last poll.
    planned: u64,
    /// The time of the last `drive` that found the queue running.
    looked: Time,
}

impl Dispatcher {
    /// A dispatcher for the thread with this number in `q`.
    pub(crate) fn new(q: Arc<Queue>, thread: u16) -> Self {
        Self {
            thread,
            own: OwnThreadState::new(q, thread),
            hint: Hint::new(u32::from(thread)),
            ready: RqList::default(),
            ready_hctx: 0,
            touched: IndexSet::new(MAX_HW_QUEUES),
            fast_batch: FastBatch::new(),
            finished: RqList::default(),
            started: Started::default(),
            requeued: RqList::default(),
            completed: RqList::default(),
            outbox: Outbox::new(),
            must_dispatch: false,
            has_pending_event: false,
            saw_quiesced: false,
            deferrals: 0,
            planned: u64::MAX,
            looked: Time(0),
        }
    }

    /// The thread's state in `q`, the queue that the thread has joined.
    #[inline]
    pub(crate) fn thread<'q>(&self, q: &'q Queue) -> &'q ThreadState {
        self.own.get(q)
    }

    /// The thread's number among the queue's threads.
    #[inline]
    pub(crate) const fn number(&self) -> u16 {
        self.thread
    }

    /// Completed operations of this thread's own submitter, not yet reaped.
    #[inline]
    pub(crate) const fn completed(&mut self) -> &mut RqList {
        &mut self.completed
    }

    /// Whether there are [`completed`](Self::completed) operations.
    #[inline]
    pub(crate) const fn has_completed(&self) -> bool {
        !self.completed.is_empty()
    }

    /// How many [`completed`](Self::completed) operations there are. A part of an operation that was split counts as
    /// one.
    #[inline]
    pub(crate) const fn nr_completed(&self) -> usize {
        self.completed.len()
    }

    /// The queue was quiesced at this thread's last poll, so that poll did nothing.
    #[inline]
    pub(crate) const fn saw_quiesced(&self) -> bool {
        self.saw_quiesced
    }

    /// The time of the last [`drive`](Self::drive) that found the queue running.
    #[inline]
    pub(crate) const fn looked(&self) -> Time {
        self.looked
    }

    /// Whether this thread is inside the queue, so that a freeze or a quiescence waits for it. For assertions.
    fn is_inside(&self, q: &Queue) -> bool {
        self.thread(q).activity.is_active()
    }

    /// Queues a dispatched request with its tag for the issue list, in the order of the calls.
    fn make_ready(&mut self, q: &Queue, mut rq: Request<'_>, tag: Tag) {
        debug_assert!(rq.body().tag.is_none(), "a request gets one tag: {rq:?}");
        rq.body_mut().tag = Some(tag);
        self.make_ready_on(q, rq.body().hctx);
        self.ready.push_back(rq, Location::IssueList);
    }

    /// Makes `ready` take requests for this hardware queue.
    fn make_ready_on(&mut self, q: &Queue, hctx: u16) {
        if hctx != self.ready_hctx {
            self.append_ready(q);
            self.ready_hctx = hctx;
        }
    }

    /// Appends the ready requests to their issue list.
    fn append_ready(&mut self, q: &Queue) {
        if !self.ready.is_empty() {
            let issue = &q.hctxs.get(self.ready_hctx).issue;
            let ready = &mut self.ready;
            if !issue.put(|pending| pending.append(std::mem::take(ready))) {
                std::mem::take(ready).hand_over(&q.slots, issue);
            }
            self.touched.add(self.ready_hctx);
        }
    }

    /// Marks a hardware queue's issue list to be drained in this run.
    fn touch(&mut self, hctx: u16) {
        self.touched.add(hctx);
    }

    /// Whether this thread holds no request that another thread may wait for. For assertions.
    pub(crate) fn is_done(&self) -> bool {
        let lists = [&self.ready, &self.finished, &self.requeued];
        lists.iter().all(|list| list.is_empty()) && self.touched.is_empty() && self.outbox.is_empty()
    }

    /// Issues the ready requests, and drains the issue lists to which this thread has appended.
    #[inline(always)]
    fn issue_touched(&mut self, q: &Queue, now: Time) {
        self.append_ready(q);
        while let Some(hctx) = self.touched.take() {
            self.issue(q, hctx, now);
        }
    }

    /// Polls the driver for finished requests of a hardware queue.
    fn poll_hctx(&mut self, q: &Queue, hctx: u16, now: Time) {
        let before = self.finished.len();
        let mut done = Done::new(&q.slots, &mut self.finished);
        q.driver().poll(hctx, &mut done, now);
        if done.is_early() {
            q.wake_sleepers(self.thread);
        }
        debug_assert!(self.finished.len() >= before, "a poll only adds to what has finished");
    }
}
