//! When kyber's depths change, and to what: against a naive model, and at the bound of congestion, which that model
//! seldom meets.

use blkmq_sched::{Latency, NewDepths, SchedDomain, Sums, Throttle, Time};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

/// Latencies in buckets: within the target, and over it.
const GOOD: usize = 3;
const BAD: usize = 4;

const NOTHING: NewDepths = [None; 4];

/// A throttle with the counts of one device.
#[derive(Debug, Default)]
struct Rig {
    throttle: Throttle,
    sums: Sums,
    now: u64,
}

impl Rig {
    /// `number` completions with this latency of both kinds.
    fn complete(&mut self, of: SchedDomain, number: u64, bucket: usize) {
        self.count(of, Latency::Total, number, bucket);
        self.count(of, Latency::Io, number, bucket);
    }

    fn count(&mut self, of: SchedDomain, latency: Latency, number: u64, bucket: usize) {
        (0..number).for_each(|_| self.sums.add(of, latency, bucket));
    }

    /// Folds 100 ms on.
    fn fold(&mut self) -> NewDepths {
        self.now += 100 * MS;
        self.throttle.fold(&self.sums, Time(self.now))
    }

    fn depth(&self, of: SchedDomain) -> u32 {
        self.throttle.depth(of)
    }
}

#[test]
fn depths_and_targets_begin_as_linux_s_do() {
    let rig = Rig::default();
    assert_eq!(SchedDomain::ALL.map(|of| rig.depth(of)), [256, 128, 64, 16]);
    assert_eq!(SchedDomain::ALL.map(Throttle::most_tokens), [256, 128, 64, 16]);
    let targets = SchedDomain::ALL.map(|of| rig.throttle.target(of));
    assert_eq!(targets, [Some(2 * MS), Some(10 * MS), Some(5000 * MS), None]);
    assert_eq!(Throttle::next_fold(Time(7)), Time(100 * MS + 7));
}

/// Red if the percentile is another one, if its rank is rounded down, or if a bucket is off by one: 450 of 500 writes
/// within the target are nine tenths, 449 are not; and 451 of 501 are, 450 are not.
#[test]
fn congestion_is_when_less_than_nine_tenths_are_within_the_target_in_the_device() {
    for (within, all, is_congested) in [(450, 500, false), (449, 500, true), (451, 501, false), (450, 501, true)] {
        let mut rig = Rig::default();
        rig.complete(SchedDomain::Read, 500, 0);
        rig.count(SchedDomain::Write, Latency::Io, within, GOOD);
        rig.count(SchedDomain::Write, Latency::Io, all - within, BAD);
        let cut = is_congested.then_some(64);
        assert_eq!(rig.fold(), [cut, None, None, None], "{within} of {all}");
    }
}

/// Red if sums are taken for what came since the last fold, or if others of them count.
#[test]
fn a_sample_counts_once_and_others_not_at_all() {
    let mut rig = Rig::default();
    rig.complete(SchedDomain::Write, 499, 7);
    rig.count(SchedDomain::Read, Latency::Total, 499, 0);
    rig.complete(SchedDomain::Other, 5000, 7);
    (0..9).for_each(|_| assert_eq!(rig.fold(), NOTHING));
    let stale = rig.sums;
    rig.count(SchedDomain::Read, Latency::Total, 1, 0);
    rig.count(SchedDomain::Write, Latency::Io, 1, 7);
    assert_eq!(rig.fold()[0], Some(64));
    rig.sums = stale;
    assert_eq!(rig.fold(), NOTHING);
    rig.count(SchedDomain::Read, Latency::Total, 1, 0);
    rig.count(SchedDomain::Write, Latency::Io, 1, 7);
    assert_eq!(rig.fold(), NOTHING, "sums that lag behind are no new samples once they have caught up");
}

