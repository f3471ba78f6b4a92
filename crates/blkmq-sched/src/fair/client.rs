//! Clients, their flows, and what clients owe that have left.

use alloc::vec::Vec;

use super::flow::Flow;
use super::group::{SCALE, Sum};
use super::mix::{Counts, Mix};
use super::service::ClientUsage;
use super::tariff::{Pricing, Tariff};
use super::{Fair, unless_mutated};
use crate::data::{Named, Tracked};
use crate::limiter::Costs;
use crate::slab::{Index, Slab};
use crate::{Class, ClientId, ClientSettings, GroupId, Info};

/// How many clients that have left are remembered. If more owe something, who owes the least is forgotten.
const DEBTORS: usize = 64;

/// One client.
#[derive(Debug, Clone)]
pub(super) struct Client {
    id: ClientId,
    name: u64,
    /// The class of its requests that carry none of their own.
    pub(super) class: Class,
    weight: u16,
    /// The weight in use, times [`SCALE`].
    pub(super) in_use: u64,
    /// The place of its group.
    pub(super) group: usize,
    /// By class.
    pub(super) flows: [Index; 3],
    pub(super) usage: ClientUsage,
    /// Whether it was hungry in the last window, in the class best-effort, and what it asked for.
    pub(super) is_hungry: bool,
    pub(super) mix: Option<Mix>,
    pub(super) pricing: Pricing,
    /// What it asked for when a round ended last, whether that brought a price or not.
    pub(super) tried: Option<Mix>,
    /// Operations were outstanding by the last report.
    pub(super) is_outstanding: bool,
    /// It got less than it was due when others were last let go.
    pub(super) was_below_due: bool,
    /// It has left, and its flows are gone.
    pub(super) has_left: bool,
}

/// The finish tags of a client that has left.
#[derive(Debug, Clone, Copy)]
struct Debt {
    name: u64,
    finish: [u64; 3],
}

/// What is known of what the requests of a client cost that has left.
#[derive(Debug, Clone, Copy)]
struct Remembered {
    name: u64,
    pricing: Pricing,
}

/// How many clients that have left count in a window. If there are more, the first one is forgotten that was not there
/// when the window began.
const MOST_DEPARTED: usize = 64;

/// Clients that have left, in that order, until the end of the window of usage behind that in which they left.
///
/// The service of such a client belongs to the window: without it, the parts of the others would look larger than they
/// are. A client that leaves and joins again under its name is judged as one.
#[derive(Debug, Clone)]
pub(super) struct Departed(Vec<Client>);

impl Departed {
    pub(super) fn new() -> Self {
        Self(Vec::with_capacity(MOST_DEPARTED))
    }

    /// A client leaves.
    pub(super) fn push(&mut self, client: Client) {
        if self.0.len() == MOST_DEPARTED {
            if let Some(known) = self.of_name_mut(client.name) {
                known.usage.absorb(&client.usage);
                return;
            }
            let joined_late = self.0.iter().position(|left| !left.usage.is_whole);
            self.0.remove(joined_late.unwrap_or(0));
        }
        self.0.push(client);
    }

    pub(super) fn of_id_mut(&mut self, id: ClientId) -> Option<&mut Client> {
        self.0.iter_mut().find(|left| left.id == id)
    }

    fn of_name_mut(&mut self, name: u64) -> Option<&mut Client> {
        self.0.iter_mut().find(|left| left.is_called(name))
    }

    /// The client of this name that left last.
    pub(super) fn latest(&self, name: u64) -> Option<&Client> {
        self.0.iter().rfind(|left| left.is_called(name))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.0.iter_mut()
    }

    /// Makes clients of one name one. Called when all that they got was reported.
    pub(super) fn unite(&mut self) {
        let mut at = 1;
        while at < self.0.len() {
            let (before, behind) = self.0.split_at_mut(at);
            let name = behind[0].name;
            match before.iter_mut().find(|left| left.is_called(name)) {
                Some(first) => {
                    first.usage.absorb(&behind[0].usage);
                    (first.is_hungry, first.mix) = (behind[0].is_hungry, behind[0].mix);
                    self.0.remove(at);
                }
                None => at += 1,
            }
        }
    }

