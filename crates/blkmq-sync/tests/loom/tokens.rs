//! Models of tokens that several domains share: a request that waits in one domain for a token is not forgotten, though
//! the thread that brings the token works for another domain.

use crate::model::{fail, fail_without, holds, join, spawn};
use blkmq_sync::Arc;
use blkmq_sync::atomic::{AtomicUsize, Ordering};
use blkmq_sync::liveness::{Liveness, WaiterPresent};
use blkmq_sync::pool::Pool;
use blkmq_sync::staging::{Round, Staging};

/// How the threads of a model work. Each of these taken away breaks the protocol.
#[derive(Clone, Copy)]
struct Ways {
    /// A combiner shows what waits before it may lack a token, and not only when it goes.
    shows_first: bool,
    /// A combiner that finds WAITING set sets it once more when it lacks a token: another combiner may clear it.
    sets_again: bool,
    /// What found no token is looked for again.
    looks_again: bool,
}

const ALL: Ways = Ways { shows_first: true, sets_again: true, looks_again: true };

struct Domain {
    staging: Staging,
    /// Requests that wait. Only the combiner changes it.
    waiting: AtomicUsize,
    /// What other threads see of it.
    shown: AtomicUsize,
}

struct Queue {
    live: Liveness,
    pool: Pool,
    domains: [Domain; 2],
    ways: Ways,
}

impl Queue {
    /// A queue with one token.
    fn new(ways: Ways) -> Arc<Self> {
        let domain = || Domain {
            staging: Staging::new("test.staging"),
            waiting: AtomicUsize::new(0),
            shown: AtomicUsize::new(0),
        };
        Arc::new(Self { live: Liveness::default(), pool: Pool::new(1, 1), domains: [domain(), domain()], ways })
    }

    /// One hold of a domain, as `combining` has it: inserts so many requests, and chooses one if there is a token.
    /// Returns how many were chosen.
    fn enter(&self, number: usize, inserts: usize) -> usize {
        let domain = &self.domains[number];
        let Some(left) = domain.staging.hold_or_kick() else {
            assert_eq!(inserts, 0, "nobody else is here while this thread inserts");
            return 0;
        };
        let (mut chosen, mut inserts) = (0, inserts);
        let get = |order| domain.waiting.load(order);
        let round = |_| {
            let waiter_present = self.live.waiter_present();
            let waiter_present = if self.ways.sets_again { WaiterPresent::NO } else { waiter_present };
            domain.waiting.store(get(Ordering::Relaxed) + std::mem::take(&mut inserts), Ordering::Relaxed);
            if self.ways.shows_first {
                domain.shown.store(get(Ordering::Relaxed), Ordering::Relaxed);
            }
            if get(Ordering::Relaxed) > 0 {
                let again = || if self.ways.looks_again { self.pool.take(0) } else { None };
                let token = self.pool.take(0).or_else(|| self.live.prepare_to_wait_unless(waiter_present, again));
                if token.is_some() {
                    domain.waiting.store(get(Ordering::Relaxed) - 1, Ordering::Relaxed);
                    chosen += 1;
                }
            }
            let other = &self.domains[1 - number];
            self.live.settle(get(Ordering::Relaxed) > 0, || other.shown.load(Ordering::Relaxed) == 0);
            domain.shown.store(get(Ordering::Relaxed), Ordering::Relaxed);
            Round::DONE
        };
        let was_released = domain.staging.serve(left, round, |staging| self.live.give_up(staging));
        assert!(was_released, "no combiner has a share here");
        chosen
    }

    /// Completes a request, and goes on as long as something waits that a token lets go.
    fn complete(&self) {
        loop {
            self.pool.put(0, 1);
            self.live.fence_before_notify();
            if !self.live.word.load().is_waiting() {
                return;
            }
            let is_due = |number: &usize| self.domains[*number].shown.load(Ordering::Relaxed) > 0;
            let chosen: usize = (0..2).filter(is_due).map(|number| self.enter(number, 0)).sum();
            if chosen == 0 {
                return;
            }
            assert_eq!(chosen, 1, "there is one token");
        }
    }
}

/// A request comes to the second domain while a thread of the first one has the only token.
fn split(ways: Ways, is_waiting: bool) {
    let queue = Queue::new(ways);
    queue.pool.take(0).expect("there is a token");
    if is_waiting {
        queue.live.word.set_waiting();
    }
    let submitter = spawn(&queue, move |queue| {
        if queue.enter(1, 1) > 0 {
            queue.complete();
        }
    });
    // The thread of the first domain finds nothing there, and then completes its request.
    assert_eq!(queue.enter(0, 0), 0);
    queue.complete();
    join(submitter);
    assert_eq!((queue.domains[1].waiting.load(Ordering::Relaxed), queue.pool.nr_out()), (0, 0), "forgotten");
}

#[test]
fn a_token_is_found_by_what_waits_in_another_domain() {
    holds(|| split(ALL, false));
    holds(|| split(ALL, true));
}

/// A pool becomes deeper while a thread finds no token in it: either the thread finds the new one, or the thread that
/// changes the depth finds WAITING.
fn deepen() {
    let shared = Arc::new((Liveness::default(), Pool::new(16, 1)));
    shared.1.take(0).expect("there is a token");
    let taker = spawn(&shared, move |shared| {
        let (live, pool) = shared;
        pool.take(1).or_else(|| live.prepare_to_wait(|| pool.take(1))).is_some()
    });
    let (live, pool) = &*shared;
    pool.set_depth(2);
    live.fence_before_notify();
    let sees_waiting = live.word.load().is_waiting();
    assert!(join(taker) || sees_waiting, "forgotten");
}

/// Red if a thread that looks again for a token looks only at the words that the pool had before, or without a fence.
#[test]
fn a_token_is_found_in_a_pool_that_becomes_deeper() {
    holds(deepen);
}

#[test]
fn each_fence_is_needed() {
    fail_without(&[
        ("liveness.wait_fence", || split(ALL, false)),
        ("liveness.notify_fence", || split(ALL, false)),
        ("liveness.wait_fence", deepen),
        ("liveness.notify_fence", deepen),
    ]);
}

/// Red if a section need not show what waits before it lacks something (`Section::show`), or if a combiner of one of
/// several domains may rely on WAITING as it found it (`Section::hear`).
#[test]
fn each_step_is_needed() {
    fail(&[
        ("looks_again", || split(Ways { looks_again: false, ..ALL }, false)),
        ("shows_first", || split(Ways { shows_first: false, ..ALL }, false)),
        ("sets_again", || split(Ways { sets_again: false, ..ALL }, true)),
    ]);
}
