//! Random numbers from a printed seed.

pub(crate) use crate::device::Random;

/// A number from the environment, or `default`.
pub(crate) fn from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a number")),
        Err(_) => default,
    }
}

/// The seed of this run: `BLKMQ_SEED`, or one drawn from the clock. The seed is printed, so that a failure can be
/// repeated.
pub(crate) fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("the clock is past 1970");
    let seed = from_env("BLKMQ_SEED", now.as_nanos() as u64);
    eprintln!("BLKMQ_SEED={seed}");
    seed
}

/// Operations of a run: `BLKMQ_OPERATIONS`, or `default`.
pub(crate) fn operations(default: u64) -> u64 {
    from_env("BLKMQ_OPERATIONS", default)
}
