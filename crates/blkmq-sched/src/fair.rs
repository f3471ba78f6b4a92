//! `fair`: shares of the device's time by weight, for devices that do many requests at once.
//!
//! Start-time fair queueing. Each client has a *finish tag*: the predicted service time of what it was given, over its
//! share. A request starts at the finish tag of the client's last one, but no earlier than *virtual time*, which is the
//! start tag of the request that was dispatched last. The client with the least start tag is next. So a client that
//! pauses earns nothing by it and owes nothing for it, and what one client leaves goes to the others. Nothing is kept
//! idle for a client, except that others wait for one that gets less than it is due ([`lead`]).
//!
//! With D in flight the service of two clients that both wait, each divided by its weight, differs by at most
//! (D + 1)(c/w + c'/w'), where c is the cost of a client's dearest request. So the fewer requests are in flight, the
//! sooner service is fair: a [limiter](crate::limiter) bounds them while a client gets less than it is due. The
//! scheduler learns that from sums of the service that each client got ([usage]).
//!
//! Groups have weights too. A client's share is its part of its group among the clients of the group that are active,
//! times the group's part, and so on up to the root ([`group`]). A client that uses less lends the rest within
//! its group ([`donation`]).
//!
//! Requests of unlike clients are charged by the rate that each client has alone ([`price`]).
//!
//! Within a client reads and other requests take turns by cost, each in order of arrival. On a rotating disk a short
//! run by sector is served at once. Classes are apart: real-time requests go before best-effort ones and these before
//! idle ones, but the next client of a lower class goes if its oldest request has waited for [`AGED`] nanoseconds. A
//! client's longest wait within a class is the cost of what it has waiting itself over its share, and what a lead or a
//! round of prices adds: at most 100 ms, and 200 ms for the turn of another client or a second for its own.
//!
//! Sources: P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queueing", IEEE/ACM ToN 5(5), 1997; W. Jin, J. S. Chase,
//! J. Kaur, "Interposed Proportional Sharing for a Storage Service Utility", SIGMETRICS 2004, for D requests at once.

mod client;
mod donation;
mod fast;
mod flow;
mod group;
mod lead;
mod merge;
mod mix;
mod price;
mod service;
mod show;
mod tariff;
mod usage;

use core::fmt;

use client::{Client, Clients};
use flow::{ByIdleness, Flow, Request, Run};
use group::{Groups, Sum};
use lead::Lead;
use price::Prices;
use service::SEVERAL;
use usage::Window;

use crate::data::Tracked;
use crate::direction::Direction;
use crate::limiter::Costs;
use crate::limiter::scale::{MS, SECOND};
use crate::list::List;
use crate::mergeable::Mergeable;
use crate::site::unless_mutated;
use crate::slab::{Index, Slab};
use crate::tree::Tree;
use crate::waiting::ByAge;
use crate::{
    Admission, Class, ClientId, ClientSettings, DispatchContext, Fairness, FastRequest, Feedback, FeedbackKind,
    GroupId, GroupSettings, Info, InsertAt, Merge, Op, Outstanding, Passing, RqId, Scheduler, Setting, Time,
};

/// The policy's name.
pub(crate) const NAME: &str = "fair";

/// Nanoseconds: a request of a lower class that has waited for so long goes before those of higher classes. That of
/// mq-deadline's `prio_aging_expire`.
const AGED: u64 = 10 * SECOND;

/// Nanoseconds: a client counts in its group's sum of weights for so long after its last request went.
const ACTIVE: u64 = 20 * MS;

/// Nanoseconds of cost over share: above this, tags begin anew as soon as nobody owes anything.
const LARGEST: u64 = 1 << 60;

/// What clients of one class have waiting.
#[derive(Debug, Clone, Default)]
struct Plane {
    /// Flows with waiting requests, by start tag.
    waiting: Tree,
    /// Active flows without waiting requests, the one that has been so for the longest first.
    idle: List<ByIdleness>,
    /// Virtual time, in nanoseconds of cost over share.
    virtual_time: Tracked<u64>,
    /// The largest finish tag.
    last_finish: Tracked<u64>,
    /// When a request was dispatched last.
    dispatched: Tracked<Time>,
}

/// The scheduler `fair`.
#[derive(Debug, Clone)]
pub struct Fair {
    requests: Slab<Request>,
    flows: Slab<Flow>,
    clients: Clients,
    groups: Groups,
    planes: [Plane; 3],
    /// Requests that go before all others; the latest first.
    at_head: List<ByAge>,
    mergeable: Mergeable,
    costs: Costs,
    rotational: bool,
    run: Tracked<Option<Run>>,
    window: Window,
    lead: Lead,
    prices: Prices,
}

impl Default for Fair {
    fn default() -> Self {
        Self::new()
    }
}

