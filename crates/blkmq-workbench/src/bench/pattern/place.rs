//! Random places: evenly or by a distribution, each place once or any number of times.

use rand::RngExt;
use rand::rngs::SmallRng;
use rand_distr::{Distribution as _, Normal, Zipf};

use super::super::plan::mix;
use super::below;
use crate::job::{Distribution, Job, Zone};

/// Where the random operations of a job go: which of the area's blocks.
#[derive(Debug)]
pub(super) enum Places {
    /// Any block, each as often as any other.
    Even { blocks: u64 },
    /// Each block once before any block is visited again.
    Once { order: Permutation, next: u64, pass: u64 },
    /// By the rank of a block. The ranks are scattered over the area.
    Ranked { ranks: Ranks, order: Permutation },
    /// Around the middle.
    Normal { blocks: u64, normal: Normal<f64> },
    /// Parts of the area. For each: the sum of the percentages up to its own; its first block; its number of blocks.
    Zoned { zones: Vec<(u64, u64, u64)> },
}

/// How often each rank is taken.
#[derive(Debug)]
pub(super) enum Ranks {
    Zipf(Zipf<f64>),
    /// The power to which an even number from 0 to 1 is raised, and the number of ranks.
    SelfSimilar(f64, u64),
}

impl Places {
    pub(super) fn new(job: &Job, blocks: u64, seed: u64) -> Self {
        let order = || Permutation::new(blocks, mix(seed, 2));
        match &job.random_distribution {
            Distribution::Random if job.norandommap => Self::Even { blocks },
            Distribution::Random => Self::Once { order: order(), next: 0, pass: 0 },
            Distribution::Zipf { theta } => {
                let zipf = Zipf::new(blocks as f64, *theta).expect("theta is above 0 and an area has a block");
                Self::Ranked { ranks: Ranks::Zipf(zipf), order: order() }
            }
            Distribution::Pareto { h } => {
                // J. Gray et al., Quickly generating billion-record synthetic databases, SIGMOD 1994.
                let power = h.ln() / (1.0 - h).ln();
                Self::Ranked { ranks: Ranks::SelfSimilar(power, blocks), order: order() }
            }
            Distribution::Normal { deviation } => {
                let normal = Normal::new(blocks as f64 / 2.0, blocks as f64 * deviation / 100.0);
                Self::Normal { blocks, normal: normal.expect("a deviation is finite") }
            }
            Distribution::Zoned(zones) => Self::Zoned { zones: cut(zones, blocks) },
        }
    }

    /// The next block.
    #[inline(always)]
    pub(super) fn next(&mut self, rng: &mut SmallRng) -> u64 {
        match self {
            Self::Even { blocks } => below(rng, *blocks),
            Self::Once { order, next, pass } => {
                if *next == order.len {
                    *pass += 1;
                    *next = 0;
                    *order = Permutation::new(order.len, mix(order.seed, *pass));
                }
                *next += 1;
                order.at(*next - 1)
            }
            _ => self.next_uneven(rng),
        }
    }

    fn next_uneven(&mut self, rng: &mut SmallRng) -> u64 {
        match self {
            Self::Ranked { ranks, order } => order.at(ranks.next(rng).min(order.len - 1)),
            Self::Normal { blocks, normal } => loop {
                let block = normal.sample(rng);
                if block >= 0.0 && (block as u64) < *blocks {
                    return block as u64;
                }
            },
            Self::Zoned { zones } => {
                let at = below(rng, 100);
                let zone = zones.iter().find(|(sum, ..)| at < *sum).or(zones.last());
                zone.map_or(0, |(_, first, blocks)| first + below(rng, *blocks))
            }
            Self::Even { .. } | Self::Once { .. } => unreachable!("these were looked at before"),
        }
    }

