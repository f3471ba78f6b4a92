//! What a client asks for.

/// What a client asked for in a window of usage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mix {
    /// Reads' part of the cost, and the mean cost of an operation.
    reads: f64,
    each: f64,
}

impl Mix {
    /// The mix of so many operations with this cost, of which reads have a part.
    pub(super) fn of(operations: u64, cost: f64, reads: f64) -> Option<Self> {
        (operations > 0 && cost > 0.0).then(|| Self { reads: reads / cost, each: cost / operations as f64 })
    }

    /// Whether the two cost about the same, on any device.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (self.reads - other.reads).abs() <= 0.2 && (0.8..=1.25).contains(&(self.each / other.each))
    }
}
