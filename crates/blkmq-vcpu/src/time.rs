//! Virtual time.

use std::time::Duration;

use crate::hot::HOT;

/// The time of the run, in ns since it began.
#[must_use]
pub fn now() -> u64 {
    HOT.with(|hot| hot.now())
}

/// A point in time, as `std::time::Instant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// The present time.
    #[must_use]
    pub fn now() -> Self {
        Self(now())
    }

    /// The time that has passed since this point.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(now().saturating_sub(self.0))
    }
}
