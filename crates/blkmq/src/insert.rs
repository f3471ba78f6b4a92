//! Inserting: a plug's requests go into the scheduler, merging with what waits there, or without one straight to the
//! driver.

use blkmq_sched::{Class, InsertAt, Merge, MergeHow, MergeLevel, Op, Time};

use crate::Status;
use crate::account::Starting;
use crate::hctx::{HwCtx, Layout};
use crate::hold::Hold;
use crate::locking::Locking;
use crate::queue::RequestQueue;
use crate::request::{FlushStep, Place, Request, RqList, Slots};
use crate::runner::Runner;
use crate::sync::atomic::Ordering;
use crate::word::Snapshot;

/// Kinds of requests that found no room: those behind them of the same kind must not pass them.
#[derive(Debug, Default)]
struct Blocked([[bool; 2]; Class::ALL.len()]);

impl Blocked {
    fn kind(&mut self, rq: &Request<'_>) -> &mut bool {
        &mut self.0[rq.body().priority.class.index()][usize::from(rq.body().is_sync())]
    }
}

impl Runner {
    /// Inserts what a plug holds. What finds no room stays there, or with the scheduler's holder. Requests of the flush machine go to it, operations that
    /// must not wait and would have to are finished with [`Status::Again`]. `seen` is the queue's word as the caller read
    /// it inside: if that says quiesced, the caller does not run, so nothing may be started here. Returns how many
    /// requests were dispatched, if that was tried as far as it is this thread's business.
    pub(crate) fn insert(&mut self, q: &RequestQueue, plug: &mut RqList, now: Time, seen: Snapshot) -> Option<usize> {
        let layout = q.hctxs.layout();
        let starting = Starting::new(q, self.member(q), now);
        let mut chosen = None;
        let entered = if q.settings.has_scheduler() {
            let passed = if seen.gate().is_some() { self.bypass(&starting, layout, plug) } else { 0 };
            passed + self.insert_waiting(&starting, layout, plug, seen, &mut chosen)
        } else {
            let entered = self.insert_direct(&starting, layout, plug, seen);
            // Unless something waits there is nothing to dispatch.
            chosen = (!self.parked && !q.live.word.load().is_waiting()).then_some(0);
            entered
        };
        self.member(q).counters.entered(entered);
        starting.finish(entered);
        chosen
    }

    /// What may not pass the scheduler by. Returns how many operations that is.
    #[inline]
    fn insert_waiting(
        &mut self,
        starting: &Starting<'_>,
        layout: Layout,
        plug: &mut RqList,
        seen: Snapshot,
        chosen: &mut Option<usize>,
    ) -> u64 {
        if plug.is_empty() {
            // All has passed, and what waits is not this thread's.
            *chosen = Some(0);
            return 0;
        }
        match starting.q.settings.locking() {
            Locking::Single | Locking::Batch => self.insert_ordered(starting, layout, plug, false),
            Locking::Staged(measures) => {
                self.has_news = true;
                if measures.buckets {
                    self.insert_staged(starting, layout, plug, measures)
                } else {
                    self.insert_ordered(starting, layout, plug, measures.merges)
                }
            }
            Locking::Combining => {
                let (entered, dispatched) = self.combine(starting, layout, plug, !seen.is_quiesced());
                *chosen = (!self.parked).then_some(dispatched);
                entered
            }
        }
    }

    /// One hold for the whole plug. Returns how many operations left it: what merged in the plug counts when the request
    /// it merged into leaves, for it must not keep a frozen queue from draining before. `may_skip_merges`: no merge is looked
    /// for if the lock is taken.
    ///
    /// COST: one lock and unlock of the hold; per request the scheduler's look-up and insertion.
    #[inline]
    fn insert_ordered(
        &mut self,
        starting: &Starting<'_>,
        layout: Layout,
        plug: &mut RqList,
        may_skip_merges: bool,
    ) -> u64 {
        let q = starting.q;
        let (mut rest, mut flushes) = (RqList::new(), RqList::new());
        let mut blocked = Blocked::default();
        let mut entered = 0;
        let hctxs = layout.hctxs(self.member);
        self.skips_merges = may_skip_merges && q.held.is_taken();
        let mut guard = q.held.hold(&self.member(q).counters);
        let hold = &mut *guard;
        while let Some(mut rq) = plug.pop_front(&q.slots) {
            let body = rq.body_mut();
            body.hctx = hctxs[layout.kind(body.op, body.flags) as usize];
            let nr_parts = u64::from(body.nr_parts);
            entered += nr_parts;
            if rq.body().flush != FlushStep::None {
                starting.add(&mut rq);
                flushes.push_back(rq, Place::Held);
                continue;
            }
            let inserted = if *blocked.kind(&rq) { Err(rq) } else { self.insert_one(starting, hold, rq) };
            let Err(mut rq) = inserted else { continue };
            if rq.body().flags.nowait {
                starting.refuse(&rq);
                rq.body_mut().status = Status::Again;
                self.finished.push_back(rq, Place::Held);
            } else {
                *blocked.kind(&rq) = true;
                entered -= nr_parts;
                rest.push_back(rq, Place::Plugged);
            }
        }
        q.held.note_waiting(hold);
        drop(guard);
        self.skips_merges = false;
        *plug = rest;
        self.insert_flushes(q, flushes, starting.now);
        entered
    }

