//! The results, next to the published ones.

use blkmq_workbench::compare::Variant;
use blkmq_workbench::{Ratio, Spread, Turns};
use serde::Serialize;

use super::flood::FoundFlood;
use super::limiter::FoundLimiter;
use super::tables::{Figure, Row, Table, gain};
use crate::target::Time;

/// All results.
#[derive(Debug, Serialize)]
pub(super) struct Found {
    pub(super) machine: String,
    pub(super) date: String,
    pub(super) command: String,
    pub(super) tables: Vec<FoundTable>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) flood: Option<FoundFlood>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limiter: Option<FoundLimiter>,
}

#[derive(Debug, Serialize)]
pub(crate) struct FoundTable {
    pub(super) name: String,
    pub(super) about: String,
    pub(super) job: String,
    /// How long it ran, and on which clock.
    pub(super) time: String,
    /// The author, and the machine. Empty if there is no such published measurement.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) published: String,
    pub(super) rounds: usize,
    pub(super) rows: Vec<FoundRow>,
    pub(super) figures: Vec<Figure>,
}

/// Gains are after/before - 1.
#[derive(Debug, Serialize)]
pub(super) struct FoundRow {
    pub(super) label: String,
    pub(super) device: String,
    pub(super) settings: Vec<String>,
    /// Operations per second.
    pub(super) iops: Spread,
    /// The ratio to the row `base`. That row itself has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<FoundRatio>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gain: Option<f64>,
    /// The ratio to the row without a scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio_to_none: Option<FoundRatio>,
    /// Percent of the operations that joined another operation's request.
    pub(super) merged_percent: f64,
    /// The mean size of a request, with the operations that joined it.
    pub(super) request_bytes_mean: f64,
    /// Percent of the requests that bypassed the scheduler, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bypassed_percent: Option<f64>,
    /// Where the time stamps of requests came from.
    pub(super) stamps: &'static str,
    /// On virtual time, the CPU time includes the time of the model, and so means nothing. The same holds for the next
    /// two fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cpu_ns_per_request: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wait_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) work_ns_per_request: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) published_iops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) published_gain: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) published_merged_percent: Option<f64>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct FoundRatio {
    pub(super) base: String,
    pub(super) ratio: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

impl FoundTable {
    pub(super) fn new(table: &Table, time: String, variants: &[Variant], turns: &Turns) -> Self {
        let rows = variants.iter().enumerate();
        Self {
            name: table.name.clone(),
            about: table.about.clone(),
            job: table.file.clone(),
            time,
            published: table.published.clone(),
            rounds: turns.rounds(),
            rows: rows.map(|(index, variant)| FoundRow::new(table, index, variant, turns)).collect(),
            figures: table.figures.clone(),
        }
    }
}

impl FoundRow {
    fn new(table: &Table, index: usize, variant: &Variant, turns: &Turns) -> Self {
        let row = &table.rows[index];
        let (layer, bench) = (variant.layer(), variant.bench());
        let is_real = table.clock == Time::Real;
        let rates = |index| turns.spread(index).expect("every row had slices");
        let ratio = |base: usize| {
            let found = turns.ratio(base, index).map(|Ratio { ratio, low, high, .. }| (ratio, low, high));
            let (ratio, low, high) = found.unwrap_or_else(|| {
                // On virtual time there is one run, because every other run would be a copy of it.
                let ratio = rates(index).median / rates(base).median;
                (ratio, ratio, ratio)
            });
            FoundRatio { base: table.rows[base].label.clone(), ratio, low, high }
        };
        let is_base = row.base == index;
        let over_base = (!is_base).then(|| ratio(row.base));
        let Row { published, none, .. } = row;
        let before = published.base_iops.or(table.rows[row.base].published.iops).filter(|_| !is_base);
        Self {
            label: row.label.clone(),
            device: row.device.clone(),
            settings: row.set.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            iops: rates(index),
            gain: over_base.as_ref().map(|ratio| gain(1.0, ratio.ratio)),
            ratio: over_base,
            ratio_to_none: none.map(ratio),
            merged_percent: 100.0 * layer.merged_share(),
            request_bytes_mean: layer.request_bytes_mean(),
            bypassed_percent: none.map(|_| 100.0 * layer.bypassed_share()),
            stamps: bench.stamps().name(),
            cpu_ns_per_request: is_real.then(|| layer.cpu_ns_per_request()),
            wait_share: is_real.then(|| layer.wait_share()),
            work_ns_per_request: is_real.then(|| layer.work_ns_per_request()),
            published_iops: published.iops,
            published_gain: before.zip(published.iops).map(|(before, after)| gain(before, after)),
            published_merged_percent: published.merged,
        }
    }
}
