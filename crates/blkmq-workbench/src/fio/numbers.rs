//! The smaller objects of fio's JSON: latencies, shares, samples.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::json::{Json, object};
use crate::bench::Latency;

/// What is reported of latencies besides the shortest, the longest and the mean.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Detail<'a> {
    /// Their percentiles.
    pub(super) percents: Option<&'a [f64]>,
    /// Whether the histogram is reported too, if percentiles are.
    pub(super) bins: bool,
}

/// Latencies in nanoseconds. As in fio, percentiles are included only if there was an operation.
pub(super) fn latencies(measured: &Latency, Detail { percents, bins }: Detail<'_>) -> Json {
    let percents = percents.filter(|_| measured.count() > 0);
    let percentile = |at: &f64| (format!("{at:.6}"), measured.percentile(*at));
    object! {
        "min": measured.min(),
        "max": measured.max(),
        "mean": measured.mean(),
        "stddev": measured.stddev(),
        "N": measured.count(),
    }
    .with("percentile", percents.map(|percents| Json::object(percents.iter().map(percentile))))
    .with("bins", percents.filter(|_| bins).map(|_| Json::object(binned(measured.histogram()))))
}

/// The number of bins of fio's histograms in each doubling of the latency.
const BINS: u64 = 64;
/// The longest latency that fio tells from longer ones, in ns. Programs that read fio's output know no bin after it.
const LONGEST: u64 = (1 << 34) - 1;

/// The bin of fio's histogram that contains a latency, by its name, which is the number in its middle.
fn bin(ns: u64) -> u64 {
    let ns = ns.min(LONGEST);
    let width = 1 << ns.checked_ilog2().unwrap_or(0).saturating_sub(BINS.ilog2());
    ns - ns % width + width / 2
}

/// A histogram in fio's bins. Each of fio's bins holds whole bins of ours.
fn binned(histogram: &Histogram<u64>) -> BTreeMap<u64, u64> {
    let mut bins = BTreeMap::new();
    for step in histogram.iter_recorded() {
        *bins.entry(bin(step.value_iterated_to())).or_default() += step.count_at_value();
    }
    bins
}

/// How many percent of `total` each name's count is.
pub(super) fn shares(names: &[&str], counts: &[u64], total: u64) -> Json {
    let percent = |count: &u64| if total == 0 { 0.0 } else { 100.0 * *count as f64 / total as f64 };
    Json::object(names.iter().zip(counts.iter().map(percent)))
}

/// Upper ends of fio's buckets of latencies; the same for nanoseconds, microseconds and milliseconds.
const ENDS: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];
const NAMES: [&str; 10] = ["2", "4", "10", "20", "50", "100", "250", "500", "750", "1000"];
const MS_NAMES: [&str; 12] = ["2", "4", "10", "20", "50", "100", "250", "500", "750", "1000", "2000", ">=2000"];

/// How many percent of the operations took how long, with buckets of nanoseconds, microseconds and milliseconds.
pub(super) fn buckets(histograms: &[&Histogram<u64>], total: u64) -> [Json; 3] {
    let mut counts = [[0; 12]; 3];
    for step in histograms.iter().flat_map(|histogram| histogram.iter_recorded()) {
        let (unit, bucket) = bucket(step.value_iterated_to());
        counts[unit][bucket] += step.count_at_value();
    }
    let [ns, us, ms] = counts;
    [shares(&NAMES, &ns, total), shares(&NAMES, &us, total), shares(&MS_NAMES, &ms, total)]
}

/// The unit (0 for ns, 1 for us, 2 for ms) and the bucket of a latency.
fn bucket(ns: u64) -> (usize, usize) {
    for (unit, scale) in [1, 1000, 1_000_000].into_iter().enumerate() {
        if let Some(bucket) = ENDS.iter().position(|end| ns < end * scale) {
            return (unit, bucket);
        }
    }
    (2, if ns < 2_000_000_000 { 10 } else { 11 })
}

/// Statistics of a series of values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Series {
    pub(super) min: u64,
    pub(super) max: u64,
    pub(super) mean: f64,
    pub(super) deviation: f64,
    pub(super) nr: u64,
}

impl Series {
    pub(super) fn new(values: &[f64]) -> Self {
        let nr = values.len();
        if nr == 0 {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / nr as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Self {
            min: values.iter().copied().fold(f64::INFINITY, f64::min) as u64,
            max: values.iter().copied().fold(0.0, f64::max) as u64,
            mean,
            deviation: if nr < 2 { 0.0 } else { (squares / (nr - 1) as f64).sqrt() },
            nr: nr as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_where_their_name_says() {
        for (ns, expected) in [
            (0, (0, 0)),
            (1, (0, 0)),
            (2, (0, 1)),
            (999, (0, 9)),
            (1000, (1, 0)),
            (1_999, (1, 0)),
            (999_999, (1, 9)),
            (1_000_000, (2, 0)),
            (1_999_999_999, (2, 10)),
            (2_000_000_000, (2, 11)),
            (u64::MAX, (2, 11)),
        ] {
            assert_eq!(bucket(ns), expected, "{ns}");
        }
    }

    /// Red if bins begin at other latencies than fio's. Each name that fio 3.33 gave in a run must be in the bin of its
    /// own name.
    #[test]
    fn bins_are_fios() {
        for name in [0, 1, 127, 129, 221, 231, 251, 262, 17_112_760_320] {
            assert_eq!(bin(name), name);
        }
        for (ns, expected) in
            [(128, 129), (129, 129), (130, 131), (260, 262), (263, 262), (264, 266), (u64::MAX, 17_112_760_320)]
        {
            assert_eq!(bin(ns), expected, "{ns}");
        }
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        (0..1 << 20).step_by(7).for_each(|ns| histogram.record(ns).unwrap());
        let mut expected = BTreeMap::new();
        (0..1 << 20).step_by(7).for_each(|ns| *expected.entry(bin(ns)).or_default() += 1);
        assert_eq!(binned(&histogram), expected, "no bin of the histogram lies in two of fio's");
    }

    #[test]
    fn a_series_of_one_has_no_deviation() {
        assert_eq!(Series::new(&[]), Series::default());
        assert_eq!(Series::new(&[3.0]), Series { min: 3, max: 3, mean: 3.0, deviation: 0.0, nr: 1 });
        let Series { mean, deviation, .. } = Series::new(&[1.0, 3.0]);
        assert_eq!((mean, deviation), (2.0, 2.0_f64.sqrt()));
    }
}
