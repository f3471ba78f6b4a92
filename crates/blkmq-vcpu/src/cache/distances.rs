//! How far apart CPUs are.

use super::Picoseconds;

/// How long a line takes from each CPU of a machine to each other one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distances {
    nr_cpus: usize,
    /// By the numbers of both CPUs, at `from * nr_cpus + to`.
    between: Box<[Picoseconds]>,
}

impl Distances {
    /// The largest number of CPUs that a machine may have.
    pub const MOST_CPUS: usize = 256;

    /// The distances that `between` tells for each pair of CPUs, the greater number first. A distance is the same in
    /// both directions.
    ///
    /// # Panics
    /// If there are no CPUs, or more than [`MOST_CPUS`](Self::MOST_CPUS).
    #[must_use]
    pub fn new(nr_cpus: usize, mut between: impl FnMut(usize, usize) -> Picoseconds) -> Self {
        assert!((1..=Self::MOST_CPUS).contains(&nr_cpus), "a machine of {nr_cpus} CPUs");
        let mut all = vec![0; nr_cpus * nr_cpus].into_boxed_slice();
        for high in 0..nr_cpus {
            for low in 0..high {
                let distance = between(high, low);
                all[high * nr_cpus + low] = distance;
                all[low * nr_cpus + high] = distance;
            }
        }
        Self { nr_cpus, between: all }
    }

    /// How many CPUs there are.
    #[must_use]
    pub const fn nr_cpus(&self) -> usize {
        self.nr_cpus
    }

    /// How long a line takes from one CPU to the other; 0 from a CPU to itself.
    ///
    /// # Panics
    /// If there is no such CPU.
    #[must_use]
    pub fn between(&self, from: usize, to: usize) -> Picoseconds {
        assert!(from < self.nr_cpus && to < self.nr_cpus, "no CPU {} of {}", from.max(to), self.nr_cpus);
        self.between[from * self.nr_cpus + to]
    }
}
