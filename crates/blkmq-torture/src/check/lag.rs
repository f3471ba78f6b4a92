//! Under bfq, groups that want service all the time get it by their weights.
//!
//! For as long as requests of two groups of one parent wait, neither gets more than its weight allows, beside the
//! other, by more than a few budgets. That follows from how WF2Q+ chooses. Let `S` be a group's start, `L` its largest
//! budget, `w` its weight, and `F <= S + L / w` its finish. Let group 1 be chosen while group 2 waits. Either 2 is
//! eligible, so `S1 <= F1 <= F2 <= S2 + L2 / w2`, or it is not, so `S1 <= V < S2` at the clock `V`. What 1 is served
//! then brings its start to `S1 + L1 / w1` at most. So once each has been chosen, and until one of them waits no more,
//! `S1 - S2` stays within `M = L1 / w1 + L2 / w2` of zero, and changes by `2 * M` at most. A start moves by what is
//! charged, for each unit of weight. A charge for time comes at the end of a service, and is counted here while that
//! lasts: this may be one budget more.
//!
//! What others get does not matter, but a group counts only from when it has been chosen. One that comes starts at the
//! clock, and the others may be far behind that: a queue's first budget `B` is large, and moves the clock by `B / W`,
//! for all weights `W`. The others catch up before the newcomer is served. If `r` is the weight of the group that got
//! `B`, that takes `B * (W - r) / r` sectors: the lighter that group is, the more.
//!
//! bfq departs from equal service in sectors on purpose: it raises weights, waits for clients, and charges for time and
//! for asynchronous requests. So the check holds only while `low_latency=0` and `slice_idle=0`, and only after the
//! first times of service, for which budgets are large. What may be charged beyond the sectors counts as explained. It
//! also holds only while no two clients are in one group, but for the root, because they may be served as one then, and
//! only while it is certain in which group each request waits. That is not so if the client was in one group with
//! another when the request came: the request may wait in a queue that is the other client's by now. And if the client
//! has moved since, its queue follows when its next request comes, at the earliest.

use std::collections::{BTreeMap, BTreeSet};

use blkmq_sched::{
    Class, ClientId, Event as Happened, GroupId, Info, InsertAt, IoPriority, Reason, Report, RqId, Time,
};

use super::super::event::{Control, Event, Phase, Stamp};
use super::super::text::Request;
use super::table::Table;
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "lag";

/// A service for so long is charged as the largest budget, in ns.
const TIMEOUT_NS: f64 = 124e6;

/// The least time that is charged, in parts of that.
const LEAST_TIME: f64 = 2.0 / 124.0;

/// Changes of the client that is served until budgets are those that people have set.
const WARM: u64 = 32;

/// A group that is served after so many ends of service was chosen since: one may be told before its last request.
const ENDS: u64 = 2;

/// An asynchronous request may cost so many times its sectors.
const ASYNC: u64 = 3;

/// A queue of the scheduler, or several that are merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Sync(ClientId),
    Async(GroupId, Class, u8),
}

/// How far a queue or a group has come since something about it changed: it is settled once another one has been served
/// behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Season {
    #[default]
    New,
    Served,
    Settled,
}

/// A request that waits.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    source: Source,
    sectors: u64,
    /// It waits in its client's queue, and that in its client's group.
    is_certain: bool,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    parent: GroupId,
    weight: f64,
    season: Season,
    /// Requests that wait in it and in the groups in it, and those of them whose queue is not settled.
    nr_waiting: u64,
    nr_unsettled: u64,
    /// How many services had ended when it was last not steady, and when it was last served.
    unsteady: u64,
    chosen: u64,
    /// The sectors that it was served, and those that it may have been charged for.
    served: f64,
    charged: f64,
}

impl Group {
    const fn new(parent: GroupId, weight: f64) -> Self {
        let (season, served, charged) = (Season::New, 0.0, 0.0);
        Self { parent, weight, season, nr_waiting: 0, nr_unsettled: 0, unsteady: 0, chosen: 0, served, charged }
    }

