//! Bounding: the work with the device is halved as long as throughput stays.
//!
//! A bound is measured for a while, beside what the open window had. The next one is half as large. It ends when
//! throughput falls, when reads are as fast as they should be, or when two smaller bounds in a row brought reads
//! nothing. What stays is the best of the bounds. From time to time twice the bound is tried: 20 s after the first, and
//! each time twice as long after one that brought nothing.

use super::progress::{READ, Span};
use super::{LONGEST_REST, MS, Phase, SECOND, SHORTEST_REST, Target, Window};
use crate::Time;

/// Nanoseconds: how long a bound is measured, and how long before that the device works off what it has.
const MEASURE: u64 = 200 * MS;
const SETTLE: u64 = 100 * MS;

/// How much of the open window's throughput a bound must keep: if a latency was set, and if not.
const KEPT: f64 = 0.85;
const KEPT_AUTO: f64 = 0.97;

/// Reads are faster if they take at most this part of what they took.
const FASTER: f64 = 0.9;

/// A bound is worth it if reads take at most this part of what they took without.
const WORTH: f64 = 0.7;

/// How many bounds may bring nothing in a row.
const MOST_VAIN: u32 = 2;

/// A larger bound stays if it brings so many times the throughput.
const MORE: f64 = 1.03;

/// But not if reads take so many times as long.
const SLOWER: f64 = 1.5;

impl Window {
    /// Tries half of what is with the device.
    pub(super) fn begin_narrowing(&mut self, now: Time) {
        self.pacer.stop();
        (self.last, self.most, self.vain) = (self.before, self.before, 0);
        // Little's law: what the device had on average.
        let each = self.costs.sum(&self.before) / self.before.requests().max(1) as f64;
        self.bound = ((self.before.occupancy().max(1) as f64 * each) as u64).max(1);
        self.best_bound = self.bound;
        self.narrow(now);
    }

    fn narrow(&mut self, now: Time) {
        self.bound = (self.bound / 2).max(1);
        self.enter(Phase::Narrowing, SETTLE, now);
    }

    pub(super) fn look_narrowing(&mut self, now: Time) {
        if !self.span.is_enough(MEASURE) {
            return;
        }
        let Some(read) = self.span.flows[READ].mean() else {
            self.give_up(now);
            return;
        };
        self.read_mean = Some(read);
        let rate = self.costs.rate(&self.span);
        if rate > self.costs.rate(&self.most) {
            self.most = self.span;
        }
        let kept = if matches!(self.target, Target::Within(_)) { KEPT } else { KEPT_AUTO };
        if rate < kept * self.costs.rate(&self.most) {
            self.settle_for_best(now);
            return;
        }
        if (read as f64) < FASTER * read_mean(&self.last) {
            self.vain = 0;
            self.best_bound = self.bound;
            self.last = self.span;
        } else {
            self.vain += 1;
        }
        if self.vain >= MOST_VAIN || self.is_met() == Some(true) || self.bound == 1 {
            self.settle_for_best(now);
        } else {
            self.narrow(now);
        }
    }

    /// Keeps the best bound that was tried, if one is worth it.
    fn settle_for_best(&mut self, now: Time) {
        if read_mean(&self.last) > WORTH * read_mean(&self.before) {
            self.give_up(now);
            return;
        }
        self.bound = self.best_bound;
        self.enter(Phase::Bounded, SETTLE, now);
    }

    pub(super) fn look_bounded(&mut self, fresh: &Span, now: Time) {
        self.end_stretch(fresh);
        if fresh.held_back > 0 && now.since(self.since) > self.rest && self.span.is_enough(MEASURE) {
            self.last = self.span;
            self.rest = (2 * self.rest).min(LONGEST_REST);
            self.best_bound = self.bound;
            self.bound = self.bound.saturating_mul(2);
            self.enter(Phase::Widening, SETTLE, now);
        } else if self.span.is_enough(SECOND) {
            // The device changes: what counts is the last second.
            self.span = Span::default();
        }
    }

    pub(super) fn look_widening(&mut self, fresh: &Span, now: Time) {
        // Where nothing was read before, nothing says that reads are slow now.
        let slow = self.last.flows[READ].mean().map_or(f64::INFINITY, |mean| SLOWER * mean as f64);
        let is_slow = self.end_stretch(fresh).is_some_and(|stretch| read_mean(&stretch) > slow);
        if is_slow {
            self.bound = self.best_bound;
            self.enter(Phase::Bounded, SETTLE, now);
            return;
        }
        if !self.span.is_enough(MEASURE) {
            return;
        }
        let does_more = self.costs.rate(&self.span) > MORE * self.costs.rate(&self.last);
        if does_more && read_mean(&self.span) < slow {
            self.best_bound = self.bound;
            self.rest = SHORTEST_REST;
        }
        self.bound = self.best_bound;
        self.enter(Phase::Bounded, SETTLE, now);
    }
}

/// The mean time that a read took, in nanoseconds.
fn read_mean(span: &Span) -> f64 {
    span.flows[READ].mean().unwrap_or(0) as f64
}
