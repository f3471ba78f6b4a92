//! One thread's way through a queue: dispatch, issue and complete, again and again until there is nothing to do.
//!
//! A submitter has a runner, and a background thread has one too. What a runner does not finish it leaves where another
//! thread is certain to find it: see the liveness notes in `dispatch` and `issue`.

use blkmq_sched::Time;

use crate::driver::Done;
use crate::layout::Layout;
use crate::member::Member;
use crate::order::{Dispatched, Newcomers};
use crate::queue::RequestQueue;
use crate::request::{Place, Request, RqList};
use crate::started::Started;
use blkmq_sync::atomic::Ordering;
use blkmq_sync::kept;
use blkmq_sync::tags::{Hint, Tag};
use blkmq_sync::word::Snapshot;

/// Requests: after so many, or after as many as it brought itself if those are more, a runner goes back to its own
/// business.
pub(crate) const RUN_BOUND: usize = 64;

/// A set of hardware queues that hold something to be issued.
#[derive(Debug)]
struct Touched {
    set: Box<[u64]>,
    len: usize,
}

/// A thread's private state: the lists that it works on, and the tag that it would like next.
#[derive(Debug)]
pub(crate) struct Runner {
    /// The thread's number among the queue's members.
    pub(crate) member: u16,
    pub(crate) hint: Hint,
    /// Chosen requests with tags, on their way to the issue list of `ready_hctx`.
    pub(crate) ready: RqList,
    pub(crate) ready_hctx: u16,
    touched: Touched,
    /// Requests that go through the scheduler, while the scheduler is asked.
    pub(crate) newcomers: Newcomers,
    /// Finished requests that are to be completed.
    pub(crate) finished: RqList,
    /// The threads to tell of what the driver works on now.
    pub(crate) started: Started,
    /// Requests that the driver gave back.
    pub(crate) requeued: RqList,
    /// Completed operations of this thread's own submitter, not yet reaped.
    pub(crate) completed: RqList,
    /// Requests were put aside in this run. Or requests wait without room while this thread held a tag for nothing,
    /// which took room.
    pub(crate) parked: bool,
    /// Since this thread was at the scheduler last, it has put tags back, or parked something, or may find free what
    /// was held back. If another thread is at the scheduler, that thread is to look once more.
    pub(crate) has_news: bool,
    /// The queue was quiesced when this thread looked last, so it left things undone.
    pub(crate) saw_quiesced: bool,
    /// How often something had been left to others when this thread looked last.
    left: u32,
    /// The time at which the scheduler was to let go what it holds back, as this thread read it when it looked last.
    planned: u64,
    /// The time of the last [`drive`](Self::drive) that did something.
    pub(crate) looked: Time,
}

impl Touched {
    fn new() -> Self {
        Self { set: vec![0; crate::hctx::MAX_HW_QUEUES / 64].into_boxed_slice(), len: 0 }
    }

    fn add(&mut self, hctx: u16) {
        let word = &mut self.set[usize::from(hctx / 64)];
        let bit = 1 << (hctx % 64);
        self.len += usize::from(*word & bit == 0);
        *word |= bit;
    }

    fn take(&mut self) -> Option<u16> {
        if self.len == 0 {
            return None;
        }
        let (at, word) = (0u16..).zip(self.set.iter_mut()).find(|(_, word)| **word != 0)?;
        let bit = word.trailing_zeros() as u16;
        *word &= *word - 1;
        self.len -= 1;
        Some(at * 64 + bit)
    }
}

impl Runner {
    pub(crate) fn new(member: u16) -> Self {
        Self {
            member,
            hint: Hint::new(u32::from(member)),
            ready: RqList::new(),
            ready_hctx: 0,
            touched: Touched::new(),
            newcomers: Newcomers::new(),
            finished: RqList::new(),
            started: Started::default(),
            requeued: RqList::new(),
            completed: RqList::new(),
            parked: false,
            has_news: false,
            saw_quiesced: false,
            left: 0,
            planned: u64::MAX,
            looked: Time(0),
        }
    }

