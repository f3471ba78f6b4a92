//! Bounding for shares: while a client gets less than it is due, the device gets as little as keeps its throughput.
//!
//! What waits in the device no scheduler divides. So when a scheduler says that a client lacks
//! ([`Fairness::Violated`]) and the device has several requests, what it does in that time is taken for all that it can
//! do. Then the bound is what the device does in half the time of the fastest read, and one request at least. It is
//! doubled as long as that brings more, as in TCP's slow start. The smallest bound stays with which the device does
//! nearly as much as with any. If none does as much as the device did without a bound, the device is not what limits
//! the clients, and nothing is held back for a while.

use core::mem::take;

use super::progress::Span;
use super::scale::{ENOUGH_OF_SEVERAL, MS, SECOND};
use super::{FEWEST_IN_DEVICE, Limiter, Phase, Target};
use crate::{Fairness, Time};

/// In so many windows in a row a client must lack.
const WINDOWS: u32 = 3;

/// How often the bound is doubled at most.
const MOST: usize = 20;

/// Nanoseconds: how long a bound is measured, and how long before that the device works off what it has at least.
const MEASURE: u64 = 25 * MS;
const SETTLE: u64 = MS;

/// How many requests tell a rate here in less time. With a few it is known whether the device does less than half.
const PLENTY: u64 = 10 * ENOUGH_OF_SEVERAL;
const FEW: u64 = ENOUGH_OF_SEVERAL / 12 + 3;
const HALF: f64 = 0.5;

/// A device does at least so much of what it did without a bound.
const LEAST_RATE: f64 = 0.01;

/// Twice the bound is tried if the last doubling brought so many times the throughput.
const GROWS: f64 = 1.1;

/// Of what the device did without a bound, and of the best bound: so much is as good.
const AS_OPEN: f64 = 0.9;
const AS_BEST: f64 = 0.95;

/// How many more windows the scheduler may have until it holds clients back, where no bound helps.
const LAST_CHANCE: u32 = 8;

/// Nanoseconds: when a larger bound is tried for the first time.
const FIRST_WIDENING: u64 = SECOND;

/// What is known of the clients' shares.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Watch {
    /// In how many windows in a row a client lacked.
    violated: u32,
    /// What completed in these.
    span: Span,
    /// The bound that is tried, and the rates with it and with those before it, in what the device did without.
    tried: usize,
    rates: [f64; MOST],
    first: u64,
    /// What the scheduler said last.
    latest: Fairness,
    /// Nothing helped reads that were too slow, which says nothing of a bound for shares.
    reads_gave_up: bool,
}

impl Limiter {
    /// Notes what the scheduler says of shares. Returns whether a client has lacked for long while the device had
    /// several requests.
    pub(super) fn note_fairness(&mut self, fairness: Fairness, fresh: &Span) -> bool {
        let Some(watch) = &mut self.shares else { return false };
        watch.span.add(fresh);
        if fairness != Fairness::Unknown {
            watch.latest = fairness;
        }
        match fairness {
            Fairness::Unknown => return false,
            Fairness::Kept | Fairness::Enforced => (watch.violated, watch.span) = (0, Span::default()),
            Fairness::Violated => watch.violated += 1,
        }
        watch.violated >= WINDOWS && watch.span.occupancy() >= FEWEST_IN_DEVICE
    }

    /// Whether to bound for shares. Where a latency is asked of reads, and they are slower, it is tried first what
    /// helps them: if that holds anything back, clients share what waits.
    pub(super) fn may_grow(&self, now: Time) -> bool {
        let gave_up = self.shares.as_ref().is_some_and(|watch| watch.reads_gave_up);
        let are_reads_first = self.target != Target::Off && self.is_met() == Some(false);
        gave_up || now >= self.rests_until && !are_reads_first
    }

    /// What was tried in this phase has not helped.
    pub(super) fn note_vain(&mut self) {
        let was_for_shares = self.phase == Phase::Bounded;
        if let Some(watch) = &mut self.shares {
            watch.reads_gave_up = !was_for_shares;
        }
    }

    /// Begins with a narrow bound.
    pub(super) fn begin_growing(&mut self, now: Time) {
        let Some(watch) = &mut self.shares else { return };
        let open = take(&mut watch.span);
        (watch.violated, watch.reads_gave_up) = (0, false);
        self.costs.learn(&open);
        let one = self.costs.mean(&open) as u64;
        // While the device does all it can, it does a nanosecond of cost in each nanosecond.
        watch.first = one.max(self.least.get().unwrap_or(0) / 2).max(1);
        (self.began, self.used) = (now, now);
        self.grow(0, open.mean_in_device(), now);
    }

    /// Tries a bound. The device has had each request for so many nanoseconds.
    fn grow(&mut self, tried: usize, in_device: u64, now: Time) {
        let Some(watch) = &mut self.shares else { return };
        watch.tried = tried;
        self.bound = watch.first.saturating_mul(1 << tried);
        self.enter(Phase::Growing, (2 * in_device).max(SETTLE), now);
    }

    pub(super) fn look_growing(&mut self, now: Time) {
        let (rate, was_limited) = (self.costs.rate(&self.span), self.span.was_limited());
        // What a bound changes in the mix of requests it changes in their cost too, which is only predicted.
        let is_other = self.costs.is_other_mix(&self.span);
        let is_clear = self.span.has(MS, PLENTY) || rate < HALF && was_limited && self.span.has(MS, FEW);
        if !is_clear && !self.span.is_enough_of_several(MEASURE) {
            return;
        }
        let Some(watch) = &mut self.shares else { return };
        let tried = watch.tried;
        watch.rates[tried] = rate;
        let is_more = tried == 0 || rate >= GROWS * watch.rates[tried - 1];
        if was_limited && (is_more || rate < AS_OPEN && !is_other) && tried + 1 < MOST {
            // Little's law: what the device has at once, over its rate.
            let in_device = (self.bound as f64 / rate.max(LEAST_RATE)) as u64;
            self.grow(tried + 1, in_device, now);
            return;
        }
        let rates = &watch.rates[..=tried];
        let best = rates.iter().copied().fold(0.0, f64::max);
        let smallest = rates.iter().position(|rate| *rate >= AS_BEST * best).unwrap_or(tried);
        if !was_limited && smallest == tried || best < AS_OPEN && !is_other {
            // The scheduler may still find that it helps to hold back some clients.
            (watch.latest, watch.violated) = (Fairness::Unknown, 0);
            self.bound = u64::MAX;
            self.enter(Phase::Bounded, SETTLE, now);
            return;
        }
        self.bound = watch.first.saturating_mul(1 << smallest);
        self.rest = FIRST_WIDENING;
        self.enter(Phase::Bounded, SETTLE, now);
    }

    /// Whether neither a bound nor the scheduler helps.
    pub(super) fn is_vain(&self) -> bool {
        let Some(watch) = self.shares.as_ref().filter(|_| self.bound == u64::MAX) else { return false };
        watch.latest == Fairness::Kept || watch.violated >= LAST_CHANCE
    }

    /// Whether the scheduler holds clients back, which it cannot while requests bypass it.
    pub(super) fn is_enforced(&self) -> bool {
        self.shares.as_ref().is_some_and(|watch| watch.latest == Fairness::Enforced)
    }
}
