//! Any operations, on the forest and on the naive model: same choices and same times.

use std::vec::Vec;

use proptest::prelude::*;

use super::super::*;
use super::model::{Id, Model};
use crate::random::Random;

/// One operation. Numbers are taken modulo the range that makes sense.
#[derive(Debug, Clone)]
enum Step {
    Activate {
        leaf: usize,
        budget: u64,
        was_prompt: bool,
    },
    Requeue {
        leaf: usize,
        budget: u64,
    },
    Deactivate {
        leaf: usize,
        remembers: bool,
    },
    Serve {
        leaf: usize,
        sectors: u64,
    },
    Charge {
        sectors: u64,
    },
    /// Puts the next one into service, or ends the service: with or without more requests.
    Turn {
        budget: u64,
        stays: bool,
    },
    NewParams {
        which: usize,
        class: usize,
        weight: u32,
        coefficient: u32,
        at_once: bool,
    },
    Move {
        which: usize,
        to: usize,
    },
    Replace {
        leaf: usize,
    },
    Wait {
        ticks: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let budget = || 1_u64..20_000;
    let which = || 0_usize..64;
    prop_oneof![
        8 => (which(), budget(), any::<bool>())
            .prop_map(|(leaf, budget, was_prompt)| Step::Activate { leaf, budget, was_prompt }),
        2 => (which(), budget()).prop_map(|(leaf, budget)| Step::Requeue { leaf, budget }),
        2 => (which(), any::<bool>()).prop_map(|(leaf, remembers)| Step::Deactivate { leaf, remembers }),
        4 => (which(), 1_u64..3000).prop_map(|(leaf, sectors)| Step::Serve { leaf, sectors }),
        2 => (1_u64..20_000).prop_map(|sectors| Step::Charge { sectors }),
        12 => (budget(), prop::bool::weighted(0.7)).prop_map(|(budget, stays)| Step::Turn { budget, stays }),
        2 => (which(), 0_usize..3, 1_u32..100_000, prop_oneof![Just(1), Just(30)], any::<bool>()).prop_map(
            |(which, class, weight, coefficient, at_once)| Step::NewParams { which, class, weight, coefficient, at_once }
        ),
        1 => (which(), which()).prop_map(|(which, to)| Step::Move { which, to }),
        1 => which().prop_map(|leaf| Step::Replace { leaf }),
        1 => (0_u64..60).prop_map(|ticks| Step::Wait { ticks }),
    ]
}

/// The forest and the model. An entity has the same place in `names` and in the model.
struct Pair {
    forest: Forest,
    model: Model,
    names: Vec<Option<Entity>>,
    groups: Vec<Id>,
    leaves: Vec<Id>,
}

impl Pair {
    /// Five groups, nested, and eight queues, with clocks that show `origin`.
    fn new(origin: u64) -> Self {
        let forest = Forest::new(Time(0));
        let root = forest.root();
        let mut pair = Self {
            forest,
            model: Model::new(origin),
            names: Vec::from([Some(root)]),
            groups: Vec::from([0]),
            leaves: Vec::new(),
        };
        pair.set_origin(root, origin);
        for (parent, weight) in [(0, 10_000), (0, 30_000), (1, 10_000), (1, 7), (4, 12_345)] {
            let group = pair.forest.new_group(pair.entity(parent), weight);
            pair.set_origin(group, origin);
            pair.names.push(Some(group));
            let id = pair.model.add(parent, Class::BestEffort, weight, true);
            pair.groups.push(id);
        }
        for (place, weight) in [4000, 4000, 1000, 8000, 120_000, 1, 4000, 777].into_iter().enumerate() {
            pair.add_leaf(place % 6, Class::ALL[place % 5 % 3], weight);
        }
        pair
    }

    fn set_origin(&mut self, group: Entity, origin: u64) {
        let members = self.forest.members(group);
        for tree in &mut self.forest.groups.get_mut(members).trees {
            tree.now = origin;
        }
    }

    fn entity(&self, id: Id) -> Entity {
        self.names[id].expect("the entity is in use")
    }

    fn add_leaf(&mut self, parent: Id, class: Class, weight: u32) {
        let leaf = self.forest.new_leaf(self.entity(parent), class, weight);
        self.names.push(Some(leaf));
        self.leaves.push(self.model.add(parent, class, weight, false));
    }

    fn leaf(&self, which: usize) -> Id {
        self.leaves[which % self.leaves.len()]
    }

    fn in_service(&self) -> Option<Id> {
        let leaf = self.forest.in_service();
        assert_eq!(leaf.is_some(), self.leaves.iter().any(|id| self.model.is_in_service(*id)));
        self.leaves.iter().copied().find(|id| Some(self.entity(*id)) == leaf)
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Activate { leaf, budget, was_prompt } => self.activate(self.leaf(leaf), budget, was_prompt),
            Step::Requeue { leaf, budget } => {
                let id = self.leaf(leaf);
                if self.model.is_active(id) {
                    self.forest.requeue(self.entity(id), budget);
                    self.model.requeue(id, budget);
                }
            }
            Step::Deactivate { leaf, remembers } => {
                let id = self.leaf(leaf);
                if self.model.is_active(id) {
                    self.forest.deactivate(self.entity(id), remembers);
                    self.model.deactivate(id, remembers);
                }
            }
            Step::Serve { leaf, sectors } => {
                let id = self.in_service().unwrap_or(self.leaf(leaf));
                if self.model.is_active(id) {
                    self.forest.serve(self.entity(id), sectors);
                    self.model.serve(id, sectors);
                }
            }
            Step::Charge { sectors } => {
                if let Some(id) = self.in_service() {
                    self.forest.charge(self.entity(id), sectors);
                    self.model.charge(id, sectors);
                }
            }
            Step::Turn { budget, stays } => self.turn(budget, stays),
            Step::NewParams { which, class, weight, coefficient, at_once } => {
                self.new_params(which, Class::ALL[class], weight, coefficient, at_once);
            }
            Step::Move { which, to } => self.move_to(which, self.groups[to % self.groups.len()]),
            Step::Replace { leaf } => self.replace(leaf % self.leaves.len()),
            Step::Wait { ticks } => {
                self.model.now += ticks;
                self.forest.set_now(Time(self.model.now * 4_000_000));
            }
        }
    }

