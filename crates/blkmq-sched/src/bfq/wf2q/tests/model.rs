//! The rules once more, without trees: linear searches, times in 128 bits that never wrap.

use std::vec::Vec;

use crate::Class;

/// A member of the model, by its place in [`Model::all`]. Member 0 is the root.
pub(super) type Id = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Nowhere,
    /// Waits. The number says which of two came first.
    Active(u64),
    Idle,
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    parent: Id,
    is_group: bool,
    new_params: (Class, u128, u128),
    pub(super) class: Class,
    pub(super) weight: u128,
    pub(super) budget: u128,
    pub(super) service: u128,
    pub(super) start: i128,
    pub(super) finish: i128,
    at: At,
    /// Of a group: its clocks, the member in service, the next one, when the idle class was tried and served.
    pub(super) clocks: [i128; 3],
    in_service: Option<Id>,
    next: Option<Id>,
    idle_class: [u64; 2],
}

#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) all: Vec<Member>,
    origin: i128,
    nr_activations: u64,
    pub(super) now: u64,
    pub(super) decides_early: bool,
}

fn span(sectors: u128, weight: u128) -> i128 {
    (sectors * 100 * (1 << 22) / weight) as i128
}

impl Model {
    /// A root whose clocks show `origin`.
    pub(super) fn new(origin: u64) -> Self {
        let mut model =
            Self { all: Vec::new(), origin: i128::from(origin), nr_activations: 0, now: 0, decides_early: false };
        model.add(0, Class::BestEffort, 1, true);
        model
    }

    pub(super) fn add(&mut self, parent: Id, class: Class, weight: u32, is_group: bool) -> Id {
        let weight = u128::from(weight);
        self.all.push(Member {
            parent,
            is_group,
            new_params: (class, weight, 1),
            class,
            weight,
            budget: 0,
            service: 0,
            start: 0,
            finish: self.all.get(parent).map_or(self.origin, |parent: &Member| parent.clocks[class.index()]),
            at: At::Nowhere,
            clocks: [self.origin; 3],
            in_service: None,
            next: None,
            idle_class: [self.now; 2],
        });
        self.all.len() - 1
    }

    pub(super) fn new_params(&mut self, id: Id, class: Class, weight: u32, coefficient: u32) {
        self.all[id].new_params = (class, u128::from(weight), u128::from(coefficient));
    }

    pub(super) fn apply_weight(&mut self, id: Id) {
        let (_, weight, coefficient) = self.all[id].new_params;
        self.all[id].weight = weight * coefficient;
    }

    pub(super) fn is_in_service(&self, id: Id) -> bool {
        self.all.get(self.all[id].parent).is_some_and(|parent| parent.in_service == Some(id))
    }

    pub(super) fn is_active(&self, id: Id) -> bool {
        matches!(self.all[id].at, At::Active(_)) || self.is_in_service(id)
    }

    /// The members of a group and class of which `keep` holds.
    fn members(&self, group: Id, class: Class, keep: impl Fn(&Self, Id) -> bool) -> Vec<Id> {
        let is_member = |id: &Id| self.all[*id].parent == group && self.all[*id].class == class && keep(self, *id);
        (1..self.all.len()).filter(is_member).collect()
    }

    fn waiting(&self, group: Id, class: Class) -> Vec<Id> {
        self.members(group, class, |model, id| matches!(model.all[id].at, At::Active(_)))
    }

    fn idle(&self, group: Id, class: Class) -> Vec<Id> {
        self.members(group, class, |model, id| model.all[id].at == At::Idle)
    }

    fn clock(&mut self, id: Id) -> &mut i128 {
        let (parent, class) = (self.all[id].parent, self.all[id].class);
        &mut self.all[parent].clocks[class.index()]
    }

