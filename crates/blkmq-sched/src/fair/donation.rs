//! Lending: who does not use its share leaves the rest to the others of its group.
//!
//! Start tags alone leave it to all clients by their shares, and a group would get less than it is due as soon as one
//! of its clients asks for little. So a client that asks for less than its share counts with a smaller weight in its
//! group: one with which its share is what it uses and a margin. A group all of whose clients lend lends itself. The
//! weight is back at the end of the next window of usage in which the client asks for more, and as soon as
//! [`SEVERAL`] of its requests wait. This is the donation of Linux's blk-iocost.

use super::Fair;
use super::client::Client;
use super::flow::Flow;
#[cfg(virtual_cpus)]
use super::group::Group;
use super::group::{Demand, Groups, SCALE, Sum};
use super::service::SEVERAL;
use crate::slab::{Index, Slab};
#[cfg(virtual_cpus)]
use crate::{Class, ClientId};

/// A client keeps so many times what it used.
const MARGIN: f64 = 1.25;

/// Whether a client was hungry in the window, or several of its requests wait now: one that has just come back has its
/// whole share at once.
fn wants_all(client: &Client, flows: &Slab<Flow>) -> bool {
    let waits = |flow: &Index| flows.get(*flow).nr_waiting >= SEVERAL;
    client.usage.is_hungry() || !client.has_left && client.flows.iter().any(waits)
}

impl Fair {
    /// Sets the weights in use by what clients got in a window of usage, in which they count.
    ///
    /// COST: three walks to the root for each client.
    pub(super) fn lend(&mut self, total: f64) {
        self.groups.forget_demands();
        for client in self.clients.in_window_mut() {
            if client.usage.matters() {
                let over_share = self.groups.over_share(client.group, Sum::Window, client.weight());
                client.usage.kept = (MARGIN * client.usage.got / total.max(1.0)).min(1.0 / over_share);
            }
            self.groups.note_demand(client.group, wants_all(client, &self.flows), client.usage.kept);
        }
        for client in self.clients.in_window().filter(|client| client.usage.matters()) {
            let is_hungry = wants_all(client, &self.flows);
            self.groups.note_member(client.group, is_hungry, client.weight(), client.usage.kept);
        }
        self.groups.note_groups();
        for place in 0..self.clients.nr_places() {
            let Some(client) = self.clients.joined(place) else { continue };
            let lends = client.usage.matters() && !wants_all(client, &self.flows);
            let weight = client.weight();
            let in_use = if lends { self.groups.lent(client.group, weight, client.usage.kept) } else { weight };
            self.use_weight(place, client.group, in_use);
        }
        for left in self.clients.departed.iter_mut().filter(|left| left.usage.matters()) {
            left.in_use = self.groups.lent(left.group, left.weight(), left.usage.kept);
        }
        self.groups.lend();
    }

    /// A flow has got another waiting request. Several of them want all of the share.
    ///
    /// COST: a load; at the fourth one a step for each group above, and three if they lend.
    pub(super) fn note_hunger(&mut self, flow: Index) {
        let flow = self.flows.get(flow);
        if flow.nr_waiting != SEVERAL {
            return;
        }
        let place = flow.client;
        let client = self.clients.get(place);
        if self.lends(client) {
            let (group, weight) = (client.group, client.weight());
            self.use_weight(place, group, weight);
            self.groups.take_back(group);
        }
    }

    /// Whether a client lends a part of its share, or its group or one above does.
    pub(super) fn lends(&self, client: &Client) -> bool {
        client.in_use < client.weight() || self.groups.lends(client.group)
    }
}

/// What the torture rig asks.
#[cfg(virtual_cpus)]
impl Fair {
    /// Where the next request of a client in this class starts while one waits, and otherwise where the last one ended.
    #[must_use]
    pub fn tag(&self, client: ClientId, class: Class) -> u64 {
        self.flows.get(self.clients.of(client).flows[class.index()]).tag()
    }

    /// Whether a client or group lends a part of its share, or this client's requests cost more or less than predicted,
    /// or go alone and are charged by the time that passes.
    #[must_use]
    pub fn is_special(&self, client: ClientId) -> bool {
        let lends = |place| self.groups.joined(place).is_some_and(Group::lends);
        self.clients.iter().any(|client| client.in_use != client.weight())
            || self.groups.below_root().any(lends)
            || self.clients.of(client).pricing.tariff().is_some()
            || Class::ALL.iter().any(|class| self.is_exclusive(client, *class))
    }

    /// Whether the requests of this client and class are served exclusively, while their price is measured.
    #[must_use]
    pub fn is_exclusive(&self, client: ClientId, class: Class) -> bool {
        self.prices.subject() == Some(self.clients.of(client).flows[class.index()])
    }
}

impl Groups {
    fn forget_demands(&mut self) {
        self.iter_mut().for_each(|group| group.demand = Demand::default());
    }

    /// A client below keeps so much of what all got.
    fn note_demand(&mut self, place: usize, is_hungry: bool, kept: f64) {
        let mut at = Some(place);
        while let Some(place) = at {
            let group = self.get_mut(place);
            group.demand.is_hungry |= is_hungry;
            group.demand.kept += kept;
            at = group.parent();
        }
    }

    /// A client or group of this one lends nothing, or keeps so much.
    fn note_member(&mut self, place: usize, is_hungry: bool, weight: u64, kept: f64) {
        let demand = &mut self.get_mut(place).demand;
        if is_hungry {
            demand.weights += weight;
        } else {
            demand.kept_by_lenders += kept;
        }
    }

    fn note_groups(&mut self) {
        for place in self.below_root() {
            let Some(group) = self.joined(place) else { continue };
            if let Some(parent) = group.parent().filter(|_| group.counts(Sum::Window)) {
                let (Demand { is_hungry, kept, .. }, weight) = (group.demand, group.weight());
                self.note_member(parent, is_hungry, weight, kept);
            }
        }
    }

    /// The weight in use of one in `place` that has this weight and keeps so much of what all got.
    fn lent(&self, place: usize, weight: u64, kept: f64) -> u64 {
        let group = self.get(place);
        let Demand { weights, kept_by_lenders, .. } = group.demand;
        if weights == 0 {
            // All lend, and so does the group.
            return weight;
        }
        let share = group.parent().map_or(1.0, |parent| 1.0 / self.over_share(parent, Sum::Window, group.weight()));
        let left = (share - kept_by_lenders).max(f64::MIN_POSITIVE);
        ((kept * weights as f64 / left) as u64).clamp(weight / SCALE, weight)
    }

    fn lend(&mut self) {
        for place in self.below_root() {
            let Some((group, parent)) = self.joined(place).and_then(|group| Some((group, group.parent()?))) else {
                continue;
            };
            let lends = group.counts(Sum::Window) && !group.demand.is_hungry;
            let in_use = if lends { self.lent(parent, group.weight(), group.demand.kept) } else { group.weight() };
            self.move_to(place, parent, in_use);
        }
    }

    /// Whether this group or one above it lends a part of its share.
    fn lends(&self, place: usize) -> bool {
        self.path(place).any(|at| self.get(at).lends())
    }

    /// This group and those above it lend nothing any more.
    fn take_back(&mut self, place: usize) {
        let mut at = place;
        while let Some(parent) = self.get(at).parent() {
            let weight = self.get(at).weight();
            self.move_to(at, parent, weight);
            at = parent;
        }
    }
}
