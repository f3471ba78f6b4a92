//! The depths of the tokens are decided as kyber's rules say, from the latencies that the requests had.
//!
//! What the control sees is judged against the history. All requests with tokens that were over when every CPU slept
//! are counted, each once, with its kind and in the buckets of both of its latencies. Nothing else is counted. The
//! buckets of a request are known when its operation is reaped, which tells the times, unless the request is a part of
//! an operation or a target was changed meanwhile.
//!
//! What the control decides is worked out anew from what it sees, each time from the list of all samples.

use std::collections::BTreeMap;

use blkmq_sched::{Latency, NewDepths, RqId, SchedDomain, Sums, Throttle as Control, Time};

use super::super::event::{Control as Changing, Event, Phase, Stamp, Times};
use super::depth_tokens::NR_KINDS;
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "throttle";

const MS: u64 = 1_000_000;

/// Kinds whose latencies are measured.
const NR_MEASURED: usize = SchedDomain::MEASURED.len();

/// The first bucket above the target.
const FIRST_BAD: usize = 4;

type Buckets = [u64; Control::BUCKETS];

/// How many quarters of the target a latency has more than filled, seven at most. A quarter is a whole number of ns.
fn bucket(target_ns: u64, latency_ns: u64) -> usize {
    let quarter = (target_ns / 4).max(1);
    let more_than_filled = latency_ns.saturating_sub(1) / quarter;
    (more_than_filled as usize).min(Control::BUCKETS - 1)
}

/// The control of the depths once more, without regard to what it costs.
#[derive(Debug)]
struct Naive {
    depths: [u32; NR_KINDS],
    seen: Sums,
    /// The buckets of all samples of a kind and a latency since they were last used.
    samples: [[Vec<usize>; 2]; NR_MEASURED],
    /// When few samples are enough.
    due: [Option<Time>; NR_MEASURED],
    kept: [Option<usize>; NR_MEASURED],
}

impl Naive {
    fn new() -> Self {
        Self {
            depths: SchedDomain::ALL.map(Control::most_tokens),
            seen: Sums::default(),
            samples: Default::default(),
            due: [None; NR_MEASURED],
            kept: [None; NR_MEASURED],
        }
    }

    fn take_in(&mut self, sums: &Sums) {
        for kind in 0..NR_MEASURED {
            for latency in 0..2 {
                for bucket in 0..Control::BUCKETS {
                    let (new, seen) =
                        (sums.counts[kind][latency][bucket], &mut self.seen.counts[kind][latency][bucket]);
                    let more = new.saturating_sub(*seen);
                    self.samples[kind][latency].extend((0..more).map(|_| bucket));
                    *seen = new.max(*seen);
                }
            }
        }
    }

    /// The bucket of the slowest sample among the fastest `percent` of them. There must be 500 samples, or the first
    /// look at some of them must be a second ago.
    fn percentile(&mut self, kind: usize, latency: Latency, percent: usize, now: Time) -> Option<usize> {
        let samples = &mut self.samples[kind][latency.index()];
        if samples.is_empty() {
            return None;
        }
        let due = *self.due[kind].get_or_insert(now.after(1000 * MS));
        if samples.len() < 500 && now < due {
            return None;
        }
        self.due[kind] = None;
        samples.sort_unstable();
        let last = (samples.len() * percent).div_ceil(100) - 1;
        let found = samples[last];
        samples.clear();
        Some(found)
    }

    fn fold(&mut self, sums: &Sums, now: Time) -> NewDepths {
        self.take_in(sums);
        let mut is_congested = false;
        for kind in 0..NR_MEASURED {
            is_congested |= self.percentile(kind, Latency::Io, 90, now).is_some_and(|found| found >= FIRST_BAD);
        }
        let mut changed = NewDepths::default();
        for (kind, changed) in changed.iter_mut().take(NR_MEASURED).enumerate() {
            let found = self.percentile(kind, Latency::Total, 99, now);
            let used = if is_congested {
                let kept = self.kept[kind].take();
                found.or(kept)
            } else {
                self.kept[kind] = found.or(self.kept[kind]);
                found.filter(|found| *found >= FIRST_BAD)
            };
            if let Some(used) = used {
                let most = Control::most_tokens(SchedDomain::ALL[kind]);
                let depth = (self.depths[kind] * (used as u32 + 1) / 4).clamp(1, most);
                *changed = (depth != self.depths[kind]).then_some(depth);
                self.depths[kind] = depth;
            }
        }
        changed
    }
}

/// What is known of the completions of a kind.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// In ns.
    target: u64,
    /// The target is being set, or was set since every CPU slept.
    is_blurred: bool,
    is_changing: bool,
    /// Completions by latency and bucket: those that were over when every CPU slept, and those since then.
    counted: [Buckets; 2],
    recent: [Buckets; 2],
    /// Completions whose buckets are not known: those that were over when every CPU slept, and those since then.
    unknown: u64,
    recent_unknown: u64,
}

impl Known {
    fn of(throttle: &Control, of: SchedDomain) -> Self {
        Self { target: throttle.target(of).expect("the kind is measured"), ..Self::default() }
    }

