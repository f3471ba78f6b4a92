//! Models of the staging word: one thread at a time, the combiner, is at the scheduler. What the other threads leave
//! with it, requests or a kick, is never forgotten. A test that expects a model to fail is red if the model passes
//! although the line is taken away.
//!
//! The models call the functions of `liveness` and `staging` that the product calls. The product's other modules are
//! not compiled by loom. The models restate the order in which these modules call the functions: from
//! `locking/combining.rs` the order of `insert`, `dispatch` and `serve`; from `dispatcher/complete.rs` what
//! follows the tags; from `dispatcher/drive.rs` the end of a share; from `control.rs` and `queue/accounting.rs` what a
//! freeze waits for. In the product the scheduler also has a lock. The models have none, so the staging word alone
//! keeps the threads apart.
//!
//! The swap in `take` is Relaxed, because the fence behind it does what an Acquire would do. Two fences cannot be shown
//! to be needed everywhere, because another fence has the same effect. Where a kick is for a tag, no model fails
//! without the fence in `take` or without the fence of the kick, because a fence stands before each last look at the
//! tags. The two fences are needed where a kick is for something that was parked.

// The `Arc` of std: loom's own count is one more step to be tried in every order.
use std::sync::Arc;
// For what only a model knows. No protocol may rest on it, so it takes no part in the interleavings.
use std::sync::atomic::AtomicUsize as Ghost;

use crate::model::{Exclusive, fail, fail_within, fail_without, holds, holds_within, join, nobody_sleeps, spawn};
use blkmq_sync::TryLock;
use blkmq_sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};
use blkmq_sync::grace::Activity;
use blkmq_sync::liveness::{Liveness, WaiterPresent};
use blkmq_sync::stack::{Chain, NIL, SlotStack};
use blkmq_sync::staging::{Round, Staging};
use blkmq_sync::tags::{Hint, Tag, Tags};
use blkmq_sync::word::{Flag, Word};

/// How a thread differs from the product, to break the protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A thread that completes something while another thread is at the scheduler leaves no kick.
    NoKick,
    /// A combiner that gives up does not set WAITING.
    GivesUpSilently,
    /// A combiner that gives up tells the other threads before it sets WAITING.
    TellsFirst,
    /// A submitter counts what has entered only when it is outside again.
    CountsLate,
    /// A freeze does not wait for the threads that are inside.
    WaitsForNobody,
}

/// Requests that one thread gets through for all threads.
struct Requests {
    staging: Staging,
    links: [AtomicU32; 3],
    /// For each request a place that one thread at a time may touch.
    requests: [Exclusive; 3],
    /// A place that only the thread at the scheduler may touch.
    scheduler: Exclusive,
    nr_done: Ghost,
}

impl Requests {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            staging: Staging::new("test.staging"),
            links: [NIL; 3].map(AtomicU32::new),
            requests: Default::default(),
            scheduler: Exclusive::default(),
            nr_done: Ghost::new(0),
        })
    }

    fn link(&self, slot: u32) -> &AtomicU32 {
        &self.links[slot as usize]
    }

    fn get_through(&self, slot: u32) {
        self.requests[slot as usize].touch();
        self.nr_done.fetch_add(1, Ordering::Relaxed);
    }

    /// Gets a request through, or leaves it to the thread that is at the scheduler.
    fn submit(&self, slot: u32) {
        let link_of = |slot| self.link(slot);
        self.requests[slot as usize].touch();
        loop {
            if let Some(left) = self.staging.try_hold() {
                self.get_through(slot);
                return self.work(left);
            }
            if self.staging.publish([slot], link_of) {
                return;
            }
        }
    }

    fn work(&self, left: Chain) {
        let link_of = |slot| self.link(slot);
        let round = |mut left: Chain| {
            self.scheduler.touch();
            while let Some(slot) = left.pop_newest(link_of) {
                self.get_through(slot);
            }
            Round::DONE
        };
        assert!(self.staging.serve(left, round, Staging::give_up));
    }
}

/// Whether no thread is at the scheduler and nothing was left. Asked when the other threads have ended.
fn is_free(staging: &Staging) -> bool {
    staging.try_hold().is_some_and(|left| left.is_empty()) && staging.release()
}

