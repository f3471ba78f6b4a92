//! What the embedder tells of the device, and sums of it over a stretch of time.

use core::ops::AddAssign;

use super::scale::{ENOUGH, ENOUGH_OF_SEVERAL, SECOND};
use super::{SMALL, pace};
use crate::{Fairness, Op, Time};

/// The two directions; a direction's place is its index here.
pub(super) const READ: usize = 0;
pub(super) const OTHER: usize = 1;

/// How many nanoseconds tell a rate, however few requests there were.
const LONGEST: u64 = 5 * SECOND;

/// A pause is longer than this, in nanoseconds.
const PAUSE: u64 = 2 * pace::LONGEST;

/// The direction of an operation.
pub(super) const fn direction(op: Op) -> usize {
    if op.is_read() { READ } else { OTHER }
}

/// The sectors that a request is charged for: an operation that moves no data takes a device about as long as a small
/// write does, whatever its length.
pub(super) const fn charged_sectors(op: Op, sectors: u32) -> u32 {
    if op.moves_data() { sectors } else { SMALL }
}

/// Requests of one direction that completed since ever. No sum ever falls.
///
/// Only requests that did what was asked count. One that failed says nothing of what the device needs for one that
/// does not: it is left out of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flow {
    /// How many.
    pub requests: u64,
    /// The sectors of all of them, of 512 bytes. What moves no data counts as 4 KiB.
    pub sectors: u64,
    /// For how long the device had them, in nanoseconds, all added up.
    pub in_device: u64,
}

impl AddAssign for Flow {
    fn add_assign(&mut self, other: Self) {
        *self = self.with(other, u64::saturating_add);
    }
}

impl Flow {
    /// Adds one completion.
    pub const fn add(&mut self, op: Op, sectors: u32, in_device: u64) {
        self.requests = self.requests.saturating_add(1);
        self.sectors = self.sectors.saturating_add(charged_sectors(op, sectors) as u64);
        self.in_device = self.in_device.saturating_add(in_device);
    }

    /// The sums that `of` makes of each pair of sums.
    fn with(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            requests: of(self.requests, other.requests),
            sectors: of(self.sectors, other.sectors),
            in_device: of(self.in_device, other.in_device),
        }
    }

    fn since(self, earlier: Self) -> Self {
        self.with(earlier, u64::saturating_sub)
    }

    /// The larger of each pair of sums: a sum that has fallen is taken for one that was read late.
    fn latest(self, other: Self) -> Self {
        self.with(other, u64::max)
    }

    /// The mean time for which the device had a request, in nanoseconds.
    pub(super) fn mean(self) -> Option<u64> {
        self.in_device.checked_div(self.requests)
    }
}

/// What a [`fold`](super::Limiter::fold) is told. The embedder sums it over its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Progress {
    /// Reads that completed since ever.
    pub reads: Flow,
    /// Other requests that completed since ever.
    pub others: Flow,
    /// For how long these reads were under way, from their submission on, in nanoseconds, all added up.
    pub reads_under_way: u64,
    /// The shortest time for which the device had one of the reads since the last fold, in nanoseconds. `None` if none
    /// completed.
    pub least_read: Option<u64>,
    /// The [cost](super::Limiter::cost) of what is with the device now, in nanoseconds: what was added for each request
    /// when it went, less the same number when it was over, whatever became of it.
    pub in_flight: u64,
    /// Whether the limiter has held something back since the last fold, or does now.
    pub held_back: bool,
    /// What the scheduler says of shares, if it shares.
    pub fairness: Fairness,
}

/// What completed in a stretch of time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Span {
    /// How long it is, in nanoseconds.
    pub(super) ns: u64,
    pub(super) flows: [Flow; 2],
    /// For how long its reads were under way, all added up.
    pub(super) reads_under_way: u64,
    /// Nanoseconds of it in which the limiter held something back, as far as folds tell.
    pub(super) held_back: u64,
    /// Nanoseconds of it in which the device had more than it can work on, or something was held back.
    pub(super) full: u64,
}

