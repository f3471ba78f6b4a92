//! How far two members of one group are apart, whatever the others get.
//!
//! Let `S` be where a member starts, `L` its largest budget, `w` its weight, and `F <= S + L / w` where it finishes.
//! Let member 1 be chosen while member 2 waits. Either 2 is eligible, so `S1 <= F1 <= F2 <= S2 + L2 / w2`, or it is
//! not, so `S1 <= V < S2` at the clock `V`. What 1 is served then brings it to `S1 + L1 / w1` at most. So once each has
//! been chosen, and until one of them waits no more, `S1 - S2` stays within `M = L1 / w1 + L2 / w2` of zero, and
//! changes by `2 * M` at most. Of the clock this needs nothing. So it holds also while a third member pays for a budget
//! of any size.

use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use proptest::prelude::*;

use super::super::*;
use super::Random;

/// A queue or group; member 0 is the root.
#[derive(Debug, Clone, Copy)]
struct Member {
    parent: usize,
    weight: u32,
    /// The largest budget, of it or of a queue in it.
    most: u64,
    waits: bool,
    /// How many choices there had been when it began to wait, and when it was last chosen.
    since: u64,
    chosen: u64,
    /// Sectors that it was served.
    served: f64,
}

/// A queue with the sizes of its requests.
struct Leaf {
    entity: Entity,
    member: usize,
    requests: VecDeque<u64>,
}

struct World {
    forest: Forest,
    members: Vec<Member>,
    groups: Vec<(Entity, usize)>,
    leaves: Vec<Leaf>,
    random: Random,
    in_service: Option<usize>,
    nr_choices: u64,
    /// Of two members that are compared: the least and the most by which the first was ahead of the second.
    ahead: BTreeMap<(usize, usize), [f64; 2]>,
    nr_compared: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let forest = Forest::new(Time(0));
        let root = Member { parent: 0, weight: 1, most: 0, waits: true, since: 0, chosen: 0, served: 0.0 };
        let groups = Vec::from([(forest.root(), 0)]);
        Self {
            forest,
            members: Vec::from([root]),
            groups,
            leaves: Vec::new(),
            random: Random(seed),
            in_service: None,
            nr_choices: 0,
            ahead: BTreeMap::new(),
            nr_compared: 0,
        }
    }

    fn add(&mut self, parent: usize, weight: u32) -> usize {
        self.members.push(Member { parent, weight, waits: false, ..self.members[0] });
        self.members.last_mut().expect("one is there").most = 0;
        self.members.len() - 1
    }

    fn add_group(&mut self, within: usize, weight: u32) {
        let (parent, member) = self.groups[within % self.groups.len()];
        let group = self.forest.new_group(parent, weight);
        let member = self.add(member, weight);
        self.groups.push((group, member));
    }

    fn add_leaf(&mut self, within: usize, weight: u32, most: u64) {
        let (parent, member) = self.groups[within % self.groups.len()];
        let entity = self.forest.new_leaf(parent, Class::BestEffort, weight);
        let member = self.add(member, weight);
        self.leaves.push(Leaf { entity, member, requests: VecDeque::new() });
        for at in self.path(member) {
            self.members[at].most = self.members[at].most.max(most);
        }
    }

    /// The member and the groups above it, but for the root.
    fn path(&self, mut at: usize) -> Vec<usize> {
        let mut path = Vec::new();
        while at != 0 {
            path.push(at);
            at = self.members[at].parent;
        }
        path
    }

    fn budget(&mut self, leaf: usize) -> u64 {
        let most = self.members[self.leaves[leaf].member].most;
        self.leaves[leaf].requests[0].max(1 + self.random.below(most))
    }

    fn arrive(&mut self, leaf: usize, nr_requests: u64, sectors: u64) {
        let begins = self.leaves[leaf].requests.is_empty();
        (0..nr_requests).for_each(|_| self.leaves[leaf].requests.push_back(sectors));
        if !begins {
            return;
        }
        let budget = self.budget(leaf);
        let was_prompt = self.random.below(2) == 0;
        self.forest.activate(self.leaves[leaf].entity, budget, was_prompt);
        for at in self.path(self.leaves[leaf].member) {
            if !self.members[at].waits {
                (self.members[at].waits, self.members[at].since) = (true, self.nr_choices);
            }
        }
    }

    fn choose(&mut self) -> Option<usize> {
        let entity = self.forest.next();
        self.in_service = entity.and_then(|entity| self.leaves.iter().position(|leaf| leaf.entity == entity));
        let leaf = self.in_service?;
        self.nr_choices += 1;
        for at in self.path(self.leaves[leaf].member) {
            self.members[at].chosen = self.nr_choices;
        }
        Some(leaf)
    }

    /// Serves one request, and returns its queue. `None` if there is none.
    fn serve(&mut self) -> Option<usize> {
        let mut leaf = self.in_service.or_else(|| self.choose())?;
        let entity = self.leaves[leaf].entity;
        if self.forest.state(entity).service + self.leaves[leaf].requests[0] > self.forest.state(entity).budget {
            let budget = self.budget(leaf);
            self.forest.requeue(entity, budget);
            leaf = self.choose().expect("the one that left waits");
        }
        let Leaf { entity, member, .. } = self.leaves[leaf];
        let sectors = self.leaves[leaf].requests.pop_front().expect("a queue that waits has a request");
        self.forest.serve(entity, sectors);
        let path = self.path(member);
        path.iter().for_each(|at| self.members[*at].served += sectors as f64);
        path.iter().for_each(|at| self.compare(*at));
        if self.leaves[leaf].requests.is_empty() {
            let remembers = self.random.below(4) > 0;
            self.forest.deactivate(entity, remembers);
            self.in_service = None;
            self.members[member].waits = false;
            for at in path.into_iter().skip(1) {
                self.members[at].waits = self.members.iter().skip(1).any(|member| member.parent == at && member.waits);
            }
        }
        Some(leaf)
    }

    /// Panics if a member is too far from another one.
    fn compare(&mut self, at: usize) {
        let one = self.members[at];
        for (number, other) in self.members.iter().enumerate().skip(1) {
            if number == at || other.parent != one.parent {
                continue;
            }
            let (first, second) = (at.min(number), at.max(number));
            if !other.waits || one.chosen.min(other.chosen) <= one.since.max(other.since) {
                self.ahead.remove(&(first, second));
                continue;
            }
            let got = |member: usize| self.members[member].served / f64::from(self.members[member].weight);
            let ahead = got(first) - got(second);
            let [least, most] = self.ahead.entry((first, second)).or_insert([ahead; 2]);
            (*least, *most) = (least.min(ahead), most.max(ahead));
            let budget = |member: &Member| member.most as f64 / f64::from(member.weight);
            let bound = 2.0 * (budget(&one) + budget(other)) + 1e-3;
            assert!(*most - *least <= bound, "{first} and {second} are {} apart, {bound} are allowed", *most - *least);
            self.nr_compared += 1;
        }
    }
}