#[test]
fn pools_are_shown_under_linux_s_names() {
    let mut rig = Rig::default();
    rig.complete(SchedDomain::Write, 500, 7);
    rig.count(SchedDomain::Read, Latency::Total, 500, 0);
    assert_eq!(rig.fold()[0], Some(64));
    let mut shown = String::new();
    rig.throttle.show([70, 1, 0, 2], &mut shown).unwrap();
    let expected = "read_tokens: depth=64 busy=70\nwrite_tokens: depth=128 busy=1\ndiscard_tokens: depth=64 busy=0\n\
                    other_tokens: depth=16 busy=2\n";
    assert_eq!(shown, expected);
}

/// A throttle that keeps every sample, and sorts them to find a percentile.
struct Naive {
    samples: [[Vec<usize>; 2]; 3],
    since: [Option<u64>; 3],
    remembered: [Option<usize>; 3],
    depths: [u64; 3],
}

impl Naive {
    fn new() -> Self {
        Self { samples: Default::default(), since: [None; 3], remembered: [None; 3], depths: [256, 128, 64] }
    }

    fn percentile(&mut self, of: usize, latency: Latency, percent: f64, now: u64) -> Option<usize> {
        let samples = &mut self.samples[of][latency.index()];
        if samples.is_empty() {
            return None;
        }
        let since = *self.since[of].get_or_insert(now);
        if samples.len() < 500 && now - since < 1000 * MS {
            return None;
        }
        self.since[of] = None;
        let mut sorted = std::mem::take(samples);
        sorted.sort_unstable();
        Some(sorted[(sorted.len() as f64 * percent / 100.0).ceil() as usize - 1])
    }

    fn fold(&mut self, now: u64) -> NewDepths {
        let in_device: Vec<_> = (0..3).map(|of| self.percentile(of, Latency::Io, 90.0, now)).collect();
        let is_congested = in_device.into_iter().flatten().any(|bucket| bucket > 3);
        let mut changed = NOTHING;
        for of in 0..3 {
            let found = self.percentile(of, Latency::Total, 99.0, now);
            let used = match (is_congested, found) {
                (true, found) => {
                    let used = found.or(self.remembered[of]);
                    self.remembered[of] = None;
                    used
                }
                (false, Some(bucket)) => {
                    self.remembered[of] = Some(bucket);
                    (bucket > 3).then_some(bucket)
                }
                (false, None) => None,
            };
            let Some(bucket) = used else { continue };
            let depth = (self.depths[of] * (bucket as u64 + 1) / 4).clamp(1, [256, 128, 64][of]);
            if depth != self.depths[of] {
                self.depths[of] = depth;
                changed[of] = Some(depth as u32);
            }
        }
        changed
    }
}

#[derive(Debug, Clone)]
struct Completions {
    of: usize,
    latency: usize,
    number: u64,
    bucket: usize,
}

fn completions() -> impl Strategy<Value = Completions> {
    let number = prop_oneof![1..40_u64, 480..520_u64];
    (0..3_usize, 0..2_usize, number, 0..8_usize).prop_map(|(of, latency, number, bucket)| Completions {
        of,
        latency,
        number,
        bucket,
    })
}

proptest! {
    #[test]
    fn depths_are_those_of_a_throttle_that_keeps_every_sample(
        folds in prop::collection::vec((prop::collection::vec(completions(), 0..6), 1..600_u64), 1..60)
    ) {
        let (mut rig, mut naive) = (Rig::default(), Naive::new());
        let mut now = 0;
        for (completed, pause_ms) in folds {
            for Completions { of, latency, number, bucket } in completed {
                rig.count(SchedDomain::ALL[of], Latency::ALL[latency], number, bucket);
                naive.samples[of][latency].extend((0..number).map(|_| bucket));
            }
            now += pause_ms * MS;
            prop_assert_eq!(rig.throttle.fold(&rig.sums, Time(now)), naive.fold(now));
        }
    }

    #[test]
    fn a_bucket_is_what_division_gives(target in any::<u64>(), latency in any::<u64>(), shift in 0..64_u32) {
        let (target, latency) = (target >> shift, latency >> shift);
        let expected = (latency.saturating_sub(1) / (target / 4).max(1)).min(7);
        prop_assert_eq!(Throttle::bucket(target, latency) as u64, expected);
    }
}
