//! Several runs of one point of a curve, which differ by chance or by what is not known of the machine.

use serde::Serialize;

use crate::load::Load;
use crate::point::Setting;
use crate::scaling::{Row, row};

/// What the runs of a load with so many threads came to.
///
/// As JSON it is the fields of one run's [`Row`] or `{threads, lowest, highest}`, and `band`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// The runs that are shown.
    #[serde(flatten)]
    pub shown: Shown,
    /// Between which figures all runs are.
    pub band: Band,
}

/// The runs of a point that are shown.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[expect(clippy::large_enum_variant, reason = "there are few points")]
pub enum Shown {
    /// The run of median rate. Of an even number it is the slower one of the two in the middle.
    Median(Row),
    /// The slowest and the fastest run. No run stands for the machine, because its distances are known by their bounds
    /// alone.
    Ends {
        /// The threads.
        threads: usize,
        /// The slowest run.
        lowest: Row,
        /// The fastest run.
        highest: Row,
    },
}

/// The lowest and the highest figure of the runs of a point.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Band {
    /// How many runs there are.
    pub runs: usize,
    /// Of [`Row::requests_per_s`].
    pub requests_per_s: [f64; 2],
    /// Of [`Row::none_requests_per_s`].
    pub none_requests_per_s: [f64; 2],
    /// Of [`Row::ratio_to_none`].
    pub ratio_to_none: [f64; 2],
}

impl Point {
    /// The runs of `load` with so many threads: one for each of the settings, which differ in their seeds and, if the
    /// machine is known `by_bounds` alone, in its distances.
    ///
    /// # Errors
    /// One of them cannot be run.
    ///
    /// # Panics
    /// If there are no settings.
    pub fn of(load: &Load, threads: usize, settings: &[Setting], by_bounds: bool) -> Result<Self, String> {
        let runs = settings.iter().map(|setting| row(load, threads, setting)).collect::<Result<_, _>>()?;
        Ok(Self::of_runs(runs, by_bounds))
    }

    fn of_runs(mut runs: Vec<Row>, by_bounds: bool) -> Self {
        runs.sort_by(|one, other| one.requests_per_s.total_cmp(&other.requests_per_s));
        let bounds = |figure: fn(&Row) -> f64| {
            let figures = || runs.iter().map(figure);
            [figures().fold(f64::INFINITY, f64::min), figures().fold(f64::NEG_INFINITY, f64::max)]
        };
        let band = Band {
            runs: runs.len(),
            requests_per_s: bounds(|row| row.requests_per_s),
            none_requests_per_s: bounds(|row| row.none_requests_per_s),
            ratio_to_none: bounds(|row| row.ratio_to_none),
        };
        let shown = if by_bounds {
            let highest = runs.pop().expect("there is a run");
            let lowest = runs.into_iter().next().unwrap_or_else(|| highest.clone());
            Shown::Ends { threads: highest.threads, lowest, highest }
        } else {
            Shown::Median(runs.swap_remove((runs.len() - 1) / 2))
        };
        Self { shown, band }
    }

    /// The threads.
    #[must_use]
    pub const fn threads(&self) -> usize {
        match &self.shown {
            Shown::Median(row) => row.threads,
            Shown::Ends { threads, .. } => *threads,
        }
    }

    /// The runs that are shown, with what they are called if there is more than one run.
    pub fn rows(&self) -> impl Iterator<Item = (&'static str, &Row)> {
        let (one, other) = match &self.shown {
            Shown::Median(row) => (("median", row), None),
            Shown::Ends { lowest, highest, .. } => (("lowest", lowest), Some(("highest", highest))),
        };
        std::iter::once(one).chain(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Machine;

    fn runs(nr_seeds: u64) -> Vec<Row> {
        let load = Load::closed_loop("rw=randread\nbs=4k", 4, 4);
        let cores = Machine::named("7950x").expect("it is known").cores();
        let one = |seed| {
            let device = "null,irqmode=0,poll_queues=0,submit_queues={threads}";
            let scheduler = "mq-deadline".to_owned();
            let locking = blkmq_virtual::Locking::Combining;
            Setting { scheduler, locking, seed, requests: 500, ..Setting::new(cores.clone(), device) }
        };
        (1..=nr_seeds).map(|seed| row(&load, 8, &one(seed)).expect("it can be run")).collect()
    }

    /// Red if what stands for the runs is not the one in the middle, or if a run is outside of the band.
    #[test]
    fn the_median_run_stands_for_several_and_the_band_holds_all() {
        let runs = runs(4);
        let mut rates: Vec<f64> = runs.iter().map(|run| run.requests_per_s).collect();
        rates.sort_by(f64::total_cmp);
        assert!(rates.windows(2).all(|two| two[0] < two[1]), "each seed gives another rate: {rates:?}");
        let point = Point::of_runs(runs.clone(), false);
        let shown: Vec<_> = point.rows().map(|(name, row)| (name, row.requests_per_s)).collect();
        assert_eq!(shown, [("median", rates[1])]);
        assert_eq!((point.band.runs, point.band.requests_per_s), (4, [rates[0], rates[3]]));
        let ratios = point.band.ratio_to_none;
        assert!(runs.iter().all(|run| (ratios[0]..=ratios[1]).contains(&run.ratio_to_none)), "{ratios:?}");
        let point = Point::of_runs(runs, true);
        let shown: Vec<_> = point.rows().map(|(name, row)| (name, row.requests_per_s)).collect();
        assert_eq!(shown, [("lowest", rates[0]), ("highest", rates[3])]);
    }

    /// Red if the fields of a run do not stand beside the band, where readers of one run look for them.
    #[test]
    fn as_json_a_point_has_the_fields_of_a_run() {
        let json = |by_bounds| serde_json::to_value(Point::of_runs(runs(1), by_bounds)).expect("it is JSON");
        let median = json(false);
        assert!(median["requests_per_s"].is_f64() && median["band"]["runs"] == 1, "{median}");
        let ends = json(true);
        assert!(ends["threads"] == 8 && ends["requests_per_s"].is_null(), "{ends}");
        assert_eq!(ends["lowest"], ends["highest"]);
    }
}
