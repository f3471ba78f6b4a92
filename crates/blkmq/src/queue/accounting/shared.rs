//! The baseline [`Accounting::Shared`]: every request counts in a line that all threads write, as in Linux before
//! 4.14.
//!
//! The layer's own way, [`Accounting::PerThread`], is measured against this one. The other files of `account` call this
//! one in single lines, and nothing is counted here unless the baseline was chosen.

use crate::queue::error::QueueError;
use blkmq_sync::atomic::{AtomicU64, Ordering};

/// How the statistics know what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accounting {
    /// Every thread counts on lines of its own, and readers sum.
    #[default]
    PerThread,
    /// Every request counts up, and down again, a number that all threads share, as Linux did before 4.14. The other
    /// way is measured against this one. The numbers shown are the same.
    Shared,
}

impl Accounting {
    /// The name by which a user chooses it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerThread => "per-thread",
            Self::Shared => "shared",
        }
    }
}

impl std::str::FromStr for Accounting {
    type Err = QueueError;

    fn from_str(text: &str) -> Result<Self, QueueError> {
        [Self::PerThread, Self::Shared]
            .into_iter()
            .find(|known| known.name() == text)
            .ok_or_else(|| QueueError::UnknownAccounting(text.to_owned()))
    }
}

/// How many requests of a queue, or of a range of its sectors, are in flight. Counted under [`Accounting::Shared`]
/// alone.
#[derive(Debug)]
pub(in crate::queue) struct SharedCount {
    accounting: Accounting,
    nr: AtomicU64,
}

impl SharedCount {
    pub(super) const fn new(accounting: Accounting) -> Self {
        Self { accounting, nr: AtomicU64::new(0) }
    }

    pub(super) const fn accounting(&self) -> Accounting {
        self.accounting
    }

    /// Whether requests count here.
    #[inline]
    pub(in crate::queue) const fn is_used(&self) -> bool {
        matches!(self.accounting, Accounting::Shared)
    }

    /// A request began.
    #[inline]
    pub(in crate::queue) fn start(&self) {
        if self.is_used() {
            self.nr.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request is over.
    #[inline]
    pub(in crate::queue) fn end(&self) {
        if self.is_used() {
            let before = self.nr.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a request that is over was counted when it began");
        }
    }

    /// How many requests are in flight, if they count here.
    pub(super) fn nr(&self) -> Option<u64> {
        self.is_used().then(|| self.nr.load(Ordering::Relaxed))
    }
}
