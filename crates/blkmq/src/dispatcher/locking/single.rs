//! The locking `single`: one lock around each insertion and around each choice of one request, and threads wait for it,
//! as in Linux.

use blkmq_sched::Time;

use crate::dispatcher::Dispatcher;
use crate::dispatcher::outcome::{Dispatched, Inserted};
use crate::dispatcher::section::Choice;
use crate::dispatcher::section::Rest;
use crate::queue::{Count, Domain, Mapping, RequestQueue, Starting};
use crate::request::RqList;
use blkmq_sync::liveness::Told;
use blkmq_sync::tags::Tag;
use blkmq_sync::{Stage, kept, stage};

/// How many tags one thread takes at a time for requests in the scheduler. The number is small, since other threads
/// lack these tags until the requests are chosen.
const TAG_BATCH: usize = 8;

/// Inserts the whole plug in one hold. What finds no room stays in the plug. Without `looks_for_merges` a request that
/// could join another one does not.
///
/// COST: one lock and unlock of the hold; per request the scheduler's look-up and insertion. Not inlined, so that a
/// plug that goes another way does not pay for saving this function's registers.
#[inline(never)]
pub(super) fn insert(
    dispatcher: &mut Dispatcher,
    domain: &Domain,
    starting: &Starting<'_>,
    mapping: &Mapping,
    plug: &mut RqList,
    looks_for_merges: bool,
) -> Inserted {
    let q = starting.q;
    let (mut rest, mut flushes) = (Rest::default(), RqList::default());
    let entered = domain.enter(q, starting.member, dispatcher, starting.now, |section| {
        section.looks_for_merges = looks_for_merges;
        section.insert_plug(starting, mapping, plug, &mut flushes, Some(&mut rest))
    });
    // An operation that merged in the plug counts as entered when the request that took it in leaves the plug. A
    // request that stays in the plug must not keep a frozen queue from draining.
    *plug = rest.list;
    dispatcher.insert_flushes(q, flushes, starting.now);
    Inserted { entered, dispatched: None }
}

/// Chooses one request after another, each under a lock of its own.
pub(super) fn dispatch(dispatcher: &mut Dispatcher, q: &RequestQueue, now: Time, bound: usize) -> Dispatched {
    let member = dispatcher.member(q);
    dispatch_by(dispatcher, q, now, bound, |dispatcher, domain, now, _| {
        domain.enter(q, member, dispatcher, now, |section| section.choose_one())
    })
}

/// Asks the scheduler by `ask`. `ask` gets the domain, the time, and whether this thread has news for a thread that may
/// be asking already.
pub(super) fn dispatch_by<'q>(
    dispatcher: &mut Dispatcher,
    q: &'q RequestQueue,
    now: Time,
    bound: usize,
    mut ask: impl FnMut(&mut Dispatcher, &Domain, Time, bool) -> Choice<'q>,
) -> Dispatched {
    dispatch_ordered(dispatcher, q, now, bound, |dispatcher, domain, bound| {
        let mut ask = |dispatcher: &mut Dispatcher, now| choose_or_wait(dispatcher, q, domain, now, &mut ask);
        if domain.is_for_first_hctx() {
            dispatch_one_hctx(dispatcher, q, domain, now, bound, &mut ask)
        } else {
            dispatch_many_hctxs(dispatcher, q, domain, now, bound, &mut ask)
        }
    })
}

/// Where each thread dispatches for itself: inserts what found no room before, then chooses by `choose`, up to a bound.
/// So it does in each domain to which it must come.
#[inline]
pub(super) fn dispatch_ordered<'q>(
    dispatcher: &mut Dispatcher,
    q: &'q RequestQueue,
    now: Time,
    bound: usize,
    mut choose: impl FnMut(&mut Dispatcher, &'q Domain, usize) -> usize,
) -> Dispatched {
    Dispatched::all(dispatcher.dispatch_for_itself(q, bound, |dispatcher, bound| {
        let (mut due, mut chosen) = (q.due_domains(dispatcher.member), 0);
        while let Some(domain) = due.next() {
            if domain.nr_left() > 0 {
                insert_without_room(dispatcher, q, domain, now);
            }
            let got = choose(dispatcher, domain, bound.saturating_sub(chosen));
            if got > 0 {
                due.note_given();
            }
            chosen += got;
            if chosen >= bound {
                break;
            }
        }
        chosen
    }))
}