impl Span {
    pub(super) fn add(&mut self, other: &Self) {
        self.ns = self.ns.saturating_add(other.ns);
        self.held_back = self.held_back.saturating_add(other.held_back);
        self.full = self.full.saturating_add(other.full);
        self.reads_under_way = self.reads_under_way.saturating_add(other.reads_under_way);
        for (flow, more) in self.flows.iter_mut().zip(other.flows) {
            *flow += more;
        }
    }

    /// Leaves out a time in which the device had nothing, because no request came. The limiter is folded when something
    /// completes, and so the first fold after a pause is told all of it. No request is held back for so long, and if
    /// the device had been at work, what completed would have been with it for as long. Returns whether there was one.
    pub(super) fn leave_out_pause(&mut self) -> bool {
        let worked = self.in_device();
        let had_pause = self.ns > PAUSE && self.ns > worked;
        if had_pause {
            self.ns = worked;
            self.held_back = self.held_back.min(worked);
            self.full = self.full.min(worked);
        }
        had_pause
    }

    /// For how long the device had these requests, all added up.
    const fn in_device(&self) -> u64 {
        self.flows[READ].in_device.saturating_add(self.flows[OTHER].in_device)
    }

    /// The mean time for which a read was under way, in nanoseconds.
    pub(super) fn mean_read_under_way(&self) -> Option<u64> {
        self.reads_under_way.checked_div(self.flows[READ].requests)
    }

    /// The mean time for which the device had a request, in nanoseconds.
    pub(super) fn mean_in_device(&self) -> u64 {
        self.in_device().checked_div(self.requests()).unwrap_or(0)
    }

    /// How many requests the device had on average, by Little's law.
    pub(super) fn occupancy(&self) -> u64 {
        self.in_device().checked_div(self.ns).unwrap_or(0)
    }

    pub(super) const fn requests(&self) -> u64 {
        self.flows[READ].requests.saturating_add(self.flows[OTHER].requests)
    }

    /// Whether the limiter held something back for nearly all of the time: what was delivered is what the limiter or
    /// the device let through, and not what was asked.
    pub(super) const fn was_limited(&self) -> bool {
        self.held_back >= self.ns - self.ns / 8
    }

    /// Whether the device had enough to do for nearly all of the time.
    pub(super) const fn was_full(&self) -> bool {
        self.full >= self.ns - self.ns / 8
    }

    /// Whether it is long enough to tell a rate: so many nanoseconds, and requests enough, which it waits for at most
    /// five seconds.
    pub(super) const fn is_enough(&self, ns: u64) -> bool {
        self.has(ns, ENOUGH)
    }

    /// The same where it is one of several.
    pub(super) const fn is_enough_of_several(&self, ns: u64) -> bool {
        self.has(ns, ENOUGH_OF_SEVERAL)
    }

    pub(super) const fn has(&self, ns: u64, requests: u64) -> bool {
        self.ns >= ns && (self.requests() >= requests || self.ns >= LONGEST)
    }
}

/// The sums of the last fold, from which the next one subtracts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PreviousSums {
    at: Option<Time>,
    flows: [Flow; 2],
    reads_under_way: u64,
}

impl PreviousSums {
    /// What is new since the last fold; nothing at the first one.
    pub(super) fn fresh(&mut self, progress: &Progress, now: Time) -> Span {
        let told = [progress.reads, progress.others];
        if self.at.is_none() {
            (self.flows, self.reads_under_way) = (told, progress.reads_under_way);
        }
        let ns = now.since(self.at.unwrap_or(now));
        let flows = [0, 1].map(|at| told[at].since(self.flows[at]));
        let reads_under_way = progress.reads_under_way.saturating_sub(self.reads_under_way);
        self.at = Some(self.at.unwrap_or(now).max(now));
        self.flows = [0, 1].map(|at| told[at].latest(self.flows[at]));
        self.reads_under_way = self.reads_under_way.max(progress.reads_under_way);
        let held_back = if progress.held_back { ns } else { 0 };
        Span { ns, flows, reads_under_way, held_back, full: held_back }
    }
}
