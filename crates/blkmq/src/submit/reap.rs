//! Reaping: a submitter takes back completed operations, and puts the parts of a split operation together again.

use blkmq_sched::Time;

use super::Submitter;
use crate::queue::RequestQueue;
use crate::request::{Body, Completion, Location, Status};
use blkmq_sync::{Stage, stage, unless_mutated};

/// What is outstanding of a bio that was split.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outstanding {
    parts: u16,
    status: Status,
    /// The sectors of those of its parts that are over.
    nr_sectors: u32,
    /// The latest times of those of its parts that are over.
    issued: Time,
    completed: Time,
}

impl Outstanding {
    /// All `parts` of the operation are outstanding.
    pub(super) fn new(parts: u16) -> Self {
        Self { parts, ..Self::default() }
    }
}

impl Submitter {
    /// Returns the next completed operation, if any.
    ///
    /// COST: the operation moves once more than with [`reap_all`](Self::reap_all) and [`reap_up_to`](Self::reap_up_to).
    #[inline]
    pub fn reap(&mut self) -> Option<Completion> {
        let mut reaped = None;
        self.reap_up_to(1, |completion| reaped = Some(completion));
        reaped
    }

    /// Hands every completed operation to `each`. Returns how many there were. If `each` panics, other threads see the
    /// statistics as they were before this call until the next one.
    ///
    /// COST: an operation moves once, from its slot to where `each` puts it. A loop around [`reap`](Self::reap) moves
    /// it once more.
    #[inline]
    pub fn reap_all(&mut self, each: impl FnMut(Completion)) -> usize {
        self.reap_up_to(usize::MAX, each)
    }

    /// Like [`reap_all`](Self::reap_all), but hands out `most` operations at most.
    #[inline(always)]
    pub fn reap_up_to(&mut self, most: usize, mut each: impl FnMut(Completion)) -> usize {
        let mut reaped = 0;
        while reaped < most && self.settle() {
            each(self.hand_out());
            reaped += 1;
        }
        if reaped > 0 {
            // Shows other threads what was handed out, and how many operations are outstanding.
            self.dispatcher.thread(&self.q.0).service.show(self.served, self.nr_outstanding());
            stage(Stage::Reap, reaped);
        }
        reaped
    }

    /// Hands out the first completed operation, and adds it to what was done. The caller has made sure that there is
    /// one.
    #[inline(always)]
    fn hand_out(&mut self) -> Completion {
        let rq = self.dispatcher.completed().pop_front(&self.q.0.slots).expect("an operation has completed");
        debug_assert!(
            !rq.body().is_split && rq.body().tag.is_none(),
            "what is handed out is whole, and complete: {rq:?}"
        );
        let &Body { status, submitted, issued, completed, .. } = rq.body();
        let id = rq.id();
        if status.is_ok() || unless_mutated("usage.failed") {
            self.served.add(rq.op(), rq.body().part.nr_sectors);
        }
        // COST: nothing looks at the operation on its way, so that it moves once.
        Completion { id, status, submitted, issued, completed, bio: self.free.push_free_for_bio(rq) }
    }

    /// Whether the first of what has completed is a whole operation. Puts the parts of a split operation
    /// together. If this thread has completed nothing, takes over what other threads completed for it.
    #[inline]
    pub(super) fn settle(&mut self) -> bool {
        if !self.dispatcher.has_completed() {
            self.collect();
        }
        let front = self.dispatcher.completed().with_first(&self.q.0.slots, |rq| rq.body().is_split);
        front.is_some_and(|is_split| !is_split || self.join_parts())
    }

    /// Takes over what other threads completed for this thread.
    pub(super) fn collect(&mut self) {
        let Self { q: RequestQueue(q), dispatcher, .. } = self;
        let chain = dispatcher.thread(q).completions.take_all();
        dispatcher.completed().take_over(&q.slots, chain, Location::Completed);
    }

    /// Takes parts of split operations from the front until the first entry is a whole operation. Returns
    /// whether there is one.
    #[cold]
    fn join_parts(&mut self) -> bool {
        loop {
            let Self { q: RequestQueue(q), dispatcher, outstanding, free, .. } = self;
            let Some(rq) = dispatcher.completed().pop_front(&q.slots) else { return false };
            if !rq.body().is_split {
                dispatcher.completed().push_front(rq, Location::Completed);
                return true;
            }
            let (&Body { status, issued, completed, .. }, parent) = (rq.body(), rq.body().part.parent);
            let whole = &mut outstanding[usize::from(parent.slot())];
            debug_assert!(whole.parts > 0, "no more parts come home than went out: {rq:?}");
            whole.parts -= 1;
            // If a part was never started, the whole operation is handed back, whatever became of the other parts.
            whole.status = if status == Status::Gone { status } else { whole.status.and(status) };
            whole.nr_sectors = whole.nr_sectors.saturating_add(rq.body().part.nr_sectors);
            whole.issued = whole.issued.max(issued);
            whole.completed = whole.completed.max(completed);
            if rq.index() == parent {
                let _ = rq.leave_at(Location::Completed);
            } else {
                free.push_free(rq);
            }
            if whole.parts == 0 {
                let mut rq = q.slots.take_back(parent);
                let body = rq.body_mut();
                // This slot stands for the whole operation now.
                body.part.nr_sectors = whole.nr_sectors;
                (body.status, body.issued, body.completed, body.is_split) =
                    (whole.status, whole.issued, whole.completed, false);
                dispatcher.completed().push_front(rq, Location::Completed);
                return true;
            }
            if !dispatcher.has_completed() {
                self.collect();
            }
        }
    }
}