    /// Takes the client of this name out. Called when those of one name are one.
    pub(super) fn take(&mut self, name: u64) -> Option<Client> {
        let at = self.0.iter().position(|left| left.is_called(name))?;
        Some(self.0.remove(at))
    }

    /// Forgets those that got nothing in the window.
    pub(super) fn forget_idle(&mut self) {
        self.0.retain(|left| left.usage.got > 0.0);
    }
}

/// The clients by place. Requests of a client that did not join are those of one more client, in the root.
#[derive(Debug, Clone)]
pub(super) struct Clients {
    places: Named<Vec<Tracked<Option<Client>>>>,
    stranger: Tracked<Client>,
    pub(super) departed: Departed,
    debts: Vec<Debt>,
    /// The oldest one is next to be forgotten.
    prices: Vec<Remembered>,
    forgets: usize,
}

/// The place of the client that stands for all that did not join.
const STRANGER: u16 = u16::MAX;

/// The clients that joined.
fn joined_mut(places: &mut [Tracked<Option<Client>>]) -> impl Iterator<Item = &mut Client> {
    places.iter_mut().filter_map(|client| client.as_mut())
}

/// A flow for each class.
fn new_flows(flows: &mut Slab<Flow>, place: u16) -> [Index; 3] {
    Class::ALL.map(|class| flows.insert(Flow::new(place, class)))
}

impl Clients {
    pub(super) fn new(flows: &mut Slab<Flow>) -> Self {
        let flows = new_flows(flows, STRANGER);
        let stranger = Client::new(ClientId::default(), &ClientSettings::default(), 0, flows);
        Self {
            places: Named::new("fair.clients", Vec::new()),
            stranger: Tracked::new(stranger),
            departed: Departed::new(),
            debts: Vec::with_capacity(DEBTORS),
            prices: Vec::with_capacity(DEBTORS),
            forgets: 0,
        }
    }

    fn place(&self, id: ClientId) -> u16 {
        match self.places.get(id.place()).and_then(|client| client.as_ref()) {
            Some(client) if client.id == id => id.place() as u16,
            _ => STRANGER,
        }
    }

    /// The client with this id, or the one for all that did not join.
    pub(super) fn of(&self, id: ClientId) -> &Client {
        self.get(self.place(id))
    }

    /// The same, or a client that has left.
    pub(super) fn of_mut(&mut self, id: ClientId) -> &mut Client {
        match self.place(id) {
            STRANGER => self.departed.of_id_mut(id).unwrap_or(&mut self.stranger),
            place => self.get_mut(place),
        }
    }

    pub(super) fn get(&self, place: u16) -> &Client {
        if place == STRANGER {
            return &self.stranger;
        }
        self.places[usize::from(place)].as_ref().expect("a client that has flows is there")
    }

    pub(super) fn get_mut(&mut self, place: u16) -> &mut Client {
        if place == STRANGER {
            return &mut self.stranger;
        }
        self.places[usize::from(place)].as_mut().expect("a client that has flows is there")
    }

    /// The number of places that were ever used.
    pub(super) fn nr_places(&self) -> u16 {
        self.places.len() as u16
    }

    /// The client in this place, if one joined.
    pub(super) fn joined(&self, place: u16) -> Option<&Client> {
        self.places[usize::from(place)].as_ref()
    }

