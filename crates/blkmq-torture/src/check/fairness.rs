//! Under fair, no client gets more than its share while another one waits, and no direction of a client's requests more
//! than the other.
//!
//! [`race`](super::race) has the bound. What a request adds to a tag is its cost over the client's share, both as of
//! its dispatch: the cost as the limiter counts it, and the share of a client among those that are active. The
//! scheduler is asked for the tags. What it adds to them is held against cost and share, unless some client lends a
//! part of its share, the client's requests have a price, or it is uncertain whether some client is still active.
//!
//! - While a client is served exclusively, so that its price is known, that is one turn.
//! - On a rotating disk a client's turn is a run by sector. A run may be cut in two here, and virtual time may be ahead
//!   by one.
//! - While clients are held back, those for whom they are have tags behind virtual time: by the lead that others may
//!   have, and by what virtual time jumps when nothing was asked for a while, which is a turn of the last client.
//! - Requests that go to the head, and those that bypass the scheduler, cost nothing.
//!
//! Within a client the directions take turns by cost, and are charged for no share.

use std::collections::BTreeMap;

use blkmq_sched::{Class, Fairness as Told, Info, InsertAt, Op, RqId, Time};

use super::super::event::{Event, Stamp};
use super::super::text::Request;
use super::active::{Active, Flow, Known};
use super::race::{Passed, Race};
use super::table::Table;
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "fairness";

/// Nanoseconds of cost over share: how far a client may be ahead of one for whom it is held back.
const LEAD: f64 = 1e6;

/// A run on a rotating disk ends after so many sectors.
const RUN: u64 = 1024;

/// A request that waits, or was just chosen.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    flow: Flow,
    is_read: bool,
    sectors: u64,
    /// What its flow is charged for it, once it is chosen, and whether that is by more than cost and weights.
    charge: u64,
    is_special: bool,
    is_exclusive: bool,
}

/// What one client was served in a row, on a rotating disk.
#[derive(Debug, Clone, Copy, Default)]
struct Run {
    sectors: u64,
    cost: f64,
    charge: f64,
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Fairness {
    is_watched: bool,
    active: Active,
    tags: BTreeMap<Flow, u64>,
    /// The largest start tag of what was chosen, by class.
    virtual_times: [u64; 3],
    /// The clients, by class.
    clients: [Race<Known>; 3],
    /// Reads and other requests of one client in one class.
    directions: BTreeMap<Flow, Race<bool>>,
    requests: Table<Waiting>,
    /// What was chosen, and what it costs is not known yet.
    chosen: Option<(RqId, Waiting)>,
    latest: Option<(Flow, bool)>,
    run: Run,
    /// What a client was charged since it is served exclusively.
    exclusive: Option<(Flow, f64)>,
    /// Clients are held back, or were since best-effort requests wait.
    is_enforced: bool,
    has_lead: bool,
}

impl Fairness {
    /// Another scheduler is in place. It was told of the clients and groups before.
    fn installed(&mut self, scheduler: Option<&str>) {
        let mut active = std::mem::take(&mut self.active);
        active.begin_anew();
        *self = Self { is_watched: scheduler == Some("fair"), active, ..Self::default() };
    }

    fn joins(&mut self, rq: RqId, info: &Info) {
        let flow = (self.active.known(info.client), info.priority.class);
        let waiting = Waiting {
            flow,
            is_read: info.op == Op::Read,
            sectors: info.nr_sectors.into(),
            charge: 0,
            is_special: false,
            is_exclusive: false,
        };
        *self.requests.entry(rq) = Some((rq, waiting));
        self.active.waits(flow);
        self.clients[flow.1.index()].joins(flow.0);
        self.directions.entry(flow).or_default().joins(waiting.is_read);
    }

    fn grows(&mut self, rq: RqId, more: u64) {
        if let Some(waiting) = self.requests.get_mut(rq) {
            waiting.sectors += more;
        }
    }

    fn leaves(&mut self, rq: RqId) -> Option<Waiting> {
        let waiting = *self.requests.get(rq)?;
        *self.requests.entry(rq) = None;
        self.clients[waiting.flow.1.index()].leaves(waiting.flow.0);
        self.directions.entry(waiting.flow).or_default().leaves(waiting.is_read);
        Some(waiting)
    }

    fn chosen(&mut self, rq: RqId, now: Time) {
        let Some(waiting) = self.leaves(rq) else { return };
        self.active.note_time(waiting.flow.1, now);
        self.chosen = Some((rq, waiting));
        if !self.clients[waiting.flow.1.index()].waits(waiting.flow.0) {
            self.active.ends_waiting(waiting.flow, now);
        }
        if !self.is_enforced && !self.clients[Class::BestEffort.index()].has_waiting() {
            self.has_lead = false;
        }
    }

