//! What the naive model makes of usage: who lends, and whether someone gets less than it is due.

use super::{Client, GROUPS, Group, Model};
use crate::bench::MS;
use blkmq_sched::{ClientId, Fairness, Time, Usage};

const MOST_OVER: f64 = 16_777_216.0;

/// So many requests at once want all of a share.
pub(super) const SEVERAL: usize = 4;

/// A weight in use is so many times a weight.
pub(super) const SCALE: u64 = 64;

/// What a client got in a window.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Watched {
    pub(super) got: f64,
    reports: u32,
    outstanding: u32,
    most_outstanding: u32,
    pub(super) is_whole: bool,
    is_busy: bool,
    kept: f64,
}

#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) began: Option<Time>,
    pub(super) operations: u64,
    reports: u32,
    /// Requests that were dispatched.
    pub(super) ordered: u64,
}

impl Client {
    fn is_hungry(&self) -> bool {
        self.watched.is_busy && self.watched.most_outstanding >= SEVERAL as u32
    }

    fn matters(&self) -> bool {
        self.watched.got > 0.0 || self.watched.is_busy
    }

    pub(super) fn full(&self) -> u64 {
        u64::from(self.weight) * SCALE
    }

    /// A client of the same name got so much.
    fn absorb(&mut self, left: &Self) {
        let (one, other) = (&mut self.watched, &left.watched);
        one.got += other.got;
        one.reports += other.reports;
        one.most_outstanding = one.most_outstanding.max(other.most_outstanding);
        one.is_whole |= other.is_whole;
    }
}

impl Model {
    /// The client with this id, joined or left. For any other id the one that did not join.
    fn known(&mut self, id: ClientId) -> &mut Client {
        let Self { clients, departed, .. } = self;
        let [stranger, joined @ ..] = clients;
        let known = joined.iter_mut().flatten().chain(departed).find(|client| client.id == id);
        known.unwrap_or(stranger.as_mut().expect("it stays"))
    }

    /// The clients that joined, and those that have left.
    fn members(&self) -> Vec<Client> {
        self.clients[1..].iter().flatten().chain(&self.departed).copied().collect()
    }

