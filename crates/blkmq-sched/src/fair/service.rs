//! What one client got within a window of [usage](super::usage).

use super::mix::Counts;

/// What a client got, and how much it had outstanding.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClientUsage {
    /// The predicted service time, and what was due, in nanoseconds.
    pub(super) got: f64,
    pub(super) due: f64,
    /// The operations that are over.
    pub(super) counts: Counts,
    /// What it keeps if it lends, as a part of what all clients got.
    pub(super) kept: f64,
    /// How many reports said that operations were outstanding, and how many the present one says are.
    pub(super) reports: u32,
    pub(super) outstanding: u32,
    /// The most operations that were outstanding at once.
    most_outstanding: u32,
    /// The client, or one of its name, was there when the window began.
    pub(super) is_whole: bool,
    /// The same, it is there at the end, and operations were outstanding in at least half of the reports. Between two
    /// of them all may have been answered while the client's next ones were still on their way.
    pub(super) is_busy: bool,
}

impl ClientUsage {
    /// A window begins. `is_whole`: the client is there.
    pub(super) fn new(is_whole: bool) -> Self {
        Self { is_whole, ..Self::default() }
    }

    /// All threads of a report were counted. Returns whether operations were outstanding.
    pub(super) fn end_report(&mut self) -> bool {
        let outstanding = core::mem::take(&mut self.outstanding);
        self.most_outstanding = self.most_outstanding.max(outstanding);
        self.reports += u32::from(outstanding > 0);
        outstanding > 0
    }

    /// Adds what a client of the same name got that left within the window.
    pub(super) fn absorb(&mut self, other: &Self) {
        self.got += other.got;
        self.counts.absorb(&other.counts);
        self.reports += other.reports;
        self.most_outstanding = self.most_outstanding.max(other.most_outstanding);
        self.is_whole |= other.is_whole;
    }

    /// Whether the client may want more than it gets, which it can use at once.
    pub(super) fn is_hungry(&self) -> bool {
        self.is_busy && self.most_outstanding >= SEVERAL
    }

    /// Whether the client got less than it was due.
    pub(super) fn is_below_due(&self) -> bool {
        self.got < (1.0 - TOLERANCE) * self.due
    }

    /// Whether the client counts in the window.
    pub(super) fn matters(&self) -> bool {
        self.got > 0.0 || self.is_busy
    }
}

/// A client may get so much less than it is due.
const TOLERANCE: f64 = 0.05;

/// A client with fewer operations outstanding is served soon by its start tags, and cannot use more.
pub(super) const SEVERAL: u32 = 4;
