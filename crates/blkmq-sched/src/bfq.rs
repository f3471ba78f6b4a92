//! `bfq`: each client its share of the device's service, in budgets of sectors.
//!
//! A client's synchronous requests wait in a queue of its own. One queue is in service at a time, until its budget is
//! used up, its time is over, or it has nothing more. Virtual time ([`wf2q`]) says which queue is next, so that each
//! group gets a part of the service by its weight, and within a group each queue.
//!
//! A client that waits for each request before it sends the next would lose its share to clients that always have
//! requests waiting. So the device may wait for the former ([idling](idle)). Requests of other clients that do no harm
//! meanwhile are [injected](inject). A queue of a program that starts or plays counts more for a while
//! ([raising](raise)), but not if many programs start together ([bursts](burst)). Clients that read one area together
//! share a queue ([cooperation](cooperate)).
//!
//! Source: P. Valente and A. Avanzini, "Evolution of the BFQ storage-I/O scheduler", MST 2015, and the papers named in
//! [`wf2q`]. The numbers are those of Linux.

mod arrive;
mod budget;
mod burst;
mod busy;
mod choose;
mod client;
mod clock;
mod complete;
mod cooperate;
mod depth;
mod follow;
mod group;
mod idle;
mod inject;
mod merge;
mod queue;
mod rate;
mod request;
mod show;
mod think_time;
mod tunables;
mod waker;
mod weight;
mod weight_raising;
mod wf2q;

use alloc::vec::Vec;
use core::fmt;

pub use follow::{Expiration, QueueName, Reason};

use budget::Service;
use burst::Burst;
use busy::Weight;
use client::Clients;
use group::Groups;
use inject::Sample;
use queue::{ByActivity, ByBirth, Name, Queue};
use rate::Rate;
use request::Request;
use tunables::Tunables;
use wf2q::{Entity, Forest};

use crate::data::Tracked;
use crate::list::List;
use crate::mergeable::Mergeable;
use crate::scheduler::DEFAULT_NR_REQUESTS;
use crate::site::unless_mutated;
use crate::slab::{Index, Slab};
use crate::tree::Tree;
use crate::waiting::ByAge;
use crate::{
    Admission, Class, ClientId, ClientSettings, DispatchContext, Event, Fairness, Feedback, FeedbackKind, GroupId,
    GroupSettings, Info, InsertAt, Knob, KnobError, Merge, Outstanding, Passing, Report, RqId, Scheduler, Setting,
    Ticket, Time,
};

/// The kernel's name of the policy.
pub(crate) const NAME: &str = "bfq";
pub(crate) const KNOBS: &[Knob] = tunables::KNOBS;

/// The scheduler `bfq`.
#[derive(Debug, Clone)]
pub struct Bfq {
    requests: Slab<Request>,
    queues: Slab<Queue>,
    clients: Clients,
    groups: Groups,
    forest: Forest,
    tunables: Tunables,
    /// The size of the embedder's queue.
    nr_requests: u32,
    /// Queues of clients whose first requests come shortly after each other are merged for good. Only a replay asks for
    /// that.
    merges_newborn: bool,
    /// The device has to move something to get from one sector to another.
    rotational: bool,
    /// The latest time of which the scheduler was told.
    now: Tracked<Time>,

    /// Requests that go before all others; the latest first.
    at_head: List<ByAge>,
    mergeable: Mergeable,
    /// Requests that wait in queues.
    nr_waiting: Tracked<u32>,

    /// The queue of each entity that is a queue, by the entity's number.
    by_entity: Vec<Option<Index>>,
    /// All queues, the oldest first.
    all: List<ByBirth>,
    /// Queues that wait and are not in service, the one that began to wait, or was served, last first.
    active: List<ByActivity>,
    /// How many queues there have been; the newest one has this serial.
    serial: u64,
    /// How many queues there may be, and how many queues clients and groups may still ask for.
    room: usize,
    nr_lacking: usize,
    /// Queues that wait or are in service, by class, and how many of them are raised.
    busy: Tracked<[u32; 3]>,
    raised_busy: u32,
    /// The weights of queues with requests, smallest first.
    weights: Slab<Weight>,
    weight_order: Tree,

    service: Tracked<Service>,
    /// Rises towards 256 with each queue that comes into service: tells whether there were enough of them.
    slots: Tracked<u32>,
    /// The largest budget, in sectors: the one that follows the device's rate or was set, and the same within a slice.
    whole_budget: u64,
    max_budget: u64,
    /// What the embedder bounds a budget to, in sectors.
    slice: Option<u64>,
    sample: Tracked<Sample>,
    burst: Burst,
    rate: Tracked<Rate>,

    /// Requests that the device has.
    in_driver: Tracked<u32>,
    /// The most requests that the device had lately, and whether it takes several at once; `None`: not known yet.
    most_in_driver: u32,
    queueing: Option<bool>,
    queueing_samples: u32,
    /// The queue of which a request completed last, unless that queue is shared.
    last_completed: Tracked<Option<Name>>,

    /// That of the latest request.
    ticket: Tracked<Option<Ticket>>,
    /// What [`Bfq::take_expirations`] returns, if that is asked for.
    expirations: Option<Vec<Expiration>>,
    /// The scheduler follows the choices of another one: see [`follow`].
    is_following: bool,
}

impl Default for Bfq {
    fn default() -> Self {
        Self::new()
    }
}

