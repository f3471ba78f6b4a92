//! The locking `combining`: one thread at a time inserts and merges for all and dispatches a batch; everybody else leaves
//! what it has and goes on.
//!
//! # Liveness
//! Who finds another thread at the scheduler changes the staging word: it leaves its requests there, or a kick. The holder
//! lets go only by an exchange from the word in which nothing was left, so it finds either and looks again at everything,
//! behind a fence: what was left, tags that came back, what the scheduler held back, dispatch lists. So a loser may go at
//! once, also when it leaves just before the holder lets go, and whether or not anything is in flight; a holder that is
//! preempted delays what was left, and loses nothing.
//!
//! Who has nothing new to tell, and only polls, passes by: what he would find the last holder has found. News is whatever may
//! let something go: a completion, something parked, a time that has come, the end of a quiescence, and what another one left
//! to others.
//!
//! A holder that has done its share gives up: it sets WAITING, lets go whatever was left, and counts that it left something
//! to others, so that whoever polls or sleeps finds it (see `runner`). A holder that may not dispatch, because the queue was
//! quiesced when it came in, sets WAITING too and does the same. Whoever stays behind without a tag, or held back by the
//! scheduler, is found by the completion that changes that, as `dispatch` says; here WAITING is changed only by the holder
//! and set by those who park something, so a holder that finds it set behind a fence need not set it again.
//!
//! The scheduler changes only while the queue is frozen, drained, and quiesced: nobody is at it then, and nothing is left.

use blkmq_sched::Time;

use crate::account::Starting;
use crate::hctx::Layout;
use crate::hold::{Hold, Wait, WaitObserver};
use crate::liveness::Told;
use crate::queue::RequestQueue;
use crate::request::{FlushStep, Place, Request, RqList};
use crate::runner::{RUN_BOUND, Runner};
use crate::stack::Chain;
use crate::staging::Round;
use crate::status::Status;
use crate::sync::atomic::Ordering;
use crate::sync::kept;

impl Runner {
    /// Gets a plug's requests into the scheduler: by this thread, in one hold with dispatch, or left to the thread that is
    /// at it. Returns how many operations these are, and how many requests were dispatched.
    ///
    /// COST: without contention two compare-exchanges of the staging word and a lock and unlock of the hold, dispatch
    /// included; with contention one exchange of the staging word, behind up to 128 loads of it if nothing was left there yet; either
    /// way once a plug.
    pub(crate) fn combine(
        &mut self,
        starting: &Starting<'_>,
        layout: Layout,
        plug: &mut RqList,
        may_dispatch: bool,
    ) -> (u64, usize) {
        let q = starting.q;
        let own = plug.len();
        let mut flushes = RqList::new();
        let mut entered = 0;
        let mut chosen = 0;
        let mut begun = None;
        if q.settings.stages_all() {
            let (entered, list) = self.begin(starting, layout, plug, &mut flushes);
            self.member(q).counters.staged(list.len() as u64);
            list.leave_anyway(&q.slots, &q.staging);
            q.hand_on();
            self.insert_flushes(q, flushes, starting.now);
            return (entered, 0);
        }
        let mut has_looked = false;
        let is_noted = may_dispatch && self.note_newcomers(q, layout, plug);
        loop {
            if let Some(left) = q.staging.try_hold() {
                let share = RUN_BOUND.max(own) + own;
                chosen = self.work(q, left, starting.now, share, may_dispatch, |runner, hold| {
                    if begun.is_none() && !hold.backlog.is_untried() {
                        let mut through = 0;
                        if is_noted {
                            (entered, through) = runner.hand_own_through(starting, hold, plug);
                        }
                        if through == 0 {
                            entered = runner.insert_own(starting, hold, layout, plug, &mut flushes);
                        }
                        return through;
                    }
                    let list = begun.take().unwrap_or_else(|| {
                        let list;
                        (entered, list) = runner.begin(starting, layout, plug, &mut flushes);
                        list
                    });
                    hold.backlog.add(list);
                    0
                });
                break;
            }
            if !std::mem::replace(&mut has_looked, true) && q.staging.is_let_go_soon() {
                continue;
            }
            let list = begun.take().unwrap_or_else(|| {
                let list;
                (entered, list) = self.begin(starting, layout, plug, &mut flushes);
                list
            });
            let requests = list.len() as u64;
            match list.leave(&q.slots, &q.staging) {
                Ok(()) => {
                    let counters = &self.member(q).counters;
                    counters.found_held();
                    counters.staged(requests);
                    break;
                }
                Err(list) => begun = Some(list),
            }
        }
        self.insert_flushes(q, flushes, starting.now);
        (entered, chosen)
    }

