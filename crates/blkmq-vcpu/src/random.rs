//! Numbers that look random and follow from a seed.

/// Splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub const fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: no division, and a bias too small for a test to notice.
        ((self.next() as u128 * bound as u128) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub const fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `n` on average.
    pub const fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of several.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// A separate generator for a part of a run, so that the numbers that one part draws do not change what another
    /// part draws.
    pub const fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// A number from 1 to about twice `mean`, `mean` on average.
    pub const fn around(&mut self, mean: u64) -> u64 {
        self.within(1, if mean < 2 { 1 } else { 2 * mean - 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn numbers_follow_from_the_seed() {
        let (mut one, mut same, mut other) = (Random::new(1), Random::new(1), Random::new(2));
        assert_eq!([one.next(), one.next()], [same.next(), same.next()]);
        assert_ne!(one.next(), other.next());
    }

    #[test]
    fn numbers_keep_their_bounds() {
        let mut random = Random::new(3);
        let mut seen = [0; 5];
        for _ in 0..10_000 {
            seen[random.below(5) as usize] += 1;
            assert!((3..=9).contains(&random.within(3, 9)));
        }
        assert!(seen.iter().all(|count| (1800..2200).contains(count)), "{seen:?}");
    }
}
