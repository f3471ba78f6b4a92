//! Whether another bound keeps the throughput of the present one: both are measured in turns, as a device's rate may
//! swing by more than what is asked.

use super::progress::{READ, Span};

/// How many pairs of measurements there are at least, and at most.
const FEWEST: u32 = 2;
const MOST: u32 = 8;

/// The variance that the ratio of two rates is taken to have at least: two measurements that are alike by chance prove
/// nothing.
const LEAST_VARIANCE: f64 = 0.0004;

/// How much longer reads may be under way under a bound, on the whole, and how many times as long at most. The second
/// needs so many reads.
const SLOWER: f64 = 1.1;
const MUCH_SLOWER: u64 = 3;
const FEWEST_READS: u64 = 8;

/// What came of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is not known yet.
    GoesOn,
    /// The ratio of the throughputs is at least what was asked, as far as can be told.
    Reached,
    /// It is less.
    Missed,
}

/// How the mean ratio of two throughputs stands to what is wanted.
struct Standing {
    is_reached: bool,
    /// There are no more pairs.
    is_last: bool,
    /// The square of how far it is from what is wanted, and of how far it may be wrong.
    distance: f64,
    error: f64,
}

/// Two bounds that are measured in turns.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Trial {
    /// The two bounds, in nanoseconds of cost.
    pub(super) base: u64,
    pub(super) tried: u64,
    /// Whether the second one holds now.
    pub(super) is_tried: bool,
    base_rate: f64,
    nr_pairs: u32,
    /// Sums of the ratios of the rates, and of their squares.
    ratios: f64,
    squares: f64,
    base_span: Span,
    tried_span: Span,
}

impl Trial {
    /// A trial that begins with `base`.
    pub(super) fn new(base: u64, tried: u64) -> Self {
        Self { base, tried, ..Self::default() }
    }

    /// The bound that holds now.
    pub(super) const fn bound(&self) -> u64 {
        if self.is_tried { self.tried } else { self.base }
    }

    /// The bound that holds now was measured. From now on the other one holds.
    pub(super) fn add(&mut self, span: &Span, rate: f64) {
        if self.is_tried {
            let ratio = if self.base_rate > 0.0 { rate / self.base_rate } else { 1.0 };
            self.nr_pairs += 1;
            self.ratios += ratio;
            self.squares += ratio * ratio;
            self.tried_span.add(span);
        } else {
            self.base_rate = rate;
            self.base_span.add(span);
        }
        self.is_tried = !self.is_tried;
    }

    /// The mean ratio of the throughputs, and how much the square of that may be wrong.
    fn ratio(&self) -> (f64, f64) {
        let nr = f64::from(self.nr_pairs.max(1));
        let mean = self.ratios / nr;
        let variance = (self.squares / nr - mean * mean).max(0.0) * nr / (nr - 1.0).max(1.0);
        (mean, variance.max(LEAST_VARIANCE) / nr)
    }

    /// How the throughput of the second bound stands to `wanted` times that of the first one. `None` before there are
    /// pairs enough, and within a pair.
    fn standing(&self, wanted: f64) -> Option<Standing> {
        if self.is_tried || self.nr_pairs < FEWEST {
            return None;
        }
        let (mean, error) = self.ratio();
        let distance = (mean - wanted) * (mean - wanted);
        Some(Standing { is_reached: mean >= wanted, is_last: self.nr_pairs >= MOST, distance, error })
    }

    /// Whether the second bound has at least `wanted` times the throughput of the first one. A miss must be clear: by
    /// twice the error as long as there can be more pairs, and by the error at the end.
    pub(super) fn verdict(&self, wanted: f64) -> Verdict {
        let Some(Standing { is_reached, is_last, distance, error }) = self.standing(wanted) else {
            return Verdict::GoesOn;
        };
        match (is_reached, is_last) {
            (true, false) if distance >= error => Verdict::Reached,
            (false, false) if distance > 4.0 * error => Verdict::Missed,
            (_, false) => Verdict::GoesOn,
            (false, true) if distance > error => Verdict::Missed,
            (_, true) => Verdict::Reached,
        }
    }

