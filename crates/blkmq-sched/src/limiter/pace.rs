//! When the next request may go, if requests go at a rate.
//!
//! The rate is in cost: a request that costs 10 us is followed by the next one 10 us later. What came too late is
//! made up for, but no more than [`SLACK`], or what threads need that come later: as BBR paces (Cardwell et al.
//! 2016), with time instead of bytes.

use super::MS;
use crate::Time;

/// How far the rate lags behind, in nanoseconds of cost, so that a thread that comes a little late loses nothing: as
/// long as what goes is about the rate, and at most.
const SLACK: u64 = MS / 5;
const MOST_SLACK: u64 = 4 * MS;

/// Threads come later than that if less than this part of the rate goes, and earlier if more than that does.
const TOO_LITTLE: f64 = 0.93;
const ENOUGH: f64 = 0.97;

/// The longest time for which nothing goes, in nanoseconds, whatever a request is said to cost.
pub(super) const LONGEST: u64 = 100 * MS;

/// The rate at which requests go.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pacer {
    /// Cost that goes in the time of 1024; 0 if there is no rate.
    rate: u32,
    /// When the next request may go.
    next: Time,
    /// What is made up for beyond [`SLACK`], in nanoseconds.
    more_slack: u64,
}

impl Pacer {
    /// From now on requests go at this rate: cost for 1024 of time.
    pub(super) fn start(&mut self, rate: u32) {
        debug_assert!(rate > 0, "a rate lets something go");
        self.rate = rate;
    }

    /// What part of the rate went in a stretch of time in which something was held back.
    pub(super) fn note_part(&mut self, part: f64) {
        if part < TOO_LITTLE {
            self.more_slack = (2 * self.more_slack).clamp(SLACK, MOST_SLACK);
        } else if part > ENOUGH {
            self.more_slack -= self.more_slack.div_ceil(8);
        }
    }

    /// Requests go at no rate.
    pub(super) fn stop(&mut self) {
        self.rate = 0;
    }

    /// Nothing goes for so many nanoseconds.
    pub(super) fn pause(&mut self, ns: u64, now: Time) {
        self.next = self.next.max(now.after(ns)).min(now.after(LONGEST));
    }

    /// When the next request may go, if not now.
    pub(super) fn opens_at(&self, now: Time) -> Option<Time> {
        // A clock that went back is no reason to wait any longer.
        (self.rate > 0 && self.next > now).then_some(self.next.min(now.after(LONGEST)))
    }

    /// A request went.
    pub(super) fn sent(&mut self, cost: u32, now: Time) {
        if self.rate > 0 {
            let from = self.next.max(now.before(SLACK + self.more_slack));
            self.next = from.after(u64::from(cost) * 1024 / u64::from(self.rate)).min(now.after(LONGEST));
        }
    }
}