    pub(crate) fn insert_flushes(&mut self, q: &RequestQueue, mut flushes: RqList, now: Time) {
        while let Some(rq) = flushes.pop_front(&q.slots) {
            self.insert_flush(q, rq, now);
        }
    }

    /// Works off what others left and dispatches, or sees to it that the thread at the scheduler does. Returns how many
    /// requests were dispatched.
    ///
    /// COST: as of [`combine`](Self::combine).
    pub(crate) fn combine_for_others(&mut self, q: &RequestQueue, now: Time, bound: usize) -> usize {
        if std::mem::take(&mut self.parked) {
            // So that the holder looks at the dispatch lists.
            q.live.word.set_waiting();
            self.has_news = true;
        }
        // Who brings nothing new would find what the last holder found. What the driver gave back is tried at each poll.
        let gave_back = || q.hctxs.iter().any(|(_, hctx)| hctx.gave_back.load(Ordering::Relaxed));
        if !std::mem::take(&mut self.has_news) && !gave_back() {
            return 0;
        }
        let held = if kept("combine.kick") { q.staging.hold_or_kick() } else { q.staging.try_hold() };
        match held {
            Some(left) => self.work(q, left, now, bound, true, |_, _| 0),
            None => {
                self.member(q).counters.found_held();
                0
            }
        }
    }

    /// What the holder does until it can let go, for up to `bound` requests of others and as many of its own. Returns how many
    /// it dispatched. `enter` inserts its own, and says how many went through at once. If it has done its share it gives up,
    /// with WAITING set, and [`run`](Self::run) tells the others.
    fn work(
        &mut self,
        q: &RequestQueue,
        left: Chain,
        now: Time,
        bound: usize,
        may_dispatch: bool,
        enter: impl FnOnce(&mut Self, &mut Hold) -> usize,
    ) -> usize {
        let (mut enter, mut now) = (Some(enter), now);
        let (mut chosen, mut share) = (0, bound);
        let round = |left| {
            if enter.is_none() {
                // So that there is an end to it if others go on kicking. Another thread may have come because a time has come.
                share -= 1;
                now = q.clock.now();
            }
            let mut guard = q.held.hold(&self.member(q).counters);
            let hold = &mut *guard;
            self.take_over(q, hold, left);
            self.told = q.live.told();
            // What came before has the room first.
            self.retry_without_room(q, hold, now);
            if let Some(enter) = enter.take() {
                chosen += enter(self, hold);
            }
            if may_dispatch {
                let through = self.hand_left_through(q, hold, now, share.min(bound - chosen));
                (share, chosen) = (share - through, chosen + through);
            }
            share -= self.insert_left(q, hold, now, share);
            if may_dispatch {
                chosen += self.dispatch_held(q, hold, now, bound - chosen);
            }
            let has_more = hold.backlog.is_untried();
            q.live.settle(hold.has_waiting(), || q.hctxs.iter().all(|(_, hctx)| hctx.nr_parked() == 0));
            q.turn_gate(hold);
            q.held.note_waiting(hold);
            Round { has_more, is_last: share == 0 || chosen == bound }
        };
        let has_let_go = q.staging.serve(left, round, |staging| q.live.give_up(staging));
        self.told = Told::NO;
        self.gave_up |= !has_let_go;
        self.tell_planned(q);
        chosen
    }

    fn take_over(&self, q: &RequestQueue, hold: &mut Hold, left: Chain) {
        if !left.is_empty() {
            let mut list = RqList::new();
            list.take_over(&q.slots, left, Place::Staged);
            hold.backlog.add(list);
        }
    }

    /// Dispatches under the hold: what stands in front of the scheduler, then what it chooses.
    fn dispatch_held(&mut self, q: &RequestQueue, hold: &mut Hold, now: Time, bound: usize) -> usize {
        let mut chosen = 0;
        let is_waiting = q.live.word.load().is_waiting();
        loop {
            if std::mem::take(&mut self.parked) || is_waiting {
                chosen += self.dispatch_parked(q);
            }
            chosen += self.choose_batch(q, hold, now, bound.saturating_sub(chosen));
            if !self.parked {
                break;
            }
        }
        self.append_ready(q);
        chosen.min(bound)
    }

