//! A limiter under the scheduler's lock: the work in flight, and whether more may be dispatched.

use blkmq_sched::limiter::{Limiter, Progress, Target};
use blkmq_sched::{Fairness, Time};

use crate::queue::Queue;
use crate::queue::tenants::usage::UsageLog;
#[cfg(virtual_cpus)]
use crate::queue::watch::{LimiterStep, observe_limiter};
use crate::request::Request;
use blkmq_sync::unless_mutated;

/// A limiter, with the work in flight.
#[derive(Debug)]
pub(super) struct LimiterState {
    pub(super) limiter: Limiter,
    /// The cost of the requests that were dispatched since the limiter was created, in nanoseconds; the sum wraps.
    sent: u64,
    /// How much of it has completed, as of the last recount.
    over: u64,
    /// The sums of the threads when the limiter was created.
    base: u64,
    /// Whether a request was held back since the last fold.
    has_held_back: bool,
    /// What clients got, if the scheduler shares by that.
    pub(super) usage: Option<UsageLog>,
}

/// The cost of completed requests, summed over all threads.
fn cost_over(q: &Queue) -> u64 {
    q.threads.iter().fold(0, |sum, (_, thread)| sum.wrapping_add(thread.flows.over()))
}

impl LimiterState {
    /// Called while nothing is in flight.
    pub(super) fn new(q: &Queue, target: Target, for_shares: bool) -> Self {
        let limiter = if for_shares { Limiter::for_shares(target) } else { Limiter::new(target) };
        let usage = for_shares.then(|| UsageLog::new(q));
        Self { limiter, sent: 0, over: 0, base: cost_over(q), has_held_back: false, usage }
    }

    pub(super) fn look_up_over(&mut self, q: &Queue) {
        self.over = cost_over(q).wrapping_sub(self.base);
    }

    /// The work in flight, in nanoseconds of cost. Sums lag, so it may be less by now.
    pub(super) fn in_flight(&self) -> u64 {
        self.sent.wrapping_sub(self.over)
    }

    /// Whether a request may be dispatched now.
    ///
    /// COST: while the limiter is open, a load. While it limits, each recount reads one cache line per thread.
    #[inline]
    pub(super) fn lets_go(&mut self, q: &Queue, now: Time) -> bool {
        self.limiter.is_open() || self.lets_go_now(q, now)
    }

    #[inline(never)]
    fn lets_go_now(&mut self, q: &Queue, now: Time) -> bool {
        if !self.limiter.has_room(self.in_flight(), 0) && unless_mutated("limiter.anew") {
            self.look_up_over(q);
        }
        let lets_go = self.limiter.has_room(self.in_flight(), 0) && self.limiter.opens_at(now).is_none();
        self.has_held_back |= !lets_go;
        #[cfg(virtual_cpus)]
        if !lets_go {
            observe_limiter(LimiterStep::Withheld { until: self.opens_at(now).filter(|until| until.0 < u64::MAX) });
        }
        lets_go
    }

    /// A request is dispatched. It keeps its cost.
    #[inline]
    pub(super) fn send(&mut self, rq: &mut Request<'_>, now: Time) {
        let cost = self.limiter.cost(rq.op(), rq.nr_sectors());
        rq.body_mut().cost = cost;
        self.limiter.sent(cost, now);
        self.sent = self.sent.wrapping_add(cost.into());
        #[cfg(virtual_cpus)]
        observe_limiter(LimiterStep::Sent {
            rq: rq.id(),
            cost,
            bound: self.limiter.bound(),
            phase: self.limiter.phase(),
        });
    }

    /// When the limiter permits the next dispatch; the largest time if that depends on completions. `None`: it permits
    /// one now.
    pub(super) fn opens_at(&self, now: Time) -> Option<Time> {
        if self.limiter.is_open() {
            None
        } else if !self.limiter.has_room(self.in_flight(), 0) {
            Some(Time(u64::MAX))
        } else {
            self.limiter.opens_at(now)
        }
    }

    /// Passes the measurements to the limiter. `has_choice`: the scheduler has requests. `fairness`: what the scheduler
    /// says of shares.
    pub(super) fn fold(&mut self, q: &Queue, has_choice: bool, fairness: Fairness, now: Time) {
        self.look_up_over(q);
        // A scheduler may hold back requests that the limiter would permit. That says nothing about the device.
        let holds_back = has_choice && self.opens_at(now).is_some();
        let mut progress = Progress {
            in_flight: self.in_flight(),
            fairness,
            held_back: std::mem::take(&mut self.has_held_back) || holds_back,
            ..Progress::default()
        };
        q.threads.iter().for_each(|(_, thread)| thread.flows.add_to(&mut progress));
        self.limiter.fold(&progress, now);
        #[cfg(virtual_cpus)]
        observe_limiter(LimiterStep::Learned { progress, phase: self.limiter.phase() });
    }
}
