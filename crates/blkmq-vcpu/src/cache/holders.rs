//! The CPUs that have a line.

use super::{Distances, Picoseconds};

const WORDS: usize = Distances::MOST_CPUS / 64;

/// A set of CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Holders([u64; WORDS]);

impl Holders {
    pub(super) fn only(cpu: usize) -> Self {
        let mut holders = Self::default();
        holders.add(cpu);
        holders
    }

    pub(super) const fn add(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    pub(super) const fn has(&self, cpu: usize) -> bool {
        self.0[cpu / 64] & 1 << (cpu % 64) != 0
    }

    pub(super) fn is_only(&self, cpu: usize) -> bool {
        *self == Self::only(cpu)
    }

    pub(super) fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The distances from `cpu` of all other CPUs of the set.
    fn distances<'d>(&self, cpu: usize, distances: &'d Distances) -> impl Iterator<Item = Picoseconds> + 'd {
        let words = self.0.into_iter().enumerate();
        let cpus = words.flat_map(|(at, word)| {
            let clear_lowest = |word: &u64| Some(word & (word - 1)).filter(|rest| *rest != 0);
            std::iter::successors(Some(word).filter(|word| *word != 0), clear_lowest)
                .map(move |word| at * 64 + word.trailing_zeros() as usize)
        });
        cpus.filter(move |other| *other != cpu).map(move |other| distances.between(other, cpu))
    }

    /// The distance of the nearest other holder, if there is another one.
    pub(super) fn nearest(&self, cpu: usize, distances: &Distances) -> Option<Picoseconds> {
        self.distances(cpu, distances).min()
    }

    /// The distance of the farthest other holder, if there is another one.
    pub(super) fn farthest(&self, cpu: usize, distances: &Distances) -> Option<Picoseconds> {
        self.distances(cpu, distances).max()
    }
}
