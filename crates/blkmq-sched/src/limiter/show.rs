//! What a limiter has found, for people.

use core::fmt;

use super::{Limiter, Phase, SMALL, Target};
use crate::Op;

/// Sectors of the largest requests for which a ceiling is told.
const LARGE: u32 = 2048;

impl Phase {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Open,
        Self::Growing,
        Self::Measuring,
        Self::Paced,
        Self::Probing,
        Self::Narrowing,
        Self::Bounded,
        Self::Widening,
    ];

    /// Its name in statistics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Growing => "growing",
            Self::Measuring => "measuring",
            Self::Paced => "paced",
            Self::Probing => "probing",
            Self::Narrowing => "narrowing",
            Self::Bounded => "bounded",
            Self::Widening => "widening",
        }
    }
}

impl Limiter {
    /// What the limiter does now.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The work that may be with the device, in nanoseconds; `None` while it is not bounded.
    #[must_use]
    pub fn bound(&self) -> Option<u64> {
        (self.bound < u64::MAX).then_some(self.bound)
    }

    /// What reads may take in the device on average, in nanoseconds, if that is known.
    #[must_use]
    pub fn target_ns(&self) -> Option<u64> {
        self.target.ns(self.least.get())
    }

    /// What was set.
    #[must_use]
    pub const fn target(&self) -> Target {
        self.target
    }

    /// Whether the reads of the last tenth of a second kept to the target, if there were any.
    #[must_use]
    pub fn is_met(&self) -> Option<bool> {
        Some(self.read_mean? <= self.target_ns()?)
    }

    /// How many requests of this size the device does in a second, as far as was found; `None` if nothing was.
    #[must_use]
    pub fn ceiling(&self, op: Op, sectors: u32) -> Option<u64> {
        (self.paced.all_measured > 0).then(|| 1_000_000_000 / u64::from(self.cost(op, sectors)))
    }

    /// How many times the ceiling was measured.
    #[must_use]
    pub const fn times_measured(&self) -> u64 {
        self.paced.all_measured
    }

    /// Writes what was found in readable form.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "state: {}", self.phase.name())?;
        match self.bound() {
            Some(bound) => writeln!(out, "bound: {bound} ns")?,
            None => writeln!(out, "bound: none")?,
        }
        writeln!(out, "in_flight: {} ns", self.in_flight)?;
        match (self.target, self.target_ns()) {
            (Target::Off, _) => writeln!(out, "target: off")?,
            (_, None) => writeln!(out, "target: not known yet")?,
            (_, Some(ns)) => {
                let met = self.is_met().map_or("no reads", |met| if met { "met" } else { "missed" });
                writeln!(out, "target: {ns} ns, {met}")?;
            }
        }
        for (name, op) in [("read", Op::Read), ("write", Op::Write)] {
            if let Some((small, large)) = self.ceiling(op, SMALL).zip(self.ceiling(op, LARGE)) {
                let rate = large.saturating_mul(u64::from(LARGE) * 512) / 1_000_000;
                writeln!(out, "{name}_ceiling: {small} requests/s of 4 KiB, {rate} MB/s of 1 MiB")?;
            }
        }
        let watch = &self.paced;
        writeln!(out, "over: {} measured: {} probes: {}", watch.all_overs, watch.all_measured, watch.all_probes)
    }
}
