//! Bounding for shares: while a client gets less than it is due, the device gets as little as keeps its throughput.
//!
//! What waits in the device no scheduler divides. So when a scheduler says that a client lacks
//! ([`Fairness::Violated`]) and the device has several requests, what it does in that time is taken for all that it can
//! do. Then the bound is what the device does in half the time of the fastest read, and one request at least. It is
//! doubled as long as that brings more, as in TCP's slow start. The smallest bound stays with which the device does
//! nearly as much as with any, or one just below the device's ceiling ([`Watch::just_below`]). If none does as much as
//! the device did without a bound, the device is not what limits the clients, and nothing is held back for a while.
//!
//! If a client is below its due although there is a bound, and requests wait in the device, fewer of them may keep it
//! busy since the load has changed. Then the bound is searched anew in the same way, ever more seldom if that changes
//! nothing.

use core::mem::take;

use super::progress::Span;
use super::scale::{ENOUGH_OF_SEVERAL, MS, REST_TIMES, SECOND};
use super::{FEWEST_IN_DEVICE, LONGEST_REST, Limiter, Phase, Target};
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

/// Of what the device did without a bound: while it does less, it takes as long for a request as for one alone.
const BELOW: f64 = 0.7;

/// The bound just below the ceiling is to let the device do so much of all that it can, and stays if it does so much.
const NEARLY: f64 = 0.985;
const KEPT: f64 = 0.97;

/// A device has a line if it has each request for so many times as long as one while it had few.
const LINE: f64 = 1.25;

/// How many more windows the scheduler may have until it holds clients back, where no bound helps.
const LAST_CHANCE: u32 = 8;

/// Nanoseconds: when a larger bound is tried for the first time.
const FIRST_WIDENING: u64 = SECOND;

/// Nanoseconds: how long after a search none begins although a client is below its due, at least. If the next one
/// begins soon after that, twice as long passes after it.
const SHORTEST_PERIOD: u64 = 2 * SECOND;

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
    /// The bound before the search, and the one that growing has found, once it has.
    before: u64,
    grown: Option<u64>,
    /// How long the device had each request while it had few, in nanoseconds; 0 if that is not known.
    alone: f64,
    /// A bound is not searched anew before this time, and how long the last such period was.
    next_search: Time,
    period: u64,
    /// What the scheduler said last.
    latest: Fairness,
    /// Nothing helped reads that were too slow, which says nothing of a bound for shares.
    reads_gave_up: bool,
}

impl Watch {
    /// The bound with which the device does nearly all that it can without a line in it, if growing has told how long
    /// it takes for a request then, and if whole requests make such a bound. One request costs `one` nanoseconds.
    ///
    /// A bound that is a little larger costs no throughput, but it keeps the device at its ceiling. There a volume of a
    /// cloud has no credit left, and delays single operations for long. Clients that have few outstanding then wait
    /// where nothing orders them.
    fn just_below(&self, one: u64) -> Option<u64> {
        // While the device does all it can, it does a nanosecond of cost in each nanosecond.
        let requests = (NEARLY * self.alone) as u64 / one.max(1);
        let has_whole = requests > 0 && (requests * one) as f64 >= KEPT * self.alone;
        // A bound is exceeded by less than one request.
        has_whole.then(|| requests * one - one / 2)
    }
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

    /// A client has lacked for long although there is a bound. Searches another one, unless the last search was lately
    /// or the device has no line of requests: then the bound is not too wide. Returns whether it does.
    pub(super) fn grow_anew(&mut self, now: Time) -> bool {
        let Some(watch) = self.shares.as_mut().filter(|_| self.bound < u64::MAX) else { return false };
        // Since the bound holds: larger ones are tried now and then.
        let has_line = self.span.mean_in_device() as f64 > LINE * watch.alone;
        if has_line && now >= watch.next_search {
            self.begin_growing(now);
            return true;
        }
        (watch.violated, watch.span) = (0, Span::default());
        false
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
        (watch.before, watch.grown, watch.alone) = (self.bound, None, 0.0);
        let is_soon = now.since(watch.next_search) < watch.period;
        watch.period = if is_soon { (2 * watch.period).min(LONGEST_REST) } else { SHORTEST_PERIOD };
        self.costs.learn(&open);
        let one = self.costs.mean(&open) as u64;
        // While the device does all it can, it does a nanosecond of cost in each nanosecond.
        watch.first = one.max(self.least.get().unwrap_or(0) / 2).max(1);
        (self.began, self.used) = (now, now);
        self.grow(0, open.mean_in_device(), now);
    }

    /// Doubles the bound so many times. The device has had each request for so many nanoseconds.
    fn grow(&mut self, tried: usize, in_device: u64, now: Time) {
        let Some(watch) = &mut self.shares else { return };
        watch.tried = tried;
        let bound = watch.first.saturating_mul(1 << tried);
        self.try_bound(bound, in_device, now);
    }

    fn try_bound(&mut self, bound: u64, in_device: u64, now: Time) {
        self.bound = bound;
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
        let one = self.costs.mean(&self.span) as u64;
        let Some(watch) = &mut self.shares else { return };
        // Little's law: what the device has at once, over its rate.
        let in_device = (self.bound as f64 / rate.max(LEAST_RATE)) as u64;
        if let Some(grown) = watch.grown {
            if rate < KEPT && was_limited {
                self.bound = grown;
            }
            self.settle_grown(now);
            return;
        }
        let tried = watch.tried;
        watch.rates[tried] = rate;
        // While the first bound is measured, what the device had before still completes.
        if tried > 0 && watch.rates[..=tried].iter().all(|rate| *rate < BELOW) {
            watch.alone = (self.bound.div_ceil(one.max(1)) * one) as f64 / rate.max(LEAST_RATE);
        }
        let is_more = tried == 0 || rate >= GROWS * watch.rates[tried - 1];
        if was_limited && (is_more || rate < AS_OPEN && !is_other) && tried + 1 < MOST {
            self.grow(tried + 1, in_device, now);
            return;
        }
        let rates = &watch.rates[..=tried];
        let best = rates.iter().copied().fold(0.0, f64::max);
        let smallest = rates.iter().position(|rate| *rate >= AS_BEST * best).unwrap_or(tried);
        let is_vain = !was_limited && smallest == tried || best < AS_OPEN && !is_other;
        self.bound = if is_vain { watch.before } else { watch.first.saturating_mul(1 << smallest) };
        if self.bound == u64::MAX {
            // The scheduler may still find that it helps to hold back some clients.
            (watch.latest, watch.violated) = (Fairness::Unknown, 0);
            self.enter(Phase::Bounded, SETTLE, now);
            return;
        }
        match watch.just_below(one).filter(|below| *below < self.bound && !is_vain && !is_other) {
            Some(below) => {
                watch.grown = Some(self.bound);
                self.try_bound(below, in_device, now);
            }
            None => self.settle_grown(now),
        }
    }

    /// The present bound stays.
    fn settle_grown(&mut self, now: Time) {
        let Some(watch) = &mut self.shares else { return };
        watch.period = watch.period.max(now.since(self.began).saturating_mul(REST_TIMES)).min(LONGEST_REST);
        watch.next_search = now.after(watch.period);
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