    fn forget_past(&mut self, group: Id, class: Class) {
        let mut idle = self.idle(group, class);
        idle.sort_by_key(|id| self.all[*id].finish);
        let Some(last) = idle.last() else { return };
        let last = self.all[*last].finish;
        if self.waiting(group, class).is_empty() && last <= self.all[group].clocks[class.index()] {
            self.all[group].clocks[class.index()] = last;
        }
        if self.all[idle[0]].finish <= self.all[group].clocks[class.index()] {
            self.all[idle[0]].at = At::Nowhere;
        }
    }

    pub(super) fn serve(&mut self, mut id: Id, sectors: u64) {
        while id != 0 {
            self.all[id].service += u128::from(sectors);
            let (parent, class) = (self.all[id].parent, self.all[id].class);
            let counted = self.members(parent, class, |model, id| model.all[id].at == At::Idle || model.is_active(id));
            let sum = counted.iter().map(|id| self.all[*id].weight).sum();
            *self.clock(id) += span(u128::from(sectors), sum);
            self.forget_past(parent, class);
            id = parent;
        }
    }

    fn look_up(&mut self, group: Id, decides: bool) -> Option<Id> {
        let waits = !self.waiting(group, Class::Idle).is_empty();
        let [tried, served] = &mut self.all[group].idle_class;
        if !waits {
            *served = self.now;
        }
        let mut idle_first = self.now - *served > 500;
        if self.now - *tried > 50 {
            idle_first = true;
            if decides {
                *tried = self.now;
            }
        }
        let classes = if idle_first && waits { [Class::Idle; 3] } else { Class::ALL };
        let class = *classes.iter().find(|class| !self.waiting(group, **class).is_empty())?;
        let waiting = self.waiting(group, class);
        let earliest = waiting.iter().map(|id| self.all[*id].start).min()?;
        let clock = self.all[group].clocks[class.index()];
        if self.all[group].in_service.is_none() && earliest > clock {
            self.all[group].clocks[class.index()] = earliest;
            self.forget_past(group, class);
        }
        let time = clock.max(earliest);
        let rank = |id: &Id| {
            let At::Active(number) = self.all[*id].at else { unreachable!("it waits") };
            (self.all[*id].finish, number)
        };
        waiting.into_iter().filter(|id| self.all[*id].start <= time).min_by_key(rank)
    }

    fn update_next(&mut self, group: Id, newcomer: Option<Id>) -> bool {
        let kept = self.all[group].next;
        let next = match (newcomer, kept) {
            (Some(newcomer), None) => Some(newcomer),
            (Some(newcomer), Some(kept))
                if newcomer != kept
                    && self.all[newcomer].class == self.all[kept].class
                    && self.all[newcomer].start <= *self.clock(newcomer)
                    && self.all[newcomer].finish < self.all[kept].finish =>
            {
                Some(newcomer)
            }
            _ => self.look_up(group, self.decides_early),
        };
        self.all[group].next = next;
        let Some(next) = next else { return false };
        let budget = self.all[next].budget;
        let old = core::mem::replace(&mut self.all[group].budget, budget);
        kept.is_none() || self.all[group].budget < old
    }

    fn enqueue(&mut self, id: Id, starts_in_past: bool) {
        let (class, weight, coefficient) = self.all[id].new_params;
        self.all[id].weight = weight * coefficient;
        if class != self.all[id].class {
            self.all[id].class = class;
            self.all[id].start = *self.clock(id);
        }
        let clock = *self.clock(id);
        let member = &mut self.all[id];
        member.finish = member.start + span(member.budget, member.weight);
        if starts_in_past && member.finish < clock {
            let gap = (clock - member.finish) / coefficient as i128;
            member.start += gap;
            member.finish += gap;
        }
        member.at = At::Active(self.nr_activations);
        self.nr_activations += 1;
    }

    fn put(&mut self, id: Id, was_prompt: bool) {
        if self.is_active(id) {
            if self.is_in_service(id) {
                let member = &mut self.all[id];
                member.start += span(core::mem::take(&mut member.service), member.weight);
            }
            self.enqueue(id, false);
            return;
        }
        let clock = *self.clock(id);
        let member = &mut self.all[id];
        let starts_in_past = was_prompt && member.finish < clock;
        let earliest = if starts_in_past { member.finish } else { clock };
        member.start = if member.at == At::Idle { earliest.max(member.finish) } else { earliest };
        self.enqueue(id, starts_in_past);
    }

