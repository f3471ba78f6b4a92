//! Choosing: from the dispatch lists, then from the scheduler or, without one, from the software queues.
//!
//! A request that stays behind for lack of a tag, or because the scheduler holds it back until others complete, is found by the
//! thread that brings the tag or the completion: see `liveness`.
//!
//! WAITING is cleared only by a thread that looked everywhere and found nothing, by a compare-exchange from the word read before
//! the look; a request left behind meanwhile has changed the word. So has the gate, if it was shut or opened under one of
//! the holds in between: then WAITING stays, though nothing may wait, and the next thread that dispatches clears it.

use blkmq_sched::Time;

use crate::account::Counters;
use crate::hctx::HwCtx;
use crate::hold::Hold;
use crate::liveness::Told;
use crate::locking::{Locking, Measures};
use crate::queue::RequestQueue;
use crate::request::Request;
use crate::runner::Runner;
use crate::staged::choose_alone;
use crate::sync::atomic::Ordering;
use crate::sync::kept;
use crate::tags::Tag;

/// Tags taken in one go for what waits in the scheduler. Few, since they are missing elsewhere until their requests are
/// chosen.
const TAG_BATCH: usize = 8;

/// What came of asking the scheduler.
pub(crate) enum Choice<'q> {
    Chosen(Request<'q>),
    /// The scheduler has requests, but none may go now.
    HeldBack,
    Empty,
    /// Another thread is asking, and asks once more for this one.
    Taken,
}

impl Runner {
    /// Chooses up to `bound` requests and makes them ready. Returns how many.
    pub(crate) fn dispatch(&mut self, q: &RequestQueue, now: Time, bound: usize) -> usize {
        let locking = q.settings.locking();
        if locking == Locking::Combining && q.settings.has_scheduler() {
            return self.combine_for_others(q, now, bound);
        }
        let seen = q.live.word.load();
        let mut chosen = 0;
        loop {
            if std::mem::take(&mut self.parked) || seen.is_waiting() {
                chosen += self.dispatch_parked(q);
            }
            let bound = bound.saturating_sub(chosen);
            if q.settings.has_scheduler() {
                if q.held.nr_left() > 0 {
                    self.insert_without_room(q, now);
                }
                chosen += if locking == Locking::Batch {
                    self.dispatch_batch(q, now, bound)
                } else if q.held.is_for_first_hctx() {
                    self.dispatch_one_hctx(q, now, bound)
                } else {
                    self.dispatch_many_hctxs(q, now, bound)
                };
            } else if q.live.word.load().is_waiting() {
                // Read again: somebody may have lacked a tag that was held in vain just now.
                chosen += self.dispatch_software(q, bound);
            }
            if !self.parked {
                break;
            }
        }
        // It has been told, or this thread has looked itself.
        self.has_news = false;
        if seen.is_waiting() && nothing_waits(q, &self.member(q).counters) {
            let _ = q.live.word.clear_waiting(seen);
        }
        chosen
    }

    /// What stands in front of the scheduler, as far as there are tags.
    pub(crate) fn dispatch_parked(&mut self, q: &RequestQueue) -> usize {
        let mut chosen = 0;
        for (_, hctx) in q.hctxs.iter() {
            while hctx.nr_parked() > 0 {
                let Some(tag) = self.tag_or_wait(q, hctx) else { break };
                match hctx.unpark(&q.slots) {
                    Some(rq) => {
                        self.make_ready(q, rq, tag);
                        chosen += 1;
                    }
                    None => chosen += self.put_unused(q, hctx, &[tag]),
                }
            }
        }
        chosen
    }