    /// Merges or inserts one request; gives it back if the scheduler is full.
    #[inline(always)]
    pub(crate) fn insert_one<'q>(
        &self,
        starting: &Starting<'q>,
        hold: &mut Hold,
        rq: Request<'q>,
    ) -> Result<(), Request<'q>> {
        self.insert_or_merge(starting.q, Some(starting), hold, rq, starting.now)
    }

    /// The same for a request that has begun.
    pub(crate) fn insert_begun<'q>(
        &self,
        q: &'q RequestQueue,
        hold: &mut Hold,
        rq: Request<'q>,
        now: Time,
    ) -> Result<(), Request<'q>> {
        self.insert_or_merge(q, None, hold, rq, now)
    }

    #[inline(always)]
    fn insert_or_merge<'q>(
        &self,
        q: &'q RequestQueue,
        starting: Option<&Starting<'q>>,
        hold: &mut Hold,
        mut rq: Request<'q>,
        now: Time,
    ) -> Result<(), Request<'q>> {
        let info = rq.body().info();
        let Some(scheduler) = &mut hold.scheduler else { return Err(rq) };
        if info.merge != MergeLevel::Never
            && !self.skips_merges
            && let Some(merge) = scheduler.merge(&info)
        {
            self.merge(q, starting, hold, merge, rq);
            return Ok(());
        }
        let hctx = rq.body().hctx;
        let limited = info.op != Op::Read;
        if !has_room(q, hold, hctx, limited) {
            return Err(rq);
        }
        q.note_insertion(hold, info.priority.class);
        let Some(scheduler) = &mut hold.scheduler else { return Err(rq) };
        let at = if rq.body().flags.at_head { InsertAt::Head } else { InsertAt::Sorted };
        rq.body_mut().ordered = true;
        if let Some(starting) = starting {
            starting.add(&mut rq);
        }
        let id = rq.id();
        let _ = rq.leave_at(Place::Scheduler);
        scheduler.insert(id, &info, at, now);
        hold.count_in(hctx);
        hold.limited += u64::from(limited);
        Ok(())
    }

    /// Lets a request that the driver gave back wait in the scheduler again, but not at its head, so that it loses its place
    /// in front: the bug that the torture rig plants as `requeue.in_front`.
    #[cold]
    pub(crate) fn insert_behind(&self, q: &RequestQueue, rq: Request<'_>, now: Time) {
        let mut hold = q.held.hold(&self.member(q).counters);
        let hctx = rq.body().hctx;
        let info = rq.body().info();
        match &mut hold.scheduler {
            Some(scheduler) if rq.body().flush == FlushStep::None => {
                let id = rq.id();
                let _ = rq.leave_at(Place::Scheduler);
                scheduler.insert(id, &info, InsertAt::Sorted, now);
                hold.count_in(hctx);
                q.held.note_waiting(&hold);
            }
            _ => q.hctxs.get(hctx).park(rq),
        }
    }

    /// Hangs a newcomer onto the request that takes it in, and joins that with its neighbour if they touch now.
    fn merge(
        &self,
        q: &RequestQueue,
        starting: Option<&Starting<'_>>,
        hold: &mut Hold,
        merge: Merge,
        newcomer: Request<'_>,
    ) {
        let mut into = q.slots.leave_scheduler(merge.into);
        match starting {
            Some(starting) => starting.merge(&into, &newcomer),
            None => self.member(q).account_merge(q, &newcomer),
        }
        into.absorb(newcomer, merge.how);
        let _ = into.leave_at(Place::Scheduler);
        let mut merges = 1;
        if let Some(join) = merge.joined {
            let mut survivor = q.slots.leave_scheduler(join.survivor);
            let absorbed = q.slots.leave_scheduler(join.absorbed);
            hold.count_out(absorbed.body().hctx);
            hold.limited -= u64::from(absorbed.body().op != Op::Read);
            self.member(q).account_join(q, &survivor, &absorbed);
            survivor.absorb(absorbed, MergeHow::Back);
            let _ = survivor.leave_at(Place::Scheduler);
            merges += 1;
        }
        self.member(q).counters.merged_at_insert(merges);
    }

    /// Without a scheduler: tags for as many as there are, the rest into this submitter's software queue. Returns how many
    /// operations there were.
    fn insert_direct(&mut self, starting: &Starting<'_>, layout: Layout, plug: &mut RqList, seen: Snapshot) -> u64 {
        let q = starting.q;
        let hctxs = layout.hctxs(self.member);
        let mut entered = 0;
        loop {
            let mut index = None;
            let mut run = plug.take_while(&q.slots, |rq| {
                let body = rq.body_mut();
                body.hctx = hctxs[layout.kind(body.op, body.flags) as usize];
                let belongs = body.flush == FlushStep::None && *index.get_or_insert(body.hctx) == body.hctx;
                entered += if belongs { u64::from(body.nr_parts) } else { 0 };
                belongs
            });
            if let Some(index) = index {
                self.start(starting, layout, index, &mut run, seen);
            } else {
                let Some(mut rq) = plug.pop_front(&q.slots) else { return entered };
                entered += u64::from(rq.body().nr_parts);
                starting.add(&mut rq);
                self.insert_flush(q, rq, starting.now);
            }
        }
    }

    /// Starts requests of one hardware queue, in order. If something waits already they queue up behind it.
    fn start(&mut self, starting: &Starting<'_>, layout: Layout, index: u16, run: &mut RqList, seen: Snapshot) {
        let (q, now) = (starting.q, starting.now);
        let hctx = q.hctxs.get(index);
        if !seen.is_quiesced() && !q.live.word.load().is_waiting() {
            self.start_with_tags(starting, index, hctx, run);
            if q.is_concurrent {
                self.issue_directly(q, now);
            }
        }
        if run.is_empty() {
            return;
        }
        refuse_nowait(&q.slots, run, Place::Held, |rq| {
            starting.refuse(&rq);
            self.finished.push_back(rq, Place::Held);
        });
        if run.is_empty() {
            // A mark for an empty software queue could outlive the layout of the hardware queues that it was made under.
            return;
        }
        let mut rest = run.take_while(&q.slots, |rq| {
            starting.add(rq);
            true
        });
        let member = self.member(q);
        member.ctx.append(&q.slots, layout.kind_of(index), &mut rest, || hctx.mark_ctx(self.member));
        // The run that follows looks for tags again, with WAITING set.
        q.live.word.set_waiting();
    }

    fn start_with_tags(&mut self, starting: &Starting<'_>, index: u16, hctx: &HwCtx, run: &mut RqList) {
        let q = starting.q;
        self.make_ready_on(q, index);
        let mut tags = hctx.tags.take(&mut self.hint, run.len());
        let tagged = run.take_while(&q.slots, |rq| {
            let Some(tag) = tags.next() else { return false };
            starting.add(rq);
            rq.body_mut().tag = Some(tag);
            rq.rest_at(Place::IssueList);
            true
        });
        drop(tags);
        if !tagged.is_empty() {
            self.ready.append(tagged);
            self.member(q).counters.dispatched(1);
        }
    }
}