fn weight() -> impl Strategy<Value = u32> {
    prop_oneof![Just(100_u32), Just(1000), Just(40_000), 100_u32..10_000]
}

/// The largest budget of a queue: a few queues have far larger ones than the others.
fn most() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 100_u64..200, 1 => Just(20_000_u64)]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Red if the start of a member does not move by what it is served, or if one is chosen that finishes late.
    #[test]
    fn two_that_wait_stay_within_their_own_budgets_whatever_others_get(
        seed in any::<u64>(),
        groups in prop::collection::vec((0_usize..4, weight()), 0..4),
        leaves in prop::collection::vec((0_usize..5, weight(), most()), 2..10),
        arrivals in prop::collection::vec((0_u64..60, 0_usize..64, 1_u64..300, 1_u64..100), 1..150),
    ) {
        let mut world = World::new(seed);
        groups.into_iter().for_each(|(within, weight)| world.add_group(within, weight));
        leaves.into_iter().for_each(|(within, weight, most)| world.add_leaf(within, weight, most));
        for (after, leaf, nr_requests, sectors) in arrivals {
            (0..after).for_each(|_| { world.serve(); });
            world.arrive(leaf % world.leaves.len(), nr_requests, sectors);
        }
        while world.serve().is_some() {}
    }
}

/// A queue of weight 67 gets 10,920 sectors at once while two others wait, and one of these has nothing for a moment
/// when they have caught up by a third. It starts at the clock when it comes again, and the one that waited all the
/// time is served alone until it is there. From then on the two are held together. Red if one that comes again is taken
/// to have waited, or if one that waits gives up what it is owed.
#[test]
fn one_that_waits_is_owed_what_one_that_comes_again_is_not() {
    let (of_long, of_visitor, of_patient) = (0, 1, 2);
    let mut world = World::new(28);
    for (weight, most) in [(67, 10_920), (183, 80), (100, 80)] {
        world.add_leaf(0, weight, most);
    }
    world.arrive(of_long, 10_920 / 8 + 100, 8);
    let entity = world.leaves[of_long].entity;
    world.forest.requeue(entity, 10_920);
    (0..10).for_each(|_| assert_eq!(world.serve(), Some(of_long)));
    world.arrive(of_patient, 10_000, 8);
    world.arrive(of_visitor, 15_536 * 183 / 283 / 8, 8);
    (10..10_920 / 8).for_each(|_| assert_eq!(world.serve(), Some(of_long)));
    while !world.leaves[of_visitor].requests.is_empty() {
        assert_ne!(world.serve(), Some(of_long), "it pays");
    }
    world.serve();
    world.arrive(of_visitor, 10_000, 8);
    let alone = (0..).take_while(|_| world.serve() == Some(of_patient)).count() * 8;
    assert!((1600..2400).contains(&alone), "{alone} sectors");
    let compared = world.nr_compared;
    (0..1000).for_each(|_| assert_ne!(world.serve(), Some(of_long), "it pays"));
    assert!(world.nr_compared > compared + 500);
}