    /// While all that waits goes to one hardware queue: tags first, then the choices, so that nothing is chosen before it
    /// can go.
    ///
    /// COST: per request one lock and unlock of the hold, the scheduler's own work, and the slot's two lines; per batch
    /// of tags a read-modify-write of a tag word.
    fn dispatch_one_hctx(&mut self, q: &RequestQueue, now: Time, bound: usize) -> usize {
        let hctx = q.hctxs.get(0);
        let counters = &self.member(q).counters;
        let (mut chosen, mut batches) = (0, 0);
        let mut batch = [Tag(0); TAG_BATCH];
        let mut tags = &batch[..0];
        let (mut nr_lacked, mut looks_for_another) = (0, false);
        let mut now = now;
        loop {
            let waiting = if chosen < bound { q.held.nr_waiting() as usize } else { 0 };
            if waiting == 0 {
                if tags.is_empty() {
                    break;
                }
                // Others were faster. Somebody may insert, and lack a tag that was held here, before it is back: look
                // again after putting it back.
                chosen += self.put_unused(q, hctx, std::mem::take(&mut tags));
                continue;
            }
            if tags.is_empty() {
                nr_lacked = hctx.nr_lacked();
                let wanted = waiting.min(bound - chosen).min(TAG_BATCH);
                // Who looks again for another must not send that one to look again in turn, or two who hold the last tag in
                // vain by turns go on for ever. Nothing is lost: who has the tag now took it after the other had noted what
                // it lacked, and so asks the scheduler after what the other did; or else it looks again itself. So it does if a
                // time has come by when it has put the tag back; who comes for a time later than that finds the tag there.
                let got = self.tags_or_wait(q, hctx, &mut batch[..wanted], !looks_for_another);
                if got == 0 {
                    break;
                }
                tags = &batch[..got];
            }
            match choose_or_wait(q, counters, now, self.has_news) {
                Choice::Chosen(rq) if rq.body().hctx == 0 => {
                    self.make_ready(q, rq, tags[0]);
                    tags = &tags[1..];
                    (chosen, batches) = (chosen + 1, batches + 1);
                    looks_for_another = false;
                }
                // Somebody inserted for another queue meanwhile.
                Choice::Chosen(rq) => {
                    batches += 1;
                    chosen += self.put_unused(q, hctx, std::mem::take(&mut tags));
                    chosen += self.give_tag(q, rq).0;
                    looks_for_another = false;
                }
                // As above: look again, by the count of waiting requests.
                Choice::Empty => chosen += self.put_unused(q, hctx, std::mem::take(&mut tags)),
                Choice::HeldBack | Choice::Taken => {
                    // No word of the room that comes back with them: who is told looks, is held back too, and tells the
                    // others in turn, for ever. What is held back goes on when a request with the device completes or a
                    // time has come, and either makes room.
                    chosen += self.put_back(q, hctx, std::mem::take(&mut tags));
                    // Who inserted something that may go, completed what held something back, or came because a time had come,
                    // may have lacked a tag that was held here and have left.
                    let is_due = has_come(q, &mut now) && kept("dispatch.due_for_all");
                    if hctx.nr_lacked() == nr_lacked && !is_due {
                        break;
                    }
                    looks_for_another = kept("dispatch.look_for_another");
                    self.has_news = true;
                }
            }
        }
        counters.dispatched(batches);
        chosen
    }

    /// With several: the choice first, since it decides whose tag is needed. A request whose queue has no tag is put
    /// aside and the next is chosen, until a queue would have a second one aside.
    fn dispatch_many_hctxs(&mut self, q: &RequestQueue, now: Time, bound: usize) -> usize {
        let counters = &self.member(q).counters;
        let (mut chosen, mut batches, mut now) = (0, 0, now);
        while chosen < bound && q.held.nr_waiting() > 0 {
            if q.hctxs.iter().all(|(_, hctx)| hctx.nr_parked() > 0) {
                break;
            }
            match choose_or_wait(q, counters, now, self.has_news) {
                Choice::Chosen(rq) => {
                    batches += 1;
                    let (got, goes_on) = self.give_tag(q, rq);
                    chosen += got;
                    if !goes_on {
                        break;
                    }
                }
                // Who came because a time had come may have found this thread at the scheduler and have left.
                Choice::HeldBack | Choice::Taken if has_come(q, &mut now) => self.has_news = true,
                Choice::Empty | Choice::HeldBack | Choice::Taken => break,
            }
        }
        counters.dispatched(batches);
        chosen
    }