    /// Goes back to the beginning of the first pass.
    pub(super) fn restart(&mut self, seed: u64) {
        if let Self::Once { order, next, pass, .. } = self {
            *order = Permutation::new(order.len, mix(seed, 2));
            (*next, *pass) = (0, 0);
        }
    }
}

/// Zones that contain no block are left out. The next zone gets their operations.
fn cut(zones: &[Zone], blocks: u64) -> Vec<(u64, u64, u64)> {
    let (mut access, mut span, mut cut) = (0, 0, Vec::new());
    for zone in zones {
        let first = blocks * span / 100;
        span += u64::from(zone.span);
        access += u64::from(zone.access);
        let end = blocks * span / 100;
        if end > first && zone.access > 0 {
            cut.push((access, first, end - first));
        }
    }
    if cut.is_empty() {
        cut.push((100, 0, blocks));
    }
    cut
}

impl Ranks {
    /// A rank from 0.
    fn next(&self, rng: &mut SmallRng) -> u64 {
        match self {
            Self::Zipf(zipf) => (zipf.sample(rng) as u64).saturating_sub(1),
            Self::SelfSimilar(power, ranks) => (*ranks as f64 * rng.random::<f64>().powf(*power)) as u64,
        }
    }
}

/// The numbers below `len` in an order that looks random. No number is stored: the number at each place is computed.
#[derive(Debug, Clone)]
pub(super) struct Permutation {
    len: u64,
    seed: u64,
    /// The next power of two minus one. The steps permute the numbers up to this mask.
    mask: u64,
    shift: u32,
    factors: [u64; 3],
    terms: [u64; 3],
}

impl Permutation {
    /// An order of the numbers below `len`, which is at least 1.
    pub(super) fn new(len: u64, seed: u64) -> Self {
        let bits = u64::BITS - (len - 1).leading_zeros();
        let number = |at: u64| mix(seed, at);
        Self {
            len,
            seed,
            mask: if bits == 0 { 0 } else { u64::MAX >> (u64::BITS - bits) },
            shift: bits.div_ceil(2).max(1),
            factors: [3, 4, 5].map(|at| number(at) | 1),
            terms: [6, 7, 8].map(number),
        }
    }

