//! Compares rates on a machine that is never quiet: short slices of each variant alternate in one process, and what is
//! averaged is the logarithm of the ratio inside one round.
//!
//! A round runs the variants forth and back (A B B A), the next one back and forth (B A A B). A rate that drifts evenly
//! raises both sides of a round alike, and one that drifts ever faster raises them alike over two rounds. The interval
//! is that of a trimmed mean (Tukey and McLaughlin 1963): the lowest and the highest fifth of the rounds do not count
//! for the mean, and count as the lowest and highest that remain for its spread, so that a slice during which another
//! program had the core moves neither. `tests/ratio.rs` counts how often the interval holds the true ratio: at least 95
//! times in a hundred, stopping included.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// How narrow an interval ends a comparison.
pub const WIDTH: f64 = 0.02;
/// Rounds before an interval counts: of fewer, the narrowest are those whose spread is underestimated.
pub const MIN_ROUNDS: usize = 16;
/// Share of the rounds that is trimmed at each end.
const TRIM: f64 = 0.2;
/// Of an interval of a fixed number of rounds. Stopping when it is narrow prefers those whose spread is underestimated,
/// which costs up to two percent: 0.95 remain.
const CONFIDENCE: f64 = 0.97;

/// A ratio of rates with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The middle of the interval: by this a mark is reached or missed.
    pub ratio: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Rounds that it rests on.
    pub rounds: usize,
}

impl Ratio {
    /// What the slices of `b` have over those of `a`, both in the order in which they ran, two a round. A round counts
    /// if all of its four numbers are finite and above 0; `None` if that is so of fewer than two rounds.
    #[must_use]
    pub fn new(a: &[f64], b: &[f64]) -> Option<Self> {
        let log = |pair: &[f64]| f64::midpoint(pair[0].ln(), pair[1].ln());
        let rounds = a.chunks_exact(2).zip(b.chunks_exact(2));
        // The logarithm of what has none is infinite, or not a number.
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

/// The rates of one variant's slices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Half of the slices were slower.
    pub median: f64,
    /// A quarter of them was slower.
    pub lower: f64,
    /// A quarter of them was faster.
    pub upper: f64,
}

impl Spread {
    /// Of these numbers; `None` if there is none.
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

/// The rates of several variants that take turns.
#[derive(Debug, Clone, PartialEq)]
pub struct Turns {
    /// By variant, in the order of its slices; two slices a round.
    rates: Vec<Vec<f64>>,
    /// Slices recorded.
    slices: usize,
}

impl Turns {
    /// For so many variants.
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

    /// Adds the rate of the slice that came [`next`](Self::next), in any unit.
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

    /// What one variant reached; `None` before its first slice.
    #[must_use]
    pub fn spread(&self, variant: usize) -> Option<Spread> {
        Spread::new(&self.rates[variant])
    }

    /// Whether every variant's ratio to the first one is resolved.
    #[must_use]
    pub fn is_resolved(&self) -> bool {
        let pairs: Vec<_> = (1..self.rates.len()).map(|variant| (0, variant)).collect();
        self.are_resolved(&pairs)
    }

    /// Whether the ratios of these pairs are resolved, as [`ratio`](Self::ratio) takes them; one of a variant to itself
    /// is.
    #[must_use]
    pub fn are_resolved(&self, pairs: &[(usize, usize)]) -> bool {
        let is_resolved = |(a, b): (usize, usize)| a == b || self.ratio(a, b).is_some_and(|ratio| ratio.is_resolved());
        pairs.iter().copied().all(is_resolved)
    }
}

/// The trimmed mean, and half of its interval's width.
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
