//! Whether a device is faster at first than later, as a volume with saved credit is.

use blkmq_workbench::bench::Sample;
use serde::Serialize;

/// The least ratio of the early rate to the later one that counts as a burst.
const FASTER: f64 = 1.15;

/// What a device did at its full depth from the first moment on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Early {
    /// How long that was watched, in nanoseconds.
    pub(super) watched_ns: u64,
    /// Operations a second at the end.
    pub(super) later_iops: f64,
    /// What it did faster before that.
    pub(super) burst: Option<Burst>,
}

/// A time in which a device is faster than later.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Burst {
    /// How long it lasted, to a tenth of a second.
    pub(super) ns: u64,
    pub(super) iops: f64,
    /// What was done beyond the later rate: the credit.
    pub(super) credit_ios: f64,
    pub(super) credit_bytes: f64,
}

impl Early {
    /// What the slices of a run say. `None` if it was too short.
    pub(super) fn of(samples: &[Sample]) -> Option<Self> {
        let longest = samples.iter().map(|sample| sample.ns).max()?;
        let slices: Vec<&Sample> = samples.iter().filter(|sample| sample.ns > longest / 2).collect();
        let watched_ns = slices.iter().map(|slice| slice.ns).sum();
        // A burst that does not end within two thirds of the run cannot be told from the device's rate.
        let most = slices.len() * 2 / 3;
        let split = (1..=most).min_by(|a, b| spread(&slices, *a).total_cmp(&spread(&slices, *b)));
        let whole = Self { watched_ns, later_iops: iops(&slices), burst: None };
        let Some((early, later)) = split.map(|at| slices.split_at(at)) else { return Some(whole) };
        // A device without credit may be slow for a while too: because it collects garbage, or because the machine does
        // other things. Such a device is as fast as at first now and then. A device whose credit is gone never is.
        let best = later.iter().map(|slice| slice.iops()).fold(0.0, f64::max);
        if iops(early) < FASTER * best {
            return Some(whole);
        }
        let ns: u64 = early.iter().map(|slice| slice.ns).sum();
        let ios: u64 = early.iter().map(|slice| slice.ios).sum();
        let bytes: u64 = early.iter().map(|slice| slice.bytes).sum();
        let seconds = ns as f64 / 1e9;
        let later_iops = iops(later);
        let size = bytes as f64 / ios.max(1) as f64;
        let credit_ios = ios as f64 - later_iops * seconds;
        let burst = Burst { ns, iops: iops(early), credit_ios, credit_bytes: credit_ios * size };
        Some(Self { watched_ns, later_iops, burst: Some(burst) })
    }
}

/// Operations a second over these slices.
fn iops(slices: &[&Sample]) -> f64 {
    let (ios, ns) = slices.iter().fold((0, 0), |(ios, ns), slice| (ios + slice.ios, ns + slice.ns));
    if ns == 0 { 0.0 } else { ios as f64 * 1e9 / ns as f64 }
}

/// How far rates are from the two means before and after a place: the sum of squares.
fn spread(slices: &[&Sample], at: usize) -> f64 {
    let (early, later) = slices.split_at(at);
    let squares = |part: &[&Sample]| {
        let mean = part.iter().map(|slice| slice.iops()).sum::<f64>() / part.len().max(1) as f64;
        part.iter().map(|slice| (slice.iops() - mean).powi(2)).sum::<f64>()
    };
    squares(early) + squares(later)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: u64 = 100_000_000;

    fn samples(ios: impl IntoIterator<Item = u64>) -> Vec<Sample> {
        let slice = |(at, ios): (u64, u64)| Sample { end_ns: (at + 1) * SLICE, ns: SLICE, ios, bytes: ios * 4096 };
        (0..).zip(ios).map(slice).collect()
    }

    /// Red if the length, the rates or the credit of a burst are wrong.
    #[test]
    fn a_burst_has_its_length_and_its_credit() {
        let early = Early::of(&samples((0..40).map(|at| if at < 12 { 1000 } else { 400 }))).expect("slices");
        assert_eq!((early.watched_ns, early.later_iops), (40 * SLICE, 4000.0));
        let burst = early.burst.expect("there is one");
        assert_eq!((burst.ns, burst.iops), (12 * SLICE, 10_000.0));
        assert!((burst.credit_ios - 7200.0).abs() < 1e-6, "{burst:?}");
        assert!((burst.credit_bytes - 7200.0 * 4096.0).abs() < 1.0, "{burst:?}");
    }

    /// Red if noise, a collection of garbage, a device that becomes faster, or a short last slice counts as a burst.
    #[test]
    fn what_comes_and_goes_is_no_burst() {
        let none = |ios: Vec<u64>| Early::of(&samples(ios)).expect("slices").burst.is_none();
        assert!(none(vec![1000; 30]));
        assert!(none((0..30).map(|at| 1000 + at * 37 % 100).collect()));
        assert!(none((0..30).map(|at| if at > 3 && at % 4 == 0 { 300 } else { 1000 }).collect()), "garbage");
        assert!(none((0..30).map(|at| 500 + at * 10).collect()), "it becomes faster");
        assert!(none(vec![1000]));
        assert_eq!(Early::of(&[]), None);
        let mut short = samples(vec![1000; 9]);
        short.push(Sample { end_ns: 9 * SLICE + 1, ns: 1, ios: 0, bytes: 0 });
        assert_eq!(Early::of(&short).expect("slices").burst, None);
    }
}
