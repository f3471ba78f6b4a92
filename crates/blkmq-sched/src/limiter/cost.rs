//! What a request costs: the time in which the device does as much while it does all it can.
//!
//! A cost is a base and a part for each sector, for reads and for other requests. So a ceiling in requests a second is
//! a base, and one in bytes a second a part for each sector. While the device does all it can, the costs of what it
//! completes add up to the time that passes. If they do not, they are corrected: all of them by one factor, unless the
//! mix of requests is another one than when they were last right. Then each is corrected the more, the larger its part
//! of the sum was: a step of the multiplicative kind of regression (Kivinen and Warmuth 1997), with which no cost ever
//! falls below zero. Gimbal (SIGCOMM'21) and PriorityMeister (SoCC'14) charge by direction and size too; the
//! first learns what a write costs as a multiple of a read, the second measures each size beforehand. Discards and
//! write-zeroes move no data: each costs as much as a write of 4 KiB, whatever its length.

use super::SMALL;
use super::progress::{OTHER, READ, Span, charged_sectors, direction};
use crate::Op;

/// Bases first, by direction, then what each sector adds.
const NR: usize = 4;

/// Nanoseconds: the range of each of them.
const LEAST: f64 = 0.01;
const MOST: f64 = 1e9;

/// A mix of requests is another one if the share of a part in the sum of the costs differs by more than this.
const OTHER_MIX: f64 = 0.2;

/// The most by which one measurement changes a cost, as a factor.
const MOST_STEP: f64 = 1e6;

/// The costs of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Nanoseconds.
    parts: [f64; NR],
    /// Each part's share of the sum when the costs were last right.
    mix: Option<[f64; NR]>,
}

impl Default for Costs {
    /// What nothing is known of: 1 us and 125 ns for each sector, so that eight sectors cost as much as the base.
    fn default() -> Self {
        Self { parts: [1000.0, 1000.0, 125.0, 125.0], mix: None }
    }
}

impl Costs {
    /// The cost of a request, in nanoseconds, at least 1.
    #[must_use]
    pub fn of(&self, op: Op, sectors: u32) -> u32 {
        let at = direction(op);
        ((self.parts[at] + self.parts[2 + at] * f64::from(charged_sectors(op, sectors))) as u32).max(1)
    }

    /// The costs of a read, a write, and an operation that moves no data, without their sectors, and of a sector of a
    /// read and of a write, in nanoseconds.
    #[must_use]
    pub fn by_kind(&self) -> [f64; 5] {
        let [read, write, sector_read, sector_written] = self.parts;
        [read, write, write + sector_written * f64::from(SMALL), sector_read, sector_written]
    }

    /// What each part adds to the cost of what completed.
    fn terms(&self, span: &Span) -> [f64; NR] {
        let counts = [
            span.flows[READ].requests,
            span.flows[OTHER].requests,
            span.flows[READ].sectors,
            span.flows[OTHER].sectors,
        ];
        core::array::from_fn(|at| self.parts[at] * counts[at] as f64)
    }

    /// The cost of what completed, in nanoseconds.
    pub(super) fn sum(&self, span: &Span) -> f64 {
        self.terms(span).iter().sum()
    }

    /// What a request that completed cost on average, in nanoseconds.
    pub(super) fn mean(&self, span: &Span) -> f64 {
        self.sum(span) / span.requests().max(1) as f64
    }

    /// The cost of what completed in a nanosecond.
    pub(super) fn rate(&self, span: &Span) -> f64 {
        self.sum(span) / span.ns.max(1) as f64
    }

    /// Learns from a stretch of time in which the device did all it could. Returns the factor by which the costs were
    /// wrong on the whole.
    pub(super) fn learn(&mut self, span: &Span) -> f64 {
        let sum = self.sum(span);
        if span.ns == 0 || sum < 1.0 {
            return 1.0;
        }
        let factor = (span.ns as f64 / sum).clamp(1.0 / MOST_STEP, MOST_STEP);
        let shares = self.shares(span);
        if self.is_other_mix(span) {
            let squares: f64 = shares.iter().map(|share| share * share).sum();
            let mut parts = self.parts;
            for (part, share) in parts.iter_mut().zip(shares) {
                *part *= 1.0 + (factor - 1.0) * share / squares;
            }
            self.set(parts);
            // The larger parts may have reached an end of the range. The rest is the same for all.
            let sum = self.sum(span).max(1.0);
            self.scale((span.ns as f64 / sum).clamp(1.0 / MOST_STEP, MOST_STEP));
        } else {
            self.scale(factor);
        }
        self.accept_mix(span);
        factor
    }