    /// A flow has another tag: a request waits, or was just chosen.
    fn tagged(&mut self, rq: RqId, tag: u64, is_special: bool, is_exclusive: bool, passes: bool) {
        if let Some((_, waiting)) = self.chosen.as_mut().filter(|(chosen, _)| *chosen == rq) {
            waiting.charge = tag.saturating_sub(self.tags.get(&waiting.flow).copied().unwrap_or(tag));
            (waiting.is_special, waiting.is_exclusive) = (is_special, is_exclusive);
            let (start, class) = (tag - waiting.charge, waiting.flow.1.index());
            self.virtual_times[class] = self.virtual_times[class].max(start);
            self.tags.insert(waiting.flow, tag);
        } else if let Some(&Waiting { flow: (known, class), .. }) = self.requests.get(rq) {
            let before = self.tags.insert((known, class), tag).unwrap_or(0).max(self.virtual_times[class.index()]);
            if passes {
                // Nothing waits beside these.
                self.clients[class.index()].note_turn(known, tag.saturating_sub(before) as f64);
            }
        }
    }

    /// What was chosen costs so much.
    fn costs(&mut self, rq: RqId, cost: f64, is_rotational: bool) -> Verdict {
        let Some((_, chosen)) = self.chosen.take().filter(|(chosen, _)| *chosen == rq) else { return Ok(()) };
        let Waiting { flow, is_read, sectors, charge, is_special, is_exclusive } = chosen;
        let fail =
            |what: String| Err(Violation::new(RULE, format!("{} is chosen, and {what}", Request(rq))).request(rq));
        let over = self.active.over_share(flow);
        let right = (cost * over.most) as u64;
        if over.is_certain && !is_special && charge.abs_diff(right) > 1 {
            let id = self.active.id(flow.0).0;
            return fail(format!(
                "client {id} is charged {charge} ns, and right would be {right} ns: {cost} ns over its share"
            ));
        }
        let charge = charge as f64;
        if !is_rotational || self.latest != Some((flow, is_read)) || self.run.sectors >= RUN {
            self.run = Run::default();
        }
        self.latest = Some((flow, is_read));
        let run = &mut self.run;
        (run.sectors, run.cost, run.charge) = (run.sectors + sectors, run.cost + cost, run.charge + charge);
        let (turn, parts) = (*run, if is_rotational { 2.0 } else { 1.0 });
        let (known, class) = flow;
        self.exclusive = match self.exclusive {
            Some((of, sum)) if is_exclusive && of == flow => Some((of, sum + charge)),
            // It may be ahead by a turn already.
            _ if is_exclusive => Some((flow, self.clients[class.index()].turn(known) + charge)),
            known => known.filter(|(of, _)| *of != flow),
        };
        let exclusive_turn = self.exclusive.filter(|_| is_exclusive).map_or(0.0, |(_, sum)| sum);
        let clients = &mut self.clients[class.index()];
        clients.note_turn(known, (parts * turn.charge).max(exclusive_turn));
        let lead = if self.has_lead && class == Class::BestEffort { LEAD + clients.most() } else { 0.0 };
        let more = lead + if is_rotational { clients.most() } else { 0.0 };
        let passed = clients.serve(known, charge, more);
        let directions = self.directions.entry(flow).or_default();
        directions.note_turn(is_read, parts * turn.cost);
        let passed_by_direction = directions.serve(is_read, cost, 0.0);
        let id = self.active.id(known).0;
        let what = if let Some(Passed { other, by, bound }) = passed {
            let other = self.active.id(other).0;
            format!(
                "client {id} got {by} ns more of class {class:?} than client {other} since this one waits, by the \
                 share of each, and at most {bound} ns would be right"
            )
        } else if let Some(Passed { by, bound, .. }) = passed_by_direction {
            let of = if is_read { "reads" } else { "others" };
            format!(
                "the {of} of client {id} got {by} ns more than its other requests since these wait, and at most \
                 {bound} ns would be right"
            )
        } else {
            return Ok(());
        };
        fail(what)
    }

    fn told(&mut self, fairness: Told) {
        match fairness {
            Told::Unknown => {}
            Told::Enforced => (self.is_enforced, self.has_lead) = (true, true),
            Told::Kept | Told::Violated => self.is_enforced = false,
        }
    }
}

impl Checker for Fairness {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Installed { scheduler } => self.installed(scheduler),
            Event::ClientJoined { client, settings } => self.active.told_of_client(client, &settings),
            Event::ClientLeft { client } => self.active.client_left(client),
            Event::GroupJoined { group, settings } => self.active.told_of_group(group, settings),
            Event::GroupLeft { group } => self.active.group_left(group),
            _ if !self.is_watched => {}
            Event::Inserted { rq, info, at: InsertAt::Sorted, .. } => self.joins(rq, &info),
            Event::Merged { into, info, .. } => self.grows(into, info.nr_sectors.into()),
            Event::Absorbed { into, absorbed } => {
                if let Some(Waiting { sectors, .. }) = self.leaves(absorbed) {
                    self.grows(into, sectors);
                }
            }
            Event::Chosen { rq, now } => self.chosen(rq, now),
            Event::Tagged { rq, tag, is_special, is_exclusive, passes } => {
                self.tagged(rq, tag, is_special, is_exclusive, passes);
            }
            Event::HeldBack { now, .. } => Class::ALL.iter().for_each(|class| self.active.note_time(*class, now)),
            Event::Sent { rq, cost, .. } => return self.costs(rq, cost.into(), tracker.limits.rotational),
            Event::Learned { progress, .. } => self.told(progress.fairness),
            _ => {}
        }
        Ok(())
    }
}