    /// The clients that joined.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.places.iter().filter_map(|client| client.as_ref())
    }

    /// The same.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        joined_mut(&mut self.places)
    }

    /// The clients that joined, and those that have left.
    pub(super) fn in_window(&self) -> impl Iterator<Item = &Client> {
        self.iter().chain(self.departed.iter())
    }

    /// The same.
    pub(super) fn in_window_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        joined_mut(&mut self.places).chain(self.departed.iter_mut())
    }

    /// The same, and the one for all others.
    pub(super) fn watched_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        core::iter::once(&mut *self.stranger).chain(joined_mut(&mut self.places)).chain(self.departed.iter_mut())
    }

    /// A client that has joined again under its name got all that its name got in the window.
    pub(super) fn reunite(&mut self) {
        for client in joined_mut(&mut self.places) {
            if let Some(left) = self.departed.take(client.name) {
                client.usage.absorb(&left.usage);
            }
        }
    }

    /// Usage begins anew. Who has left and got something is remembered for one window more.
    pub(super) fn begin_window(&mut self) {
        self.departed.forget_idle();
        self.watched_mut().for_each(|client| {
            client.usage = ClientUsage::new(!client.has_left);
        });
    }

    /// The clients that joined, and the one for all others.
    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        core::iter::once(&mut *self.stranger).chain(joined_mut(&mut self.places))
    }

    /// Tags begin anew, so nobody who has left owes anything.
    pub(super) fn forget_debts(&mut self) {
        self.debts.clear();
    }

    /// Charges what is predicted from now on.
    pub(super) fn forget_prices(&mut self) {
        self.prices.clear();
        self.all_mut().for_each(|client| (client.pricing, client.tried) = (Pricing::default(), None));
    }

    /// Remembers what the requests of a client cost that leaves.
    fn remember_price(&mut self, client: &Client) {
        if client.pricing.tariff().is_none() || client.name == 0 {
            self.prices.retain(|known| known.name != client.name);
            return;
        }
        let remembered = Remembered { name: client.name, pricing: client.pricing };
        let known = self.prices.iter_mut().find(|known| known.name == client.name);
        if let Some(known) = known {
            *known = remembered;
        } else if self.prices.len() < DEBTORS {
            self.prices.push(remembered);
        } else {
            self.prices[self.forgets % DEBTORS] = remembered;
            self.forgets = (self.forgets + 1) % DEBTORS;
        }
    }

    /// The finish tags of a client of this name that has left.
    fn take_debt(&mut self, name: u64) -> Option<[u64; 3]> {
        let at = self.debts.iter().position(|debt| debt.name == name)?;
        Some(self.debts.swap_remove(at).finish)
    }
}

impl Client {
    /// A client that has got nothing, whose requests cost what is predicted.
    fn new(id: ClientId, settings: &ClientSettings, group: usize, flows: [Index; 3]) -> Self {
        let ClientSettings { name, weight, priority, .. } = *settings;
        Self {
            id,
            name,
            class: priority.class,
            weight,
            in_use: u64::from(weight) * SCALE,
            group,
            flows,
            usage: ClientUsage::default(),
            is_hungry: false,
            mix: None,
            pricing: Pricing::default(),
            tried: None,
            is_outstanding: false,
            was_below_due: false,
            has_left: false,
        }
    }

    pub(super) const fn id(&self) -> ClientId {
        self.id
    }

    /// Whether the client has this name. Clients with the name 0 have none.
    fn is_called(&self, name: u64) -> bool {
        name != 0 && self.name == name
    }

    /// The cost of a request to the client, in nanoseconds: `predicted`, unless there is a tariff.
    #[inline]
    pub(super) fn cost(&self, predicted: u32, info: &Info) -> f64 {
        self.pricing.tariff().map_or(predicted.into(), |tariff| tariff.of(info.op, info.nr_sectors))
    }

    /// What operations that are over have cost it, in nanoseconds.
    pub(super) fn value(&self, costs: &Costs, counts: &Counts) -> f64 {
        self.pricing
            .tariff()
            .map_or_else(|| Tariff::predicted(costs).sum(counts), |tariff| self.pricing.merged() * tariff.sum(counts))
    }

    /// The weight that was set.
    pub(super) const fn configured_weight(&self) -> u16 {
        self.weight
    }

    /// The weight, times [`SCALE`].
    pub(super) fn weight(&self) -> u64 {
        u64::from(self.weight) * SCALE
    }

    /// The weight with which it counts in a sum.
    pub(super) fn weight_in(&self, sum: Sum) -> u64 {
        if matches!(sum, Sum::Window) { self.weight() } else { self.in_use }
    }

    /// Whether others may be held back for the client.
    pub(super) fn is_paced(&self) -> bool {
        self.class == Class::BestEffort && self.usage.is_hungry() && self.usage.got > 0.0
    }
}