impl Fair {
    /// An empty scheduler, which merges nothing until it is told the limits.
    #[must_use]
    pub fn new() -> Self {
        let mut flows = Slab::new("fair.flows");
        Self {
            requests: Slab::new("sched.node"),
            clients: Clients::new(&mut flows),
            flows,
            groups: Groups::new(),
            planes: Default::default(),
            at_head: List::default(),
            mergeable: Mergeable::new(),
            costs: Costs::default(),
            rotational: false,
            run: Tracked::new(None),
            window: Window::default(),
            lead: Lead::new(),
            prices: Prices::new(),
        }
    }

    /// A flow without requests gets one: it starts at its finish tag, or at virtual time if that is later. The first
    /// request of a client starts as if the client had had one like it before, but not behind those that wait: or one
    /// that joins for each request under ever new names would always go first.
    fn begin_waiting(&mut self, flow: Index, info: &Info, now: Time) {
        let class = info.priority.class;
        self.begin_busy_period(class, now);
        self.activate(flow);
        let plane = &self.planes[class.index()];
        let virtual_time = *plane.virtual_time;
        let first = plane.waiting.first(&self.flows).map(|first| self.flows.get(first).start);
        let after_one = virtual_time.saturating_add(self.charge_of(flow, info));
        // A client that others wait for had requests outstanding all the time, and is no newcomer.
        let is_newcomer = !self.lead.is_paced(self.flows.get(flow).paced_in) && unless_mutated("fair.newcomer");
        let waiting = self.flows.get_mut(flow);
        waiting.start = if is_newcomer { waiting.finish.max(virtual_time) } else { waiting.finish };
        if core::mem::take(&mut waiting.is_new) {
            waiting.start = waiting.start.max(first.unwrap_or(0).min(after_one));
        }
        self.planes[class.index()].waiting.insert(&mut self.flows, flow);
    }

    /// A request of this class comes. If nothing was asked for a while, nobody owes anything.
    fn begin_busy_period(&mut self, class: Class, now: Time) {
        let plane = &self.planes[class.index()];
        if plane.waiting.is_empty() && now.since(*plane.dispatched) > ACTIVE {
            self.forgive(class);
        }
    }

    /// The charge for a request: by how much it raises the finish tag of its flow, which is active.
    fn charge_of(&self, flow: Index, info: &Info) -> u64 {
        let client = self.clients.get(self.flows.get(flow).client);
        let cost = client.cost(self.costs.of(info.op, info.nr_sectors), info);
        (cost * self.over_share(client, info.priority.class)) as u64
    }

    /// One over the share of a client that is active in this class.
    fn over_share(&self, client: &Client, class: Class) -> f64 {
        self.groups.over_share(client.group, Sum::Active(class), client.in_use)
    }

    /// Counts a flow in the sum of weights of its group, unless it counts already.
    fn activate(&mut self, flow: Index) {
        let active = self.flows.get_mut(flow);
        let class = active.class;
        if active.is_active {
            if active.is_idle() {
                self.planes[class.index()].idle.remove(&mut self.flows, flow);
            }
            return;
        }
        active.is_active = true;
        let place = active.client;
        let client = self.clients.get(place);
        self.groups.enter(client.group, Sum::Active(class), client.in_use);
    }

    /// Counts a flow without requests no longer.
    fn deactivate(&mut self, flow: Index) {
        let idle = self.flows.get_mut(flow);
        debug_assert!(idle.is_active && idle.is_idle(), "a flow without requests ends to be active");
        idle.is_active = false;
        let (place, class) = (idle.client, idle.class);
        self.planes[class.index()].idle.remove(&mut self.flows, flow);
        let client = self.clients.get(place);
        self.groups.leave(client.group, Sum::Active(class), client.in_use);
    }

    /// Ends the activity of flows of this class that have been idle for long. One whose client has operations
    /// outstanding waits for the device and will come back, so it counts for longer in the client's own class.
    ///
    /// COST: a look at one flow, and one for each that ends or is looked at again later.
    fn retire(&mut self, class: Class, now: Time) {
        while let Some(flow) = self.planes[class.index()].idle.head()
            && self.flows.get(flow).idle_since.after(ACTIVE) <= now
        {
            let client = self.flows.get(flow).client;
            if self.clients.get(client).is_outstanding && self.clients.get(client).class == class {
                let idle = &mut self.planes[class.index()].idle;
                idle.remove(&mut self.flows, flow);
                idle.push_back(&mut self.flows, flow);
                self.flows.get_mut(flow).idle_since = now;
            } else {
                self.deactivate(flow);
            }
        }
    }

