//! How near our BFQ is to Linux's, on recordings of Linux's decisions.
//!
//! Both are compared in two ways. *Decisions*: at each time at which Linux's was asked, would ours have answered the
//! same? `score` counts, and `bars` says how many are asked for. A recording belongs to one of three [`Group`]s by what
//! it exercises. *Outcomes*: does every process get the same share, if the same `load` runs in a `world` on virtual
//! time?

mod bars;
mod client;
mod load;
mod matching;
mod outcome;
mod recording;
mod score;
mod share;
mod world;

use std::path::PathBuf;

use serde::Serialize;

pub use self::bars::{GROUPS, Group, most_made};
pub use self::outcome::{Figure, JobOutcome, Outcome};
pub use self::recording::Recording;
pub use self::score::{Score, Scoring};
pub use self::share::Share;
use crate::TextError;

/// A recording, judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The recording's name.
    pub name: String,
    /// The [`Group`] that it belongs to.
    pub group: char,
    /// The counts.
    #[serde(flatten)]
    pub score: Score,
    /// [`Score::contested`], as a part of 1.
    pub plain: Option<f64>,
    /// [`Score::balanced`].
    pub balanced: Option<f64>,
    /// Whether there are enough contested choices to be judged by.
    pub is_contested: bool,
    /// How often our scheduler could not do what Linux did.
    pub not_followed: usize,
    /// What it misses, in words; empty if nothing.
    pub missed: Vec<String>,
    /// What came of its load; nothing if that is not modelled.
    pub outcome: Option<Outcome>,
}

/// The recordings of a group, judged.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The group.
    #[serde(flatten)]
    pub group: Group,
    /// How many recordings there are.
    pub recordings: usize,
    /// The mean of their balanced agreement, of those that are contested.
    pub mean_balanced: Option<f64>,
    /// The mean of the parts of Linux's expirations that our scheduler makes.
    pub mean_expired: Option<f64>,
    /// What the means miss, in words; empty if nothing.
    pub missed: Vec<String>,
}

impl Row {
    /// Whether the shares that come of its load are Linux's; nothing if the load is not modelled.
    #[must_use]
    pub fn has_linuxs_shares(&self) -> Option<bool> {
        self.outcome.as_ref().map(Outcome::has_linuxs_shares)
    }
}

/// The least part of the modelled recordings in which all shares must be Linux's.
pub const LEAST_SHARES: f64 = 0.9;

/// Of how many rows the load is modelled, and in how many of these every share is Linux's.
#[must_use]
pub fn shares(rows: &[Row]) -> Share {
    let modelled = rows.iter().filter_map(Row::has_linuxs_shares);
    Share { all: modelled.clone().count(), alike: modelled.filter(|alike| *alike).count() }
}

/// Judges the recordings in these folders, in their order.
///
/// # Errors
/// A recording that cannot be read, or has settings that BFQ does not.
pub fn judge(folders: &[PathBuf]) -> Result<Vec<Row>, TextError> {
    let row = |folder: &PathBuf| {
        let recording = Recording::open(folder)?;
        let (mut scoring, mut not_followed) = (Scoring::default(), 0);
        for replayed in recording.replay()? {
            let replayed = replayed?;
            not_followed += usize::from(!replayed.is_followed);
            scoring.add(&replayed);
        }
        let score = scoring.finish();
        let group = Group::of(&recording.name);
        Ok(Row {
            group: group.name,
            missed: group.missed(&recording.name, &score),
            plain: score.contested().part(),
            balanced: score.balanced(),
            is_contested: Group::balanced_of(&recording.name, &score).is_some(),
            not_followed,
            outcome: Outcome::of(&recording)?,
            score,
            name: recording.name,
        })
    };
    folders.iter().map(row).collect()
}

/// Sums up the rows of each group that has any.
#[must_use]
pub fn summaries(rows: &[Row]) -> Vec<Summary> {
    GROUPS.into_iter().filter_map(|group| summary(group, rows)).collect()
}

fn summary(group: Group, rows: &[Row]) -> Option<Summary> {
    let own = || rows.iter().filter(|row| row.group == group.name);
    let recordings = own().count();
    let mean_balanced = mean(own().filter_map(|row| Group::balanced_of(&row.name, &row.score)));
    let mean_expired = mean(own().filter_map(|row| row.score.expired.part()));
    let mut missed = Vec::new();
    for (what, mean, least) in
        [("balanced", mean_balanced, group.balanced.0), ("expirations", mean_expired, group.expired.0)]
    {
        if let Some(mean) = mean.filter(|mean| *mean < least) {
            missed.push(format!("{what} {mean:.4} on average, under {least}"));
        }
    }
    (recordings > 0).then_some(Summary { group, recordings, mean_balanced, mean_expired, missed })
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
