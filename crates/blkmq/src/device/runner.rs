//! What a thread carries on its way through a queue: its lists, its hint for tags, and what it saw last.
//!
//! A submitter has a runner, and a background thread has one too. What a runner does not finish it leaves where another
//! thread is certain to find it: `tags` and `issue` say how.

use std::sync::Arc;

use blkmq_sched::Time;

use super::deliver::Outbox;
use super::index_set::IndexSet;
use super::newcomers::Newcomers;
use crate::driver::{Done, Started};
use crate::queue::{Member, OwnMember, RequestQueue};
use crate::request::limits::MAX_HW_QUEUES;
use crate::request::{Place, Request, RqList};
use blkmq_sync::peek;
use blkmq_sync::tags::{Hint, Tag};

/// Requests: a thread's share. A thread that has dispatched so many, or as many as it brought itself if these are more,
/// leaves the rest to other threads and goes back to its own work. Under `combining` a holder that inserts may choose
/// as many more as it brought.
pub(crate) const RUN_BOUND: usize = 64;

/// A thread's private state: the lists that it works on, and the tag that it would like next.
#[derive(Debug)]
pub(crate) struct Runner {
    /// The thread's number among the queue's members.
    pub(crate) member: u16,
    own: OwnMember,
    pub(crate) hint: Hint,
    /// Chosen requests with tags, on their way to the issue list of `ready_hctx`.
    pub(crate) ready: RqList,
    pub(super) ready_hctx: u16,
    /// The hardware queues that hold something to be issued.
    touched: IndexSet,
    /// Requests that go through the scheduler, while the scheduler is asked.
    pub(crate) newcomers: Newcomers,
    /// Finished requests that are to be completed.
    pub(crate) finished: RqList,
    /// The threads to tell of what the driver works on now.
    pub(super) started: Started,
    /// Requests that the driver gave back.
    pub(crate) requeued: RqList,
    /// Completed operations of this thread's own submitter, not yet reaped.
    pub(crate) completed: RqList,
    /// Completed operations of other submitters, not yet delivered.
    pub(super) outbox: Outbox,
    /// Whether this thread must dispatch once more before it goes: it has put a request on a dispatch list, or it has
    /// put back tags that it did not use, and requests may have waited for these tags or for the room that they took.
    pub(crate) parked: bool,
    /// Since this thread was at the scheduler last, it has put tags back, or parked something, or the scheduler may let
    /// go what it held back. If another thread is at the scheduler, that thread must look once more.
    pub(crate) has_news: bool,
    /// Tags came back unused, and the threads that wait for room have not been told.
    pub(crate) owes_brought: bool,
    /// The queue was quiesced when this thread looked last, so it left things undone.
    pub(crate) saw_quiesced: bool,
    /// How often something had been left to other threads when this thread looked last.
    pub(crate) left: u32,
    /// The time at which the scheduler was to let go what it holds back, as this thread read it when it looked last.
    pub(crate) planned: u64,
    /// The time of the last `drive` that did something.
    pub(crate) looked: Time,
}

impl Runner {
    /// A runner of the thread that has this number among the members of `q`.
    pub(crate) fn new(q: Arc<RequestQueue>, member: u16) -> Self {
        Self {
            member,
            own: OwnMember::new(q, member),
            hint: Hint::new(u32::from(member)),
            ready: RqList::default(),
            ready_hctx: 0,
            touched: IndexSet::new(MAX_HW_QUEUES),
            newcomers: Newcomers::new(),
            finished: RqList::default(),
            started: Started::default(),
            requeued: RqList::default(),
            completed: RqList::default(),
            outbox: Outbox::new(),
            parked: false,
            has_news: false,
            owes_brought: false,
            saw_quiesced: false,
            left: 0,
            planned: u64::MAX,
            looked: Time(0),
        }
    }

    /// The thread's member of `q`, which is the queue that the thread has joined.
    #[inline]
    pub(crate) fn member<'q>(&self, q: &'q RequestQueue) -> &'q Member {
        self.own.get(q)
    }

    /// Whether this thread is inside the queue, so that a freeze or a quiescence waits for it. For assertions.
    pub(crate) fn is_inside(&self, q: &RequestQueue) -> bool {
        peek(|| self.member(q).activity.is_active())
    }

    /// Puts a chosen request with its tag on its way to the issue list, in the order of the calls.
    pub(crate) fn make_ready(&mut self, q: &RequestQueue, mut rq: Request<'_>, tag: Tag) {
        debug_assert!(rq.body().tag.is_none(), "a request gets one tag: {rq:?}");
        rq.body_mut().tag = Some(tag);
        self.make_ready_on(q, rq.body().hctx);
        self.ready.push_back(rq, Place::IssueList);
    }

    /// Makes `ready` take requests for this hardware queue.
    pub(crate) fn make_ready_on(&mut self, q: &RequestQueue, hctx: u16) {
        if hctx != self.ready_hctx {
            self.append_ready(q);
            self.ready_hctx = hctx;
        }
    }

    /// Appends what is ready to its issue list.
    pub(crate) fn append_ready(&mut self, q: &RequestQueue) {
        if !self.ready.is_empty() {
            let issue = &q.hctx(self.ready_hctx).issue;
            let ready = &mut self.ready;
            if !issue.put(|pending| pending.append(std::mem::take(ready))) {
                std::mem::take(ready).hand_over(&q.slots, issue);
            }
            self.touched.add(self.ready_hctx);
        }
    }

    /// Notes that a hardware queue's issue list is to be drained in this run.
    pub(crate) fn touch(&mut self, hctx: u16) {
        self.touched.add(hctx);
    }

    /// Whether this thread has nothing in its hands that another thread would have to wait for. For assertions.
    pub(crate) fn is_done(&self) -> bool {
        let lists = [&self.ready, &self.finished, &self.requeued];
        lists.iter().all(|list| list.is_empty()) && self.touched.is_empty() && self.outbox.is_empty()
    }

    /// Issues what is ready and what else this thread has appended.
    #[inline(always)]
    pub(crate) fn issue_touched(&mut self, q: &RequestQueue, now: Time) {
        self.append_ready(q);
        while let Some(hctx) = self.touched.take() {
            self.issue(q, hctx, now);
        }
    }

    /// Asks the driver what has finished on a hardware queue.
    pub(crate) fn poll_hctx(&mut self, q: &RequestQueue, hctx: u16, now: Time) {
        let before = self.finished.len();
        let mut done = Done::new(&q.slots, &mut self.finished);
        q.driver().poll(hctx, &mut done, now);
        if done.is_early() {
            q.wake_sleepers(self.member);
        }
        debug_assert!(self.finished.len() >= before, "a poll only adds to what has finished");
    }
}