    /// Each part's share of the cost of what completed.
    fn shares(&self, span: &Span) -> [f64; NR] {
        let sum = self.sum(span).max(1.0);
        self.terms(span).map(|term| term / sum)
    }

    /// Whether another mix of requests completed than when the costs were last right.
    pub(super) fn is_other_mix(&self, span: &Span) -> bool {
        let shares = self.shares(span);
        self.mix.is_some_and(|mix| mix.iter().zip(shares).any(|(before, share)| (before - share).abs() > OTHER_MIX))
    }

    /// The costs are right for this mix.
    pub(super) fn accept_mix(&mut self, span: &Span) {
        // A span in which nothing completed says nothing of the mix.
        if span.requests() > 0 {
            self.mix = Some(self.shares(span));
        }
    }

    /// Makes every request so many times as dear.
    pub(super) fn scale(&mut self, factor: f64) {
        self.set(self.parts.map(|part| part * factor));
    }

    fn set(&mut self, parts: [f64; NR]) {
        self.parts = parts.map(|part| part.clamp(LEAST, MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::super::progress::Flow;
    use super::*;
    use proptest::prelude::*;

    fn span(ns: u64, reads: (u64, u64), others: (u64, u64)) -> Span {
        let flow = |(requests, sectors)| Flow { requests, sectors, ..Flow::default() };
        Span { ns, flows: [flow(reads), flow(others)], held_back: ns, full: ns, ..Span::default() }
    }

    /// Red if what is learnt is not what was measured, in one step: with the mix that was known, and with another.
    #[test]
    fn the_costs_of_what_was_measured_add_up_to_the_time_that_passed() {
        let mut costs = Costs::default();
        for (reads, others) in [((500, 4000), (17_000, 128 * 17_000)), ((275_000, 8 * 275_000), (0, 0))] {
            let measured = span(1_000_000_000, reads, others);
            costs.learn(&measured);
            let sum = costs.sum(&measured);
            assert!((0.999e9..1.001e9).contains(&sum), "{sum}");
        }
        assert!((3620..3650).contains(&costs.of(Op::Read, 8)), "{costs:?}");
    }

    /// Red if a ceiling in requests and what large ones cost are not told apart, though both were seen.
    #[test]
    fn base_and_sectors_are_told_apart_by_mixes() {
        let mut costs = Costs::default();
        // A write takes 10 us and 100 ns a sector.
        for _ in 0..50 {
            costs.learn(&span(10_800 * 1000, (0, 0), (1000, 8000)));
            costs.learn(&span(35_600 * 1000, (0, 0), (1000, 256_000)));
        }
        let (small, large) = (costs.of(Op::Write, 8), costs.of(Op::Write, 256));
        assert!((10_260..11_340).contains(&small) && (33_820..37_380).contains(&large), "{small} {large}");
    }

    proptest! {
        /// Red if a cost is zero or endless, or if a larger request costs less.
        #[test]
        fn costs_are_bounded_and_grow_with_size(
            spans in prop::collection::vec(any::<(u64, (u64, u64), (u64, u64))>(), 0..20),
            small in any::<u32>(),
            large in any::<u32>(),
        ) {
            let mut costs = Costs::default();
            for (ns, reads, others) in spans {
                let factor = costs.learn(&span(ns, reads, others));
                prop_assert!((1.0 / MOST_STEP..=MOST_STEP).contains(&factor));
            }
            for op in [Op::Read, Op::Write, Op::Discard] {
                let of = |sectors| costs.of(op, sectors);
                prop_assert!(of(small.min(large)) <= of(small.max(large)) && of(0) >= 1);
            }
        }
    }
}
