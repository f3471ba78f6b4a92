//! The locking `staged`: Axboe's series of 2024, each of its three measures by itself, with two of its flaws mended. A
//! request keeps its mark for the head wherever it waits, and what lies in a bucket counts as waiting.
//!
//! # Liveness
//! Who finds another thread choosing, or inserting, kicks it (see `staging`), so that it looks once more before it lets
//! go; in the series that was left to the next completion, and to a timer where none comes.
//!
//! Who only polls, with nothing new to tell, kicks nobody. Otherwise threads that poll while the scheduler holds back
//! what waits keep one choosing in vain, and what it holds back for may be the requests that this very thread has
//! chosen and does not come to issue. (Who polls, and held the last tag while another lacked it, does kick: that other
//! one may have had news. To do so again it must have got that tag anew, while another lacked it.)

use blkmq_sched::Time;

use super::choose::Choice;
use super::locking::Measures;
use super::outcome::{Dispatched, Inserted};
use super::single;
use crate::account::Starting;
use crate::layout::Mapping;
use crate::queue::RequestQueue;
use crate::request::{Place, RqList};
use crate::runner::Runner;
use crate::stack::Chain;
use crate::staging::{Round, Staging};
use crate::sync::kept;

/// Inserts a plug, or leaves it in this submitter's bucket. What finds no room stays in the plug, or with buckets waits
/// with what others left.
///
/// COST: without buckets as of `single`. With them, without contention two compare-exchanges of the shared word and a
/// lock and unlock of the hold; with contention an exchange of the own bucket's line, a fence, and at most one exchange
/// of the shared word.
pub(super) fn insert(
    runner: &mut Runner,
    starting: &Starting<'_>,
    mapping: &Mapping,
    plug: &mut RqList,
    measures: Measures,
) -> Inserted {
    runner.has_news = true;
    if !measures.buckets {
        return single::insert(runner, starting, mapping, plug, measures.merges);
    }
    let (q, now, domain, member) = (starting.q, starting.now, starting.q.domain(0), starting.member);
    let mut flushes = RqList::new();
    let mut entered = 0;
    if let Some(left) = domain.inserting.try_hold() {
        let mut is_first = true;
        serve_buckets(runner, q, left, |runner| {
            if !std::mem::take(&mut is_first) {
                return insert_buckets(runner, q, now, measures);
            }
            entered = domain.enter(q, member, runner, now, |section| {
                section.retry_without_room();
                // A merge is looked for: the lock was free, or only a dispatcher had it.
                let entered = section.insert_plug(starting, mapping, plug, &mut flushes, None);
                section.insert_left(usize::MAX);
                entered
            });
        });
    } else {
        let list;
        (entered, list) = runner.begin(starting, mapping, plug, &mut flushes);
        member.counters.found_held();
        member.counters.staged(list.len() as u64);
        list.deliver(&q.slots, &member.bucket);
        if let Some(left) = domain.inserting.hold_or_kick() {
            serve_buckets(runner, q, left, |runner| insert_buckets(runner, q, now, measures));
        }
    }
    runner.insert_flushes(q, flushes, now);
    Inserted { entered, dispatched: None }
}

/// Chooses one request after another, each under a lock of its own, unless another thread is choosing.
pub(super) fn dispatch(
    runner: &mut Runner,
    q: &RequestQueue,
    now: Time,
    bound: usize,
    measures: Measures,
) -> Dispatched {
    if measures.dispatch {
        single::dispatch_by(runner, q, now, bound, |runner, now, has_news| choose_alone(runner, q, now, has_news))
    } else {
        single::dispatch(runner, q, now, bound)
    }
}

/// Whether requests may pass the scheduler by, as far as this locking knows.
#[inline]
pub(super) fn is_free(q: &RequestQueue) -> bool {
    q.domain(0).inserting.is_free() && single::is_free(q)
}

/// Inserts, by `round`, until nothing was left in a bucket meanwhile; then lets the next thread insert.
fn serve_buckets(runner: &mut Runner, q: &RequestQueue, left: Chain, mut round: impl FnMut(&mut Runner)) {
    let round = |_| {
        round(runner);
        Round::DONE
    };
    let has_let_go = q.domain(0).inserting.serve(left, round, Staging::give_up);
    debug_assert!(has_let_go, "no round was the last");
}

/// Inserts what lies in all buckets.
fn insert_buckets(runner: &mut Runner, q: &RequestQueue, now: Time, measures: Measures) {
    q.domain(0).enter(q, runner.member(q), runner, now, |section| {
        for (_, member) in q.members.iter() {
            let mut list = RqList::new();
            list.take_over(&q.slots, member.bucket.take_all(), Place::Staged);
            section.hold.backlog.add(list);
        }
        section.looks_for_merges = !measures.merges;
        section.retry_without_room();
        section.insert_left(usize::MAX);
    });
}

/// One choice under one hold, unless another thread is choosing, which then chooses once more if this one has news for
/// it.
///
/// COST: beside the hold two exchanges of the shared word; for a thread that finds another one choosing a load, a fence
/// and one exchange.
fn choose_alone<'q>(runner: &mut Runner, q: &'q RequestQueue, now: Time, has_news: bool) -> Choice<'q> {
    let (domain, member) = (q.domain(0), runner.member(q));
    let kicks = has_news || !kept("staged.news");
    let held = if kicks { domain.dispatching.hold_or_kick() } else { domain.dispatching.try_hold() };
    let Some(left) = held else {
        member.counters.found_held();
        return Choice::Taken;
    };
    // As often as it is kicked: as in the series, nothing bounds what one thread does for others here. There is an end
    // to it, since nothing is issued meanwhile that could complete, and what may be inserted is bounded.
    let (mut now, mut choice) = (now, None);
    let round = |_| {
        // Threads that come because a time has come kick this one again and again while it asks as of a time before
        // that one.
        if choice.is_some() && kept("staged.time_anew") {
            domain.has_come(q, &mut now);
        }
        let chosen = domain.enter(q, member, runner, now, |section| section.choose_one());
        let is_last = matches!(choice.insert(chosen), Choice::Chosen(_));
        Round { has_more: false, is_last }
    };
    // A thread that has got a request asks for another, and finds then what it was kicked for.
    let _ = domain.dispatching.serve(left, round, Staging::give_up_and_look);
    choice.expect("there was a round")
}