    pub(super) fn activate(&mut self, leaf: Id, budget: u64, was_prompt: bool) {
        (self.all[leaf].budget, self.all[leaf].service) = (u128::from(budget), 0);
        let mut id = leaf;
        while id != 0 {
            self.put(id, was_prompt);
            let parent = self.all[id].parent;
            if !self.update_next(parent, Some(id)) {
                return;
            }
            id = parent;
        }
    }

    pub(super) fn requeue(&mut self, leaf: Id, budget: u64) {
        self.all[leaf].budget = u128::from(budget);
        self.requeue_from(leaf, self.is_in_service(leaf));
    }

    fn requeue_from(&mut self, mut id: Id, expires: bool) {
        while id != 0 {
            self.put(id, false);
            let parent = self.all[id].parent;
            if expires {
                self.all[parent].in_service = None;
            }
            if !self.update_next(parent, Some(id)) && !expires {
                return;
            }
            id = parent;
        }
    }

    pub(super) fn deactivate(&mut self, leaf: Id, mut remembers: bool) {
        let expires = self.is_in_service(leaf);
        let mut id = leaf;
        while id != 0 {
            let parent = self.all[id].parent;
            let clock = *self.clock(id);
            if self.is_in_service(id) {
                self.all[parent].in_service = None;
            }
            let member = &mut self.all[id];
            member.finish = member.start + span(member.service, member.weight);
            if member.is_group {
                member.service = 0;
            }
            member.at = if remembers && member.finish > clock { At::Idle } else { At::Nowhere };
            if self.all[parent].next == Some(id) {
                self.update_next(parent, None);
            }
            id = parent;
            if self.all[parent].next.is_some() || self.all[parent].in_service.is_some() {
                break;
            }
            remembers = true;
        }
        self.requeue_from(id, expires);
    }

    pub(super) fn charge(&mut self, leaf: Id, sectors: u64) {
        let member = &mut self.all[leaf];
        member.budget = member.budget.max(u128::from(sectors));
        let missing = sectors.saturating_sub(member.service as u64);
        self.serve(leaf, missing);
    }

    pub(super) fn next(&mut self) -> Option<Id> {
        let mut group = 0;
        let leaf = loop {
            if !self.decides_early {
                self.all[group].next = self.look_up(group, true);
            }
            let id = self.all[group].next?;
            self.all[group].in_service = Some(id);
            if self.all[id].class == Class::Idle {
                self.all[group].idle_class[1] = self.now;
            }
            if !self.all[id].is_group {
                break id;
            }
            group = id;
        };
        let mut id = leaf;
        while id != 0 {
            if Class::ALL.iter().all(|class| self.waiting(id, *class).is_empty()) {
                self.all[id].at = At::Nowhere;
            }
            let parent = self.all[id].parent;
            self.update_next(parent, None);
            id = parent;
        }
        Some(leaf)
    }

    pub(super) fn remove(&mut self, id: Id) {
        (self.all[id].at, self.all[id].parent) = (At::Nowhere, Id::MAX);
    }

    pub(super) fn parent(&self, id: Id) -> Id {
        self.all[id].parent
    }

    /// The next member of a group.
    pub(super) fn kept(&self, group: Id) -> Option<Id> {
        self.all[group].next
    }

    /// Moves a member that is not in service.
    pub(super) fn reparent(&mut self, id: Id, parent: Id) {
        let waits = self.is_active(id);
        let Member { budget, service, .. } = self.all[id];
        if waits {
            self.deactivate(id, false);
        }
        self.all[id].at = At::Nowhere;
        self.all[id].parent = parent;
        self.all[id].finish = *self.clock(id);
        if waits {
            self.activate(id, budget as u64, false);
        }
        self.all[id].service = if self.all[id].is_group { 0 } else { service };
    }
}