/// Two threads submit a request each. One may leave its request just before the other lets go.
fn two_requests() {
    let queue = Requests::new();
    let other = spawn(&queue, |queue| queue.submit(1));
    queue.submit(0);
    join(other);
    assert!(is_free(&queue.staging));
    assert_eq!(queue.nr_done.load(Ordering::Relaxed), 2, "forgotten");
}

/// As `two_requests`, with three threads, two of which may leave something at once.
fn three_requests() {
    let queue = Requests::new();
    let others = [spawn(&queue, |queue| queue.submit(1)), spawn(&queue, |queue| queue.submit(2))];
    queue.submit(0);
    others.into_iter().for_each(join);
    assert!(is_free(&queue.staging));
    assert_eq!(queue.nr_done.load(Ordering::Relaxed), 3, "forgotten");
}

/// A thread that has done its share gives up, while another submits a request. The other thread leaves its request or
/// takes the hold, and the thread that comes next finds what was left.
fn given_up() {
    let queue = Requests::new();
    assert!(queue.staging.try_hold().is_some());
    let other = spawn(&queue, |queue| queue.submit(1));
    queue.scheduler.touch();
    queue.staging.give_up();
    join(other);
    assert_eq!(!queue.staging.has_published(), queue.nr_done.load(Ordering::Relaxed) == 1);
    queue.submit(0);
    assert!(is_free(&queue.staging));
    assert_eq!(queue.nr_done.load(Ordering::Relaxed), 2, "forgotten");
}

/// Why lock and list are one word. If lock and list are apart, the combiner of the lock finds the list empty, and
/// another thread adds to the list before the combiner lets go.
fn lock_and_list_apart() {
    struct Apart(TryLock<()>, SlotStack, AtomicU32);
    fn submit(Apart(lock, list, link): &Apart) {
        match lock.try_lock() {
            Some(_held) => while !list.take_all().is_empty() {},
            None => _ = list.push([0], |_| link),
        }
    }
    let shared = Arc::new(Apart(TryLock::new("test.lock", ()), SlotStack::new("test.list"), AtomicU32::new(NIL)));
    let other = spawn(&shared, submit);
    submit(&shared);
    join(other);
    assert!(shared.1.is_empty(), "forgotten");
}

/// A scheduler with requests that need a tag, and a dispatch list.
struct Queue {
    staging: Staging,
    live: Liveness,
    tags: Tags,
    scheduler: Exclusive,
    /// Requests in the scheduler. Relaxed, so that only the staging orders it.
    waiting: AtomicUsize,
    /// Requests on the dispatch list, which need no tag here.
    parked: AtomicUsize,
    broken: Broken,
}

impl Queue {
    /// This thread is at the scheduler. One request waits there, and the only tag is out.
    fn held(broken: Broken) -> (Arc<Self>, Tag) {
        let queue = Self::new(1, broken);
        let tag = queue.tags.get(&mut Hint::default()).expect("a tag is free");
        (queue, tag)
    }

    fn new(waiting: usize, broken: Broken) -> Arc<Self> {
        let queue = Arc::new(Self {
            staging: Staging::new("test.staging"),
            live: Liveness::default(),
            tags: Tags::new(1, 1),
            scheduler: Exclusive::default(),
            waiting: AtomicUsize::new(waiting),
            parked: AtomicUsize::new(0),
            broken,
        });
        assert!(queue.staging.try_hold().is_some());
        queue
    }

    fn work(&self) {
        let round = |_| {
            self.scheduler.touch();
            self.dispatch();
            let waits = self.waiting.load(Ordering::Relaxed) > 0;
            self.live.settle(waits, || self.parked.load(Ordering::Relaxed) == 0);
            Round::DONE
        };
        assert!(self.staging.serve(Chain::EMPTY, round, Staging::give_up));
    }

