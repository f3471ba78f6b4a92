//! `fair` beside generalised processor sharing, which gives all clients with requests their shares at every instant.

use crate::bench::client;
use crate::fair_rules::{World, cost, read};
use crate::random::Random;
use blkmq_sched::{Class, Feedback, GroupId, Info, Passing, Scheduler};
use proptest::prelude::*;

/// Clients 1 to 6: two in the root, two in a group, and two in a group within that. Client 0 is nobody.
const NR: usize = 7;

/// How many requests of a hungry client wait, at least.
const WAITING: usize = 2;

/// How many requests go at most before one that came again is given up.
const LONGEST: usize = 30;

/// The fluid: what has been asked of it and what it has done, by client, in nanoseconds of cost.
struct Fluid {
    shares: [f64; NR],
    waiting: [f64; NR],
    got: [f64; NR],
}

impl Fluid {
    /// The device does so much.
    fn serve(&mut self, mut work: f64) {
        while work > 1e-6 {
            let busy: Vec<usize> = (1..NR).filter(|of| self.waiting[*of] > 1e-6).collect();
            let all: f64 = busy.iter().map(|of| self.shares[*of]).sum();
            let first_ends = busy.iter().map(|of| self.waiting[*of] / self.shares[*of]).fold(f64::INFINITY, f64::min);
            let step = work.min(first_ends * all);
            for of in busy {
                let part = step * self.shares[of] / all;
                self.got[of] += part;
                self.waiting[of] -= part;
            }
            work -= step;
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert {
        of: usize,
        nr_sectors: u32,
        times: usize,
    },
    Dispatch {
        times: usize,
    },
    /// The client leaves and comes again under its name for each request.
    Return {
        of: usize,
        nr_sectors: u32,
        times: usize,
    },
    /// All that waits goes, and then all clients pass for a while.
    Pass,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..NR, 1..600_u32, 1..30_usize)
            .prop_map(|(of, nr_sectors, times)| Step::Insert { of, nr_sectors, times }),
        6 => (1..60_usize).prop_map(|times| Step::Dispatch { times }),
        3 => (1..NR, 1..600_u32, 1..20_usize)
            .prop_map(|(of, nr_sectors, times)| Step::Return { of, nr_sectors, times }),
        1 => Just(Step::Pass),
    ]
}

struct Compared {
    world: World,
    fluid: Fluid,
    weights: [u16; NR],
    /// Those that always have requests waiting.
    is_hungry: [bool; NR],
    waiting: [usize; NR],
    /// What each got, and its dearest request, in nanoseconds of cost.
    got: [f64; NR],
    dearest: [f64; NR],
    dispatched: f64,
    random: Random,
    /// The most sectors of a request of a hungry client.
    largest: u64,
}

impl Compared {
    fn new(weights: [u16; NR], groups: [u16; 2], is_hungry: [bool; NR], largest: u64) -> Self {
        let mut world = World::new(&weights[1..3]);
        let outer = world.join_group(1, groups[0], GroupId::ROOT);
        let inner = world.join_group(2, groups[1], outer);
        [(3, outer), (4, outer), (5, inner), (6, inner)]
            .into_iter()
            .for_each(|(of, group)| world.join(of, weights[of], group));
        let part =
            |one: u16, others: [u16; 2]| f64::from(one) / (f64::from(one) + others.map(f64::from).iter().sum::<f64>());
        let [in_root, in_outer] =
            [part(groups[0], [weights[1], weights[2]]), part(groups[1], [weights[3], weights[4]])];
        let shares = [
            0.0,
            part(weights[1], [weights[2], groups[0]]),
            part(weights[2], [weights[1], groups[0]]),
            in_root * part(weights[3], [weights[4], groups[1]]),
            in_root * part(weights[4], [weights[3], groups[1]]),
            in_root * in_outer * part(weights[5], [weights[6], 0]),
            in_root * in_outer * part(weights[6], [weights[5], 0]),
        ];
        let fluid = Fluid { shares, waiting: [0.0; NR], got: [0.0; NR] };
        let (waiting, got, dearest) = ([0; NR], [0.0; NR], [0.0; NR]);
        let mut compared = Self {
            world,
            fluid,
            weights,
            is_hungry,
            waiting,
            got,
            dearest,
            dispatched: 0.0,
            random: Random(1),
            largest,
        };
        // All are active from now on, so their shares stay.
        (1..NR).for_each(|of| compared.insert(of, 8));
        compared.refill();
        compared
    }

    fn group(of: usize) -> GroupId {
        [GroupId::ROOT, GroupId::new(1, 1), GroupId::new(2, 1)][(of - 1) / 2]
    }

    fn insert(&mut self, of: usize, nr_sectors: u32) {
        let info = Info { nr_sectors, ..read(of) };
        self.world.insert(info);
        self.waiting[of] += 1;
        self.dearest[of] = self.dearest[of].max(cost(&info));
        self.fluid.waiting[of] += if self.is_hungry[of] { f64::INFINITY } else { cost(&info) };
    }