    pub(crate) fn member<'q>(&self, q: &'q RequestQueue) -> &'q Member {
        q.members.get(self.member)
    }

    /// Puts a chosen request with its tag on its way to the issue list, in the order of the calls.
    pub(crate) fn make_ready(&mut self, q: &RequestQueue, mut rq: Request<'_>, tag: Tag) {
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
            let issue = &q.hctxs.get(self.ready_hctx).issue;
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

    /// Dispatches, issues and completes until nothing can go on. Or until this thread has done its share (`own`, or
    /// [`RUN_BOUND`], requests) and other threads must do theirs. `dispatched` says how far dispatching came already,
    /// if it was tried. The caller is inside the queue ([`Member::activity`]).
    pub(crate) fn run(&mut self, q: &RequestQueue, own: usize, now: Time, dispatched: Option<Dispatched>) {
        let bound = own.max(RUN_BOUND);
        let (mut now, mut dispatched) = (now, dispatched);
        let mut taken = 0;
        loop {
            let Dispatched { chosen, gave_up } = dispatched.take().unwrap_or_else(|| self.dispatch(q, now, bound));
            taken += chosen;
            self.issue_touched(q, now);
            self.park_requeued(q);
            if !self.finished.is_empty() {
                now = q.clock.now();
                self.complete(q, now);
            } else if chosen < bound && !gave_up {
                // Dispatching went as far as it could, and the driver gave nothing back.
                break;
            }
            if !self.goes_on(q) {
                break;
            }
            if taken >= bound || gave_up {
                // This thread may have nothing outstanding, and then it does not come again.
                q.hand_on();
                break;
            }
        }
    }

    /// Issues what is ready and what else this thread has appended.
    #[inline(always)]
    pub(crate) fn issue_touched(&mut self, q: &RequestQueue, now: Time) {
        self.append_ready(q);
        while let Some(hctx) = self.touched.take() {
            self.issue(q, hctx, now);
        }
    }

    /// Whether something that waits may go on because of what this thread completed.
    fn goes_on(&self, q: &RequestQueue) -> bool {
        self.parked || q.live.word.load().is_waiting() || (q.settings.has_scheduler() && q.domain(0).has_waiting())
    }

    /// Asks the driver what has finished on a hardware queue.
    pub(crate) fn poll_hctx(&mut self, q: &RequestQueue, hctx: u16, now: Time) {
        let before = self.finished.len();
        let mut done = Done { slots: &q.slots, finished: &mut self.finished, is_early: false };
        q.driver.poll(hctx, &mut done, now);
        if done.is_early {
            q.wake_sleepers();
        }
        let brought = self.finished.len() - before;
        // Threads that wait for the device's descriptors read this count.
        if brought > 0 && self.member(q).wake.is_equipped() {
            q.hctxs.get(hctx).note_brought(brought as u32);
        }
    }

    /// Whether there is a reason to look again: a quiescence that held this thread up is over, or something was left to
    /// others since this thread looked, or a time was planned that had come when this thread looked. This is the
    /// sleeper's last look in the interleaving of [`wake`](blkmq_sync::wake). A thread that ends the quiescence, leaves
    /// something, or plans a time is the waker there.
    pub(crate) fn may_go_on(&self, q: &RequestQueue) -> bool {
        q.live.left.read() != self.left
            || self.saw_quiesced && !q.live.word.load().is_quiesced()
            || self.was_early(q) && kept("sleep.planned")
    }

    /// Whether a time was planned that had come when this thread looked. Then this thread had no news and passed by the
    /// thread at the scheduler. That thread asked the scheduler as of an earlier time, and so planned for a time that
    /// had come meanwhile.
    fn was_early(&self, q: &RequestQueue) -> bool {
        let planned = q.domain(0).planned();
        planned != self.planned && planned <= self.looked.0
    }

    /// Polls, completes and runs once: all that a thread with time to spare owes the queue. Does nothing while the
    /// queue is quiesced. `hctxs` names this thread's hardware queues. `hctxs` is called inside the queue, where the
    /// layout cannot change.
    pub(crate) fn drive<I>(&mut self, q: &RequestQueue, hctxs: impl FnOnce(Layout) -> I, now: Time)
    where
        I: Iterator<Item = u16> + Clone,
    {
        let activity = &self.member(q).activity;
        activity.enter();
        self.drive_inside(q, hctxs, now, q.live.word.load());
        activity.leave();
    }

    /// Like [`drive`](Self::drive), for a caller that is inside the queue and has read the queue's word there as
    /// `seen`.
    pub(crate) fn drive_inside<I>(
        &mut self,
        q: &RequestQueue,
        hctxs: impl FnOnce(Layout) -> I,
        now: Time,
        seen: Snapshot,
    ) where
        I: Iterator<Item = u16> + Clone,
    {
        let left = q.live.left.read();
        // A time that has come, the end of a quiescence, or a thread that leaves something may let requests go. The
        // thread at the scheduler may have looked before such a change.
        let planned = q.domain(0).planned();
        self.has_news |= left != self.left || self.saw_quiesced || planned <= now.0;
        (self.left, self.planned) = (left, planned);
        self.saw_quiesced = seen.is_quiesced();
        if !self.saw_quiesced {
            self.looked = now;
            let hctxs = hctxs(q.hctxs.layout());
            for index in hctxs.clone() {
                self.poll_hctx(q, index, now);
            }
            self.scan_timeouts(q, now);
            if !self.finished.is_empty() {
                self.complete(q, now);
            }
            let mut again = self.parked || (kept("runner.kick") && q.live.word.load().is_waiting());
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
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Client;
    use crate::driver::spec::open;

    #[test]
    fn who_passed_by_looks_again_when_a_time_is_planned_that_had_come() {
        let device = open("null,irqmode=0").expect("the spec is good");
        let q = RequestQueue::builder(device).scheduler("mq-deadline").build().expect("the device is good");
        let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
        submitter.poll();
        let looked = submitter.runner.looked.0;
        let plan = |time| q.domain(0).set_planned(time);
        assert!(!submitter.runner.may_go_on(&q));
        // If the planned time is later than the look, the thread sleeps until then.
        plan(looked + 1);
        assert!(!submitter.runner.may_go_on(&q));
        plan(looked);
        assert!(submitter.runner.may_go_on(&q));
        // The thread looks again only once: it has looked as of that time.
        submitter.poll();
        assert!(!submitter.runner.may_go_on(&q));
        plan(u64::MAX);
    }
}
