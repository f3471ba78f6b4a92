//! The tenants of a world: the clients that submitters serve, with their weights, in groups.

use blkmq_sched::GroupId;
use blkmq_vcpu::Random;
use blkmq_virtual::RequestQueue;

use super::pace::magnitude;

/// The largest weight of a client or group.
pub(crate) const MOST_WEIGHT: u16 = blkmq_sched::MAX_WEIGHT;

/// The most groups that a world has at a time.
pub(crate) const MOST_GROUPS: usize = 8;

/// The tenants and groups with which a world begins.
#[derive(Debug, Clone)]
pub(crate) struct Beginning {
    /// The weight of each group, and its parent: the place of an earlier group, from 1; 0 is the root.
    groups: Vec<(u16, usize)>,
    /// The weight and the group of each tenant.
    tenants: Vec<(u16, usize)>,
}

/// A tenant as it shall be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tenant {
    pub(crate) weight: u16,
    pub(crate) group: GroupId,
    /// Submitters that are just joining for this tenant. What they bring may be out of date.
    pub(crate) nr_joining: u32,
}

/// A group as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) id: GroupId,
    pub(crate) parent: GroupId,
}

/// The tenants and groups of a world.
#[derive(Debug, Default)]
pub(crate) struct Tenancy {
    pub(crate) tenants: Vec<Tenant>,
    /// The groups, each behind its parent. The root is not among them.
    pub(crate) groups: Vec<Group>,
    /// How many groups there have been, so that each has a name of its own.
    pub(crate) nr_made: u32,
}

/// A weight: mostly the default, if that is what the world has.
pub(crate) fn weight(random: &mut Random) -> u16 {
    if random.one_in(4) { blkmq_sched::DEFAULT_WEIGHT } else { magnitude(random, MOST_WEIGHT.into()) as u16 }
}

/// The name of a tenant.
pub(crate) fn tenant_name(number: u16) -> String {
    format!("tenant {number}")
}

impl Beginning {
    /// Draws groups and weights for this many tenants: all of them in the root, or some of them in groups that may lie
    /// in each other.
    pub(crate) fn draw(random: &mut Random, nr_tenants: usize) -> Self {
        let are_weighted = random.one_in(2);
        let drawn = |random: &mut Random| if are_weighted { weight(random) } else { blkmq_sched::DEFAULT_WEIGHT };
        if nr_tenants <= MOST_GROUPS && random.one_in(4) {
            return Self::apart(random, nr_tenants);
        }
        let nr_groups = if random.one_in(4) { 0 } else { random.within(1, 6) as usize };
        let is_flat = random.one_in(2);
        let group = |at: usize| (drawn(random), if is_flat { 0 } else { random.below(at as u64 + 1) as usize });
        let groups: Vec<_> = (0..nr_groups).map(group).collect();
        let tenant = |_| {
            let group = random.below(nr_groups as u64 + 1) as usize;
            (drawn(random), group)
        };
        Self { groups, tenants: (0..nr_tenants).map(tenant).collect() }
    }
}

impl Beginning {
    /// This many tenants in the root, of one weight.
    pub(crate) fn alike(nr_tenants: usize) -> Self {
        Self { groups: Vec::new(), tenants: vec![(blkmq_sched::DEFAULT_WEIGHT, 0); nr_tenants] }
    }

    /// Draws weights for this many tenants, each in a group of its own.
    pub(crate) fn apart(random: &mut Random, nr_tenants: usize) -> Self {
        let groups = (0..nr_tenants).map(|_| (weight(random), 0)).collect();
        Self { groups, tenants: (0..nr_tenants).map(|at| (weight(random), at + 1)).collect() }
    }
}

impl Tenancy {
    /// Makes the groups of a world.
    pub(crate) fn begin(beginning: &Beginning, q: &RequestQueue) -> Self {
        let mut groups: Vec<Group> = Vec::with_capacity(MOST_GROUPS);
        let id = |groups: &[Group], place: usize| place.checked_sub(1).map_or(GroupId::ROOT, |at| groups[at].id);
        for (number, (weight, parent)) in (0..).zip(&beginning.groups) {
            let parent = id(&groups, *parent);
            let id = q.tenants().add_group(&group_name(number), parent, *weight).expect("a world has few groups");
            groups.push(Group { id, parent });
        }
        let tenant =
            |(weight, place): &(u16, usize)| Tenant { weight: *weight, group: id(&groups, *place), nr_joining: 0 };
        Self { tenants: beginning.tenants.iter().map(tenant).collect(), nr_made: groups.len() as u32, groups }
    }

    /// A submitter begins to join for a tenant. Returns the weight and the group that it names.
    pub(crate) fn begin_to_join(&mut self, number: u16) -> (u16, GroupId) {
        let tenant = &mut self.tenants[usize::from(number)];
        tenant.nr_joining += 1;
        (tenant.weight, tenant.group)
    }

    /// A submitter has joined for a tenant, or could not.
    pub(crate) fn end_joining(&mut self, number: u16) {
        self.tenants[usize::from(number)].nr_joining -= 1;
    }

    /// Called when a group is about to go: what is in it shall belong to its parent. Returns the tenants that shall
    /// move.
    pub(crate) fn forget(&mut self, group: GroupId) -> Vec<u16> {
        let Some(at) = self.groups.iter().position(|known| known.id == group) else { return Vec::new() };
        let Group { parent, .. } = self.groups.remove(at);
        let children = self.groups.iter_mut().filter(|known| known.parent == group);
        children.for_each(|child| child.parent = parent);
        let mut moved = Vec::new();
        for (number, tenant) in (0..).zip(&mut self.tenants).filter(|(_, tenant)| tenant.group == group) {
            tenant.group = parent;
            moved.push(number);
        }
        moved
    }
}

/// The name of a group.
pub(crate) fn group_name(number: u32) -> String {
    format!("group {number}")
}
