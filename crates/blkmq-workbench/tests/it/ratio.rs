//! The intervals of comparisons, on rates whose true ratio is known. Prints its seed and takes another from
//! `BLKMQ_SEED`.

use blkmq_workbench::{Ratio, Turns};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rand_distr::StandardNormal;

/// What disturbs the slices.
struct Machine {
    /// Standard deviation of the logarithm of a rate.
    noise: f64,
    /// How far the logarithm of the rate drifts from slice to slice.
    drift: f64,
    /// How much the drift grows from slice to slice.
    growth: f64,
    /// How often another program takes a part of a slice.
    stolen: f64,
}

/// Compares two variants until the ratio is resolved, or for this many rounds.
fn compare(machine: &Machine, ratio: f64, rounds: usize, random: &mut SmallRng) -> Ratio {
    let mut turns = Turns::new(2);
    let mut slice = 0.0;
    while turns.rounds() < rounds && !turns.are_resolved(&[(0, 1)]) {
        for _ in 0..4 {
            let mut log = machine.noise * random.sample::<f64, _>(StandardNormal)
                + machine.drift * slice
                + machine.growth * slice * slice / 2.0;
            if random.random::<f64>() < machine.stolen {
                log -= 0.1 + random.random::<f64>();
            }
            slice += 1.0;
            let rate = 1e6 * if turns.next() == 1 { ratio } else { 1.0 };
            turns.record(rate * log.exp());
        }
    }
    turns.ratio(0, 1).expect("there were rounds")
}

/// Of 100 intervals, 95 contain the true ratio, whatever disturbs the slices and wherever the comparison stops.
///
/// Red if every round starts with A on a machine whose drift grows, and if two rounds are enough.
#[test]
fn an_interval_holds_the_true_ratio_as_often_as_it_says() {
    const TRIALS: u32 = 2000;
    let seed = std::env::var("BLKMQ_SEED").map_or(0x5eed, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    println!("BLKMQ_SEED={seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    for machine in [
        Machine { noise: 0.02, drift: 0.0, growth: 0.0, stolen: 0.0 },
        Machine { noise: 0.05, drift: 0.0, growth: 0.0, stolen: 0.0 },
        Machine { noise: 0.02, drift: 0.01, growth: 0.0, stolen: 0.0 },
        Machine { noise: 0.01, drift: 0.0, growth: 0.01, stolen: 0.0 },
        Machine { noise: 0.02, drift: -0.002, growth: 0.0, stolen: 0.03 },
    ] {
        for rounds in [20, 200] {
            let mut held = 0;
            for _ in 0..TRIALS {
                let truth = 0.8 + 0.4 * random.random::<f64>();
                let Ratio { low, high, .. } = compare(&machine, truth, rounds, &mut random);
                held += u32::from(low <= truth && truth <= high);
            }
            let share = f64::from(held) / f64::from(TRIALS);
            let Machine { noise, drift, growth, stolen } = machine;
            println!("noise {noise} drift {drift} growth {growth} stolen {stolen} rounds {rounds}: {share}");
            // The standard deviation of this count is 0.005.
            assert!(
                share > 0.935,
                "noise {noise}, drift {drift}, growth {growth}, stolen {stolen}, {rounds} rounds: {share}"
            );
        }
    }
}

/// Red if a comparison on a quiet machine does not end early, or if one on a noisy machine does not go on.
#[test]
fn a_comparison_goes_on_until_its_interval_is_narrow() {
    let mut random = SmallRng::seed_from_u64(1);
    let mut rounds = |noise, most| {
        let machine = Machine { noise, drift: 0.0, growth: 0.0, stolen: 0.0 };
        let ratio = compare(&machine, 1.1, most, &mut random);
        assert!(ratio.is_resolved() || ratio.rounds == most, "{ratio:?}");
        assert!(ratio.low < ratio.ratio && ratio.ratio < ratio.high, "{ratio:?}");
        ratio
    };
    let (quiet, noisy, short) = (rounds(0.001, 1000), rounds(0.05, 1000), rounds(0.05, 20));
    assert!(quiet.high - quiet.low < 0.02 && noisy.high - noisy.low < 0.02, "{quiet:?} {noisy:?}");
    assert!(quiet.rounds < noisy.rounds, "{quiet:?} {noisy:?}");
    assert!(short.high - short.low > 0.02, "{short:?}");
}

/// Red if one of three variants does not have two slices a round, or if one variant always goes first.
#[test]
fn variants_take_turns() {
    let mut turns = Turns::new(3);
    let order: Vec<usize> = (0..12)
        .map(|_| {
            let next = turns.next();
            turns.record([10.0, 20.0, 5.0][next]);
            next
        })
        .collect();
    assert_eq!(order, [0, 1, 2, 2, 1, 0, 2, 1, 0, 0, 1, 2]);
    let ratios = [turns.ratio(0, 1).unwrap().ratio, turns.ratio(0, 2).unwrap().ratio, turns.ratio(1, 2).unwrap().ratio];
    assert!(ratios.iter().zip([2.0, 0.5, 0.25]).all(|(ours, right)| (ours - right).abs() < 1e-9), "{ratios:?}");
    assert_eq!(turns.spread(1).unwrap().median, 20.0);
    assert_eq!(turns.rounds(), 2);
}
