//! How many requests of each kind a device may have at once, decided from latencies: the part of `kyber` that all
//! hardware queues of a device share.
//!
//! A completion is measured twice: from the allocation of its request, and from its issue to the device. Both are
//! counted in buckets that are a quarter of the kind's target wide. From time to time the counts are folded. If, of any
//! kind, more than a tenth of the requests were over the target inside the device, the device is congested. Then every
//! kind gets a depth by the latency of its slowest hundredth: a kind far below its target gets fewer tokens, and a kind
//! over its target more. Without congestion only a kind over its target gets more.
//!
//! The embedder counts, and says when to fold. This value keeps what it saw last.

use core::fmt;

use crate::knob::{checked, ns, set_defaults};
use crate::{Knob, KnobError, SchedDomain, Time};

/// Buckets of latencies.
pub(crate) const NR_BUCKETS: usize = 8;

/// Buckets within the target.
const GOOD_BUCKETS: usize = 4;

/// How many tokens of each kind there are at most, by [`SchedDomain::index`].
const MOST_TOKENS: [u32; 4] = [256, 128, 64, 16];

/// The targets that no knob sets, in nanoseconds: that of discards.
const DISCARD_TARGET_NS: u64 = 5_000_000_000;

/// A percentile is taken of so many samples, or of fewer after [`LONGEST_WAIT_NS`].
const ENOUGH_SAMPLES: u64 = 500;

/// How long too few samples are waited for.
const LONGEST_WAIT_NS: u64 = 1_000_000_000;

/// From the first completion to the fold.
const FOLD_NS: u64 = 100_000_000;

/// The knobs, in the order of the kernel's sysfs folder.
pub(crate) const KNOBS: &[Knob] = &[
    ns("read_lat_nsec", 2_000_000, "How long a read should take at most, from its allocation to its completion."),
    ns("write_lat_nsec", 10_000_000, "How long a write should take at most, from its allocation to its completion."),
];

/// What is measured of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Latency {
    /// From the allocation of the request to its completion.
    Total,
    /// From the issue to the device to the completion.
    Io,
}

impl Latency {
    /// Both; a latency's place is its [`index`](Self::index).
    pub const ALL: [Self; 2] = [Self::Total, Self::Io];

    /// 0 for the total latency, 1 for that of the device.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

type Buckets = [u64; NR_BUCKETS];

/// Completions since ever: how many of each kind fell into which bucket. No count ever falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Sums {
    /// By the index of the [`SchedDomain`] (of those that are [measured](SchedDomain::MEASURED)), by that of the
    /// [`Latency`], and by [bucket](Throttle::bucket).
    pub counts: [[Buckets; 2]; 3],
}

impl Sums {
    /// Adds one completion. Those of a kind that is not measured do not count.
    pub fn add(&mut self, of: SchedDomain, latency: Latency, bucket: usize) {
        debug_assert!(bucket < NR_BUCKETS, "there are {NR_BUCKETS} buckets");
        if let Some(kind) = self.counts.get_mut(of.index()) {
            kind[latency.index()][bucket] += 1;
        }
    }
}

/// Depths that changed, by [`SchedDomain::index`].
pub type NewDepths = [Option<u32>; 4];

/// What is told of each fold: what has completed since ever, the time of the fold, and what it changes. Linux tells the
/// same by a trace point.
pub type FoldObserver = fn(&Sums, Time, NewDepths);

/// The control of a device's tokens. There is one for each device.
#[derive(Debug, Clone)]
pub struct Throttle {
    /// In nanoseconds, of the kinds that are measured.
    targets: [u64; 3],
    depths: [u32; 4],
    /// What the last fold saw.
    folded: Sums,
    /// What came since the last time that a percentile was taken of it.
    fresh: Sums,
    /// When a percentile of the kind is taken however few samples there are. Both latencies share it, as in Linux.
    due: [Option<Time>; 3],
    /// The bucket of the slowest hundredth that was found while there was no congestion, until congestion uses it.
    remembered: [Option<usize>; 3],
    observer: Option<FoldObserver>,
}

impl Default for Throttle {
    fn default() -> Self {
        let mut throttle = Self {
            targets: [0, 0, DISCARD_TARGET_NS],
            depths: MOST_TOKENS,
            folded: Sums::default(),
            fresh: Sums::default(),
            due: [None; 3],
            remembered: [None; 3],
            observer: None,
        };
        set_defaults(KNOBS, |name, value| throttle.set_knob(name, value));
        throttle
    }
}

impl Throttle {
    /// How many buckets there are.
    pub const BUCKETS: usize = NR_BUCKETS;

    /// The largest depth of a pool. A pool has at least one token.
    #[must_use]
    pub const fn most_tokens(of: SchedDomain) -> u32 {
        MOST_TOKENS[of.index()]
    }

    /// The depth of a pool.
    #[must_use]
    pub const fn depth(&self, of: SchedDomain) -> u32 {
        self.depths[of.index()]
    }

    /// The latency that a kind should keep to, in nanoseconds; `None` for a kind that is not measured.
    #[must_use]
    pub fn target(&self, of: SchedDomain) -> Option<u64> {
        self.targets.get(of.index()).copied()
    }

    /// The bucket of a latency, both in nanoseconds, from 0 to 7. Each bucket is a quarter of the target wide, and
    /// holds its upper end: bucket 3 ends with the target. The last one holds all that is longer too.
    ///
    /// COST: seven comparisons, no division.
    #[inline]
    #[must_use]
    pub fn bucket(target_ns: u64, latency_ns: u64) -> usize {
        let width = (target_ns / GOOD_BUCKETS as u64).max(1);
        (1..NR_BUCKETS as u64).filter(|number| latency_ns > width.saturating_mul(*number)).count()
    }