    /// Whether requests wait in it, and its weight and the budgets of all that wait in it are those that people have
    /// set.
    fn is_steady(&self) -> bool {
        self.nr_waiting > 0 && self.nr_unsettled == 0 && self.season == Season::Settled
    }
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Lag {
    is_watched: bool,
    low_latency: bool,
    idles: [bool; 2],
    is_strict: bool,
    max_budget: u64,
    groups: BTreeMap<GroupId, Group>,
    clients: BTreeMap<ClientId, GroupId>,
    /// Whether no two clients are in one group, but for the root.
    are_apart: bool,
    seasons: BTreeMap<Source, Season>,
    requests: Table<Waiting>,
    /// Requests of which that is not certain.
    nr_uncertain: u64,
    /// The largest request since the scheduler is in place, in sectors.
    largest: u64,
    latest: Option<Source>,
    /// What the queue in service was served since a queue last left service. `None` if it is shared, and so has a
    /// budget that says nothing of one of its clients.
    in_service: Option<u64>,
    nr_turns: u64,
    /// Times of service that have ended.
    nr_ends: u64,
    /// Queues that are not settled, were preempted and may wait without a request since.
    lingering: BTreeSet<Source>,
    now: Time,
    /// For two groups of which requests wait: the least that the first was ahead of the second.
    least: BTreeMap<(GroupId, GroupId), f64>,
}

impl Lag {
    pub(super) fn new() -> Self {
        Self {
            is_watched: false,
            low_latency: true,
            idles: [true; 2],
            is_strict: false,
            max_budget: 0,
            groups: BTreeMap::new(),
            clients: BTreeMap::new(),
            are_apart: true,
            seasons: BTreeMap::new(),
            requests: Table::new(),
            nr_uncertain: 0,
            largest: 0,
            latest: None,
            in_service: Some(0),
            nr_turns: 0,
            nr_ends: 0,
            lingering: BTreeSet::new(),
            now: Time(0),
            least: BTreeMap::new(),
        }
    }

    /// Another scheduler is in place. It was told of the clients and groups before.
    fn installed(&mut self, scheduler: Option<&str>) {
        let (groups, clients) = (std::mem::take(&mut self.groups), std::mem::take(&mut self.clients));
        let (are_apart, now) = (self.are_apart, self.now);
        *self = Self { is_watched: scheduler == Some("bfq"), groups, clients, are_apart, now, ..Self::new() };
        for group in self.groups.values_mut() {
            (group.nr_waiting, group.nr_unsettled, group.unsteady, group.chosen) = (0, 0, 0, 0);
        }
    }

    /// Something has changed that decides on shares: all begin anew.
    fn begin_anew(&mut self) {
        self.seasons.clear();
        self.least.clear();
        self.nr_turns = self.nr_turns.min(WARM);
        let waiting: Vec<Waiting> = self.requests.iter().map(|(_, waiting)| *waiting).collect();
        for group in self.groups.values_mut() {
            (group.season, group.nr_waiting, group.nr_unsettled) = (Season::New, 0, 0);
        }
        for Waiting { source, .. } in waiting {
            self.each_above(source, |group| {
                group.nr_waiting += 1;
                group.nr_unsettled += 1;
            });
        }
        for source in self.lingering.clone() {
            self.each_above(source, |group| group.nr_unsettled += 1);
        }
    }

    /// Notes of each group that is not steady that it is not.
    fn note_unsteady(&mut self) {
        for group in self.groups.values_mut().filter(|group| !group.is_steady()) {
            group.unsteady = self.nr_ends;
        }
    }

    fn knob(&mut self, name: &str, value: i64, phase: Phase) {
        if phase == Phase::Done {
            match name {
                "low_latency" => self.low_latency = value > 0,
                "slice_idle" => self.idles = [value > 0; 2],
                "slice_idle_us" => self.idles = [value > 0; 2],
                "strict_guarantees" => {
                    self.is_strict = value > 0;
                    self.idles[0] |= self.is_strict;
                }
                "max_budget" => self.max_budget = value.unsigned_abs(),
                _ => {}
            }
        }
        if matches!(
            name,
            "low_latency" | "slice_idle" | "slice_idle_us" | "strict_guarantees" | "max_budget" | "timeout_sync"
        ) {
            self.begin_anew();
        }
    }