/// Inserts the requests that found no room before, as far as there is room now.
fn insert_without_room(dispatcher: &mut Dispatcher, q: &RequestQueue, domain: &Domain, now: Time) {
    let has_changed = domain.enter(q, dispatcher.member(q), dispatcher, now, |section| {
        let nr_left = section.hold.backlog.len();
        section.retry_without_room();
        section.insert_left(usize::MAX);
        section.hold.backlog.len() != nr_left
    });
    dispatcher.has_news |= has_changed;
}

/// Asks the scheduler once. If the scheduler holds requests back, sets WAITING, reads the tallies after that, and asks
/// once more.
fn choose_or_wait<'q>(
    dispatcher: &mut Dispatcher,
    q: &'q RequestQueue,
    domain: &Domain,
    now: Time,
    ask: &mut impl FnMut(&mut Dispatcher, &Domain, Time, bool) -> Choice<'q>,
) -> Choice<'q> {
    let has_news = dispatcher.has_news;
    match ask(dispatcher, domain, now, has_news) {
        Choice::HeldBack => q.live.lack(|| ask(dispatcher, domain, now, true)),
        choice => choice,
    }
}

/// While all that waits goes to one hardware queue: takes tags first, then chooses, so that no request is chosen before
/// it can go. Returns how many requests became ready.
///
/// # A tag held in vain
/// ```text
///     the thread that has the last tag           a thread that brings news
///  1. asks the scheduler: it holds all back   a. inserts a request that may go, or completes one
///  2. puts the tag back                       b. finds no tag, notes that it lacks one, and leaves
///  3. looks at what was noted
/// ```
///
/// If b comes before 2, then 3 finds the note, and the first thread asks the scheduler again for the second one. A
/// thread that asks again for another thread notes no lack itself. Otherwise two threads that take the last tag in
/// turn, and do not use it, would send each other to look again for ever.
///
/// Nothing is lost by that. Where a thread asks again and finds no tag, a third thread has the tag. If the third thread
/// took the tag after b, that thread asks the scheduler after a, and finds the request. If the third thread took the
/// tag before b, that thread finds the note in 3, and asks again itself.
///
/// The same holds for a time that comes. A thread asks again if a planned time has come before it put the tag back. A
/// thread that comes for a later time finds the tag.
///
/// COST: per request one lock and unlock of the hold, the scheduler's own work, and the slot's two lines; per batch of
/// tags a read-modify-write of a tag word.
fn dispatch_one_hctx<'q>(
    dispatcher: &mut Dispatcher,
    q: &'q RequestQueue,
    domain: &Domain,
    now: Time,
    bound: usize,
    ask: &mut impl FnMut(&mut Dispatcher, Time) -> Choice<'q>,
) -> usize {
    let index = domain.first_hctx();
    let hctx = q.hctx(index);
    let (mut chosen, mut batches) = (0, 0);
    let mut batch = [Tag(0); TAG_BATCH];
    let mut tags = &batch[..0];
    let (mut nr_lacked, mut looks_for_another) = (0, false);
    let mut now = now;
    loop {
        let waiting = if chosen < bound { domain.nr_waiting() as usize } else { 0 };
        if waiting == 0 {
            if tags.is_empty() {
                break;
            }
            // Other threads were faster. A thread may insert a request, and lack a tag that is held here, before the
            // tag is back: so this thread puts the tags back and looks again.
            chosen += dispatcher.put_unused(q, hctx, std::mem::take(&mut tags));
            continue;
        }
        if tags.is_empty() {
            nr_lacked = hctx.nr_lacked();
            let wanted = waiting.min(bound - chosen).min(TAG_BATCH);
            // A thread that looks again for another one notes no lack: see "A tag held in vain" above.
            let got = dispatcher.tags_or_wait(q, hctx, &mut batch[..wanted], Told::NO, !looks_for_another);
            if got == 0 {
                break;
            }
            tags = &batch[..got];
        }
        match ask(dispatcher, now) {
            Choice::Chosen(rq) if rq.body().hctx == index => {
                dispatcher.make_ready(q, rq, tags[0]);
                tags = &tags[1..];
                (chosen, batches) = (chosen + 1, batches + 1);
                looks_for_another = false;
                stage(Stage::Ready, 1);
            }
            // Another thread has meanwhile inserted a request for another hardware queue.
            Choice::Chosen(rq) => {
                batches += 1;
                chosen += dispatcher.put_unused(q, hctx, std::mem::take(&mut tags));
                chosen += dispatcher.give_tag(q, rq, Told::NO).0;
                looks_for_another = false;
            }
            // Other threads were faster: as above, put the tags back and look again, by the count of waiting requests.
            Choice::Empty => chosen += dispatcher.put_unused(q, hctx, std::mem::take(&mut tags)),
            Choice::HeldBack | Choice::Taken => {
                // Threads that wait for room are not told of the room that the tags give back. A thread that is told
                // looks, is held back too, and would tell the others in turn, for ever. What is held back goes on when
                // a request with the device completes or a time has come, and either makes room.
                chosen += dispatcher.put_back(q, hctx, std::mem::take(&mut tags));
                // Another thread may have inserted a request that may go, or completed what held something back, or
                // come because a time had come. If that thread lacked a tag that was held here, it has left.
                let is_due = domain.has_come(q, &mut now) && kept("dispatch.due_for_all");
                if hctx.nr_lacked() == nr_lacked && !is_due {
                    break;
                }
                looks_for_another = kept("dispatch.look_for_another");
                dispatcher.has_news = true;
            }
        }
    }
    count_choices(q, dispatcher, batches);
    chosen
}