    /// The class whose request goes next: the highest, unless a request of a lower one has waited for too long. One
    /// that must not go yet does not keep the highest from going.
    fn next_class(&mut self, now: Time) -> Option<Class> {
        let is_waiting = |class: &Class| !self.planes[class.index()].waiting.is_empty();
        let highest = Class::ALL.into_iter().find(is_waiting)?;
        Some(
            Class::ALL.into_iter().skip(highest.index() + 1).find(|class| self.is_aged(*class, now)).unwrap_or(highest),
        )
    }

    /// Whether the flow of this class with the least start tag is next, and its oldest request has waited for too long.
    fn is_aged(&mut self, class: Class, now: Time) -> bool {
        let Some(first) = self.planes[class.index()].waiting.first(&self.flows) else { return false };
        let oldest = self.flows.get(first).oldest(&self.requests);
        oldest.is_some_and(|since| since.after(AGED) <= now) && self.next_flow(class, now) == Some(first)
    }

    /// The flow of this class that is next: the one with the least start tag, unless another one is served exclusively.
    /// `None` if nothing waits, or if that flow must wait for the floor.
    fn next_flow(&mut self, class: Class, now: Time) -> Option<Index> {
        let first = self.planes[class.index()].waiting.first(&self.flows)?;
        if class != Class::BestEffort {
            return Some(first);
        }
        let flow = self.exclusive_or(first);
        (flow != first || !self.must_wait(self.flows.get(first).start, now)).then_some(flow)
    }

    /// Chooses the flow, and the request within it.
    fn choose(&mut self, now: Time) -> Option<Index> {
        let class = self.next_class(now)?;
        self.retire(class, now);
        let continued = self.run.and_then(|run| self.continued(&run, class));
        let (flow, item) = match continued {
            Some(found) => found,
            None => {
                let flow = self.next_flow(class, now)?;
                (flow, self.flows.get(flow).next(&self.requests)?)
            }
        };
        self.take_out(flow, item);
        self.charge(flow, item, now);
        Some(item)
    }

    /// The request that continues a run, if it is there and nothing forbids that.
    fn continued(&self, run: &Run, class: Class) -> Option<(Index, Index)> {
        let flow = self.flows.get(run.flow);
        if flow.class != class || flow.nr_waiting == 0 || run.left == 0 {
            return None;
        }
        flow.from(&self.requests, run.direction, run.end).map(|item| (run.flow, item))
    }

    /// Takes a request out of its flow.
    fn take_out(&mut self, flow: Index, item: Index) {
        let info = self.requests.get(item).info;
        let queue = &mut self.flows.get_mut(flow).queues[Direction::of(info.op) as usize];
        self.mergeable.remove(&mut self.requests, &mut queue.sorted, &mut queue.fifo, item, info.merge);
        let left = self.flows.get_mut(flow);
        debug_assert!(left.nr_waiting > 0, "what goes has waited");
        left.nr_waiting -= 1;
    }

    /// Charges a flow for a request that goes, and puts the flow where its next request starts.
    ///
    /// COST: a division for each group above the client; a walk down the tree of flows.
    fn charge(&mut self, flow: Index, item: Index, now: Time) {
        let info = self.requests.get(item).info;
        let start = self.flows.get(flow).start;
        let class = info.priority.class;
        let cost = self.costs.of(info.op, info.nr_sectors);
        let client = self.clients.get(self.flows.get(flow).client);
        let over_share = self.over_share(client, class);
        let predicted = (client.cost(cost, &info) * over_share) as u64;
        let exclusive = self.prices.probe_of(flow).map(|probe| {
            probe.went.add(info.op, info.nr_sectors);
            probe.charge(predicted, over_share, now)
        });
        let finish = start.saturating_add(exclusive.unwrap_or(predicted));
        let plane = &mut self.planes[class.index()];
        // A client that is served exclusively is ahead of the others, and a newcomer does not wait for these to catch
        // up.
        let first = plane.waiting.first(&self.flows).filter(|_| exclusive.is_some());
        let least = first.map_or(start, |first| self.flows.get(first).start);
        plane.waiting.remove(&mut self.flows, flow);
        *plane.virtual_time = (*plane.virtual_time).max(least);
        *plane.last_finish = (*plane.last_finish).max(finish);
        *plane.dispatched = now;
        let charged = self.flows.get_mut(flow);
        charged.note_served(Direction::of(info.op), cost.into());
        (charged.finish, charged.start, charged.dispatched) = (finish, finish, now);
        if charged.nr_waiting > 0 {
            plane.waiting.insert(&mut self.flows, flow);
        } else {
            charged.idle_since = now;
            plane.idle.push_back(&mut self.flows, flow);
        }
        self.window.ordered += if info.op == Op::Discard { info.nr_segments.max(1).into() } else { 1 };
        self.note_tag(flow, now);
        if self.rotational {
            *self.run = Run::after(*self.run, flow, &info);
        }
    }