    fn activate(&mut self, id: Id, budget: u64, was_prompt: bool) {
        if !self.model.is_active(id) {
            self.forest.activate(self.entity(id), budget, was_prompt);
            self.model.activate(id, budget, was_prompt);
        }
    }

    fn turn(&mut self, budget: u64, stays: bool) {
        let Some(id) = self.in_service() else {
            let chosen = self.forest.next();
            let expected = self.model.next();
            assert_eq!(chosen, expected.map(|id| self.entity(id)), "both choose the same");
            return;
        };
        let entity = self.entity(id);
        if stays {
            self.forest.requeue(entity, budget);
            self.model.requeue(id, budget);
        } else {
            self.forest.deactivate(entity, true);
            self.model.deactivate(id, true);
        }
    }

    fn new_params(&mut self, which: usize, class: Class, weight: u32, coefficient: u32, at_once: bool) {
        let id = 1 + which % (self.names.len() - 1);
        let Some(entity) = self.names[id] else { return };
        self.forest.set_weight(entity, weight);
        if self.leaves.contains(&id) {
            self.forest.set_class(entity, class);
            self.forest.raise(entity, coefficient);
            self.model.new_params(id, class, weight, coefficient);
        } else {
            self.model.new_params(id, Class::BestEffort, weight, 1);
        }
        if at_once {
            self.forest.apply_weight(entity);
            self.model.apply_weight(id);
        }
    }

    /// Moves a queue, or a group that is not thereby put into itself.
    fn move_to(&mut self, which: usize, to: Id) {
        let id = 1 + which % (self.names.len() - 1);
        let Some(entity) = self.names[id] else { return };
        let mut above = to;
        while above != 0 && above != id {
            above = self.model.parent(above);
        }
        if above == 0 && !self.model.is_in_service(id) {
            self.forest.reparent(entity, self.entity(to));
            self.model.reparent(id, to);
        }
    }

    fn replace(&mut self, place: usize) {
        let id = self.leaves[place];
        if self.model.is_active(id) {
            return;
        }
        let (parent, class) = (self.model.parent(id), self.model.all[id].class);
        self.forest.remove(self.entity(id));
        self.model.remove(id);
        self.names[id] = None;
        self.leaves.remove(place);
        self.add_leaf(parent, class, 4000);
    }

    fn compare(&self) {
        for (id, entity) in self.names.iter().enumerate() {
            let Some(entity) = *entity else { continue };
            let (state, member) = (self.forest.states.get(entity.0), &self.model.all[id]);
            assert_eq!(u128::from(state.budget), member.budget, "budget of {id}");
            if let Some(members) = state.members {
                let group = self.forest.groups.get(members);
                let clocks = member.clocks.map(|clock| clock as u64);
                assert_eq!([0, 1, 2].map(|class| group.trees[class].now), clocks, "clocks of {id}");
                assert_eq!(group.next.map(Entity), self.model.kept(id).map(|id| self.entity(id)), "next of {id}");
            }
            if id > 0 {
                assert_eq!(self.forest.is_active(entity), self.model.is_active(id), "state of {id}");
                assert_eq!((state.start, state.finish), (member.start as u64, member.finish as u64), "times of {id}");
                assert_eq!((state.class, u128::from(state.weight)), (member.class, member.weight), "weight of {id}");
                assert_eq!(u128::from(state.service), member.service, "service of {id}");
            }
        }
    }
}

fn run(origin: u64, decides_early: bool, steps: impl IntoIterator<Item = Step>) {
    let mut pair = Pair::new(origin);
    if decides_early {
        pair.forest.decide_early();
        pair.model.decides_early = true;
    }
    pair.compare();
    for step in steps {
        pair.apply(&step);
        pair.compare();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    /// Red if a rotation forgets the summaries, if a weight changes without its sum, if an idle entity is forgotten
    /// early or never, or if the next member is not looked up when it left.
    #[test]
    fn any_operations_equal_the_naive_model(steps in prop::collection::vec(step(), 0..200)) {
        run(0, false, steps.clone());
        run(0, true, steps);
    }

    /// Red if two times are compared as plain numbers.
    #[test]
    fn the_clocks_may_wrap(steps in prop::collection::vec(step(), 0..100)) {
        run(u64::MAX - (1 << 34), false, steps);
    }
}

/// Many queues in one group: the tree is deep.
#[test]
fn hundreds_of_queues_equal_the_naive_model() {
    let mut random = Random(28);
    let mut pair = Pair::new(0);
    for _ in 0..200 {
        let weight = 1 + random.below(100_000) as u32;
        pair.add_leaf(0, Class::BestEffort, weight);
    }
    for _ in 0..2000 {
        let leaf = random.below(300) as usize;
        match random.below(4) {
            0 | 1 => pair.activate(pair.leaf(leaf), 1 + random.below(5000), random.below(2) == 0),
            2 => pair.turn(1 + random.below(5000), random.below(4) > 0),
            _ => pair.apply(&Step::Serve { leaf, sectors: 1 + random.below(2000) }),
        }
        pair.compare();
    }
}
