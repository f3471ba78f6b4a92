//! kyber against a naive model, operation by operation, with pools whose depths change.
//!
//! The long run prints its seed, takes another from `BLKMQ_SEED`, and takes its length from `BLKMQ_OPERATIONS`.

use std::collections::BTreeMap;

use crate::bench::TIGHT as LIMITS;
use crate::long_run::long_run;
use blkmq_sched::{
    Class, ClientId, DispatchContext, Info, InsertAt, IoPriority, Kyber, MergeHow, MergeLevel, Op, Passing, RqId,
    SchedDomain, Scheduler, Setting, Time,
};
use proptest::prelude::*;

/// One step of a run. Numbers are taken modulo the range that makes sense.
#[derive(Debug, Clone)]
enum Step {
    Insert { info: Info, at: InsertAt },
    Merge { info: Info },
    Dispatch { times: usize },
    Complete { which: usize },
    Deepen { of: usize, depth: u32 },
}

/// The pools: how deep they are, and how many tokens are out.
#[derive(Debug, Clone, Default)]
struct Pools {
    depths: [u32; 4],
    out: [u32; 4],
    /// What was taken last, and how many were taken in the present choice.
    taken: Vec<SchedDomain>,
}

impl DispatchContext for Pools {
    fn take_token(&mut self, of: SchedDomain) -> bool {
        let is_taken = self.out[of.index()] < self.depths[of.index()];
        self.out[of.index()] += u32::from(is_taken);
        self.taken.extend(is_taken.then_some(of));
        is_taken
    }
}

/// Every request in plain vectors, each looked up by walking them.
#[derive(Debug, Default)]
struct Model {
    head: Vec<(RqId, usize)>,
    let_in: [Vec<RqId>; 4],
    outside: BTreeMap<(usize, u8), Vec<(RqId, Info)>>,
    turn: usize,
    gone_in_turn: usize,
}

impl Model {
    fn len(&self) -> usize {
        let waiting = self.let_in.iter().map(Vec::len).chain(self.outside.values().map(Vec::len));
        self.head.len() + waiting.sum::<usize>()
    }

    fn merge(&mut self, info: &Info) -> Option<(RqId, MergeHow)> {
        let most = [0, 1, 8][[MergeLevel::Never, MergeLevel::LastOnly, MergeLevel::Full]
            .iter()
            .position(|level| *level == info.merge)?];
        let list = self.outside.get_mut(&(kind(info), info.ctx))?;
        let (host, how, grown) = list.iter().enumerate().rev().take(most).find_map(|(place, (_, host))| {
            let (how, grown) = LIMITS.merged(host, info)?;
            Some((place, how, grown))
        })?;
        list[host].1 = grown;
        Some((list[host].0, how))
    }

    fn has(&self, kind: usize) -> bool {
        !self.let_in[kind].is_empty() || self.outside.iter().any(|((of, _), list)| *of == kind && !list.is_empty())
    }

    /// The next request, if `has_token` says that there is a token of its kind.
    fn dispatch(&mut self, has_token: impl Fn(usize) -> bool) -> Option<RqId> {
        if self.len() == 0 {
            return None;
        }
        if let Some(&(rq, kind)) = self.head.last() {
            return has_token(kind).then(|| {
                self.head.pop();
                rq
            });
        }
        let goes_on = self.gone_in_turn < [16, 8, 1, 1][self.turn];
        let order = goes_on.then_some((self.turn, self.gone_in_turn)).into_iter();
        let order = order.chain((1..=4).map(|step| ((self.turn + step) % 4, 0)));
        let Some((kind, gone)) = order.into_iter().find(|(kind, _)| self.has(*kind) && has_token(*kind)) else {
            self.gone_in_turn = 0;
            return None;
        };
        (self.turn, self.gone_in_turn) = (kind, gone + 1);
        if self.let_in[kind].is_empty() {
            for ((_, _), list) in self.outside.iter_mut().filter(|((of, _), _)| *of == kind) {
                self.let_in[kind].extend(list.drain(..).map(|(rq, _)| rq));
            }
        }
        Some(self.let_in[kind].remove(0))
    }
}

fn kind(info: &Info) -> usize {
    match info.op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Discard => 2,
        _ => 3,
    }
}

/// The scheduler, the model, the pools, and the device that completes what they dispatch.
struct Run {
    kyber: Kyber,
    model: Model,
    pools: Pools,
    in_device: Vec<SchedDomain>,
    next_id: u64,
    dispatched: usize,
    merged: usize,
    lacked: usize,
}