    /// Nobody owes anything any more. Called while nothing of this class waits. Tags begin anew before they reach their
    /// largest value.
    fn forgive(&mut self, class: Class) {
        let plane = &mut self.planes[class.index()];
        debug_assert!(plane.waiting.is_empty(), "what waits keeps its tag");
        *plane.virtual_time = *plane.last_finish;
        if *plane.virtual_time > LARGEST {
            (*plane.virtual_time, *plane.last_finish) = (0, 0);
            for client in self.clients.all_mut() {
                self.flows.get_mut(client.flows[class.index()]).finish = 0;
            }
            self.clients.forget_debts();
        }
    }

    /// Whether the client of this request has at least its share of so much room.
    fn fills_share(&self, newcomer: &Info, room: u32) -> bool {
        let flow = self.flows.get(self.flow_of(newcomer));
        if flow.nr_waiting < SEVERAL {
            return false;
        }
        let client = self.clients.get(flow.client);
        f64::from(flow.nr_waiting) * self.over_share(client, flow.class) >= f64::from(room)
    }

    fn flow_of(&self, info: &Info) -> Index {
        self.clients.of(info.client).flows[info.priority.class.index()]
    }
}

impl Scheduler for Fair {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reserve(&mut self, capacity: usize) {
        self.requests.reserve(capacity);
        self.mergeable.reserve(&mut self.requests, capacity);
    }

    fn configure(&mut self, setting: Setting) {
        match setting {
            Setting::MergeLimits(limits) => self.mergeable.limits = limits,
            Setting::Rotational(rotational) => (self.rotational, *self.run) = (rotational, None),
            Setting::Costs(costs) => self.take_costs(costs),
            Setting::NrRequests(_) | Setting::Slice(_) => {}
        }
    }

    fn merge(&mut self, info: &Info) -> Option<Merge> {
        self.merge_newcomer(info)
    }

    /// COST: the client, its flow and the request; if the flow has none yet, a walk down the tree of flows.
    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, now: Time) {
        let flow = self.flow_of(info);
        let item = self.requests.insert(Request::new(rq, *info, now, flow));
        if at == InsertAt::Head {
            self.at_head.push_front(&mut self.requests, item);
            return;
        }
        let taken = self.flows.get_mut(flow);
        let queue = &mut taken.queues[Direction::of(info.op) as usize];
        self.mergeable.insert(&mut self.requests, &mut queue.sorted, item);
        queue.fifo.push_back(&mut self.requests, item);
        if taken.nr_waiting == 0 {
            self.begin_waiting(flow, info, now);
        }
        self.flows.get_mut(flow).nr_waiting += 1;
        self.note_hunger(flow);
    }

    /// COST: one request, one flow, and their places.
    fn dispatch(&mut self, _context: &mut dyn DispatchContext, now: Time) -> Option<RqId> {
        let item = match self.at_head.head() {
            Some(item) => {
                self.at_head.remove(&mut self.requests, item);
                item
            }
            None => self.choose(now)?,
        };
        Some(self.requests.remove(item).id)
    }

    /// COST: a flow and its share for each client, and a multiplication for each request.
    #[inline]
    fn dispatch_fast(&mut self, batch: &[FastRequest], now: Time, order: &mut [u8]) -> bool {
        self.order_fast(batch, now, order)
    }

    fn len(&self) -> usize {
        self.requests.len()
    }

    fn feedback(&self) -> FeedbackKind {
        FeedbackKind::Usage
    }

    fn observe(&mut self, feedback: Feedback<'_>) -> Fairness {
        match feedback {
            Feedback::Usage(usage, now) => self.note_usage(usage, now),
            Feedback::BypassEnded => {
                // While all passed nobody was below its due.
                Class::ALL.into_iter().for_each(|class| self.forgive(class));
                Fairness::Unknown
            }
            Feedback::Sums(_) | Feedback::Events(..) => Fairness::Unknown,
        }
    }

    fn join(&mut self, client: ClientId, settings: &ClientSettings) {
        self.join_now(client, settings);
    }

    fn leave(&mut self, client: ClientId) {
        self.leave_now(client);
    }

    fn join_group(&mut self, group: GroupId, settings: &GroupSettings) {
        self.groups.join(group, settings);
    }

    fn leave_group(&mut self, group: GroupId) {
        self.leave_group_now(group);
    }

    fn next_wakeup(&self) -> Option<Time> {
        if self.at_head.is_empty() { self.floor_ends() } else { None }
    }

    fn may_pass(&self, _class: Class, _client: ClientId) -> Passing {
        if self.requests.len() == 0 { Passing::All } else { Passing::Nobody }
    }

    /// COST: a division for each group above the client, if there is only reserved room.
    fn limit_depth(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        let fills_share = outstanding.reserved.is_some_and(|room| self.fills_share(newcomer, room));
        Admission::fitting(!fills_share)
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.show_all(out)
    }
}