    /// From here on the buckets of what was over since every CPU slept are not known.
    fn blur(&mut self) {
        self.is_blurred = true;
        self.recent_unknown += std::mem::take(&mut self.recent)[0].iter().sum::<u64>();
    }

    /// Every CPU sleeps, so all that is over has been counted.
    fn settle(&mut self) {
        for (counted, recent) in self.counted.iter_mut().zip(&mut self.recent) {
            counted.iter_mut().zip(std::mem::take(recent)).for_each(|(counted, recent)| *counted += recent);
        }
        self.unknown += std::mem::take(&mut self.recent_unknown);
        self.is_blurred = self.is_changing;
    }

    /// What is wrong with what the control sees of one latency.
    fn judge(&self, latency: usize, seen: &Buckets) -> Option<String> {
        let (counted, recent) = (&self.counted[latency], &self.recent[latency]);
        let unknown = self.unknown + self.recent_unknown;
        for (bucket, seen) in seen.iter().enumerate() {
            let (least, most) = (counted[bucket], counted[bucket] + recent[bucket] + unknown);
            if !(least..=most).contains(seen) {
                return Some(format!("{seen} in bucket {bucket}, and the history has {least} to {most}"));
            }
        }
        let seen: u64 = seen.iter().sum();
        let least = counted.iter().sum::<u64>() + self.unknown;
        let most = least + recent.iter().sum::<u64>() + self.recent_unknown;
        (!(least..=most).contains(&seen)).then(|| format!("{seen}, and the history has {least} to {most}"))
    }
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Throttle {
    naive: Naive,
    /// By kind.
    known: [Known; NR_MEASURED],
    /// The requests that are over and whose operation was not reaped yet.
    over: BTreeMap<RqId, SchedDomain>,
}

impl Default for Throttle {
    fn default() -> Self {
        let known = SchedDomain::MEASURED.map(|of| Known::of(&Control::default(), of));
        Self { naive: Naive::new(), known, over: BTreeMap::new() }
    }
}

impl Throttle {
    fn known(&mut self, of: SchedDomain) -> Option<&mut Known> {
        self.known.get_mut(of.index())
    }

    /// A request that has a token is over.
    fn over(&mut self, rq: RqId, of: SchedDomain) {
        if let Some(known) = self.known(of) {
            known.recent_unknown += 1;
            self.over.insert(rq, of);
        }
    }

    /// The times of a request are known.
    fn reaped(&mut self, rq: RqId, nr_parts: Option<u64>, times: Times) {
        let Some(of) = self.over.remove(&rq) else { return };
        let Some(known) = self.known.get_mut(of.index()) else { return };
        // A request that is over since every CPU slept is among the recent ones. Of others it is too late to say more.
        if nr_parts != Some(1) || known.is_blurred || known.recent_unknown == 0 {
            return;
        }
        known.recent_unknown -= 1;
        let latencies = [times.completed.since(times.submitted), times.completed.since(times.issued)];
        for (recent, latency) in known.recent.iter_mut().zip(latencies) {
            recent[bucket(known.target, latency)] += 1;
        }
    }

    fn changed(&mut self, name: &str, value: i64, phase: Phase) {
        let of = match name {
            "read_lat_nsec" => SchedDomain::Read,
            "write_lat_nsec" => SchedDomain::Write,
            _ => return,
        };
        let Some(known) = self.known(of) else { return };
        known.blur();
        known.is_changing = phase == Phase::Begun;
        if phase == Phase::Done {
            known.target = value.unsigned_abs();
        }
    }

    fn adjusted(&mut self, sums: &Sums, now: Time, depths: NewDepths, is_watched: bool) -> Verdict {
        let of_naive = self.naive.fold(sums, now);
        if depths != of_naive {
            let what = format!("the depths became {depths:?}, and by the rules they are {of_naive:?}; seen: {sums:?}");
            return Err(Violation::new(RULE, what));
        }
        if !is_watched {
            return Ok(());
        }
        for (of, known) in SchedDomain::MEASURED.into_iter().zip(&self.known) {
            for latency in Latency::ALL {
                let seen = &sums.counts[of.index()][latency.index()];
                if let Some(what) = known.judge(latency.index(), seen) {
                    let what =
                        format!("of the {latency:?} latencies of {} requests, the control sees {what}", of.name());
                    return Err(Violation::new(RULE, what));
                }
            }
        }
        Ok(())
    }
}

impl Checker for Throttle {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Throttled => *self = Self { over: std::mem::take(&mut self.over), ..Self::default() },
            Event::Installed { .. } => self.over.clear(),
            Event::Adjusted { sums, now, depths } => {
                return self.adjusted(sums, now, depths, tracker.tokens.is_watched());
            }
            Event::Reaped { bio, id, times, .. } => {
                self.reaped(id, tracker.operation(bio).map(|operation| operation.nr_parts), times);
            }
            Event::Acted { rq, .. } if tracker.ended.is_some() => {
                tracker.tokens.held_by(rq).into_iter().for_each(|of| self.over(rq, of));
            }
            Event::Changed { control: Changing::Knob(name, value), phase } => self.changed(name, value, phase),
            Event::Idle { .. } => {
                self.known.iter_mut().for_each(Known::settle);
                // What is reaped later is not known any more.
                self.over.clear();
            }
            _ => {}
        }
        Ok(())
    }
}