impl Bfq {
    /// An empty scheduler with default knobs, which merges nothing until it is told the limits.
    #[must_use]
    pub fn new() -> Self {
        let forest = Forest::new(Time::default());
        let mut bfq = Self {
            requests: Slab::new("sched.node"),
            queues: Slab::new("bfq.queues"),
            clients: Clients::new(),
            groups: Groups::new(forest.root()),
            forest,
            tunables: Tunables::new(),
            nr_requests: DEFAULT_NR_REQUESTS,
            merges_newborn: false,
            rotational: false,
            now: Tracked::default(),
            at_head: List::default(),
            mergeable: Mergeable::new(),
            nr_waiting: Tracked::new(0),
            by_entity: Vec::new(),
            all: List::default(),
            active: List::default(),
            serial: 0,
            room: 0,
            nr_lacking: 1 + group::NR_ASYNC,
            busy: Tracked::new([0; 3]),
            raised_busy: 0,
            weights: Slab::new("bfq.weights"),
            weight_order: Tree::default(),
            service: Tracked::default(),
            slots: Tracked::new(0),
            whole_budget: budget::DEFAULT,
            max_budget: budget::DEFAULT,
            slice: None,
            sample: Tracked::default(),
            burst: Burst::new(),
            rate: Tracked::new(Rate::new(false)),
            in_driver: Tracked::new(0),
            most_in_driver: 0,
            queueing: None,
            queueing_samples: 0,
            last_completed: Tracked::default(),
            ticket: Tracked::default(),
            expirations: None,
            is_following: false,
        };
        bfq.reserve_queues();
        bfq
    }

    /// Time goes on to `now`: what the idle timer had to do meanwhile is done.
    fn pass_time(&mut self, now: Time) {
        *self.now = (*self.now).max(now);
        self.forest.set_now(*self.now);
        self.run_timer(now);
    }

    fn take_reports(&mut self, reports: &[Report], now: Time) {
        let mut reports = reports.iter();
        while let Some(report) = reports.next() {
            self.pass_time(report.at);
            match report.event {
                Event::Completed(Some(ticket)) => self.note_completed(report, ticket),
                Event::Completed(None) => self.note_passed_completed(report),
                Event::Passed => {
                    if self.note_both(report, reports.as_slice().first()) {
                        reports.next();
                    } else {
                        self.note_passed(report);
                    }
                }
            }
        }
        self.pass_time(now);
    }

    fn queue_of(&self, entity: Entity) -> Index {
        self.by_entity[entity.number()].expect("a queue has the entity that comes into service")
    }
}

impl Scheduler for Bfq {
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
            Setting::NrRequests(nr_requests) => self.nr_requests = nr_requests.max(1),
            Setting::Rotational(rotational) => {
                self.rotational = rotational;
                *self.rate = Rate::new(rotational);
                self.fit_largest();
            }
            // A client keeps the budget that it has until it was served.
            Setting::Slice(sectors) => {
                self.slice = sectors;
                self.fit_largest();
            }
            Setting::Costs(_) => {}
        }
    }

    fn merge(&mut self, info: &Info) -> Option<Merge> {
        self.merge_newcomer(info)
    }

    /// COST: the client, its queue and the request; if the queue begins to wait, a walk down a tree at each level.
    fn insert(&mut self, rq: RqId, info: &Info, at: InsertAt, now: Time) {
        self.pass_time(now);
        self.take_in(rq, info, at, now);
    }

    /// COST: one queue, two requests and their places; if another queue comes into service, a walk down a tree at each
    /// level.
    fn dispatch(&mut self, context: &mut dyn DispatchContext, now: Time) -> Option<RqId> {
        self.pass_time(now);
        let rq = self.choose(now)?;
        self.ticket.into_iter().for_each(|ticket| context.set_ticket(ticket));
        Some(rq)
    }

    fn len(&self) -> usize {
        self.requests.len()
    }

    fn join(&mut self, client: ClientId, settings: &ClientSettings) {
        self.join_now(client, settings);
    }

    fn leave(&mut self, client: ClientId) {
        self.leave_now(client);
    }

    fn join_group(&mut self, group: GroupId, settings: &GroupSettings) {
        self.join_group_now(group, settings);
    }

    fn leave_group(&mut self, group: GroupId) {
        self.leave_group_now(group);
    }

    fn feedback(&self) -> FeedbackKind {
        FeedbackKind::Events
    }

    fn observe(&mut self, feedback: Feedback<'_>) -> Fairness {
        if let Feedback::Events(reports, now) = feedback {
            self.take_reports(reports, now);
        }
        Fairness::Unknown
    }

    fn next_wakeup(&self) -> Option<Time> {
        self.service.timer.filter(|_| self.len() > 0 && unless_mutated("bfq.timer"))
    }

    fn may_pass(&self, class: Class, client: ClientId) -> Passing {
        self.passing(class, client)
    }

    fn limit_depth(&self, newcomer: &Info, outstanding: Outstanding) -> Admission {
        self.admission(newcomer, outstanding)
    }

    fn knobs(&self) -> &'static [Knob] {
        KNOBS
    }

    fn knob(&self, name: &str) -> Option<i64> {
        self.tunables.get(name)
    }

    fn set_knob(&mut self, name: &str, value: i64) -> Result<(), KnobError> {
        let before = self.tunables.get(name);
        self.tunables.set(name, value)?;
        if before == Some(value) {
            return Ok(());
        }
        match name {
            "max_budget" if value > 0 => {
                self.whole_budget = value.unsigned_abs();
                self.fit_largest();
            }
            "max_budget" | "timeout_sync" => self.follow_rate(),
            "low_latency" if value == 0 => self.end_all_raising(*self.now),
            _ => {}
        }
        Ok(())
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.show_all(out)
    }
}
