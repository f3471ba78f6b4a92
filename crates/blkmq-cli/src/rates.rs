//! The rates of a variant's slices.

use blkmq_workbench::Spread;
use serde::Serialize;

/// The rates of a variant's slices, for programs: operations per second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Rates {
    pub(crate) median: f64,
    pub(crate) lower_quartile: f64,
    pub(crate) upper_quartile: f64,
}

impl From<Spread> for Rates {
    fn from(Spread { median, lower, upper }: Spread) -> Self {
        Self { median, lower_quartile: lower, upper_quartile: upper }
    }
}