    /// The number at a place below `len`.
    ///
    /// COST: three rounds of two multiplications' worth each, on average less than twice.
    pub(super) fn at(&self, place: u64) -> u64 {
        let mut number = place;
        loop {
            // Each round is a permutation of the numbers up to the mask: it adds a term and multiplies by an odd
            // factor, modulo a power of two. Then the round exclusive-ors the number with its upper half, which doing
            // the same again undoes.
            for (factor, term) in self.factors.iter().zip(self.terms) {
                number = number.wrapping_add(term).wrapping_mul(*factor) & self.mask;
                number ^= number >> self.shift;
            }
            // A number past the end goes through the rounds again. So the places below `len` remain a permutation of
            // themselves.
            if number < self.len {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_permutation_has_each_number_once() {
        for len in (1..=70).chain([127, 128, 129, 1000, 4095, 4097]) {
            for seed in 0..4 {
                let order = Permutation::new(len, seed);
                let mut seen: Vec<u64> = (0..len).map(|place| order.at(place)).collect();
                seen.sort_unstable();
                assert!(seen.iter().copied().eq(0..len), "{len} numbers, seed {seed}");
            }
        }
    }

    #[test]
    fn a_permutation_looks_random() {
        let len = 1 << 16;
        let order = Permutation::new(len, 7);
        // The correlation between neighbours, and with the place. For random numbers it is about 1/sqrt(len) = 0.004.
        let centred = |number: u64| number as f64 / len as f64 - 0.5;
        let correlation = |other: &dyn Fn(u64) -> u64| {
            let products = (0..len - 1).map(|at| centred(order.at(at)) * centred(other(at)));
            products.sum::<f64>() / len as f64 * 12.0
        };
        let (next, place) = (correlation(&|at| order.at(at + 1)), correlation(&|at| at));
        assert!(next.abs() < 0.02 && place.abs() < 0.02, "{next} {place}");
        let ascents = (0..len - 1).filter(|at| order.at(*at) < order.at(at + 1)).count() as f64;
        assert!((ascents / len as f64 - 0.5).abs() < 0.02, "{ascents} of {len} rise");
        // Each of 16 parts of the area gets its share of the first sixteenth of the places.
        let mut parts = [0; 16];
        (0..len / 16).for_each(|at| parts[(order.at(at) * 16 / len) as usize] += 1);
        assert!(parts.iter().all(|count| (180..=332).contains(count)), "{parts:?}");
        assert_ne!(Permutation::new(len, 8).at(0), order.at(0));
    }

    fn counts(distribution: Distribution, blocks: u64, draws: usize) -> Vec<u64> {
        let job = Job { random_distribution: distribution, ..Job::new("drawn") };
        let mut places = Places::new(&job, blocks, 1);
        let mut rng = SmallRng::seed_from_u64(3);
        let mut counts = vec![0; blocks as usize];
        for _ in 0..draws {
            counts[places.next(&mut rng) as usize] += 1;
        }
        counts
    }

    const DRAWS: usize = 200_000;

    #[test]
    fn zipf_takes_the_second_place_less_often_by_two_to_the_theta() {
        for theta in [0.5, 0.9, 1.2] {
            let mut counts = counts(Distribution::Zipf { theta }, 1000, DRAWS);
            let top = counts.iter().position(|count| count == counts.iter().max().expect("not empty"));
            counts.sort_unstable_by(|a, b| b.cmp(a));
            let sum: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-theta)).sum();
            for rank in [1, 2, 4] {
                let expected = DRAWS as f64 * f64::from(rank).powf(-theta) / sum;
                let got = counts[rank as usize - 1] as f64;
                // Five standard deviations, and 3 % because sorting may swap blocks of neighbouring ranks.
                assert!(
                    (got - expected).abs() < 5.0 * expected.sqrt() + 0.03 * expected,
                    "theta {theta}, rank {rank}: {got} of {expected}"
                );
            }
            assert_ne!(top, Some(0), "the most popular block is not the first one");
        }
    }

    #[test]
    fn pareto_gives_a_fifth_of_the_places_four_fifths_of_the_operations() {
        let mut counts = counts(Distribution::Pareto { h: 0.2 }, 1000, DRAWS);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let share = counts[..200].iter().sum::<u64>() as f64 / DRAWS as f64;
        assert!((share - 0.8).abs() < 0.01, "{share}");
        let share = counts[..40].iter().sum::<u64>() as f64 / DRAWS as f64;
        assert!((share - 0.64).abs() < 0.01, "{share}");
    }

    #[test]
    fn normal_lies_around_the_middle() {
        let counts = counts(Distribution::Normal { deviation: 10.0 }, 1000, DRAWS);
        let within = |deviations: usize| {
            let reach = 100 * deviations;
            counts[500 - reach..500 + reach].iter().sum::<u64>() as f64 / DRAWS as f64
        };
        assert!((within(1) - 0.6827).abs() < 0.01, "{}", within(1));
        assert!((within(2) - 0.9545).abs() < 0.01, "{}", within(2));
    }

    #[test]
    fn zones_get_what_they_are_given() {
        let zones = [(60, 10), (30, 20), (0, 30), (10, 40)].map(|(access, span)| Zone { access, span });
        let counts = counts(Distribution::Zoned(zones.to_vec()), 1000, DRAWS);
        let share = |from: usize, to: usize| counts[from..to].iter().sum::<u64>() as f64 / DRAWS as f64;
        assert!((share(0, 100) - 0.6).abs() < 0.01);
        assert!((share(100, 300) - 0.3).abs() < 0.01);
        assert_eq!(share(300, 600), 0.0);
        assert!((share(600, 1000) - 0.1).abs() < 0.01);
    }
}
