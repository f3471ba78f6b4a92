//! Long runs of steps that proptest draws.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngSeed, TestRunner};

use crate::random::from_env;

/// Passes steps to `step`, as many as `BLKMQ_OPERATIONS` says, drawn with the seed `BLKMQ_SEED` or this one. Returns
/// their number.
pub(crate) fn long_run<S: Strategy>(seed: u64, steps: &S, mut step: impl FnMut(&S::Value)) -> usize {
    let (seed, operations) = (from_env("BLKMQ_SEED", seed), from_env("BLKMQ_OPERATIONS", 100_000));
    println!("BLKMQ_SEED={seed} BLKMQ_OPERATIONS={operations}");
    let config = ProptestConfig { rng_seed: RngSeed::Fixed(seed), ..ProptestConfig::default() };
    let mut runner = TestRunner::new(config);
    for _ in 0..operations {
        step(&steps.new_tree(&mut runner).expect("no step is rejected").current());
    }
    operations as usize
}
