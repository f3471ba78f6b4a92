//! Groups, and the share of a client among those that are active.
//!
//! A weight *in use* is less than the weight itself while a client or group lends a part of its share
//! ([`donation`](super::donation)).

use alloc::vec::Vec;

use crate::data::{Named, Tracked};
use crate::{Class, DEFAULT_WEIGHT, GroupId, GroupSettings};

/// One group.
#[derive(Debug, Clone, Default)]
pub(super) struct Group {
    id: GroupId,
    /// Its weight and that in use, both times [`SCALE`].
    weight: u64,
    in_use: u64,
    parent: Option<usize>,
    /// By [`Sum`], the weights of its clients and groups that count.
    sums: [u64; SUMS],
    /// The same, how many these are.
    nr_active: [u32; SUMS],
    /// What is known of it in a window of usage.
    pub(super) demand: Demand,
}

impl Group {
    /// The place of the group above; the root has none.
    pub(super) const fn parent(&self) -> Option<usize> {
        self.parent
    }

    pub(super) const fn weight(&self) -> u64 {
        self.weight
    }

    pub(super) const fn lends(&self) -> bool {
        self.in_use != self.weight
    }

    /// Whether one of its clients is in the sum.
    pub(super) const fn counts(&self, sum: Sum) -> bool {
        self.nr_active[sum.index()] > 0
    }
}

/// What is known of a group in a window of usage.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Demand {
    /// What its clients keep together, as a part of what all clients got.
    pub(super) kept: f64,
    /// One of its clients asks for more than it gets.
    pub(super) is_hungry: bool,
    /// The weights of its clients and groups that lend nothing, and what the others keep.
    pub(super) weights: u64,
    pub(super) kept_by_lenders: f64,
}

/// Which weights are summed, and of whom.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sum {
    /// The weights in use of those that are active in this class.
    Active(Class),
    /// The weights of those that matter in a window of usage.
    Window,
    /// The same of weights in use.
    InUse,
}

impl Sum {
    const fn index(self) -> usize {
        match self {
            Self::Active(class) => class.index(),
            Self::Window => 3,
            Self::InUse => 4,
        }
    }
}

/// How many sums there are.
const SUMS: usize = 5;

/// The unit of weights in use: a weight is so many of them.
pub(super) const SCALE: u64 = 64;

/// One over the least share: ten thousand of the dearest requests of such a client do not use up the range of tags.
const MOST_OVER: f64 = 16_777_216.0;

/// The groups by place; the root is the first and always there.
#[derive(Debug, Clone)]
pub(super) struct Groups(Named<Vec<Tracked<Option<Group>>>>);

impl Groups {
    pub(super) fn new() -> Self {
        let weight = u64::from(DEFAULT_WEIGHT) * SCALE;
        let root = Group { weight, in_use: weight, ..Group::default() };
        Self(Named::new("fair.groups", Vec::from([Tracked::new(Some(root))])))
    }

    /// The place of a group that joined; that of the root for any other one.
    pub(super) fn place(&self, id: GroupId) -> usize {
        let group = self.0.get(id.place()).and_then(|group| group.as_ref());
        group.map_or(0, |group| if group.id == id { id.place() } else { 0 })
    }

    pub(super) fn get(&self, place: usize) -> &Group {
        self.0[place].as_ref().expect("clients belong to groups that are there")
    }

