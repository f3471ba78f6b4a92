//! What a client asks for.

use crate::direction::Direction;
use crate::{Op, Usage};

/// Parts of a cost differ by more than this, or do not matter if they are less.
const PART: f64 = 0.2;

/// The mean costs or sizes of what is alike differ by at most this factor.
const NEAR: f64 = 1.25;

/// Reads, writes, operations that move no data; sectors of reads and of writes.
pub(super) const NR: usize = 5;

/// How many requests of each kind, and how many sectors.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Counts(pub(super) [f64; NR]);

impl Counts {
    /// Adds a request.
    pub(super) fn add(&mut self, op: Op, sectors: u32) {
        let at = Direction::of(op) as usize;
        if op.moves_data() {
            self.0[at] += 1.0;
            self.0[3 + at] += f64::from(sectors);
        } else {
            self.0[2] += 1.0;
        }
    }

    /// Adds operations that are over.
    pub(super) fn add_usage(&mut self, usage: &Usage) {
        let Usage { operations: [reads, writes, others], sectors: [read, written], .. } = *usage;
        self.0.iter_mut().zip([reads, writes, others, read, written]).for_each(|(sum, more)| *sum += more as f64);
    }

    /// Adds other requests.
    pub(super) fn absorb(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }

    pub(super) fn operations(&self) -> f64 {
        self.0[..3].iter().sum()
    }

    /// The mean sectors of reads and of writes.
    pub(super) fn sizes(&self) -> [f64; 2] {
        [0, 1].map(|at: usize| self.0[3 + at] / self.0[at].max(1.0))
    }

    pub(super) fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Self(self.0.map(of))
    }
}

/// What a client asked for in a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mix {
    /// The parts of the predicted cost that reads have, writes, and what moves no data.
    parts: [f64; 3],
    /// The mean cost of an operation.
    each: f64,
    /// The mean sectors of reads and of writes.
    sizes: [f64; 2],
}

impl Mix {
    /// `by_kind`: what is predicted of the operations of each kind. `None` if there was nothing.
    pub(super) fn of(counts: &Counts, by_kind: [f64; 3]) -> Option<Self> {
        let operations = counts.operations();
        let cost: f64 = by_kind.iter().sum();
        (operations > 0.0 && cost > 0.0).then(|| Self {
            parts: by_kind.map(|of_kind| of_kind / cost),
            each: cost / operations,
            sizes: counts.sizes(),
        })
    }

    /// Whether the two cost about the same, on any device.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let are_near = self.parts.iter().zip(other.parts).all(|(one, other)| (one - other).abs() <= PART);
        are_near && (1.0 / NEAR..=NEAR).contains(&(self.each / other.each))
    }

    /// Whether each kind of request that matters here matters in some of `known`, at about this mean size, or at one
    /// that is smaller and one that is larger.
    pub(super) fn is_within<'k>(&self, known: impl Iterator<Item = &'k Self> + Clone) -> bool {
        (0..self.parts.len()).all(|kind| {
            let with_kind = || known.clone().filter(|known| known.parts[kind] > PART);
            let is_small = |known: &Self| known.sizes.get(kind).is_none_or(|size| *size <= NEAR * self.sizes[kind]);
            let is_large = |known: &Self| known.sizes.get(kind).is_none_or(|size| NEAR * *size >= self.sizes[kind]);
            self.parts[kind] <= PART || with_kind().any(is_small) && with_kind().any(is_large)
        })
    }
}