impl Run {
    fn new() -> Self {
        let mut kyber = Kyber::new();
        kyber.configure(Setting::MergeLimits(LIMITS));
        let pools = Pools { depths: [4, 3, 2, 1], ..Pools::default() };
        let (in_device, model) = (Vec::new(), Model::default());
        Self { kyber, model, pools, in_device, next_id: 0, dispatched: 0, merged: 0, lacked: 0 }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Insert { info, at } => {
                let rq = RqId(self.next_id);
                self.next_id += 1;
                self.kyber.reserve(self.kyber.len() + 1);
                self.kyber.insert(rq, &info, at, Time(0));
                match at {
                    InsertAt::Head => self.model.head.push((rq, kind(&info))),
                    InsertAt::Sorted => {
                        self.model.outside.entry((kind(&info), info.ctx)).or_default().push((rq, info));
                    }
                }
            }
            Step::Merge { info } => {
                let merge = self.kyber.merge(&info);
                assert!(merge.is_none_or(|merge| merge.joined.is_none()));
                assert_eq!(merge.map(|merge| (merge.into, merge.how)), self.model.merge(&info));
                self.merged += usize::from(merge.is_some());
            }
            Step::Dispatch { times } => (0..=times).for_each(|_| self.dispatch()),
            Step::Complete { which } if !self.in_device.is_empty() => {
                let of = self.in_device.swap_remove(which % self.in_device.len());
                self.pools.out[of.index()] -= 1;
            }
            Step::Deepen { of, depth } => self.pools.depths[of] = depth,
            Step::Complete { .. } => {}
        }
        assert_eq!(self.kyber.len(), self.model.len());
        let passing = self.kyber.may_pass(Class::Idle, ClientId::default());
        assert_eq!(passing == Passing::All, self.model.len() == 0);
    }

    fn dispatch(&mut self) {
        let Pools { depths, out, .. } = self.pools.clone();
        let expected = self.model.dispatch(|kind| out[kind] < depths[kind]);
        self.pools.taken.clear();
        let chosen = self.kyber.dispatch(&mut self.pools, Time(0));
        assert_eq!(chosen, expected);
        assert_eq!(self.pools.taken.len(), usize::from(chosen.is_some()), "a token each, and none for nothing");
        self.in_device.append(&mut self.pools.taken);
        self.dispatched += usize::from(chosen.is_some());
        self.lacked += usize::from(chosen.is_none() && self.model.len() > 0);
    }
}

fn info(shape: u64, sector: u64, nr_sectors: u64) -> Info {
    let op = match shape % 16 {
        0..7 => Op::Read,
        7..12 => Op::Write,
        12..15 => Op::Discard,
        _ => Op::WriteZeroes,
    };
    let merge = match shape / 16 % 8 {
        0 => MergeLevel::Never,
        1 => MergeLevel::LastOnly,
        _ => MergeLevel::Full,
    };
    let class = if (shape / 128).is_multiple_of(8) { Class::Idle } else { Class::BestEffort };
    Info {
        sector,
        nr_sectors: nr_sectors as u32,
        nr_segments: 1,
        op,
        sync: op == Op::Read,
        priority: IoPriority { class, level: 4 },
        ctx: [0, 0, 0, 63, 64, 255][(shape / 1024 % 6) as usize],
        merge,
        ..Info::default()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let info = || (any::<u64>(), 0..20_u64, 1..6_u64).prop_map(|(shape, sector, length)| info(shape, sector, length));
    prop_oneof![
        6 => info().prop_map(|info| Step::Insert { info, at: InsertAt::Sorted }),
        1 => info().prop_map(|info| Step::Insert { info, at: InsertAt::Head }),
        4 => info().prop_map(|info| Step::Merge { info }),
        4 => (0..20_usize).prop_map(|times| Step::Dispatch { times }),
        8 => any::<usize>().prop_map(|which| Step::Complete { which }),
        1 => (0..4_usize, 1..24_u32).prop_map(|(of, depth)| Step::Deepen { of, depth }),
    ]
}

proptest! {
    #[test]
    fn every_choice_and_merge_is_the_model_s(steps in prop::collection::vec(step(), 1..400)) {
        let mut run = Run::new();
        steps.iter().for_each(|step| run.step(step));
    }
}

/// Red if the batch of any kind is another one, if lists are emptied before a token was got, if a token is taken for
/// nothing, or if a newcomer is tried with another number of requests: each was tried.
#[test]
fn a_long_run_is_the_model_s() {
    let mut run = Run::new();
    let operations = long_run(27, &step(), |step| run.step(step));
    let Run { dispatched, merged, lacked, .. } = run;
    println!("{dispatched} dispatched, {merged} merged, {lacked} times no token for what waited");
    let few = operations / 100;
    assert!(dispatched > few && merged > few / 2 && lacked > few, "the run reaches what it is to reach");
}
