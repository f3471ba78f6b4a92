//! How many cases a property test tries.

/// So many cases, from a seed that is printed and that `BLKMQ_SEED` sets.
pub(super) fn random_cases(cases: u32) -> proptest::test_runner::Config {
    let seed = std::env::var("BLKMQ_SEED").map_or(0x5eed, |seed| seed.parse().expect("BLKMQ_SEED is a number"));
    println!("BLKMQ_SEED={seed}");
    proptest::test_runner::Config {
        cases,
        rng_seed: proptest::test_runner::RngSeed::Fixed(seed),
        failure_persistence: None,
        ..Default::default()
    }
}