/// Gives `ended` the operations of a list that must not wait, with their status; the others stay, in order, at `place`.
pub(crate) fn refuse_nowait<'q>(slots: &'q Slots, list: &mut RqList, place: Place, mut ended: impl FnMut(Request<'q>)) {
    for _ in 0..list.len() {
        let Some(mut rq) = list.pop_front(slots) else { return };
        if rq.body().flags.nowait {
            rq.body_mut().status = Status::Again;
            ended(rq);
        } else {
            list.push_back(rq, place);
        }
    }
}

/// Whether the scheduler may take one more request for this hardware queue, by `nr_requests` and the scheduler's limit
/// on requests other than reads. The caller inserts it then.
#[inline]
fn has_room(q: &RequestQueue, hold: &mut Hold, hctx: u16, limited: bool) -> bool {
    let (known, left) = &mut hold.room;
    if *known == hctx && *left > 0 {
        *left -= 1;
    } else if !has_room_now(q, hold, hctx) {
        return false;
    }
    !limited || is_within_async_depth(q, hold)
}

/// What the driver has is only looked up near the bound, and then for each request: the flush machine gives it more at any time.
/// Farther away the hold keeps in mind how many more there is room for, whatever the driver takes meanwhile.
#[inline(never)]
fn has_room_now(q: &RequestQueue, hold: &mut Hold, index: u16) -> bool {
    let nr_requests = q.settings.nr_requests.load(Ordering::Relaxed);
    let hctx = q.hctxs.get(index);
    let waiting = hold.queued[usize::from(index)] + hctx.nr_parked();
    let left = nr_requests.saturating_sub(waiting + u32::from(q.hctxs.depth()));
    hold.room = (index, left.saturating_sub(1));
    left > 0 || waiting + hctx.tags.weight() < nr_requests
}

fn is_within_async_depth(q: &RequestQueue, hold: &Hold) -> bool {
    let Some(depth) = q.async_bound(hold) else { return true };
    // Counters lag, so `completed` may be too small, which errs on the side of waiting.
    let completed = q.nr_limited_completed().wrapping_sub(hold.base_limited);
    let outstanding = hold.limited.wrapping_sub(completed);
    outstanding < u64::from(depth) * u64::from(q.hctxs.layout().len())
}

impl RequestQueue {
    /// The scheduler's bound on requests other than reads, if that is lower than `nr_requests`.
    pub(crate) fn async_bound(&self, hold: &Hold) -> Option<u32> {
        let nr_requests = self.settings.nr_requests.load(Ordering::Relaxed);
        let async_depth = hold.scheduler.as_ref().and_then(|scheduler| scheduler.async_depth());
        async_depth.filter(|depth| *depth < nr_requests)
    }
}
