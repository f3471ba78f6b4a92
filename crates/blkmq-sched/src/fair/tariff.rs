//! What requests cost one client, by kind and size, as measured while it had the device for itself.
//!
//! A measurement is what went to the device in a stretch of time. While the device does all it can, the costs of these
//! requests add up to the time that passed. A client that does now this and now that is measured at both, and its
//! tariff is fitted to the latest measurements. So what it asks for next is charged by what it is, and not by what the
//! client asked for before. A kind of request that was never measured costs as many times what is predicted as the
//! dearest measured one does.

use super::mix::{Counts, Mix, NR};
use crate::Op;
use crate::direction::Direction;
use crate::limiter::Costs;

/// How many measurements of different mixes a client keeps, and how often a tariff is fitted to them.
const MOST: usize = 4;
const SWEEPS: usize = 64;

/// A cost is between these multiples of what is predicted.
const LEAST: f64 = 0.02;
const DEAREST: f64 = 50.0;

/// The least factor by which one correction changes a cost.
const LEAST_STEP: f64 = 0.1;

/// The costs of requests and sectors of each kind, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tariff([f64; NR]);

impl Tariff {
    /// What is predicted.
    pub(super) fn predicted(costs: &Costs) -> Self {
        Self(costs.by_kind())
    }

    /// The cost of a request.
    pub(super) fn of(&self, op: Op, sectors: u32) -> f64 {
        let at = Direction::of(op) as usize;
        if op.moves_data() { self.0[at] + self.0[3 + at] * f64::from(sectors) } else { self.0[2] }
    }

    /// What the requests of each kind cost together: reads, writes, and what moves no data.
    pub(super) fn by_kind(&self, counts: &Counts) -> [f64; 3] {
        let [reads, writes, others, read, written] = self.terms(counts);
        [reads + read, writes + written, others]
    }

    pub(super) fn sum(&self, counts: &Counts) -> f64 {
        self.terms(counts).iter().sum()
    }

    fn terms(&self, counts: &Counts) -> [f64; NR] {
        core::array::from_fn(|at| self.0[at] * counts.0[at])
    }

    /// Corrects each cost the more, the larger its part of a sum is that should be 1: a step as that of
    /// [`Costs`] after another mix.
    fn correct(&mut self, rates: &Counts) {
        let (terms, sum) = (self.terms(rates), self.sum(rates));
        let squares: f64 = terms.iter().map(|term| term * term).sum::<f64>() / (sum * sum);
        for (cost, term) in self.0.iter_mut().zip(terms) {
            *cost *= (1.0 + (1.0 / sum - 1.0) * (term / sum) / squares).max(LEAST_STEP);
        }
    }
}

/// What went to the device while it did all it could, by nanosecond of cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Measurement {
    pub(super) mix: Mix,
    rates: Counts,
}

impl Measurement {
    /// `cost`: what the time was worth. `None` if nothing went.
    pub(super) fn new(counts: &Counts, cost: f64, costs: &Costs) -> Option<Self> {
        let rates = counts.map(|count| count / cost);
        Some(Self { mix: Mix::of(counts, Tariff::predicted(costs).by_kind(counts))?, rates })
    }

    /// The mean of two: rates swing.
    fn with(&self, other: &Self) -> Self {
        let rates = core::array::from_fn(|at| (self.rates.0[at] + other.rates.0[at]) / 2.0);
        Self { rates: Counts(rates), ..*self }
    }
}

/// What is known of what a client's requests cost.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pricing {
    /// The latest is the last one.
    measured: [Option<Measurement>; MOST],
    tariff: Option<Tariff>,
    /// How much less the client's operations cost in the requests that they were merged into, as a factor.
    merged: Option<f64>,
}

impl Pricing {
    /// The tariff, if what the client asks for costs it something else than is predicted.
    pub(super) const fn tariff(&self) -> Option<&Tariff> {
        self.tariff.as_ref()
    }

    pub(super) fn merged(&self) -> f64 {
        self.merged.unwrap_or(1.0)
    }

    fn measurements(&self) -> impl DoubleEndedIterator<Item = &Measurement> + Clone {
        self.measured.iter().flatten()
    }

    /// The latest measurement of such a mix.
    pub(super) fn like(&self, mix: &Mix) -> Option<Measurement> {
        self.measurements().rfind(|known| known.mix.is_like(mix)).copied()
    }

    /// Whether the tariff is right for a mix: each kind of request in it was measured at about this size, or at smaller
    /// and larger ones.
    pub(super) fn covers(&self, mix: &Mix) -> bool {
        self.tariff.is_some() && mix.is_within(self.measurements().map(|known| &known.mix))
    }

    /// Charges what is predicted. What was measured is kept.
    pub(super) fn charge_as_predicted(&mut self) {
        self.tariff = None;
    }

    /// These requests went to the device for these operations, by what is predicted of both.
    pub(super) fn note_merged(&mut self, went: f64, done: f64) {
        self.merged = Some(went / done).filter(|merged| merged.is_finite() && *merged > 0.0);
    }

    /// Adds a measurement. Rates swing, so one of the same mix counts as much.
    pub(super) fn note(&mut self, measurement: &Measurement, costs: &Costs) {
        let known = self.like(&measurement.mix);
        self.take(&known.map_or(*measurement, |known| measurement.with(&known)), costs);
    }

    /// Takes the measurement of a client that asks for the same, in the place of what was known of that.
    pub(super) fn take(&mut self, measurement: &Measurement, costs: &Costs) {
        if self.tariff.is_some() && self.measured[MOST - 1] == Some(*measurement) {
            return;
        }
        let is_like = |known: &Option<Measurement>| known.is_some_and(|known| known.mix.is_like(&measurement.mix));
        // Without one the oldest is forgotten.
        let replaced = self.measured.iter().position(is_like).unwrap_or(0);
        self.measured[replaced..].rotate_left(1);
        self.measured[MOST - 1] = Some(*measurement);
        self.fit(costs);
    }

    /// The tariff with which what was measured last costs what it took, and the rest nearly.
    fn fit(&mut self, costs: &Costs) {
        let predicted = Tariff::predicted(costs);
        let factors = self.measurements().map(|known| 1.0 / predicted.sum(&known.rates));
        let dearest = factors.fold(0.0, f64::max).clamp(LEAST, DEAREST);
        let mut fitted = Tariff(predicted.0.map(|cost| cost * dearest));
        for _ in 0..SWEEPS {
            self.measurements().for_each(|known| fitted.correct(&known.rates));
        }
        let clamped = |at: usize| fitted.0[at].clamp(LEAST * predicted.0[at], DEAREST * predicted.0[at]);
        self.tariff = Some(Tariff(core::array::from_fn(clamped)));
    }
}