    fn source(&self, client: ClientId, is_sync: bool, priority: IoPriority) -> Source {
        let of_client = self.clients.get(&client).copied().unwrap_or(GroupId::ROOT);
        if is_sync { Source::Sync(client) } else { Source::Async(of_client, priority.class, priority.level) }
    }

    fn group_of(&self, source: Source) -> GroupId {
        match source {
            Source::Sync(client) => self.clients.get(&client).copied().unwrap_or(GroupId::ROOT),
            Source::Async(group, ..) => group,
        }
    }

    /// Changes each group in which a queue is, the inner ones first. Returns these.
    fn each_above(&mut self, source: Source, mut change: impl FnMut(&mut Group)) -> Vec<GroupId> {
        let (mut at, mut above) = (self.group_of(source), Vec::new());
        while let Some(group) = self.groups.get_mut(&at) {
            change(group);
            above.push(at);
            at = group.parent;
        }
        above
    }

    fn is_settled(&self, source: Source) -> bool {
        self.seasons.get(&source) == Some(&Season::Settled)
    }

    fn joins(&mut self, rq: RqId, info: &Info) {
        self.note_unsteady();
        let source = self.source(info.client, info.sync || info.op.is_read(), info.priority);
        let sectors = u64::from(info.nr_sectors);
        let group = self.group_of(source);
        let is_certain =
            matches!(source, Source::Async(..)) || self.clients.values().filter(|of| **of == group).count() < 2;
        self.nr_uncertain += u64::from(!is_certain);
        *self.requests.entry(rq) = Some((rq, Waiting { source, sectors, is_certain }));
        self.largest = self.largest.max(sectors);
        let unsettled = u64::from(!self.is_settled(source));
        self.each_above(source, |group| {
            group.nr_waiting += 1;
            group.nr_unsettled += unsettled;
        });
    }

    fn grows(&mut self, rq: RqId, more: u64) {
        if let Some(waiting) = self.requests.get_mut(rq) {
            waiting.sectors += more;
            self.largest = self.largest.max(waiting.sectors);
        }
    }

    fn leaves(&mut self, rq: RqId) -> Option<Waiting> {
        self.note_unsteady();
        let waiting = *self.requests.get(rq)?;
        *self.requests.entry(rq) = None;
        let unsettled = u64::from(!self.is_settled(waiting.source));
        self.each_above(waiting.source, |group| {
            group.nr_waiting -= 1;
            group.nr_unsettled -= unsettled;
        });
        if !waiting.is_certain {
            self.nr_uncertain -= 1;
            if self.nr_uncertain == 0 {
                self.begin_anew();
            }
        }
        Some(waiting)
    }

    /// Called when another queue than before is served: that one is settled, and so are the groups that it is in and
    /// the other is not in.
    fn turn(&mut self, next: Source) {
        let Some(last) = self.latest.replace(next).filter(|last| *last != next) else { return };
        self.nr_turns += 1;
        if self.nr_turns < WARM {
            return;
        }
        let served = self.each_above(next, |_| {});
        for id in self.each_above(last, |_| {}).into_iter().filter(|id| !served.contains(id)) {
            let group = self.groups.get_mut(&id).expect("it is one of those above");
            if group.season == Season::Served {
                group.season = Season::Settled;
            }
        }
    }

    /// A time of service has ended. A queue that was preempted keeps its budget, and one that had nothing more has what
    /// it was served as its next one. A queue's first budget is large whatever people have set. So a queue is settled
    /// when it was served no more than a budget that people set.
    fn expired(&mut self, reason: Reason) {
        self.nr_ends += 1;
        self.note_unsteady();
        let served = self.in_service.replace(0);
        // A queue may also leave service without a request.
        if served == Some(0) {
            return;
        }
        let Some(last) = self.latest.filter(|_| self.nr_turns >= WARM) else { return };
        let is_small = match reason {
            Reason::BudgetExhausted | Reason::BudgetTimeout => served.is_none_or(|served| served <= self.budget()),
            Reason::NoMoreRequests => served.is_some_and(|served| served <= self.budget()),
            Reason::Preempted | Reason::TooIdle => false,
        };
        if !is_small && !self.is_settled(last) && served.is_some_and(|served| served > self.budget()) {
            // Its groups pay for that: the others come first. They have paid when they are served again.
            self.each_above(last, |group| group.season = Season::New);
        }
        if is_small && self.seasons.get(&last) == Some(&Season::Served) {
            self.seasons.insert(last, Season::Settled);
            let waiting = self.requests.iter().filter(|(_, waiting)| waiting.source == last).count() as u64;
            self.each_above(last, |group| group.nr_unsettled -= waiting);
        }
        if reason == Reason::Preempted && !self.is_settled(last) && self.lingering.insert(last) {
            self.each_above(last, |group| group.nr_unsettled += 1);
        }
    }

