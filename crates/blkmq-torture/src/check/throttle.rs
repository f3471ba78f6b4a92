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
use blkmq_virtual::Limits;

use super::super::event::{Control as Changing, Event, Phase, Stamp, Times};
use super::book::Book;
use super::lent::{Lent, NR_KINDS};
use super::parts::parts;
use super::{Checker, Facts, Violation};

const RULE: &str = "throttle";

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
    limits: Limits,
    lent: Lent,
    naive: Naive,
    /// By kind.
    known: [Known; NR_MEASURED],
    /// The requests that are over and whose operation was not reaped yet.
    over: BTreeMap<RqId, SchedDomain>,
    /// How many parts each operation has.
    operations: Book<usize>,
}

impl Throttle {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            limits: facts.limits,
            lent: Lent::new(facts.limits),
            naive: Naive::new(),
            known: Self::nothing_known(),
            over: BTreeMap::new(),
            operations: Book::new(),
        }
    }

    fn nothing_known() -> [Known; NR_MEASURED] {
        SchedDomain::MEASURED.map(|of| Known::of(&Control::default(), of))
    }

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
    fn reaped(&mut self, rq: RqId, bio: u64, times: Times) {
        let nr_parts = self.operations.end(bio);
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

    fn adjusted(&mut self, sums: &Sums, now: Time, depths: NewDepths) -> Result<(), Violation> {
        let of_naive = self.naive.fold(sums, now);
        if depths != of_naive {
            let what = format!("the depths became {depths:?}, and by the rules they are {of_naive:?}; seen: {sums:?}");
            return Err(Violation::new(RULE, what));
        }
        if !self.lent.is_watched() {
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
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Throttled => (self.naive, self.known) = (Naive::new(), Self::nothing_known()),
            Event::Installed { .. } => self.over.clear(),
            Event::Adjusted { sums, now, depths } => self.adjusted(sums, now, depths)?,
            Event::Submitted { bio, asked, pieces, .. } => {
                self.operations.begin(bio, parts(&self.limits, &asked, pieces).map_or(0, |parts| parts as usize));
            }
            Event::Reaped { bio, id, times, .. } => self.reaped(id, bio, times),
            Event::Rejected { bio, .. } | Event::HandedBack { bio, .. } => _ = self.operations.end(bio),
            Event::Changed { control: Changing::Knob(name, value), phase } => self.changed(name, value, phase),
            Event::Idle { .. } => {
                self.known.iter_mut().for_each(Known::settle);
                // What is reaped later is not known any more.
                self.over.clear();
            }
            _ => {}
        }
        let held = if let Event::Acted { rq, .. } = *event { self.lent.held_by(rq).map(|of| (rq, of)) } else { None };
        self.lent.see(event);
        if let Some((rq, of)) = held.filter(|(rq, _)| self.lent.held_by(*rq).is_none()) {
            self.over(rq, of);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Op;
    use blkmq_virtual::Status;

    use super::super::super::event::DeviceState;
    use super::super::testing::*;
    use super::*;

    const IDLE: Event<'static> = Event::Idle { until: None, device: DeviceState { held: 0, hung: 0, next_due: None } };

    /// kyber is in place; a read should take 8 us.
    fn told() -> Told<Throttle> {
        let mut told = Told::new(Throttle::new(&FACTS));
        told.good(Event::Throttled).good(Event::Installed { scheduler: Some("kyber") });
        set_target(&mut told, 8000);
        told.good(IDLE);
        told
    }

    fn set_target(told: &mut Told<Throttle>, ns: i64) {
        let knob = Changing::Knob("read_lat_nsec", ns);
        told.good(changed(knob, Phase::Begun)).good(changed(knob, Phase::Done));
    }

    const fn rq(slot: u64) -> RqId {
        id(1, slot, 0)
    }

    /// A read is over in the device, and its operation is not reaped yet.
    fn read(told: &mut Told<Throttle>, slot: u64) {
        told.good(submitted(1 + slot, asked(Op::Read, 8 * slot, 8)));
        told.good(offered(rq(slot), Op::Read, 8 * slot, 8, &[])).good(completed(rq(slot), Status::Ok));
    }

    /// The operation took this many ns, and 1000 ns less in the device.
    fn reap(told: &mut Told<Throttle>, slot: u64, ns: u64) {
        let times = Times { submitted: Time(1000), issued: Time(2000), completed: Time(1000 + ns) };
        let (submitter, bio, status) = (1, 1 + slot, Status::Ok);
        told.good(Event::Reaped { submitter, bio, id: rq(slot), status, times, data: &[] });
    }

    /// So many reads in these buckets of the total latency and of that of the device.
    fn sums(reads: &[(usize, usize, u64)]) -> Sums {
        let mut sums = Sums::default();
        for &(total, io, number) in reads {
            for _ in 0..number {
                sums.add(SchedDomain::Read, Latency::Total, total);
                sums.add(SchedDomain::Read, Latency::Io, io);
            }
        }
        sums
    }

    const fn adjusted(sums: &Sums) -> Event<'_> {
        Event::Adjusted { sums, now: Time(0), depths: [None; NR_KINDS] }
    }

    #[test]
    fn a_bucket_is_a_quarter_of_the_target_and_holds_its_end() {
        let buckets = [(8, 0), (8, 2), (8, 3), (8, 8), (8, 9), (8, 1000), (0, 0), (0, 3), (7, 2)];
        assert_eq!(buckets.map(|(target, latency)| bucket(target, latency)), [0, 0, 1, 3, 4, 7, 0, 2, 1]);
        for (target, latency) in (0..40).flat_map(|target| (0..100).map(move |latency| (target, latency))) {
            assert_eq!(bucket(target, latency), Control::bucket(target, latency), "{target}, {latency}");
        }
    }

    #[test]
    fn the_control_sees_each_request_once_and_in_its_buckets() {
        let of_one = |seen: &Sums| {
            let mut told = told();
            read(&mut told, 0);
            reap(&mut told, 0, 3000);
            told.good(IDLE);
            told.tell(adjusted(seen)).map_err(|violation| violation.what)
        };
        assert_eq!(of_one(&sums(&[(1, 0, 1)])), Ok(()));
        for (wrong, says) in [
            (sums(&[]), "sees 0 in bucket 1, and the history has 1 to 1"),
            (sums(&[(1, 0, 2)]), "sees 2 in bucket 1, and the history has 1 to 1"),
            (sums(&[(0, 0, 1)]), "of the Total latencies of read requests, the control sees 1 in bucket 0"),
            (sums(&[(1, 1, 1)]), "of the Io latencies of read requests, the control sees 0 in bucket 0"),
        ] {
            let what = of_one(&wrong).expect_err("the control sees something else");
            assert!(what.contains(says), "{what}");
        }
    }

    #[test]
    fn what_is_not_known_may_be_in_any_bucket() {
        // Not reaped before every CPU slept.
        let mut late = told();
        read(&mut late, 0);
        late.good(IDLE);
        reap(&mut late, 0, 3000);
        late.good(adjusted(&sums(&[(5, 5, 1)]))).bad(adjusted(&sums(&[(5, 5, 2)])), "sees 2 in bucket 5");
        late.bad(adjusted(&Sums::default()), "sees 0, and the history has 1 to 1");
        // The CPU that completed the request may not have counted it yet.
        let mut recent = told();
        read(&mut recent, 0);
        reap(&mut recent, 0, 3000);
        recent.good(adjusted(&Sums::default())).good(adjusted(&sums(&[(1, 0, 1)])));
        recent.bad(adjusted(&sums(&[(2, 0, 1)])), "sees 1 in bucket 2");
        // The target changes meanwhile.
        set_target(&mut recent, 80_000);
        recent.good(adjusted(&sums(&[(2, 0, 1)])));
    }

    #[test]
    fn the_depths_follow_from_the_samples() {
        // Without a scheduler in place only the decisions are judged.
        let fold = |sums: &Sums, ms: u64, depths| {
            let mut told = Told::new(Throttle::new(&FACTS));
            told.good(Event::Throttled).tell(Event::Adjusted { sums, now: Time(ms * MS), depths })
        };
        let fewer = [Some(128), None, None, None];
        // Of 500 reads 1 in 10 is too slow in the device: not more than a tenth.
        let fine = sums(&[(1, 0, 450), (1, 4, 50)]);
        assert_eq!(fold(&fine, 0, [None; NR_KINDS]), Ok(()));
        assert!(fold(&fine, 0, fewer).unwrap_err().what.contains("by the rules they are [None, None, None, None]"));
        let congested = sums(&[(1, 0, 449), (1, 4, 51)]);
        assert_eq!(fold(&congested, 0, fewer), Ok(()));
        assert!(
            fold(&congested, 0, [None; NR_KINDS]).is_err()
                && fold(&congested, 0, [Some(64), None, None, None]).is_err()
        );
        // Fewer samples wait for a second. Both latencies wait in turn, and so here the depth stays.
        let mut few = Told::new(Throttle::new(&FACTS));
        let (first, both) = (sums(&[(1, 4, 499)]), sums(&[(1, 4, 999)]));
        let adjusted = |sums, ms: u64, depths| Event::Adjusted { sums, now: Time(ms * MS), depths };
        few.good(Event::Throttled).good(adjusted(&first, 100, [None; NR_KINDS]));
        few.good(adjusted(&first, 1099, [None; NR_KINDS])).good(adjusted(&first, 1100, [None; NR_KINDS]));
        few.good(adjusted(&both, 1500, fewer)).bad(adjusted(&both, 5000, fewer), "by the rules they are [None");
    }
}