    /// Makes a plug's requests ready to be left: they have begun from here on. Returns how many operations there are, and
    /// those that are to be left; the flush machine's are put aside.
    pub(crate) fn begin(
        &mut self,
        starting: &Starting<'_>,
        layout: Layout,
        plug: &mut RqList,
        flushes: &mut RqList,
    ) -> (u64, RqList) {
        let q = starting.q;
        let hctxs = layout.hctxs(self.member);
        let (mut entered, mut list) = (0, RqList::new());
        let staged = q.held.wait_observer.as_ref().map(WaitObserver::now);
        while let Some(mut rq) = plug.pop_front(&q.slots) {
            let body = rq.body_mut();
            body.hctx = hctxs[layout.kind(body.op, body.flags) as usize];
            entered += u64::from(body.nr_parts);
            starting.add(&mut rq);
            if rq.body().flush == FlushStep::None {
                if let Some(staged) = staged {
                    // Where the time of issuing comes later.
                    rq.body_mut().issued = staged;
                }
                list.push_back(rq, Place::Staged);
            } else {
                flushes.push_back(rq, Place::Held);
            }
        }
        (entered, list)
    }

    /// Inserts a plug under the hold. What finds no room waits with what others left. Returns how many operations there are.
    pub(crate) fn insert_own(
        &mut self,
        starting: &Starting<'_>,
        hold: &mut Hold,
        layout: Layout,
        plug: &mut RqList,
        flushes: &mut RqList,
    ) -> u64 {
        let q = starting.q;
        let hctxs = layout.hctxs(self.member);
        let mut entered = 0;
        while let Some(mut rq) = plug.pop_front(&q.slots) {
            let body = rq.body_mut();
            body.hctx = hctxs[layout.kind(body.op, body.flags) as usize];
            entered += u64::from(body.nr_parts);
            if rq.body().flush != FlushStep::None {
                starting.add(&mut rq);
                flushes.push_back(rq, Place::Held);
                continue;
            }
            let inserted = if hold.backlog.is_blocked(&rq) { Err(rq) } else { self.insert_one(starting, hold, rq) };
            let Err(mut rq) = inserted else { continue };
            if rq.body().flags.nowait {
                starting.refuse(&rq);
                rq.body_mut().status = Status::Again;
                self.finished.push_back(rq, Place::Held);
            } else {
                starting.add(&mut rq);
                hold.backlog.put_without_room(rq);
            }
        }
        entered
    }

    /// Inserts what was left and not tried yet, up to `share` requests. Returns how many were tried. What waited for room had
    /// its turn before.
    #[inline]
    pub(crate) fn insert_left(&mut self, q: &RequestQueue, hold: &mut Hold, now: Time, share: usize) -> usize {
        if hold.backlog.is_empty() { 0 } else { self.insert_some_left(q, hold, now, share) }
    }

    #[inline(never)]
    fn insert_some_left(&mut self, q: &RequestQueue, hold: &mut Hold, now: Time, share: usize) -> usize {
        let mut tried = 0;
        let observed = q.held.wait_observer.as_ref().map(|observer| (observer, observer.now()));
        while tried < share
            && let Some(mut rq) = hold.backlog.take(&q.slots)
        {
            tried += 1;
            if let Some((observer, now)) = observed {
                observer.tell(Wait::Staged, std::mem::take(&mut rq.body_mut().issued), now);
            }
            let inserted = if kept("backlog.order") && hold.backlog.is_blocked(&rq) {
                Err(rq)
            } else {
                self.insert_begun(q, hold, rq, now)
            };
            let Err(rq) = inserted else { continue };
            if rq.body().flags.nowait {
                self.refuse_begun(q, rq);
            } else {
                hold.backlog.put_without_room(rq);
            }
        }
        if hold.backlog.lacks_room() {
            // As with a tag: the room may have come between the look and the mark.
            q.live.lack_unless(self.told, || self.retry_without_room(q, hold, now));
        }
        tried
    }

    /// Inserts what found no room before, as far as there is some now.
    #[inline]
    pub(crate) fn retry_without_room(&self, q: &RequestQueue, hold: &mut Hold, now: Time) {
        if hold.backlog.lacks_room() {
            self.retry_some(q, hold, now);
        }
    }

    #[cold]
    fn retry_some(&self, q: &RequestQueue, hold: &mut Hold, now: Time) {
        let mut backlog = std::mem::take(&mut hold.backlog);
        backlog.retry(&q.slots, |rq| self.insert_begun(q, hold, rq, now));
        hold.backlog = backlog;
    }

    /// Ends a request that had begun and would have to wait.
    #[cold]
    fn refuse_begun(&mut self, q: &RequestQueue, mut rq: Request<'_>) {
        self.member(q).account_refuse(q, &mut rq);
        rq.body_mut().status = Status::Again;
        self.finished.push_back(rq, Place::Held);
    }
}