    fn chosen(&mut self, rq: RqId, now: Time) -> Verdict {
        self.note_unsteady();
        self.now = self.now.max(now);
        let Some(&Waiting { source, .. }) = self.requests.get(rq) else { return Ok(()) };
        let goes_on = self.latest == Some(source) || self.in_service == Some(0);
        self.turn(source);
        if self.lingering.remove(&source) {
            self.each_above(source, |group| group.nr_unsettled -= 1);
        }
        let Some(Waiting { sectors, .. }) = self.leaves(rq) else { return Ok(()) };
        let times = if matches!(source, Source::Async(..)) { ASYNC } else { 1 };
        self.in_service = self.in_service.filter(|_| goes_on).map(|served| served + sectors);
        let least_time = self.max_budget as f64 * LEAST_TIME;
        let (is_settled, nr_ends) = (self.is_settled(source), self.nr_ends);
        let above = self.each_above(source, |group| {
            group.chosen = nr_ends;
            if !is_settled {
                group.unsteady = nr_ends;
            }
            group.served += sectors as f64;
            group.charged += (sectors * times) as f64 + least_time;
            if group.season == Season::New {
                group.season = Season::Served;
            }
        });
        if self.nr_turns >= WARM {
            let season = self.seasons.entry(source).or_default();
            if *season == Season::New {
                *season = Season::Served;
            }
        }
        above.into_iter().try_for_each(|id| self.judge(id, rq))
    }

    /// The largest budget of a queue that is settled, in sectors.
    fn budget(&self) -> u64 {
        self.max_budget.max(ASYNC * self.largest)
    }

    fn is_tight(&self) -> bool {
        let has_budget = self.max_budget > 0 && self.nr_turns >= WARM;
        !self.low_latency
            && self.idles == [false; 2]
            && !self.is_strict
            && has_budget
            && self.are_apart
            && self.nr_uncertain == 0
    }

    /// Whether both are steady, and have been chosen since both are.
    fn are_comparable(one: &Group, other: &Group) -> bool {
        let chosen = one.chosen.min(other.chosen);
        one.is_steady() && other.is_steady() && chosen >= one.unsteady.max(other.unsteady) + ENDS
    }

    /// How far the first group is ahead of the second, with all that may explain it taken off.
    fn ahead(&self, one: &Group, other: &Group) -> f64 {
        let in_time = self.max_budget as f64 * self.now.0 as f64 / TIMEOUT_NS;
        one.served / one.weight - (other.charged + in_time) / other.weight
    }

    /// Compares a group that was served with the others of its parent.
    fn judge(&mut self, id: GroupId, rq: RqId) -> Verdict {
        let one = self.groups[&id];
        if !self.is_tight() {
            self.least.retain(|(first, second), _| *first != id && *second != id);
            return Ok(());
        }
        let others: Vec<(GroupId, Group)> = self.groups.iter().map(|(id, group)| (*id, *group)).collect();
        let budget = self.budget() as f64;
        for (other_id, other) in others {
            if other_id == id || other.parent != one.parent {
                continue;
            }
            if !Self::are_comparable(&one, &other) {
                self.least.remove(&(id, other_id));
                self.least.remove(&(other_id, id));
                continue;
            }
            let behind = self.ahead(&other, &one);
            let least = self.least.entry((other_id, id)).or_insert(behind);
            *least = least.min(behind);
            let ahead = self.ahead(&one, &other);
            let least = *self.least.entry((id, other_id)).or_insert(ahead);
            let bound = budget * (2.0 / one.weight + 3.0 / other.weight);
            if ahead - least > bound {
                let what = format!(
                    "{} was chosen, and group {} of weight {} has got {:.1} sectors more for a unit of its weight than \
                     group {} of weight {} since both wait all the time; with budgets of {budget} sectors it may be \
                     {bound:.1}",
                    Request(rq),
                    id.0,
                    one.weight,
                    ahead - least,
                    other_id.0,
                    other.weight
                );
                return Err(Violation::new(RULE, what).request(rq));
            }
        }
        Ok(())
    }

