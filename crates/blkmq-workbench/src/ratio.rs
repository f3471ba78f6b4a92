//! Compares rates on a machine that is never quiet. Short slices of each variant alternate in one process. The result
//! is an average of the logarithm of the ratio within one round.
//!
//! A round runs the variants forwards and then backwards (A B B A). The next round runs them backwards and then
//! forwards (B A A B). A rate that drifts evenly changes both sides of a round alike. A rate whose drift grows changes
//! both sides alike over two rounds. The interval is that of a trimmed mean (Tukey and McLaughlin 1963). For the mean,
//! the lowest and the highest fifth of the rounds do not count. For the spread, they count as the lowest and the
//! highest of the rounds that remain. So a slice during which another program had the core moves neither the mean nor
//! the spread. `tests/it/ratio.rs` counts how often the interval holds the true ratio: at least 95 times in a hundred,
//! the rule for stopping included.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// A comparison ends when its interval is at most this wide, as a ratio.
pub const WIDTH: f64 = 0.02;
/// The fewest rounds after which an interval counts. With fewer rounds, the narrowest intervals are those whose spread
/// is underestimated.
pub const MIN_ROUNDS: usize = 16;
/// The share of the rounds that is trimmed at each end.
const TRIM: f64 = 0.2;
/// The confidence of an interval of a fixed number of rounds. A rule that stops when the interval is narrow prefers
/// intervals whose spread is underestimated. The preference costs up to two percent, so 0.95 remain.
const CONFIDENCE: f64 = 0.97;

/// A ratio of rates with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// The middle of the interval. Whether a goal is met is decided by this number.
    pub ratio: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// The number of rounds that the ratio comes from.
    pub rounds: usize,
}

impl Ratio {
    /// The ratio of the slices of `b` to those of `a`, both in the order in which they ran, two for each round. A round
    /// counts if all of its four numbers are finite and above 0. `None` if fewer than two rounds count.
    #[must_use]
    pub fn new(a: &[f64], b: &[f64]) -> Option<Self> {
        let log = |pair: &[f64]| f64::midpoint(pair[0].ln(), pair[1].ln());
        let rounds = a.chunks_exact(2).zip(b.chunks_exact(2));
        // A rate without a logarithm gives a number that is infinite, or not a number.
        let differences: Vec<f64> = rounds.map(|(a, b)| log(b) - log(a)).filter(|log| log.is_finite()).collect();
        let rounds = differences.len();
        let (mean, half) = interval(differences)?;
        Some(Self { ratio: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp(), rounds })
    }

    /// Whether the interval is as narrow as a comparison wants.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        self.rounds >= MIN_ROUNDS && self.high - self.low < WIDTH
    }
}

/// The rates of one variant's slices, in operations per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the slices were slower.
    pub median: f64,
    /// A quarter of the slices were slower.
    #[serde(rename = "lower_quartile")]
    pub lower: f64,
    /// A quarter of the slices were faster.
    #[serde(rename = "upper_quartile")]
    pub upper: f64,
}

impl Spread {
    /// The spread of these numbers. `None` if there are none.
    #[must_use]
    pub fn new(numbers: &[f64]) -> Option<Self> {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        let at = |share: f64| {
            let place = share * last as f64;
            let below = place.floor() as usize;
            let above = sorted[(below + 1).min(last)];
            sorted[below] + (above - sorted[below]) * place.fract()
        };
        Some(Self { median: at(0.5), lower: at(0.25), upper: at(0.75) })
    }
}

/// The rates of several variants that run in turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Turns {
    /// The rates of each variant, in the order of its slices; two slices for each round.
    rates: Vec<Vec<f64>>,
    /// Slices recorded.
    slices: usize,
}

impl Turns {
    /// Makes a comparison of this many variants.
    ///
    /// # Panics
    /// There are fewer than two.
    #[must_use]
    pub fn new(nr_variants: usize) -> Self {
        assert!(nr_variants >= 2, "one variant has nothing to be compared with");
        Self { rates: vec![Vec::new(); nr_variants], slices: 0 }
    }

    /// The variant whose slice comes next.
    #[must_use]
    pub fn next(&self) -> usize {
        let variants = self.rates.len();
        let (round, turn) = (self.slices / (2 * variants), self.slices % (2 * variants));
        let forth = if turn < variants { turn } else { 2 * variants - 1 - turn };
        if round.is_multiple_of(2) { forth } else { variants - 1 - forth }
    }

    /// Adds the rate of the slice of the variant that [`next`](Self::next) named, in any unit.
    ///
    /// # Panics
    /// The rate is not above zero: it has no logarithm.
    pub fn record(&mut self, rate: f64) {
        assert!(rate > 0.0 && rate.is_finite(), "a rate is a positive number, not {rate}");
        let next = self.next();
        self.rates[next].push(rate);
        self.slices += 1;
    }

    /// Whole rounds so far.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.slices / (2 * self.rates.len())
    }

    /// The rate of variant `b` over that of variant `a`; `None` before the second round has ended.
    #[must_use]
    pub fn ratio(&self, a: usize, b: usize) -> Option<Ratio> {
        let slices = |variant: usize| &self.rates[variant][..2 * self.rounds()];
        Ratio::new(slices(a), slices(b))
    }

    /// The rates that one variant reached. `None` before its first slice.
    #[must_use]
    pub fn spread(&self, variant: usize) -> Option<Spread> {
        Spread::new(&self.rates[variant])
    }

    /// Whether the ratios of these pairs are resolved, as [`ratio`](Self::ratio) computes them. The ratio of a variant
    /// to itself always is.
    #[must_use]
    pub fn are_resolved(&self, pairs: &[(usize, usize)]) -> bool {
        let is_resolved = |(a, b): (usize, usize)| a == b || self.ratio(a, b).is_some_and(|ratio| ratio.is_resolved());
        pairs.iter().copied().all(is_resolved)
    }
}

/// The trimmed mean, and half of the width of its interval.
fn interval(mut values: Vec<f64>) -> Option<(f64, f64)> {
    let nr = values.len();
    if nr < 2 {
        return None;
    }
    values.sort_by(f64::total_cmp);
    let trimmed = (TRIM * nr as f64) as usize;
    let kept = nr - 2 * trimmed;
    let (lowest, highest) = (values[trimmed], values[trimmed + kept - 1]);
    let mean = values[trimmed..trimmed + kept].iter().sum::<f64>() / kept as f64;
    let drawn_in = || values.iter().map(|value| value.clamp(lowest, highest));
    let centre = drawn_in().sum::<f64>() / nr as f64;
    let squares = drawn_in().map(|value| (value - centre).powi(2)).sum::<f64>();
    let error = (squares / (kept as f64 * (kept - 1) as f64)).sqrt();
    let student = StudentsT::new(0.0, 1.0, (kept - 1) as f64).expect("there are at least two rounds");
    Some((mean, student.inverse_cdf(f64::midpoint(1.0, CONFIDENCE)) * error))
}