    /// Makes a chosen request ready, or puts it aside for lack of a tag. Returns how many requests became ready, and
    /// whether to go on choosing.
    pub(crate) fn give_tag(&mut self, q: &RequestQueue, rq: Request<'_>) -> (usize, bool) {
        let hctx = q.hctxs.get(rq.body().hctx);
        let has_aside = hctx.nr_parked() > 0;
        if !has_aside && let Some(tag) = hctx.tags.get(&mut self.hint) {
            self.make_ready(q, rq, tag);
            return (1, true);
        }
        hctx.park(rq);
        // The request is on the list, so from here on this is the ordinary lack of a tag.
        (q.live.lack(|| self.dispatch_parked(q)), !has_aside)
    }

    /// Without a scheduler: one request per software queue in turn, as far as there are tags.
    fn dispatch_software(&mut self, q: &RequestQueue, bound: usize) -> usize {
        let layout = q.hctxs.layout();
        let mut chosen = 0;
        for (index, hctx) in q.hctxs.iter() {
            while chosen < bound && hctx.has_marked_ctx() {
                let Some(tag) = self.tag_or_wait(q, hctx) else { break };
                let taken = hctx.next_ctx().and_then(|member| {
                    let ctx = &q.members.get(member).ctx;
                    ctx.take(&q.slots, layout.kind_of(index), || hctx.unmark_ctx(member))
                });
                match taken {
                    Some(rq) => {
                        self.make_ready(q, rq, tag);
                        chosen += 1;
                    }
                    // Another thread was faster; look at the map again.
                    None => chosen += self.put_unused(q, hctx, &[tag]),
                }
            }
        }
        self.member(q).counters.dispatched(chosen);
        chosen
    }

    /// A tag, or WAITING set for whoever brings one back.
    fn tag_or_wait(&mut self, q: &RequestQueue, hctx: &HwCtx) -> Option<Tag> {
        let mut tag = [Tag(0)];
        (self.tags_or_wait(q, hctx, &mut tag, true) == 1).then_some(tag[0])
    }

    /// Tags into the front of `out`, and how many; if there is none, WAITING set for whoever brings one back. `tells`: who
    /// holds one in vain just now is to look again.
    pub(crate) fn tags_or_wait(&mut self, q: &RequestQueue, hctx: &HwCtx, out: &mut [Tag], tells: bool) -> usize {
        let got = hctx.tags.get_batch(&mut self.hint, out);
        if got > 0 {
            return got;
        }
        if tells && self.told == Told::NO {
            hctx.note_lack();
        }
        q.live.lack_unless(self.told, || hctx.tags.get_batch(&mut self.hint, out))
    }

    /// Puts tags back that were taken for nothing, as a completer does: somebody may have lacked one, or the room it took,
    /// meanwhile. What the caller chose from it looks at again. Returns how many requests of the dispatch list got one.
    fn put_unused(&mut self, q: &RequestQueue, hctx: &HwCtx, tags: &[Tag]) -> usize {
        let given = self.put_back(q, hctx, tags);
        q.brought();
        // What waits without room, as if such a tag were a request, is in nobody's plug: this thread tries it again.
        self.parked |= q.held.nr_left() > 0 && kept("dispatch.room_in_vain");
        self.has_news = true;
        given
    }

    /// The same without a word to those who wait for room.
    pub(crate) fn put_back(&mut self, q: &RequestQueue, hctx: &HwCtx, tags: &[Tag]) -> usize {
        let mut given = 0;
        // What stands on the dispatch list comes first, and gets one here: of several who look at it and at the scheduler by
        // turns each may else find that another has the last tag, in vain.
        while given < tags.len()
            && hctx.nr_parked() > 0
            && kept("dispatch.give_to_list")
            && let Some(rq) = hctx.unpark(&q.slots)
        {
            self.make_ready(q, rq, tags[given]);
            given += 1;
        }
        hctx.tags.put_batch(&tags[given..], &mut self.hint);
        q.live.brought_tags();
        self.parked |= hctx.nr_parked() > 0;
        given
    }
}

