//! How far two members of one group are apart, whatever the others get.
//!
//! Let `S` be where a member starts, `L` its largest budget, `w` its weight, and `F <= S + L / w` where it finishes.
//! Let member 1 be chosen while member 2 waits. Either 2 is eligible, so `S1 <= F1 <= F2 <= S2 + L2 / w2`, or it is
//! not, so `S1 <= V < S2` at the clock `V`. What 1 is served then brings it to `S1 + L1 / w1` at most. So once each has
//! been chosen, and until one of them waits no more, `S1 - S2` stays within `M = L1 / w1 + L2 / w2` of zero, and
//! changes by `2 * M` at most. Of the clock this needs nothing. So it holds also while a third member pays for a budget
//! of any size.

use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::backlog::{Judge, World, weight};

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

/// All members, and by how much they are ahead of each other.
#[derive(Debug, Default)]
struct Pairs {
    members: Vec<Member>,
    nr_choices: u64,
    /// Of two members that are compared: the least and the most by which the first was ahead of the second.
    ahead: BTreeMap<(usize, usize), [f64; 2]>,
    nr_compared: u64,
}

impl Pairs {
    /// The member and the groups above it, but for the root.
    fn path(&self, at: usize) -> Vec<usize> {
        let above = |at: &usize| Some(self.members[*at].parent);
        std::iter::successors(Some(at), above).take_while(|at| *at != 0).collect()
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

impl Judge for Pairs {
    fn add(&mut self, parent: usize, weight: u32, most: u64) -> usize {
        self.members.push(Member { parent, weight, most: 0, waits: false, since: 0, chosen: 0, served: 0.0 });
        let number = self.members.len() - 1;
        self.path(number).into_iter().for_each(|at| self.members[at].most = self.members[at].most.max(most));
        number
    }

    fn begin(&mut self, queue: usize) {
        for at in self.path(queue) {
            if !self.members[at].waits {
                (self.members[at].waits, self.members[at].since) = (true, self.nr_choices);
            }
        }
    }

    fn choose(&mut self, queue: usize) {
        self.nr_choices += 1;
        self.path(queue).into_iter().for_each(|at| self.members[at].chosen = self.nr_choices);
    }

    fn serve(&mut self, queue: usize, sectors: u64) {
        let path = self.path(queue);
        path.iter().for_each(|at| self.members[*at].served += sectors as f64);
        path.iter().for_each(|at| self.compare(*at));
    }

    fn end(&mut self, queue: usize) {
        self.members[queue].waits = false;
        for at in self.path(queue).into_iter().skip(1) {
            self.members[at].waits = self.members.iter().skip(1).any(|member| member.parent == at && member.waits);
        }
    }
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
        let mut world = World::new(seed, Pairs::default(), true);
        groups.into_iter().for_each(|(within, weight)| world.add_group(within, weight));
        leaves.into_iter().for_each(|(within, weight, most)| world.add_leaf(within, weight, most));
        for (after, leaf, nr_requests, sectors) in arrivals {
            (0..after).for_each(|_| { world.serve(); });
            world.arrive(leaf % world.leaves.len(), (0..nr_requests).map(|_| sectors));
        }
        while world.serve().is_some() {}
    }
}

/// So many requests of 8 sectors.
fn eights(number: u64) -> impl Iterator<Item = u64> {
    std::iter::repeat_n(8, number as usize)
}

/// A queue of weight 67 gets 10,920 sectors at once while two others wait, and one of these has nothing for a moment
/// when they have caught up by a third. It starts at the clock when it comes again, and the one that waited all the
/// time is served alone until it is there. From then on the two are held together. Red if one that comes again is taken
/// to have waited, or if one that waits gives up what it is owed.
#[test]
fn one_that_waits_is_owed_what_one_that_comes_again_is_not() {
    let (of_long, of_visitor, of_patient) = (0, 1, 2);
    let mut world = World::new(28, Pairs::default(), true);
    for (weight, most) in [(67, 10_920), (183, 80), (100, 80)] {
        world.add_leaf(0, weight, most);
    }
    world.arrive(of_long, eights(10_920 / 8 + 100));
    let entity = world.leaves[of_long].entity;
    world.forest.requeue(entity, 10_920);
    (0..10).for_each(|_| assert_eq!(world.serve(), Some(of_long)));
    world.arrive(of_patient, eights(10_000));
    world.arrive(of_visitor, eights(15_536 * 183 / 283 / 8));
    (10..10_920 / 8).for_each(|_| assert_eq!(world.serve(), Some(of_long)));
    while !world.leaves[of_visitor].requests.is_empty() {
        assert_ne!(world.serve(), Some(of_long), "it pays");
    }
    world.serve();
    world.arrive(of_visitor, eights(10_000));
    let alone = (0..).take_while(|_| world.serve() == Some(of_patient)).count() * 8;
    assert!((1600..2400).contains(&alone), "{alone} sectors");
    let compared = world.judge.nr_compared;
    (0..1000).for_each(|_| assert_ne!(world.serve(), Some(of_long), "it pays"));
    assert!(world.judge.nr_compared > compared + 500);
}