    fn refill(&mut self) {
        for of in 1..NR {
            while self.is_hungry[of] && self.waiting[of] < WAITING {
                let nr_sectors = 1 + self.random.below(self.largest) as u32;
                self.insert(of, nr_sectors);
            }
        }
    }

    fn take(&mut self) -> Info {
        let passing = self.world.fair.may_pass(Class::BestEffort, client(1));
        assert_eq!(passing, Passing::Nobody, "nobody passes while requests wait");
        let info = self.world.dispatch();
        self.waiting[info.client.place()] -= 1;
        info
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Insert { of, nr_sectors, times } if !self.is_hungry[of] => {
                (0..times).for_each(|_| self.insert(of, nr_sectors));
            }
            Step::Return { of, nr_sectors, times } if self.waiting[of] == 0 => {
                for _ in 0..times {
                    self.world.fair.leave(client(of));
                    self.world.join(of, self.weights[of], Self::group(of));
                    self.insert(of, nr_sectors);
                    let mut left = LONGEST;
                    while self.waiting[of] > 0 {
                        if left == 0 {
                            return;
                        }
                        left -= 1;
                        self.dispatch();
                    }
                }
            }
            Step::Insert { .. } | Step::Return { .. } => {}
            Step::Dispatch { times } => (0..times).for_each(|_| self.dispatch()),
            Step::Pass => self.pass(),
        }
    }

    fn dispatch(&mut self) {
        let info = self.take();
        self.got[info.client.place()] += cost(&info);
        self.dispatched += 1.0;
        self.fluid.serve(cost(&info));
        self.refill();
        let hungry = || (1..NR).filter(|of| self.is_hungry[*of]);
        let share_of_hungry: f64 = hungry().map(|of| self.fluid.shares[of]).sum();
        // Tags are whole nanoseconds.
        let all = self.dearest.iter().sum::<f64>() + self.dispatched;
        for of in hungry() {
            let lag = self.fluid.got[of] - self.got[of];
            let bound = self.dearest[of] + self.fluid.shares[of] / share_of_hungry * all;
            assert!(lag <= bound, "client {of} lags by {lag}, and the bound is {bound}");
        }
    }

    fn pass(&mut self) {
        while self.waiting.iter().sum::<usize>() > 0 {
            self.take();
        }
        assert_eq!(self.world.fair.may_pass(Class::BestEffort, client(1)), Passing::All);
        self.world.fair.observe(Feedback::BypassEnded);
        (self.fluid.got, self.fluid.waiting, self.got, self.dispatched) = ([0.0; NR], [0.0; NR], [0.0; NR], 0.0);
        self.refill();
    }
}

proptest! {
    /// Let w be a client's share, c what its dearest request costs, P what the scheduler and G what the fluid gave it
    /// since the beginning, v the virtual time of the scheduler and V that of the fluid, which grows by work over the
    /// shares of those that the fluid has not done with. Both begin at 0. L = V - v. The hungry always have requests
    /// waiting, and their shares add up to H.
    ///
    /// 1. In any time in which v grows by d, P grows by at most w d + c: the requests that go meanwhile start within
    ///    these d, and each begins where the one before ended or later. For a hungry client G = w V, P >= w v - c, and
    ///    so G - P <= w L + c.
    /// 2. Let L be larger than ever before. A client with which the fluid is done has P <= G. One with which it is not,
    ///    is not since some time at which P was at most G; since then G has grown by w times the growth of V and P by w
    ///    times that of v and c. As L has grown, P - G <= c. A hungry client has P - G <= c - w L by 1.
    /// 3. The device does the same for both, so the differences P - G of all clients add up to 0. With C the sum of all
    ///    c, H L <= C.
    ///
    /// So no hungry client ever lags by more than c + w C / H, whatever the others do, how many they are and how often
    /// they leave. Requests pass only while nothing waits. When that ends nobody owes anything, and both begin anew.
    ///
    /// Red if a client that comes starts at its finish tag (`fair.newcomer`), if one that comes again does not
    /// (`fair.debt`), if groups above do not count, if requests are counted instead of their costs, or if requests pass
    /// while others wait: each was tried.
    #[test]
    fn a_hungry_client_lags_behind_the_fluid_by_a_request_and_its_part_of_one_of_each_client(
        weights in prop::array::uniform7(1..1000_u16),
        groups in prop::array::uniform2(1..1000_u16),
        is_hungry in prop::array::uniform7(any::<bool>()),
        first in 1..NR,
        largest in prop_oneof![Just(8_u64), Just(600)],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut is_hungry = is_hungry;
        is_hungry[first] = true;
        let mut compared = Compared::new(weights, groups, is_hungry, largest);
        steps.iter().for_each(|step| compared.step(step));
    }
}
