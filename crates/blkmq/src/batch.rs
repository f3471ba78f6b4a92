//! Choosing many requests under one hold, in the scheduler's order, onto the issue lists.

use blkmq_sched::Time;

use crate::dispatch::has_come;
use crate::hctx::HwCtx;
use crate::hold::Hold;
use crate::queue::RequestQueue;
use crate::request::Request;
use crate::runner::Runner;
use crate::sync::atomic::Ordering;
use crate::tags::Tag;

/// Tags taken in one go.
const TAGS: usize = 32;

impl Runner {
    /// The locking `batch`: as many requests as there are tags under one hold, or one while the device is busy, which is then
    /// issued before the next is chosen. The issue lists are appended to under the hold, so they keep the scheduler's order.
    ///
    /// COST: per batch one lock and unlock of the hold, a read-modify-write of a tag word, and an exchange of the issue list.
    pub(crate) fn dispatch_batch(&mut self, q: &RequestQueue, now: Time, bound: usize) -> usize {
        let mut chosen = 0;
        while chosen < bound && q.held.nr_waiting() > 0 {
            // As in Linux, only where there is one hardware queue.
            let is_busy = q.held.is_for_first_hctx() && q.hctxs.get(0).is_busy();
            if is_busy && q.hctxs.get(0).stalled.load(Ordering::Relaxed) {
                self.touch(0);
                self.issue_touched(q, now);
                if !self.requeued.is_empty() {
                    // What the driver gave back comes before what is chosen from here on.
                    break;
                }
                if q.hctxs.get(0).stalled.load(Ordering::Relaxed) {
                    // Whoever gets the driver to take what it refused, or completes something, goes on.
                    q.live.word.set_waiting();
                    break;
                }
            }
            let limit = if is_busy { 1 } else { bound - chosen };
            let mut guard = q.held.hold(&self.member(q).counters);
            let got = self.choose_batch(q, &mut guard, now, limit);
            self.append_ready(q);
            q.turn_gate(&mut guard);
            q.held.note_waiting(&guard);
            drop(guard);
            self.tell_planned(q);
            chosen += got;
            if got < limit {
                break;
            }
            if is_busy {
                self.issue_touched(q, now);
                if !self.requeued.is_empty() {
                    // What the driver gave back comes before what is chosen from here on, and is tried again later.
                    break;
                }
            }
        }
        chosen
    }

    /// Chooses up to `bound` requests, as far as there are tags, and makes them ready. Called under the hold.
    pub(crate) fn choose_batch(&mut self, q: &RequestQueue, hold: &mut Hold, now: Time, bound: usize) -> usize {
        let (mut chosen, mut now) = (0, now);
        loop {
            let waiting = hold.scheduler.as_ref().map_or(0, |scheduler| scheduler.len());
            let bound = bound.saturating_sub(chosen);
            if waiting == 0 || bound == 0 {
                return chosen;
            }
            let (got, is_held_back) = if hold.elsewhere == 0 {
                self.choose_for_one(q, hold, now, waiting.min(bound))
            } else {
                self.choose_for_many(q, hold, now, bound)
            };
            chosen += got;
            self.must_tell |= q.plan(hold, is_held_back, now);
            // What was put aside for want of a tag was chosen too.
            if hold.scheduler.as_ref().is_some_and(|scheduler| scheduler.len() < waiting) {
                self.member(q).counters.dispatched(1);
            }
            // Who came because this time had come may have lacked a tag that was missing then, and have left.
            if !(is_held_back && has_come(q, &mut now)) {
                return chosen;
            }
        }
    }

    /// While all that waits goes to one hardware queue: tags first, then the choices, `wanted` of them, which is not more than
    /// wait. Returns whether the scheduler held something back too.
    fn choose_for_one(&mut self, q: &RequestQueue, hold: &mut Hold, now: Time, wanted: usize) -> (usize, bool) {
        let hctx = q.hctxs.get(0);
        let mut batch = [Tag(0); TAGS];
        let mut chosen = 0;
        loop {
            let wanted = (wanted - chosen).min(TAGS);
            if wanted == 0 {
                return (chosen, false);
            }
            let got = self.tags_or_wait(q, hctx, &mut batch[..wanted], true);
            if got == 0 {
                return (chosen, false);
            }
            for (taken, tag) in batch[..got].iter().enumerate() {
                let Some(rq) = self.choose_or_tell(q, hold, now) else {
                    chosen += self.put_back(q, hctx, &batch[taken..got]);
                    return (chosen, true);
                };
                self.make_ready(q, rq, *tag);
                chosen += 1;
            }
        }
    }

    /// With several: the choice first, since it decides whose tag is needed. A request whose queue has no tag is put aside and
    /// the next is chosen, until a queue would have a second one aside.
    fn choose_for_many(&mut self, q: &RequestQueue, hold: &mut Hold, now: Time, bound: usize) -> (usize, bool) {
        let mut chosen = 0;
        while chosen < bound && hold.scheduler.as_ref().is_some_and(|scheduler| !scheduler.is_empty()) {
            if q.hctxs.iter().all(|(_, hctx): (u16, &HwCtx)| hctx.nr_parked() > 0) {
                break;
            }
            let Some(rq) = self.choose_or_tell(q, hold, now) else { return (chosen, true) };
            let (got, goes_on) = self.give_tag(q, rq);
            chosen += got;
            if !goes_on {
                break;
            }
        }
        (chosen, false)
    }

    /// The scheduler's choice; if it holds back what it has, once more with WAITING set and the tallies read after it.
    fn choose_or_tell<'q>(&self, q: &'q RequestQueue, hold: &mut Hold, now: Time) -> Option<Request<'q>> {
        q.choose_held(hold, now).or_else(|| q.live.lack_unless(self.told, || q.choose_held(hold, now)))
    }
}