/// While requests wait for several hardware queues: chooses first, since the choice decides whose tag is needed. A
/// request whose hardware queue has no tag is parked and the next is chosen. Choosing ends when a hardware queue would
/// have a second parked request. Returns how many requests became ready.
fn dispatch_many_hctxs<'q>(
    dispatcher: &mut Dispatcher,
    q: &'q RequestQueue,
    domain: &Domain,
    now: Time,
    bound: usize,
    ask: &mut impl FnMut(&mut Dispatcher, Time) -> Choice<'q>,
) -> usize {
    debug_assert!(domain.is_whole(), "requests for several hardware queues wait together");
    let (mut chosen, mut batches, mut now) = (0, 0, now);
    while chosen < bound && domain.nr_waiting() > 0 {
        if q.all_have_parked() {
            break;
        }
        match ask(dispatcher, now) {
            Choice::Chosen(rq) => {
                batches += 1;
                let (got, goes_on) = dispatcher.give_tag(q, rq, Told::NO);
                chosen += got;
                stage(Stage::Ready, got);
                if !goes_on {
                    break;
                }
            }
            // A thread that came because a time had come may have found this one at the scheduler and have left: see
            // `Domain::has_come`.
            Choice::HeldBack | Choice::Taken if domain.has_come(q, &mut now) => dispatcher.has_news = true,
            Choice::Empty | Choice::HeldBack | Choice::Taken => break,
        }
    }
    count_choices(q, dispatcher, batches);
    chosen
}

/// The scheduler has chosen so many requests, each under a hold of its own.
fn count_choices(q: &RequestQueue, dispatcher: &Dispatcher, batches: u64) {
    let counters = &dispatcher.member(q).counters;
    counters.count(Count::DispatchBatches, batches);
    counters.count(Count::Dispatched, batches);
}
