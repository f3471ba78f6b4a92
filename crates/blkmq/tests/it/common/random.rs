//! Random numbers from a printed seed.

/// The splitmix64 generator.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A separate generator for a thread or a run: the numbers that one draws do not depend on the others.
    pub(crate) fn fork(&self, number: u64) -> Self {
        let mut child = Self(self.0 ^ number.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        child.next();
        child
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

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
