//! Inserting under the lock: into the scheduler, or merged with a request that waits there.

use blkmq_sched::{Merge, MergeHow, MergeLevel};

use super::Section;
use crate::dispatcher::insert::Plug;
use crate::queue::{Count, Locking, StartBatch};
use crate::request::{FlushStep, Location, Request, Status};
use blkmq_sync::{Stage, stage, unless_mutated};

impl<'q> Section<'q, '_> {
    /// Inserts a plug, except for requests of the flush machine. A request for which there is no room goes to the
    /// backlog, or finishes with [`Status::Again`] if it must not wait. Returns how many operations entered.
    #[inline(always)]
    pub(in crate::dispatcher) fn insert_plug(&mut self, plug: &mut Plug<'q>) -> u64 {
        let Plug { starting, mapping, requests, flushes, .. } = plug;
        debug_assert!(!requests.is_empty() && std::ptr::eq(self.q, starting.q), "there is a plug for this queue");
        let (q, number) = (self.q, requests.len());
        let mut entered = 0;
        while let Some(mut rq) = requests.pop_front(&q.slots) {
            mapping.assign(&mut rq);
            entered += u64::from(rq.body().nr_parts);
            if rq.body().flush != FlushStep::None {
                starting.add(&mut rq);
                flushes.push_back(rq, Location::Held);
                continue;
            }
            let is_blocked = self.hold.backlog.is_blocked(&rq);
            let inserted = if is_blocked { Err(rq) } else { self.insert_one(Some(starting), rq) };
            let Err(mut rq) = inserted else { continue };
            if rq.flags().nowait {
                starting.refuse(&rq);
                rq.body_mut().status = Status::Again;
                self.dispatcher.finished.push_back(rq, Location::Held);
            } else {
                starting.add(&mut rq);
                self.hold.backlog.put_without_room(rq);
            }
        }
        stage(Stage::Insert, number);
        entered
    }

    /// Inserts a plug behind all that came before it, as [`insert_plug`](Self::insert_plug) does, for a locking whose
    /// combiner does not insert the backlog afterwards.
    #[inline]
    pub(in crate::dispatcher) fn insert_in_turn(&mut self, plug: &mut Plug<'q>) -> u64 {
        debug_assert!(
            self.q.locking() != Locking::Combining,
            "a combiner that works on the backlog afterwards inserts only its own plug here"
        );
        // Requests that arrived earlier get room first.
        self.retry_without_room();
        let entered = self.insert_plug(plug);
        self.insert_backlog(usize::MAX);
        entered
    }

    /// Merges or inserts one request, or gives it back if the scheduler is full. `starting`: the request begins with
    /// this. Without `starting` the request has begun already.
    #[inline(always)]
    fn insert_one(&mut self, starting: Option<&StartBatch<'q>>, rq: Request<'q>) -> Result<(), Request<'q>> {
        let (q, now) = (self.q, self.now);
        debug_assert!(
            rq.body().flush == FlushStep::None && rq.body().tag.is_none(),
            "a scheduler gets no flushes, and no requests that have a tag: {rq:?}"
        );
        let info = rq.body().info();
        if info.merge != MergeLevel::Never
            && self.looks_for_merges
            && let Some(merge) = self.hold.merge(&info)
        {
            self.merge(starting, merge, rq);
            return Ok(());
        }
        self.hold.insert(q, rq, &info, now, |rq| {
            if let Some(starting) = starting {
                starting.add(rq);
            }
        })
    }

    /// Merges a request into a waiting one, and joins that with its neighbour if they touch now.
    fn merge(&mut self, starting: Option<&StartBatch<'q>>, merge: Merge, newcomer: Request<'_>) {
        let q = self.q;
        let thread = self.thread;
        let mut into = q.slots.leave_scheduler(merge.into);
        debug_assert_eq!(into.op(), newcomer.op(), "requests of one operation merge");
        match starting {
            Some(starting) => starting.merge(&into, &newcomer),
            None => thread.account_merge(q, &newcomer),
        }
        into.absorb(newcomer, merge.how);
        let _ = into.leave_at(Location::Scheduler);
        let mut merges = 1;
        if let Some(join) = merge.joined {
            let mut survivor = q.slots.leave_scheduler(join.survivor);
            let absorbed = q.slots.leave_scheduler(join.absorbed);
            self.hold.note_joined(&absorbed);
            thread.account_join(q, &survivor, &absorbed);
            survivor.absorb(absorbed, MergeHow::Back);
            let _ = survivor.leave_at(Location::Scheduler);
            merges += 1;
        }
        thread.counters.count(Count::MergesInsert, merges);
    }

    /// Inserts up to `share` requests of the backlog that were not tried yet. Returns how many were tried. Requests
    /// that wait for room had their turn before.
    #[inline]
    pub(in crate::dispatcher) fn insert_backlog(&mut self, share: usize) -> usize {
        if self.hold.backlog.is_empty() { 0 } else { self.insert_some_of_backlog(share) }
    }

    #[inline(never)]
    fn insert_some_of_backlog(&mut self, share: usize) -> usize {
        let q = self.q;
        let mut tried = 0;
        let observed = self.domain.observed_now();
        while tried < share
            && let Some(mut rq) = self.hold.backlog.take(&q.slots, share - tried)
        {
            tried += 1;
            if let Some(now) = observed {
                self.domain.record_staged_wait(std::mem::take(&mut rq.body_mut().issued), now);
            }
            let is_blocked = unless_mutated("backlog.order") && self.hold.backlog.is_blocked(&rq);
            let inserted = if is_blocked { Err(rq) } else { self.insert_one(None, rq) };
            let Err(rq) = inserted else { continue };
            if rq.flags().nowait {
                self.refuse(rq);
            } else {
                self.hold.backlog.put_without_room(rq);
            }
        }
        stage(Stage::Insert, tried);
        if self.hold.backlog.has_waiting_for_room() {
            // Before WAITING: a completer that reads WAITING as set then reads that requests wait for room. This thread
            // does not try them again by itself.
            self.domain.note_waiting(self.hold);
            // As with a tag: room may have become free between the attempt and the mark.
            q.live.prepare_to_wait_unless(self.waiter_present, || self.retry_without_room());
        }
        tried
    }

    /// Inserts the requests that found no room before, as far as there is room now.
    #[inline]
    pub(in crate::dispatcher) fn retry_without_room(&mut self) {
        if self.hold.backlog.has_waiting_for_room() {
            self.retry_some();
        }
    }

    #[cold]
    fn retry_some(&mut self) {
        debug_assert!(self.hold.backlog.has_waiting_for_room(), "something waits for room");
        let slots = &self.q.slots;
        let mut backlog = std::mem::take(&mut self.hold.backlog);
        backlog.retry(slots, |rq| self.insert_one(None, rq));
        self.hold.backlog = backlog;
    }

    /// Ends a request that had begun and would have to wait.
    #[cold]
    fn refuse(&mut self, mut rq: Request<'_>) {
        debug_assert!(rq.flags().nowait, "only what must not wait is refused: {rq:?}");
        self.thread.account_refuse(self.q, &mut rq);
        rq.body_mut().status = Status::Again;
        self.dispatcher.finished.push_back(rq, Location::Held);
    }
}