    fn dispatch(&self) {
        let mut hint = Hint::default();
        let waiter_present = self.live.waiter_present();
        if waiter_present != WaiterPresent::NO {
            self.parked.store(0, Ordering::Relaxed);
        }
        while self.waiting.load(Ordering::Relaxed) > 0 {
            let tag = self.tags.get(&mut hint);
            let tag = tag.or_else(|| self.live.prepare_to_wait_unless(waiter_present, || self.tags.get(&mut hint)));
            if tag.is_none() {
                return;
            }
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Works for other threads, or makes sure that the thread at the scheduler does.
    fn work_for_others(&self) {
        let held = match self.broken {
            Broken::NoKick => self.staging.try_hold(),
            _ => self.staging.hold_or_kick(),
        };
        if held.is_some() {
            self.work();
        }
    }

    fn poll(&self) {
        if self.live.word.load().is_waiting() {
            self.work_for_others();
        }
    }

    fn complete(&self, tag: Tag) {
        self.tags.put(tag, &mut Hint::default());
        self.live.fence_before_notify();
        self.poll();
    }

    fn is_done(&self) {
        assert_eq!(self.waiting.load(Ordering::Relaxed) + self.parked.load(Ordering::Relaxed), 0, "forgotten");
    }
}

/// One thread completes the request that held the only tag while another thread, at the scheduler, lacks the tag.
fn prepare_to_wait(broken: Broken) {
    let (queue, tag) = Queue::held(broken);
    let completer = spawn(&queue, move |queue| queue.complete(tag));
    queue.work();
    join(completer);
    queue.is_done();
}

/// As `prepare_to_wait`, for two combiners, one after the other, here on one thread. The first combiner has done its
/// share: it sets WAITING without a look at the tags, and gives up, which also takes a kick away. The second combiner
/// finds WAITING set.
fn waiter_present(broken: Broken) {
    let (queue, tag) = Queue::held(broken);
    let completer = spawn(&queue, move |queue| queue.complete(tag));
    queue.live.give_up(&queue.staging);
    queue.poll();
    join(completer);
    queue.is_done();
}

/// One thread parks something, and finds that the combiner has already been kicked, for something that is over.
fn kicked_before() {
    let queue = Queue::new(0, Broken::Nothing);
    assert!(queue.staging.hold_or_kick().is_none());
    let parker = spawn(&queue, |queue| {
        queue.parked.store(1, Ordering::Relaxed);
        queue.live.word.set_waiting();
        queue.work_for_others();
    });
    queue.work();
    join(parker);
    queue.is_done();
}

/// A thread that has chosen a request lets go, although another thread has meanwhile parked something and kicked it.
/// The chooser then looks again itself, as a thread that chooses alone does.
fn kicked_chooser() {
    let queue = Queue::new(0, Broken::Nothing);
    let parker = spawn(&queue, |queue| {
        queue.parked.store(1, Ordering::Relaxed);
        if queue.staging.hold_or_kick().is_some() {
            queue.parked.store(0, Ordering::Relaxed);
        }
    });
    let chosen = |_| Round { has_more: false, is_last: true };
    if !queue.staging.serve(Chain::EMPTY, chosen, Staging::give_up_and_look) {
        let is_parked = queue.parked.load(Ordering::Relaxed) > 0;
        assert!(is_parked, "it was kicked for this");
        queue.parked.store(0, Ordering::Relaxed);
    }
    join(parker);
    queue.is_done();
}

/// A thread that has done its share gives up with a request left, tells the other threads, and goes for good. Another
/// thread polls. That thread polls again only if it had seen no waiter when it polled.
fn give_up(broken: Broken) {
    let queue = Queue::new(1, broken);
    let was_told = Arc::new(Ghost::new(0));
    let told = was_told.clone();
    let poller = spawn(&queue, move |queue| {
        told.store(queue.live.deferrals.read() as usize, Ordering::Relaxed);
        queue.poll();
    });
    queue.scheduler.touch();
    match broken {
        Broken::GivesUpSilently => {
            queue.staging.give_up();
            queue.live.deferrals.count();
        }
        Broken::TellsFirst => {
            queue.staging.give_up();
            queue.live.deferrals.count();
            queue.live.word.set_waiting();
        }
        _ => {
            queue.live.give_up(&queue.staging);
            queue.live.defer(nobody_sleeps);
        }
    }
    join(poller);
    if was_told.load(Ordering::Relaxed) == 0 {
        queue.poll();
    }
    queue.is_done();
}

/// The combiner of one domain takes a request over, counts it and gives up. The combiner of another domain, in which
/// nothing waits, clears WAITING if it finds nothing here either: neither published nor counted.
fn cleared_elsewhere(broken: Broken) {
    let queue = Queue::new(0, broken);
    let link = AtomicU32::new(NIL);
    assert!(queue.staging.publish([0], |_| &link));
    queue.live.word.set_waiting();
    let other = spawn(&queue, |queue| {
        let has_work = || queue.staging.has_published() || queue.waiting.load(Ordering::Relaxed) > 0;
        queue.live.settle(false, || !has_work());
    });
    assert_eq!(queue.staging.take().pop_newest(|_| &link), Some(0));
    queue.waiting.store(1, Ordering::Relaxed);
    if broken == Broken::GivesUpSilently {
        queue.staging.give_up();
    } else {
        queue.live.give_up(&queue.staging);
    }
    join(other);
    assert!(queue.live.word.load().is_waiting(), "forgotten");
}

/// Two submitters, the counts of what each submitter let in and completed, and a device.
struct Freezing {
    requests: Arc<Requests>,
    word: Word,
    activities: [Activity; 2],
    entered: [AtomicU32; 2],
    completed: [AtomicU32; 2],
    /// The requests that the device has, as a set.
    device: AtomicU32,
    broken: Broken,
}

impl Freezing {
    /// Submits a request unless the queue is frozen. Then completes, in a section of its own, what the device has.
    fn submit(&self, me: usize) {
        let (activity, entered) = (&self.activities[me], &self.entered[me]);
        activity.enter();
        let is_in = !self.word.load().is_frozen();
        if is_in {
            self.insert(me as u32);
        }
        if self.broken == Broken::CountsLate {
            activity.leave();
        }
        // Release as in `Counters::entered`.
        entered.store(u32::from(is_in), Ordering::Release);
        if self.broken != Broken::CountsLate {
            activity.leave();
        }
        activity.enter();
        // Acquire pairs with the Release of the thread that gave the device its requests.
        let finished = self.device.swap(0, Ordering::Acquire);
        (0..2).filter(|slot| finished & 1 << slot != 0).for_each(|slot| self.requests.requests[slot].touch());
        // Release as in `Counters::completed`.
        self.completed[me].store(finished.count_ones(), Ordering::Release);
        activity.leave();
    }

    /// As `Requests::submit`, with a device.
    fn insert(&self, slot: u32) {
        let Requests { staging, scheduler, requests, .. } = &*self.requests;
        let link_of = |slot| self.requests.link(slot);
        let dispatch = |slot: u32| {
            requests[slot as usize].touch();
            // Release publishes the request to the thread that completes it.
            self.device.fetch_or(1 << slot, Ordering::Release);
        };
        requests[slot as usize].touch();
        loop {
            if let Some(left) = staging.try_hold() {
                dispatch(slot);
                let round = |mut left: Chain| {
                    scheduler.touch();
                    while let Some(slot) = left.pop_newest(link_of) {
                        dispatch(slot);
                    }
                    Round::DONE
                };
                assert!(staging.serve(left, round, Staging::give_up));
                return;
            }
            if staging.publish([slot], link_of) {
                return;
            }
        }
    }

    /// Whether all threads that were inside have been seen outside. The model goes no further if the freeze has to
    /// wait.
    fn all_have_left(&self) -> bool {
        self.broken == Broken::WaitsForNobody
            || self.activities.iter().all(|activity| activity.has_left(activity.observe()))
    }

    fn is_drained(&self) -> bool {
        // Acquire as in `Counters::nr_completed` and `nr_entered`, in this order.
        let completed: u32 = self.completed.iter().map(|count| count.load(Ordering::Acquire)).sum();
        let entered: u32 = self.entered.iter().map(|count| count.load(Ordering::Acquire)).sum();
        entered == completed
    }
}

/// Two threads submit, one of them by leaving its request to the other, while a freeze begins. If the freeze finds the
/// queue drained, the freezer owns all of it.
fn freeze(broken: Broken) {
    let queue = Arc::new(Freezing {
        requests: Requests::new(),
        word: Word::default(),
        activities: Default::default(),
        entered: [0; 2].map(AtomicU32::new),
        completed: [0; 2].map(AtomicU32::new),
        device: AtomicU32::new(0),
        broken,
    });
    let submitters = [spawn(&queue, |queue| queue.submit(0)), spawn(&queue, |queue| queue.submit(1))];
    queue.word.close(Flag::Frozen);
    if queue.all_have_left() && queue.is_drained() {
        // Threads that come in from here on find nothing; pairs with the fence of `Activity::enter`.
        fence(Ordering::SeqCst);
        if queue.all_have_left() {
            assert!(is_free(&queue.requests.staging) && queue.device.load(Ordering::Relaxed) == 0, "left behind");
            queue.requests.scheduler.touch();
            queue.requests.requests.iter().for_each(Exclusive::touch);
        }
    }
    submitters.into_iter().for_each(join);
}

/// Red if a request that was left just before the combiner lets go stays behind, or if two threads are at the
/// scheduler.
#[test]
fn one_thread_at_a_time_gets_all_requests_through() {
    holds(two_requests);
}

/// Red if one of two requests that are left at the same time is lost.
#[test]
fn two_may_leave_something_at_once() {
    holds_within(2, three_requests);
}

/// Red if `Liveness::prepare_to_wait_unless` does not look again, or if a completer that finds the combiner at work
/// leaves no kick.
#[test]
fn a_completion_kicks_who_lacks_a_tag() {
    holds(|| prepare_to_wait(Broken::Nothing));
}

/// Red if a combiner that finds WAITING set needs more than one look at the tags.
#[test]
fn who_is_told_need_not_tell() {
    holds(|| waiter_present(Broken::Nothing));
}

/// Red if the combiner forgets something parked, because its kick came before and was for something else.
#[test]
fn one_kick_is_enough_for_all() {
    holds(kicked_before);
}

/// Red if `Staging::give_up_and_look` takes a kick away, and the thread then does not see what was parked.
#[test]
fn a_chooser_that_looks_again_finds_what_it_was_kicked_for() {
    holds(kicked_chooser);
}

/// Red if a request that was left with a combiner that gives up is lost, or is done twice.
#[test]
fn what_is_left_when_the_holder_gives_up_goes_to_the_next() {
    holds(given_up);
}

/// Red if a thread that polls neither finds what the combiner left nor is notified to come again.
#[test]
fn what_is_given_up_is_found() {
    holds(|| give_up(Broken::Nothing));
}

/// Red if a request that a combiner takes over is forgotten because another domain's combiner saw it in neither place.
#[test]
fn what_is_taken_over_is_not_forgotten_by_other_domains() {
    holds(|| cleared_elsewhere(Broken::Nothing));
}

/// Red if a freeze that finds the queue drained finds a request left behind, or another thread inside.
#[test]
fn a_frozen_queue_has_nothing_left_behind() {
    holds_within(2, || freeze(Broken::Nothing));
}

#[test]
fn each_ordering_and_fence_is_needed() {
    fail_without(&[
        ("staging.hold", two_requests),
        ("staging.release", two_requests),
        ("staging.publish", two_requests),
        ("staging.last_look", two_requests),
        ("liveness.notify_fence", || prepare_to_wait(Broken::Nothing)),
        ("liveness.wait_fence", || prepare_to_wait(Broken::Nothing)),
        ("liveness.present_fence", || waiter_present(Broken::Nothing)),
        ("staging.take_fence", kicked_before),
        ("staging.kick_fence", kicked_before),
        ("staging.look_fence", kicked_chooser),
        ("staging.kick_fence", kicked_chooser),
        ("staging.give_up", given_up),
    ]);
}

#[test]
fn each_broken_variant_fails() {
    fail_within(
        2,
        &[("CountsLate", || freeze(Broken::CountsLate)), ("WaitsForNobody", || freeze(Broken::WaitsForNobody))],
    );
    fail(&[
        ("the_last_look_has_to_let_go_by_itself", lock_and_list_apart),
        ("NoKick", || prepare_to_wait(Broken::NoKick)),
        ("GivesUpSilently", || give_up(Broken::GivesUpSilently)),
        ("GivesUpSilently, elsewhere", || cleared_elsewhere(Broken::GivesUpSilently)),
        ("TellsFirst", || give_up(Broken::TellsFirst)),
    ]);
}
