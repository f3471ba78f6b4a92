//! The locking `staged`: Axboe's series of 2024, each of its three measures by itself, with two of its flaws mended. A
//! request keeps its mark for the head wherever it waits, and what lies in a bucket counts as waiting.
//!
//! # Liveness
//! Who finds another thread choosing, or inserting, kicks it (see `staging`), so that it looks once more before it lets go;
//! in the series that was left to the next completion, and to a timer where none comes.
//!
//! Who only polls, with nothing new to tell, kicks nobody. Otherwise threads that poll while the scheduler holds back what
//! waits keep one choosing in vain, and what it holds back for may be the requests that this very thread has chosen and does
//! not come to issue. (Who polls, and held the last tag while another lacked it, does kick: that other one may have had news.
//! To do so again it must have got that tag anew, while another lacked it.)

use blkmq_sched::Time;

use crate::account::{Counters, Starting};
use crate::dispatch::{Choice, choose, has_come};
use crate::hctx::Layout;
use crate::locking::Measures;
use crate::queue::RequestQueue;
use crate::request::{Place, RqList};
use crate::runner::Runner;
use crate::stack::Chain;
use crate::staging::{Round, Staging};
use crate::sync::kept;

impl Runner {
    /// Inserts a plug, or leaves it in this submitter's bucket. What finds no room waits with what others left. Returns how
    /// many operations there are.
    ///
    /// COST: without contention two compare-exchanges of the shared word and a lock and unlock of the hold; with contention an
    /// exchange of the own bucket's line, a fence, and at most one exchange of the shared word.
    pub(crate) fn insert_staged(
        &mut self,
        starting: &Starting<'_>,
        layout: Layout,
        plug: &mut RqList,
        measures: Measures,
    ) -> u64 {
        let q = starting.q;
        let mut flushes = RqList::new();
        let mut entered;
        if let Some(left) = q.inserting.try_hold() {
            let mut is_first = true;
            entered = 0;
            self.serve_buckets(q, left, |runner| {
                if !std::mem::take(&mut is_first) {
                    return runner.insert_buckets(q, starting.now, measures);
                }
                let mut guard = q.held.hold(&runner.member(q).counters);
                runner.retry_without_room(q, &mut guard, starting.now);
                // A merge is looked for: the lock was free, or only a dispatcher had it.
                entered = runner.insert_own(starting, &mut guard, layout, plug, &mut flushes);
                runner.insert_left(q, &mut guard, starting.now, usize::MAX);
                q.held.note_waiting(&guard);
            });
        } else {
            let (operations, list) = self.begin(starting, layout, plug, &mut flushes);
            entered = operations;
            self.member(q).counters.found_held();
            self.member(q).counters.staged(list.len() as u64);
            list.deliver(&q.slots, &self.member(q).bucket);
            if let Some(left) = q.inserting.hold_or_kick() {
                self.serve_buckets(q, left, |runner| runner.insert_buckets(q, starting.now, measures));
            }
        }
        self.insert_flushes(q, flushes, starting.now);
        entered
    }

    /// Inserts, by `round`, until nothing was left in a bucket meanwhile; then lets the next thread insert.
    fn serve_buckets(&mut self, q: &RequestQueue, left: Chain, mut round: impl FnMut(&mut Self)) {
        let round = |_| {
            round(self);
            Round::DONE
        };
        let has_let_go = q.inserting.serve(left, round, Staging::give_up);
        debug_assert!(has_let_go, "no round was the last");
    }

    /// Inserts what lies in all buckets.
    fn insert_buckets(&mut self, q: &RequestQueue, now: Time, measures: Measures) {
        let mut guard = q.held.hold(&self.member(q).counters);
        let hold = &mut *guard;
        for (_, member) in q.members.iter() {
            let mut list = RqList::new();
            list.take_over(&q.slots, member.bucket.take_all(), Place::Staged);
            hold.backlog.add(list);
        }
        self.skips_merges = measures.merges;
        self.retry_without_room(q, hold, now);
        self.insert_left(q, hold, now, usize::MAX);
        self.skips_merges = false;
        q.held.note_waiting(hold);
    }

    /// Inserts what found no room before, as far as there is some now.
    pub(crate) fn insert_without_room(&mut self, q: &RequestQueue, now: Time) {
        let mut guard = q.held.hold(&self.member(q).counters);
        let nr_left = guard.backlog.len();
        self.retry_without_room(q, &mut guard, now);
        self.insert_left(q, &mut guard, now, usize::MAX);
        self.has_news |= guard.backlog.len() != nr_left;
        q.held.note_waiting(&guard);
    }
}

/// One choice under one hold, unless another thread is choosing, which then chooses once more if this one has news for it.
///
/// COST: beside the hold two exchanges of the shared word; of who finds another one choosing a load or one exchange.
pub(crate) fn choose_alone<'q>(q: &'q RequestQueue, counters: &Counters, now: Time, has_news: bool) -> Choice<'q> {
    let kicks = has_news || !kept("staged.news");
    let held = if kicks { q.dispatching.hold_or_kick() } else { q.dispatching.try_hold() };
    let Some(left) = held else {
        counters.found_held();
        return Choice::Taken;
    };
    // As often as it is kicked: as in the series, nothing bounds what one thread does for others here. There is an end to it,
    // since nothing is issued meanwhile that could complete, and what may be inserted is bounded.
    let (mut now, mut choice) = (now, None);
    let round = |_| {
        // Threads that come because a time has come kick this one again and again while it asks as of a time before that one.
        if choice.is_some() && kept("staged.time_anew") {
            has_come(q, &mut now);
        }
        let is_last = matches!(choice.insert(choose(q, counters, now)), Choice::Chosen(_));
        Round { has_more: false, is_last }
    };
    // A thread that has got a request asks for another, and finds then what it was kicked for.
    let _ = q.dispatching.serve(left, round, Staging::give_up_and_look);
    choice.expect("there was a round")
}