impl Fair {
    pub(super) fn join_now(&mut self, id: ClientId, settings: &ClientSettings) {
        let group = self.groups.place(settings.group);
        let place = self.clients.place(id);
        if place != STRANGER {
            let is_active = |flow: &Index| self.flows.get(*flow).is_active;
            if self.clients.get(place).flows.iter().any(is_active) && !unless_mutated("fair.weight") {
                return;
            }
            self.clients.get_mut(place).weight = settings.weight;
            self.use_weight(place, group, u64::from(settings.weight) * SCALE);
            return;
        }
        let place = id.place();
        if self.clients.places.len() <= place {
            self.clients.places.resize_with(place + 1, Tracked::default);
        }
        if let Some(old) = self.clients.places[place].as_ref().map(|client| client.id) {
            self.leave_now(old);
        }
        self.lead.reserve(self.clients.places.len() + 1);
        let flows = new_flows(&mut self.flows, place as u16);
        let debt = self.clients.take_debt(settings.name).filter(|_| unless_mutated("fair.debt"));
        for (flow, class) in flows.into_iter().zip(Class::ALL) {
            let joined = self.flows.get_mut(flow);
            joined.finish = debt.map_or(0, |debt| debt[class.index()]);
            joined.is_new = debt.is_none();
        }
        let known = self.clients.prices.iter().find(|known| known.name == settings.name);
        let pricing = known.map_or_else(Pricing::default, |known| known.pricing);
        let joined = Client::new(id, settings, group, flows);
        let left = self.clients.departed.latest(settings.name).unwrap_or(&joined);
        let (is_hungry, mix, was_below_due) = (left.is_hungry, left.mix, left.was_below_due);
        *self.clients.places[place] = Some(Client { is_hungry, mix, was_below_due, pricing, ..joined });
    }

    /// Another weight in use, or another group. A flow that is active counts so from now on; what waits is charged at
    /// the new share.
    pub(super) fn use_weight(&mut self, place: u16, group: usize, in_use: u64) {
        let client = self.clients.get(place);
        let (old, old_group, flows) = (client.in_use, client.group, client.flows);
        if (old, old_group) == (in_use, group) {
            return;
        }
        for (flow, class) in flows.into_iter().zip(Class::ALL) {
            if self.flows.get(flow).is_active {
                self.groups.leave(old_group, Sum::Active(class), old);
                self.groups.enter(group, Sum::Active(class), in_use);
            }
        }
        let client = self.clients.get_mut(place);
        (client.in_use, client.group) = (in_use, group);
    }

    pub(super) fn leave_now(&mut self, id: ClientId) {
        let place = self.clients.place(id);
        if place == STRANGER {
            return;
        }
        let left = self.clients.get(place).clone();
        self.clients.remember_price(&left);
        self.prices.forget(place);
        let (flows, name) = (left.flows, left.name);
        let mut debt = Debt { name, finish: [0; 3] };
        for (flow, class) in flows.into_iter().zip(Class::ALL) {
            let ended = self.flows.get(flow);
            self.lead.forget(flow);
            debug_assert!(ended.is_idle(), "a client leaves when none of its requests waits");
            debt.finish[class.index()] = ended.finish;
            if ended.is_active {
                self.deactivate(flow);
            }
            if self.run.is_some_and(|run| run.flow == flow) {
                *self.run = None;
            }
            self.flows.remove(flow);
        }
        *self.clients.places[usize::from(place)] = None;
        if self.window.is_open() {
            self.clients.departed.push(Client { has_left: true, ..left });
        }
        self.keep_floor();
        self.note_debt(debt);
    }

    /// A group goes. Clients of it that have left count in the one above.
    pub(super) fn leave_group_now(&mut self, id: GroupId) {
        let group = self.groups.place(id);
        if let Some(parent) = self.groups.get(group).parent() {
            self.clients.departed.iter_mut().filter(|left| left.group == group).for_each(|left| left.group = parent);
        }
        self.groups.remove(id);
    }

    /// Remembers what a client owes that has left, if it owes anything.
    fn note_debt(&mut self, debt: Debt) {
        let virtual_times = [0, 1, 2].map(|class: usize| *self.planes[class].virtual_time);
        let owed = |debt: &Debt| {
            let owed = debt.finish.iter().zip(virtual_times).map(|(finish, now)| finish.saturating_sub(now));
            owed.max().unwrap_or(0)
        };
        let debts = &mut self.clients.debts;
        debts.retain(|known| owed(known) > 0);
        if owed(&debt) == 0 || debt.name == 0 {
            return;
        }
        if debts.len() == DEBTORS
            && let Some((at, least)) = debts.iter().enumerate().min_by_key(|(_, known)| owed(known))
        {
            if owed(least) >= owed(&debt) {
                return;
            }
            debts.swap_remove(at);
        }
        debts.push(debt);
    }
}