    /// All of these, and the one that did not join.
    fn watched_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.clients.iter_mut().flatten().chain(&mut self.departed)
    }

    pub(super) fn report(&mut self, usage: &[Usage], now: Time) -> Fairness {
        let Some(began) = self.window.began else {
            self.begin_window(now);
            return Fairness::Unknown;
        };
        self.watched_mut().for_each(|client| client.watched.outstanding = 0);
        for report in usage {
            let Usage { operations: [reads, writes, others], sectors: [read, written], .. } = *report;
            let counts = [reads, writes, others, read, written].map(|count| count as f64);
            let cost: f64 = self.costs.by_kind().iter().zip(counts).map(|(cost, count)| cost * count).sum();
            let client = self.known(report.client);
            client.watched.got += cost;
            client.watched.outstanding += report.outstanding;
            self.window.operations += report.operations.iter().sum::<u64>();
        }
        self.window.reports += 1;
        for client in self.watched_mut() {
            let watched = &mut client.watched;
            client.is_outstanding = watched.outstanding > 0;
            watched.reports += u32::from(watched.outstanding > 0);
            watched.most_outstanding = watched.most_outstanding.max(watched.outstanding);
        }
        let mut united: Vec<Client> = Vec::new();
        for left in std::mem::take(&mut self.departed) {
            match united.iter_mut().find(|known| known.name == left.name && left.name != 0) {
                Some(known) => known.absorb(&left),
                None => united.push(left),
            }
        }
        self.departed = united;
        if now.0 < began.0 + 50 * MS || self.window.operations < 512 && now.0 < began.0 + 1000 * MS {
            return Fairness::Unknown;
        }
        for client in self.clients[1..].iter_mut().flatten() {
            if let Some(at) = self.departed.iter().position(|left| left.name == client.name && left.name != 0) {
                client.absorb(&self.departed.remove(at));
            }
        }
        let reports = self.window.reports;
        for client in self.clients[1..].iter_mut().flatten() {
            client.watched.is_busy = client.watched.is_whole && 2 * client.watched.reports >= reports;
        }
        self.lend();
        let is_violated = self.is_someone_below();
        self.begin_window(now);
        if is_violated { Fairness::Violated } else { Fairness::Kept }
    }

    fn begin_window(&mut self, now: Time) {
        self.window = Window { began: Some(now), ..Window::default() };
        self.departed.retain(|left| left.watched.got > 0.0);
        self.watched_mut().for_each(|client| {
            client.watched = Watched { is_whole: client.place.is_some(), ..Watched::default() };
        });
    }

    /// This group and those above it.
    fn path(&self, group: usize) -> Vec<usize> {
        let above = |at: &usize| (*at > 0).then(|| self.groups[*at].expect("it is there").parent);
        std::iter::successors(Some(group), above).collect()
    }

    /// The weights of those of these clients that are in a group, and of groups that have some.
    fn sum_of(&self, of: &[Client], group: usize, weight: Weight) -> u64 {
        let clients = of.iter().filter(|client| client.group == group).map(weight.of_client);
        let has_some = |child: usize| of.iter().any(|client| self.path(client.group).contains(&child));
        let groups = (1..GROUPS).filter(|child| has_some(*child)).filter_map(|child| self.groups[child]);
        clients.sum::<u64>() + groups.filter(|child| child.parent == group).map(weight.of_group).sum::<u64>()
    }

    /// One over the share among these of one that weighs so much in this group.
    fn over(&self, of: &[Client], group: usize, mut own: u64, weight: Weight) -> f64 {
        let mut over = 1.0;
        for at in self.path(group) {
            over *= self.sum_of(of, at, weight) as f64 / own as f64;
            own = self.groups[at].map_or(0, |group| (weight.of_group)(group));
        }
        over.min(MOST_OVER)
    }

    fn wants_all(&self, client: &Client) -> bool {
        let waits = |place| (0..3).any(|class| self.of(place, class).count() >= SEVERAL);
        client.is_hungry() || client.place.is_some_and(waits)
    }

    fn lend(&mut self) {
        let mut members = self.members();
        let counted: Vec<Client> = members.iter().filter(|client| client.matters()).copied().collect();
        let total: f64 = members.iter().map(|client| client.watched.got).sum();
        for client in members.iter_mut().filter(|client| client.matters()) {
            let share = 1.0 / self.over(&counted, client.group, client.full(), SET);
            client.watched.kept = (1.25 * client.watched.got / total.max(1.0)).min(share);
        }
        let below = |client: &Client, group| self.path(client.group).contains(&group);
        let is_hungry = |group| members.iter().any(|client| below(client, group) && self.wants_all(client));
        let kept = |group| {
            let below = members.iter().filter(|client| below(client, group));
            below.fold(0.0, |sum, client| sum + client.watched.kept)
        };
        // The weight in use of one in this group.
        let lent = |group: usize, weight: u64, own: f64| {
            let members = || members.iter().filter(|client| client.matters() && client.group == group);
            let counts = |child: &usize| counted.iter().any(|client| below(client, *child));
            let has_child = |child: &usize| self.groups[*child].is_some_and(|child| child.parent == group);
            let children = || (1..GROUPS).filter(has_child).filter(counts);
            let all = members().filter(|client| self.wants_all(client)).map(Client::full).sum::<u64>()
                + children().filter(|child| is_hungry(*child)).map(|child| self.weight_of(child)).sum::<u64>();
            if all == 0 {
                return weight;
            }
            let by_clients = members().filter(|client| !self.wants_all(client)).map(|client| client.watched.kept);
            let by_groups = children().filter(|child| !is_hungry(*child)).map(kept);
            let by_lenders = by_clients.chain(by_groups).fold(0.0, |sum, kept| sum + kept);
            let parent = self.groups[group].filter(|_| group > 0).map(|group| group.parent);
            let share = parent.map_or(1.0, |parent| 1.0 / self.over(&counted, parent, self.weight_of(group), SET));
            let left = (share - by_lenders).max(f64::MIN_POSITIVE);
            ((own * all as f64 / left) as u64).clamp(weight / SCALE, weight)
        };
        let of_client = |client: &Client| {
            let lends = client.matters() && !self.wants_all(client);
            if lends { lent(client.group, client.full(), client.watched.kept) } else { client.full() }
        };
        let of_group = |group: usize| {
            let known = self.groups[group]?;
            let lends = counted.iter().any(|client| below(client, group)) && !is_hungry(group);
            let weight = self.weight_of(group);
            Some(if lends { lent(known.parent, weight, kept(group)) } else { weight })
        };
        let of_clients: Vec<u64> = members.iter().map(of_client).collect();
        let of_groups: Vec<Option<u64>> = (1..GROUPS).map(of_group).collect();
        let joined = self.clients[1..].iter_mut().flatten().chain(&mut self.departed);
        joined.zip(of_clients).for_each(|(client, in_use)| client.in_use = in_use);
        for (group, in_use) in self.groups[1..].iter_mut().zip(of_groups) {
            *group = group.zip(in_use).map(|(group, in_use)| Group { in_use, ..group });
        }
    }

    /// The weight of a group that is there.
    pub(super) fn weight_of(&self, group: usize) -> u64 {
        u64::from(self.groups[group].expect("it is there").weight) * SCALE
    }

    fn is_someone_below(&self) -> bool {
        let members = self.members();
        let mut rest: f64 = members.iter().map(|client| client.watched.got).sum();
        let mut is_someone_below = false;
        for class in 0..3 {
            let of_class = |client: &&Client| client.class as usize == class && client.matters();
            let of: Vec<Client> = members.iter().filter(of_class).copied().collect();
            for client in of.iter().filter(|client| client.watched.is_busy) {
                let (own, weight) = if client.is_hungry() { (client.in_use, IN_USE) } else { (client.full(), SET) };
                let due = rest / self.over(&of, client.group, own, weight);
                is_someone_below |= client.watched.got < 0.95 * due;
            }
            rest = (rest - of.iter().fold(0.0, |sum, client| sum + client.watched.got)).max(0.0);
        }
        is_someone_below
    }

    /// A client has several requests waiting: it and the groups above it lend nothing any more.
    pub(super) fn take_back(&mut self, client: usize) {
        let known = self.clients[client].as_mut().expect("it is there");
        known.in_use = known.full();
        let group = known.group;
        for group in self.path(group).into_iter().filter(|group| *group > 0) {
            let in_use = self.weight_of(group);
            self.groups[group].as_mut().expect("it is there").in_use = in_use;
        }
    }

    /// How many clients and how many groups lend.
    pub(super) fn lenders(&self) -> [usize; 2] {
        let clients = self.clients[1..].iter().flatten().filter(|client| client.in_use < client.full()).count();
        let groups = (1..GROUPS).filter(|group| self.groups[*group].is_some());
        [
            clients,
            groups.filter(|group| self.groups[*group].expect("it is there").in_use < self.weight_of(*group)).count(),
        ]
    }
}

/// Which weights count.
#[derive(Clone, Copy)]
struct Weight {
    of_client: fn(&Client) -> u64,
    of_group: fn(Group) -> u64,
}

/// Those that were set, and those in use.
const SET: Weight = Weight { of_client: Client::full, of_group: |group| u64::from(group.weight) * SCALE };
const IN_USE: Weight = Weight { of_client: |client| client.in_use, of_group: |group| group.in_use };