    pub(super) fn get_mut(&mut self, place: usize) -> &mut Group {
        self.0[place].as_mut().expect("clients belong to groups that are there")
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Group> {
        self.0.iter_mut().filter_map(|group| group.as_mut())
    }

    /// The group in this place: one that went leaves its place empty.
    pub(super) fn joined(&self, place: usize) -> Option<&Group> {
        self.0[place].as_ref()
    }

    /// This place and those of the groups above it, up to the root.
    pub(super) fn path(&self, place: usize) -> impl Iterator<Item = usize> {
        core::iter::successors(Some(place), |at| self.get(*at).parent())
    }

    /// The places of all groups but the root, and of those that went.
    pub(super) fn below_root(&self) -> impl Iterator<Item = usize> + use<> {
        1..self.0.len()
    }

    pub(super) fn join(&mut self, id: GroupId, settings: &GroupSettings) {
        let place = id.place();
        debug_assert!(place > 0, "the root is there from the beginning");
        if self.0.len() <= place {
            self.0.resize_with(place + 1, Tracked::default);
        }
        let (parent, weight) = (self.place(settings.parent), u64::from(settings.weight) * SCALE);
        if self.place(id) == 0 {
            let group = Group { id, weight, in_use: weight, parent: Some(parent), ..Group::default() };
            *self.0[place] = Some(group);
            return;
        }
        debug_assert!(!self.get(place).counts(Sum::Window), "groups change between two windows");
        self.move_to(place, parent, weight);
        self.get_mut(place).weight = weight;
    }

    pub(super) fn remove(&mut self, id: GroupId) {
        let place = self.place(id);
        if place > 0 {
            debug_assert_eq!(self.get(place).nr_active, [0; SUMS], "nobody belongs to a group that goes");
            *self.0[place] = None;
        }
    }

    /// Another parent, and another weight in use.
    pub(super) fn move_to(&mut self, place: usize, parent: usize, in_use: u64) {
        let Group { parent: Some(old_parent), in_use: old, nr_active, .. } = *self.get(place) else { return };
        let moved = self.get_mut(place);
        (moved.parent, moved.in_use) = (Some(parent), in_use);
        for class in Class::ALL.into_iter().filter(|class| nr_active[class.index()] > 0) {
            self.leave(old_parent, Sum::Active(class), old);
            self.enter(parent, Sum::Active(class), in_use);
        }
    }

    /// The group above, and the weight of this one in its sum.
    fn above(&self, place: usize, sum: Sum) -> Option<(usize, u64)> {
        let group = self.get(place);
        Some((group.parent?, if matches!(sum, Sum::Window) { group.weight } else { group.in_use }))
    }

    /// A client with this weight in `place` counts now.
    ///
    /// COST: a step for each group above that counts by it.
    pub(super) fn enter(&mut self, place: usize, sum: Sum, weight: u64) {
        let (mut at, mut weight) = (place, weight);
        loop {
            let group = self.get_mut(at);
            group.sums[sum.index()] += weight;
            group.nr_active[sum.index()] += 1;
            let is_first = group.nr_active[sum.index()] == 1;
            let Some(above) = self.above(at, sum).filter(|_| is_first) else { return };
            (at, weight) = above;
        }
    }

    /// A client with this weight in `place` does not count any more.
    pub(super) fn leave(&mut self, place: usize, sum: Sum, weight: u64) {
        let (mut at, mut weight) = (place, weight);
        loop {
            let group = self.get_mut(at);
            let (sums, nr_active) = (&mut group.sums[sum.index()], &mut group.nr_active[sum.index()]);
            debug_assert!(*nr_active > 0 && *sums >= weight, "who leaves counted");
            *sums -= weight;
            *nr_active -= 1;
            let is_last = *nr_active == 0;
            let Some(above) = self.above(at, sum).filter(|_| is_last) else { return };
            (at, weight) = above;
        }
    }

    /// One over the share of one that counts with this weight in `place`: the product over the groups above, of the sum
    /// of weights over the weight of the one that is in it.
    pub(super) fn over_share(&self, place: usize, sum: Sum, weight: u64) -> f64 {
        let (mut at, mut weight, mut over) = (place, weight, 1.0);
        loop {
            let sums = self.get(at).sums[sum.index()];
            debug_assert!(sums >= weight, "a share is that of one that counts");
            over *= sums as f64 / weight as f64;
            let Some(above) = self.above(at, sum) else { return over.min(MOST_OVER) };
            (at, weight) = above;
        }
    }
}