    fn told_of_client(&mut self, client: ClientId, group: GroupId) {
        if self.clients.insert(client, group) != Some(group) {
            let theirs = self.requests.iter_mut().filter(|(_, waiting)| waiting.source == Source::Sync(client));
            for (_, waiting) in theirs.filter(|(_, waiting)| waiting.is_certain) {
                waiting.is_certain = false;
                self.nr_uncertain += 1;
            }
            self.note_clients();
        }
    }

    /// Clients have come, gone or moved.
    fn note_clients(&mut self) {
        let mut groups: Vec<GroupId> = self.clients.values().copied().filter(|group| *group != GroupId::ROOT).collect();
        groups.sort_unstable();
        self.are_apart = groups.windows(2).all(|two| two[0] != two[1]);
        self.begin_anew();
    }

    fn told_of_group(&mut self, id: GroupId, parent: GroupId, weight: f64) {
        let is_same = self.groups.get(&id).is_some_and(|group| (group.parent, group.weight) == (parent, weight));
        if !is_same {
            self.groups.insert(id, Group::new(parent, weight));
            self.begin_anew();
        }
    }

    /// What waits in the asynchronous queues of a group that goes does so in its parent from now on.
    fn group_left(&mut self, id: GroupId) {
        let Some(Group { parent, .. }) = self.groups.remove(&id) else { return };
        for (_, waiting) in self.requests.iter_mut() {
            if let Source::Async(group, ..) = &mut waiting.source
                && *group == id
            {
                *group = parent;
            }
        }
        self.begin_anew();
    }

    /// What bypassed is charged when it is reported, and its groups pay for it when its queue is served next. Until
    /// then the queue's budget is all that bypassed, if that is more.
    fn passed(&mut self, report: &Report) {
        let source = self.source(report.client, report.sync || report.op.is_read(), report.priority);
        let was_settled = self.seasons.remove(&source) == Some(Season::Settled);
        let waiting =
            self.requests.iter().filter(|(_, waiting)| was_settled && waiting.source == source).count() as u64;
        self.each_above(source, |group| {
            group.season = Season::New;
            group.nr_unsettled += waiting;
        });
    }
}

impl Checker for Lag {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, _: &Tracker) -> Verdict {
        match *event {
            Event::Installed { scheduler } => self.installed(scheduler),
            Event::GroupJoined { group, settings } => {
                self.told_of_group(group, settings.parent, settings.weight.into());
            }
            Event::GroupLeft { group } => self.group_left(group),
            Event::ClientJoined { client, settings } => self.told_of_client(client, settings.group),
            Event::ClientLeft { client } => {
                self.clients.remove(&client);
                self.note_clients();
            }
            _ if !self.is_watched => {}
            Event::Changed { control: Control::Knob(name, value), phase } => self.knob(name, value, phase),
            Event::Inserted { rq, info, at: InsertAt::Sorted, .. } => self.joins(rq, &info),
            Event::Merged { into, info, .. } => self.grows(into, info.nr_sectors.into()),
            Event::Absorbed { into, absorbed } => {
                if let Some(Waiting { sectors, .. }) = self.leaves(absorbed) {
                    self.grows(into, sectors);
                }
            }
            Event::Chosen { rq, now } => return self.chosen(rq, now),
            Event::Expired { reason } => self.expired(reason),
            Event::Reported { reports, .. } => {
                for report in reports.iter().filter(|report| report.event == Happened::Passed) {
                    self.passed(report);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