    /// Whether the second bound has clearly more than `wanted` times the throughput of the first one: the other way
    /// round, what is not clear is a miss.
    pub(super) fn clear_verdict(&self, wanted: f64) -> Verdict {
        let Some(Standing { is_reached, is_last, distance, error }) = self.standing(wanted) else {
            return Verdict::GoesOn;
        };
        match (is_reached, is_last) {
            (true, _) if distance > 4.0 * error => Verdict::Reached,
            (false, _) if distance > error => Verdict::Missed,
            (_, false) => Verdict::GoesOn,
            (_, true) => Verdict::Missed,
        }
    }

    /// Whether reads are under way for clearly longer under the second bound than under the first: what they gain in
    /// the device they lose in front of it. `now` was measured under the second bound since the last pair. True at
    /// once if it is much longer.
    pub(super) fn is_slower(&self, now: &Span) -> bool {
        let mean = |span: &Span| span.flows[READ].mean_under_way();
        let Some(base) = mean(&self.base_span) else { return false };
        let is_much = self.is_tried
            && now.flows[READ].requests >= FEWEST_READS
            && mean(now).is_some_and(|read| read > MUCH_SLOWER.saturating_mul(base));
        let is_clear =
            self.nr_pairs >= FEWEST && mean(&self.tried_span).is_some_and(|read| read as f64 > SLOWER * base as f64);
        is_much || is_clear
    }

    /// The mean time that reads took under the first and the second bound, in nanoseconds. `None` if there were none.
    pub(super) fn reads(&self) -> Option<(u64, u64)> {
        let mean = |span: &Span| span.flows[READ].mean();
        mean(&self.base_span).zip(mean(&self.tried_span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measures until there is a verdict: the rates come in turns.
    fn judge(rates: &[(f64, f64)], judge: impl Fn(&Trial) -> Verdict) -> (Verdict, usize) {
        let mut trial = Trial::new(2, 1);
        for (at, (base, tried)) in rates.iter().enumerate() {
            for rate in [base, tried] {
                trial.add(&Span::default(), *rate);
            }
            match judge(&trial) {
                Verdict::GoesOn => {}
                verdict => return (verdict, at + 1),
            }
        }
        (Verdict::GoesOn, rates.len())
    }

    /// Red if a quiet device is measured for longer than need be, or a loss on it is not seen.
    #[test]
    fn on_a_quiet_device_two_pairs_are_enough() {
        for (ratio, expected) in [(1.0, Verdict::Reached), (0.99, Verdict::Reached), (0.93, Verdict::Missed)] {
            assert_eq!(judge(&[(1.0, ratio); 8], |trial| trial.verdict(0.97)), (expected, 2), "{ratio}");
        }
        for (ratio, expected) in [(1.0, Verdict::Missed), (1.2, Verdict::Reached)] {
            assert_eq!(judge(&[(1.0, ratio); 8], |trial| trial.clear_verdict(1.03)), (expected, 2), "{ratio}");
        }
    }

    /// Red if a rate that swings is taken for a loss or a gain, or if a loss of a third is not seen in it.
    #[test]
    fn a_rate_that_swings_is_measured_for_longer() {
        let swings =
            |factor: f64| [0.8, 1.2, 1.1, 0.9, 1.25, 0.85, 1.0, 0.9].map(|swing: f64| (1.0 / swing, factor * swing));
        let (verdict, pairs) = judge(&swings(1.0), |trial| trial.verdict(0.97));
        assert!(verdict == Verdict::Reached && pairs > 2, "{verdict:?} after {pairs}");
        assert_eq!(judge(&swings(0.66), |trial| trial.verdict(0.97)).0, Verdict::Missed);
        assert_eq!(judge(&swings(1.0), |trial| trial.clear_verdict(1.03)).0, Verdict::Missed);
    }
}