/// Whether the time until which something is held back has come since `now`, which then becomes the time of now.
///
/// COST: a load; the clock is read where something is held back until a time.
pub(crate) fn has_come(q: &RequestQueue, now: &mut Time) -> bool {
    let planned = q.policy_wakeup.load(Ordering::Relaxed);
    if planned == u64::MAX || planned <= now.0 || !kept("dispatch.time_anew") {
        return false;
    }
    let later = q.clock.now();
    if planned > later.0 {
        return false;
    }
    *now = later;
    true
}

/// Asks the scheduler once; if it holds requests back, once more with WAITING set and the tallies read after it. `has_news`:
/// see [`Runner::has_news`].
fn choose_or_wait<'q>(q: &'q RequestQueue, counters: &Counters, now: Time, has_news: bool) -> Choice<'q> {
    let is_alone = matches!(q.settings.locking(), Locking::Staged(Measures { dispatch: true, .. }));
    let ask = |has_news| if is_alone { choose_alone(q, counters, now, has_news) } else { choose(q, counters, now) };
    let choice = ask(has_news);
    if !matches!(choice, Choice::HeldBack) {
        return choice;
    }
    q.live.lack(|| ask(true))
}

/// One choice under one hold.
pub(crate) fn choose<'q>(q: &'q RequestQueue, counters: &Counters, now: Time) -> Choice<'q> {
    let mut hold = q.held.hold(counters);
    let choice = match q.choose_held(&mut hold, now) {
        Some(rq) => Choice::Chosen(rq),
        None if hold.scheduler.as_ref().is_none_or(|scheduler| scheduler.is_empty()) => Choice::Empty,
        None => Choice::HeldBack,
    };
    q.turn_gate(&mut hold);
    q.held.note_waiting(&hold);
    let is_earlier = q.plan(&hold, matches!(choice, Choice::HeldBack), now);
    drop(hold);
    if is_earlier {
        q.wake_sleepers();
    }
    choice
}

impl RequestQueue {
    /// The scheduler's choice, if it lets a request go now.
    #[inline]
    pub(crate) fn choose_held(&self, hold: &mut Hold, now: Time) -> Option<Request<'_>> {
        self.fold(hold);
        let scheduler = hold.scheduler.as_mut()?;
        let id = match scheduler.dispatch(now) {
            None if !scheduler.is_empty() && scheduler.next_wakeup().is_some_and(|time| time <= now) => {
                // Asked in vain it may have come to where it lets one go at once. Nobody would plan for a time that has passed.
                scheduler.dispatch(now)?
            }
            id => id?,
        };
        let rq = self.slots.leave_scheduler(id);
        hold.count_out(rq.body().hctx);
        Some(rq)
    }

    /// Notes when the scheduler would let go what it holds back, if it does. Returns whether that is earlier than what those
    /// who sleep have planned for, or they may have planned for nothing; they are woken when the lock has been let go.
    pub(crate) fn plan(&self, hold: &Hold, is_held_back: bool, now: Time) -> bool {
        let planned = self.policy_wakeup.load(Ordering::Relaxed);
        let wakeup = match &hold.scheduler {
            Some(scheduler) if is_held_back => {
                let wakeup = scheduler.next_wakeup().map_or(u64::MAX, |time| time.0);
                // A plan that is still to come stands until something is chosen. A scheduler that is asked in vain may name
                // now this time and now that, and who is woken for the earlier one asks it again.
                if planned > now.0 { wakeup.min(planned) } else { wakeup }
            }
            _ => u64::MAX,
        };
        if planned != wakeup {
            self.policy_wakeup.store(wakeup, Ordering::Relaxed);
        }
        // Who looked when the old time had passed found somebody at the scheduler, and plans for no time by now.
        let is_next = planned <= now.0 && now.0 < wakeup && wakeup != u64::MAX;
        wakeup < planned || is_next
    }
}

/// Whether no request waits for a tag or for the scheduler, anywhere. The scheduler is looked at under its lock.
fn nothing_waits(q: &RequestQueue, counters: &Counters) -> bool {
    !q.held.has_waiting()
        && q.hctxs.iter().all(|(_, hctx)| hctx.nr_parked() == 0 && !hctx.has_marked_ctx())
        && !q.held.hold(counters).has_waiting()
}