    /// When to fold, if `now` is the first completion since the last fold.
    #[must_use]
    pub const fn next_fold(now: Time) -> Time {
        now.after(FOLD_NS)
    }

    /// Looks at what completed since the last fold. Returns the depths that are other ones from now on.
    #[must_use = "the pools must get these depths"]
    pub fn fold(&mut self, sums: &Sums, now: Time) -> NewDepths {
        self.take_fresh(sums);
        let mut is_congested = false;
        for of in SchedDomain::MEASURED {
            let slow = self.percentile(of, Latency::Io, 90, now);
            is_congested |= slow.is_some_and(|bucket| bucket >= GOOD_BUCKETS);
        }
        let mut changed = NewDepths::default();
        for of in SchedDomain::MEASURED {
            let found = self.percentile(of, Latency::Total, 99, now);
            changed[of.index()] = self.adjust(of, found, is_congested);
        }
        if let Some(observer) = self.observer {
            observer(sums, now, changed);
        }
        changed
    }

    /// From now on `observer` is told of each [`fold`](Self::fold), before the caller learns the new depths.
    pub const fn set_observer(&mut self, observer: FoldObserver) {
        self.observer = Some(observer);
    }

    fn take_fresh(&mut self, sums: &Sums) {
        let sums = sums.counts.as_flattened().as_flattened().iter();
        let folded = self.folded.counts.as_flattened_mut().as_flattened_mut().iter_mut();
        let fresh = self.fresh.counts.as_flattened_mut().as_flattened_mut().iter_mut();
        for ((sum, folded), fresh) in sums.zip(folded).zip(fresh) {
            *fresh += sum.saturating_sub(*folded);
            *folded = (*folded).max(*sum);
        }
    }

    /// The bucket in which the slowest of `percent` of the samples lies; `None` while there are too few samples. Counts
    /// anew from then on.
    fn percentile(&mut self, of: SchedDomain, latency: Latency, percent: u64, now: Time) -> Option<usize> {
        debug_assert!(percent <= 100, "no more than all samples are within a bucket");
        let buckets = &mut self.fresh.counts[of.index()][latency.index()];
        let samples: u64 = buckets.iter().sum();
        if samples == 0 {
            return None;
        }
        let due = *self.due[of.index()].get_or_insert(now.after(LONGEST_WAIT_NS));
        if samples < ENOUGH_SAMPLES && now < due {
            return None;
        }
        self.due[of.index()] = None;
        let rank = (u128::from(samples) * u128::from(percent)).div_ceil(100) as u64;
        let mut within = 0;
        let found = buckets[..NR_BUCKETS - 1].iter().position(|count| {
            within += count;
            within >= rank
        });
        *buckets = Buckets::default();
        Some(found.unwrap_or(NR_BUCKETS - 1))
    }

    /// The new depth of a pool, if it is another one. `found` is the bucket of the slowest hundredth, if there were
    /// enough samples this time.
    fn adjust(&mut self, of: SchedDomain, found: Option<usize>, is_congested: bool) -> Option<u32> {
        debug_assert!(found.is_none_or(|bucket| bucket < NR_BUCKETS), "there are {NR_BUCKETS} buckets");
        let remembered = &mut self.remembered[of.index()];
        let bucket = if is_congested {
            // What was used once is not used again: the depth would fall twice for one reason.
            let earlier = remembered.take();
            found.or(earlier)?
        } else {
            *remembered = found.or(*remembered);
            found.filter(|bucket| *bucket >= GOOD_BUCKETS)?
        };
        let depth = &mut self.depths[of.index()];
        let scaled = *depth * (bucket as u32 + 1) / GOOD_BUCKETS as u32;
        let before = core::mem::replace(depth, scaled.clamp(1, Self::most_tokens(of)));
        (*depth != before).then_some(*depth)
    }

    /// The knobs, in the kernel's order.
    #[must_use]
    pub const fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    /// A knob's value; `None` if there is no such knob.
    #[must_use]
    pub fn knob(&self, name: &str) -> Option<i64> {
        let target = self.targets[knob_of(name)?.index()];
        Some(i64::try_from(target).unwrap_or(i64::MAX))
    }

    /// Sets a knob. What was counted before stays as it was counted.
    ///
    /// # Errors
    /// The name is unknown or the value out of range; nothing has changed then.
    pub fn set_knob(&mut self, name: &str, value: i64) -> Result<(), KnobError> {
        let value = checked(KNOBS, name, value)?;
        let of = knob_of(name).ok_or(KnobError::Unknown)?;
        self.targets[of.index()] = value.unsigned_abs();
        Ok(())
    }

    /// Writes the pools in readable form, as debugfs does; `out_now` is how many tokens of each kind are out.
    ///
    /// # Errors
    /// Only those of `out`.
    pub fn show(&self, out_now: [u32; 4], out: &mut dyn fmt::Write) -> fmt::Result {
        for (of, busy) in SchedDomain::ALL.into_iter().zip(out_now) {
            writeln!(out, "{}_tokens: depth={} busy={busy}", of.name(), self.depth(of))?;
        }
        Ok(())
    }
}

/// The kind whose target a knob sets.
fn knob_of(name: &str) -> Option<SchedDomain> {
    match name {
        "read_lat_nsec" => Some(SchedDomain::Read),
        "write_lat_nsec" => Some(SchedDomain::Write),
        _ => None,
    }
}
