//! Bounding: the smallest bound is searched with which throughput stays.
//!
//! A bound and no bound hold in turns, and are compared ([`Trial`]). The bounds that are tried are a half, a quarter,
//! and so on, of what the device has without a bound. It is searched among them by halving the range: a bound that
//! keeps the throughput is followed by a smaller one, and one that does not by a larger one. A bound with which reads
//! are as fast as they should be ends the search. From time to time twice the bound is tried: 10 s after the bound was
//! found, and each time twice as long after a try that brought nothing.

use super::progress::{READ, Span};
use super::search::Search;
use super::trial::{Trial, Verdict};
use super::{LONGEST_REST, Limiter, MS, Phase, SECOND, SHORTEST_REST, Target};
use crate::Time;

/// Nanoseconds: how long a bound is measured, and how long before that the device works off what it has.
const MEASURE: u64 = 200 * MS;
const SETTLE: u64 = 100 * MS;

/// How much of the throughput a bound must keep: if a latency was set, and if not.
const KEPT: f64 = 0.85;
const KEPT_AUTO: f64 = 0.95;

/// A larger bound stays if it brings so many times the throughput.
const MORE: f64 = 1.03;

/// But not if reads take so many times as long.
const SLOWER: u64 = 3;

impl Limiter {
    /// Searches a bound. First the device gets all it takes, to see what it has then: a scheduler that waits for single
    /// clients while the limiter is open does not while it holds back.
    pub(super) fn begin_narrowing(&mut self, now: Time) {
        self.pacer.stop();
        self.search = None;
        self.begin_trial(Phase::Narrowing, (u64::MAX, u64::MAX), now);
    }

    /// The device has had all it takes: returns the first bound to be tried, if there is one below that.
    fn begin_search(&mut self) -> Option<u64> {
        // Little's law: what the device had on average.
        let requests = self.span.occupancy();
        let usual = (requests as f64 * self.costs.mean(&self.span)) as u64;
        self.search.insert(Search::new(usual.max(1), requests)).next()
    }

    fn try_next(&mut self, now: Time) {
        match self.search.as_mut().and_then(Search::next) {
            Some(bound) => self.begin_trial(Phase::Narrowing, (u64::MAX, bound), now),
            None => self.settle_for_best(now),
        }
    }

    /// Two bounds hold in turns from now on.
    fn begin_trial(&mut self, phase: Phase, (base, tried): (u64, u64), now: Time) {
        self.trial = Trial::new(base, tried);
        self.hold_in_turn(phase, now);
    }

    fn hold_in_turn(&mut self, phase: Phase, now: Time) {
        self.bound = self.trial.bound();
        self.enter(phase, SETTLE, now);
    }

    pub(super) fn look_narrowing(&mut self, now: Time) {
        if self.trial.is_slower(&self.span) {
            self.note_lost(now);
            return;
        }
        if !self.span.is_enough_of_several(MEASURE) {
            return;
        }
        // A reader that reads seldom may have no read in one of several measurements.
        if self.trial.is_tried {
            self.read_mean = self.span.flows[READ].mean().or(self.read_mean);
        }
        self.trial.add(&self.span, self.costs.rate(&self.span));
        if self.search.is_none() {
            let Some(bound) = self.begin_search() else {
                self.give_up(now);
                return;
            };
            self.trial.tried = bound;
        }
        let kept = if matches!(self.target, Target::Within(_)) { KEPT } else { KEPT_AUTO };
        match self.trial.verdict(kept) {
            Verdict::GoesOn => self.hold_in_turn(Phase::Narrowing, now),
            Verdict::Missed => self.note_lost(now),
            Verdict::Reached => self.note_kept(now),
        }
    }

    /// A bound costs throughput, or makes reads wait.
    fn note_lost(&mut self, now: Time) {
        if let Some(search) = &mut self.search {
            search.note_lost();
        }
        self.try_next(now);
    }

    /// A bound keeps the throughput.
    fn note_kept(&mut self, now: Time) {
        let Some((open_read, read)) = self.trial.reads() else {
            self.give_up(now);
            return;
        };
        self.read_mean = Some(read);
        if let Some(search) = &mut self.search {
            search.note_kept(open_read, read);
        }
        if self.is_met() == Some(true) { self.settle_for_best(now) } else { self.try_next(now) }
    }

    /// Keeps the best bound that was tried, if one is worth it.
    fn settle_for_best(&mut self, now: Time) {
        match self.search.and_then(Search::best) {
            None => self.give_up(now),
            Some(bound) => {
                self.bound = bound;
                // Failed searches have made the rest longer, and that says nothing of this bound.
                self.rest = SHORTEST_REST;
                self.enter(Phase::Bounded, SETTLE, now);
            }
        }
    }

    /// `lacks`: a client has got less than it is due for long.
    pub(super) fn look_bounded(&mut self, fresh: &Span, lacks: bool, now: Time) {
        if self.is_vain() {
            self.give_up(now);
            return;
        }
        if lacks && self.grow_anew(now) {
            return;
        }
        let stretch = self.end_stretch(fresh);
        if let Some(stretch) = stretch.filter(|stretch| stretch.was_limited() && self.costs.is_other_mix(stretch)) {
            // The bound was found for other requests, whose costs were known.
            self.costs.accept_mix(&stretch);
            self.rest = SECOND;
        }
        if fresh.held_back > 0 && now.since(self.since) > self.rest {
            self.rest = (2 * self.rest).min(LONGEST_REST);
            self.begin_trial(Phase::Widening, (self.bound, self.bound.saturating_mul(2)), now);
        } else if self.span.is_enough(SECOND) {
            // The device changes: what counts is the last second.
            self.span = Span::default();
        }
    }

    pub(super) fn look_widening(&mut self, now: Time) {
        if !self.span.is_enough_of_several(MEASURE) {
            return;
        }
        self.trial.add(&self.span, self.costs.rate(&self.span));
        let is_slow = self.trial.reads().is_some_and(|(base, tried)| tried > base.saturating_mul(SLOWER));
        let verdict = if is_slow { Verdict::Missed } else { self.trial.clear_verdict(MORE) };
        match verdict {
            Verdict::GoesOn => self.hold_in_turn(Phase::Widening, now),
            Verdict::Missed => self.end_widening(self.trial.base, now),
            Verdict::Reached => {
                self.rest = SHORTEST_REST;
                self.end_widening(self.trial.tried, now);
            }
        }
    }

    fn end_widening(&mut self, bound: u64, now: Time) {
        self.bound = bound;
        self.enter(Phase::Bounded, SETTLE, now);
    }
}
