//! What a client asks for.

/// What a client asked for in a window of usage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mix {
    /// The parts of the cost that reads have, and operations that move no data.
    reads: f64,
    bare: f64,
    /// The mean cost of an operation.
    each: f64,
}

impl Mix {
    /// The mix of so many operations, with the cost of reads, of writes, and of what moves no data.
    pub(super) fn of(operations: u64, costs: [f64; 3]) -> Option<Self> {
        let ([reads, _, bare], cost) = (costs, costs.iter().sum::<f64>());
        (operations > 0 && cost > 0.0).then(|| Self {
            reads: reads / cost,
            bare: bare / cost,
            each: cost / operations as f64,
        })
    }

    /// Whether the two cost about the same, on any device.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let are_near = |one: f64, other: f64| (one - other).abs() <= 0.2;
        are_near(self.reads, other.reads)
            && are_near(self.bare, other.bare)
            && (0.8..=1.25).contains(&(self.each / other.each))
    }
}
