//! Whether another bound keeps the throughput of the present one: both are measured in turns, as a device's rate may
//! swing by more than what is asked.

use super::progress::{READ, Span};

/// How many pairs of measurements there are at least, and at most.
const FEWEST: u32 = 2;
const MOST: u32 = 8;

/// The variance that the difference of two rates is taken to have at least, where the first one is 1: two measurements
/// that are alike by chance prove nothing.
const LEAST_VARIANCE: f64 = 0.0004;

/// By how many errors of the measurement a difference must be clear, squared: if it rules a bound out while there can
/// be more pairs, if it is what was hoped for, and if it rules a bound out after the last pair.
const CLEAR: f64 = 2.0 * 2.0;
const LIKELY: f64 = 1.0;
const AT_LAST: f64 = 0.5 * 0.5;

/// How much longer reads may be under way under a bound, on the whole, and how many times as long at most. The second
/// needs so many reads.
const SLOWER: f64 = 1.1;
const MUCH_SLOWER: u64 = 3;
const FEWEST_READS: u64 = 8;

/// What came of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is not known yet.
    GoesOn,
    /// The ratio of the throughputs is at least what was asked, as far as can be told.
    Reached,
    /// It is less.
    Missed,
}

/// How the second throughput stands to what is wanted of it.
struct Comparison {
    /// There are no more pairs.
    is_last: bool,
    /// By how many errors of the measurement it is more than wanted, squared; below zero if it is less.
    errors: f64,
}

/// Two bounds that are measured in turns.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trial {
    /// The two bounds, in nanoseconds of cost.
    pub(super) base: u64,
    pub(super) tried: u64,
    /// Whether the second one holds now.
    pub(crate) is_tried: bool,
    base_rate: f64,
    nr_pairs: u32,
    /// Sums over the pairs: of both rates, of the square of each, and of their product.
    base_sum: f64,
    tried_sum: f64,
    base_squares: f64,
    tried_squares: f64,
    products: f64,
    base_span: Span,
    tried_span: Span,
}

impl Trial {
    /// A trial that begins with `base`.
    pub(crate) fn new(base: u64, tried: u64) -> Self {
        Self { base, tried, ..Self::default() }
    }

    /// The bound that holds now.
    pub(super) const fn bound(&self) -> u64 {
        if self.is_tried { self.tried } else { self.base }
    }

    /// The bound that holds now was measured. From now on the other one holds.
    pub(crate) fn add(&mut self, span: &Span, rate: f64) {
        if self.is_tried {
            let base = self.base_rate;
            self.nr_pairs += 1;
            self.base_sum += base;
            self.tried_sum += rate;
            self.base_squares += base * base;
            self.tried_squares += rate * rate;
            self.products += base * rate;
            self.tried_span.add(span);
        } else {
            self.base_rate = rate;
            self.base_span.add(span);
        }
        self.is_tried = !self.is_tried;
    }

    /// How the throughput of the second bound stands to `wanted` times that of the first one. `None` before there are
    /// pairs enough, and within a pair.
    ///
    /// What is looked at is the difference in each pair, as in a paired t-test. The mean of the ratios would be too
    /// high: a device that is slow by chance while the first bound holds adds more to it than one that is fast by
    /// chance takes away.
    fn standing(&self, wanted: f64) -> Option<Comparison> {
        if self.is_tried || self.nr_pairs < FEWEST {
            return None;
        }
        let nr = f64::from(self.nr_pairs);
        let base = self.base_sum / nr;
        if base <= 0.0 {
            // Nothing completed, so nothing was lost.
            return Some(Comparison { is_last: true, errors: 0.0 });
        }
        let mean = self.tried_sum / nr - wanted * base;
        let squares = self.tried_squares - 2.0 * wanted * self.products + wanted * wanted * self.base_squares;
        let variance = ((squares - nr * mean * mean) / (nr - 1.0)).max(LEAST_VARIANCE * base * base);
        Some(Comparison { is_last: self.nr_pairs >= MOST, errors: mean * mean.abs() / (variance / nr) })
    }

    /// Whether the second bound has at least `wanted` times the throughput of the first one. A miss must be clear.
    pub(crate) fn verdict(&self, wanted: f64) -> Verdict {
        match self.standing(wanted) {
            Some(Comparison { is_last: false, errors }) if errors >= LIKELY => Verdict::Reached,
            Some(Comparison { is_last: false, errors }) if errors < -CLEAR => Verdict::Missed,
            None | Some(Comparison { is_last: false, .. }) => Verdict::GoesOn,
            Some(Comparison { is_last: true, errors }) if errors < -AT_LAST => Verdict::Missed,
            Some(_) => Verdict::Reached,
        }
    }

    /// Whether the second bound has clearly more than `wanted` times the throughput of the first one: the other way
    /// round, what is not clear is a miss.
    pub(crate) fn clear_verdict(&self, wanted: f64) -> Verdict {
        match self.standing(wanted) {
            Some(Comparison { errors, .. }) if errors > CLEAR => Verdict::Reached,
            Some(Comparison { is_last: false, errors }) if errors < -LIKELY => Verdict::Missed,
            None | Some(Comparison { is_last: false, .. }) => Verdict::GoesOn,
            Some(_) => Verdict::Missed,
        }
    }

    /// Whether reads are under way for clearly longer under the second bound than under the first: what they gain in
    /// the device they lose in front of it. `now` was measured under the second bound since the last pair. True at
    /// once if it is much longer.
    pub(super) fn is_slower(&self, now: &Span) -> bool {
        let mean = Span::mean_read_under_way;
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
    use crate::random::Random;

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

    /// Red if a loss of more than a tenth often passes on a device whose rate swings by a tenth, or if a bound that
    /// loses nothing seldom does. The mean of the ratios let 31 of 100 such losses pass, and so does an end that takes
    /// what is not clear for reached.
    #[test]
    fn a_loss_seldom_passes_on_a_device_that_swings() {
        let mut random = Random(1);
        // The sum of twelve even numbers is nearly normal.
        let mut swing = || {
            let mut even = || (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
            1.0 + 0.1 * ((0..12).map(|_| even()).sum::<f64>() - 6.0)
        };
        let mut passed = |ratio: f64| {
            let nr = (0..1000).filter(|_| {
                let rates: [(f64, f64); 8] = std::array::from_fn(|_| (swing(), ratio * swing()));
                judge(&rates, |trial| trial.verdict(0.95)).0 == Verdict::Reached
            });
            nr.count()
        };
        let (loses, keeps) = (passed(0.88), passed(1.0));
        assert!(loses < 220 && keeps > 850, "of 1000: {loses} that lose 12 %, {keeps} that lose nothing");
    }
}
