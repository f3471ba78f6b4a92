//! `fair` against a naive model, operation by operation, with clients and groups that come, move and go, and reports of
//! what they got.
//!
//! The long run prints its seed, takes another from `BLKMQ_SEED`, and takes its length from `BLKMQ_OPERATIONS`.

mod usage;

use self::usage::{SCALE, SEVERAL, Watched, Window};
use crate::bench::{MS, TIGHT as LIMITS, shown};
use crate::long_run::long_run;
use crate::world::{FULL, Moment, World};
use blkmq_sched::limiter::Costs;
use blkmq_sched::{
    Class, ClientId, ClientSettings, Fair, Fairness, FastRequest, Feedback, GroupId, GroupSettings, Info, InsertAt,
    IoPriority, Join, Merge, MergeHow, MergeLevel, Op, Passing, RqId, Scheduler, Setting, Time, Usage,
};
use proptest::prelude::*;

const ACTIVE: u64 = 20 * MS;
const AGED: u64 = 10_000 * MS;
const RUN: u32 = 1024;

/// Places of clients and groups. The first client is the one that did not join, and the first group is the root.
const CLIENTS: usize = 6;
const GROUPS: usize = 5;

/// One step of a run. Clients and groups are named by place.
#[derive(Debug, Clone)]
enum Step {
    Insert {
        info: Info,
        client: usize,
        at: InsertAt,
    },
    Merge {
        info: Info,
        client: usize,
    },
    Dispatch {
        times: usize,
    },
    /// Requests of one operation and one class, of these clients.
    Through {
        like: Info,
        of: Vec<(u64, usize)>,
    },
    Join {
        client: usize,
        weight: u16,
        group: usize,
        name: u64,
        class: Class,
    },
    Leave {
        client: usize,
    },
    JoinGroup {
        group: usize,
        weight: u16,
        parent: usize,
    },
    LeaveGroup {
        group: usize,
    },
    Pass {
        ns: u64,
    },
    TurnBack {
        ns: u64,
    },
    EndBypass,
    Rotate {
        rotational: bool,
    },
    Charge {
        costs: usize,
    },
    /// So much later it is reported what clients got.
    Usage {
        of: Vec<Reported>,
        ns: u64,
    },
}

/// The client, how many before it in its place it is, its reads and writes, the sectors of each, and how many are
/// outstanding.
type Reported = (usize, u32, [u64; 2], u64, u32);

#[derive(Debug, Clone, Copy)]
struct Entry {
    id: RqId,
    info: Info,
    client: usize,
    came: Time,
    /// When it took its place among requests of the same first sector, and among those of the same end.
    sorted_at: u64,
    hashed_at: u64,
}

impl Entry {
    fn is_of(&self, client: usize, class: usize) -> bool {
        (self.client, self.info.priority.class as usize) == (client, class)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Client {
    id: ClientId,
    /// `None` if it has left.
    place: Option<usize>,
    weight: u16,
    group: usize,
    name: u64,
    class: Class,
    /// Less than its weight while it lends, in units of [`SCALE`].
    in_use: u64,
    watched: Watched,
    is_outstanding: bool,
}

#[derive(Debug, Clone, Copy)]
struct Group {
    weight: u16,
    in_use: u64,
    parent: usize,
}

impl Group {
    fn new(weight: u16, parent: usize) -> Self {
        Self { weight, in_use: u64::from(weight) * SCALE, parent }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Flow {
    start: u64,
    finish: u64,
    /// When the flow got its start tag: among equal ones the earlier goes first.
    tagged_at: u64,
    is_active: bool,
    is_new: bool,
    served: [u64; 2],
    idle_since: Time,
}

#[derive(Debug, Default)]
struct Plane {
    virtual_time: u64,
    last_finish: u64,
    dispatched: Time,
    /// The clients that are active without waiting requests, in the order in which they became so.
    idle: Vec<usize>,
}

/// Everything in plain vectors, looked up by walking them.
#[derive(Debug)]
struct Model {
    /// In order of arrival, of all clients.
    fifo: Vec<Entry>,
    head: Vec<(RqId, usize)>,
    clients: [Option<Client>; CLIENTS],
    flows: [[Flow; 3]; CLIENTS],
    /// In the order in which they left.
    departed: Vec<Client>,
    window: Window,
    groups: [Option<Group>; GROUPS],
    planes: [Plane; 3],
    /// Name and finish tags.
    debts: Vec<(u64, [u64; 3])>,
    costs: Costs,
    rotational: bool,
    /// Client, class, direction, end, and sectors left.
    run: Option<(usize, usize, bool, u64, u32)>,
    last: Option<RqId>,
    stamp: u64,
}

impl Model {
    fn new() -> Self {
        let stranger = Client { weight: 100, in_use: 100 * SCALE, ..Client::default() };
        Self {
            fifo: Vec::new(),
            head: Vec::new(),
            clients: [Some(stranger), None, None, None, None, None],
            flows: Default::default(),
            departed: Vec::new(),
            window: Window::default(),
            groups: [Some(Group::new(100, 0)), None, None, None, None],
            planes: Default::default(),
            debts: Vec::new(),
            costs: Costs::default(),
            rotational: false,
            run: None,
            last: None,
            stamp: 0,
        }
    }

    fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn of(&self, client: usize, class: usize) -> impl Iterator<Item = &Entry> {
        self.fifo.iter().filter(move |entry| entry.is_of(client, class))
    }

    /// The weights in use of the active clients and groups of a group.
    fn sum(&self, group: usize, class: usize) -> u64 {
        let clients = self.clients.iter().zip(&self.flows).filter(|(_, flows)| flows[class].is_active);
        let clients = clients.filter_map(|(client, _)| client.filter(|client| client.group == group));
        let groups = (1..GROUPS).filter_map(|child| Some((child, self.groups[child]?)));
        let groups = groups.filter(|(child, known)| known.parent == group && self.sum(*child, class) > 0);
        clients.map(|client| client.in_use).sum::<u64>() + groups.map(|(_, known)| known.in_use).sum::<u64>()
    }

    fn over_share(&self, client: usize, class: usize) -> f64 {
        let Client { in_use: mut weight, mut group, .. } = self.clients[client].expect("it is there");
        let mut over = 1.0;
        loop {
            over *= self.sum(group, class) as f64 / weight as f64;
            if group == 0 {
                return over.min(16_777_216.0);
            }
            let known = self.groups[group].expect("it is there");
            (weight, group) = (known.in_use, known.parent);
        }
    }

    fn insert(&mut self, id: RqId, info: &Info, client: usize, now: Time) {
        let class = info.priority.class as usize;
        let (sorted_at, hashed_at, tagged_at) = (self.stamp(), self.stamp(), self.stamp());
        if self.of(client, class).next().is_none() {
            let is_first = self.fifo.iter().all(|entry| entry.info.priority.class as usize != class);
            let first = self.first(class).map(|(first, _)| self.flows[first][class].start);
            let (flow, plane) = (&mut self.flows[client][class], &mut self.planes[class]);
            if is_first && now.0 > plane.dispatched.0 + ACTIVE {
                plane.virtual_time = plane.last_finish;
            }
            let is_new = std::mem::take(&mut flow.is_new);
            *flow = Flow { start: flow.finish.max(plane.virtual_time), tagged_at, is_active: true, ..*flow };
            plane.idle.retain(|idle| *idle != client);
            if is_new && let Some(first) = first {
                let charge =
                    (f64::from(self.costs.of(info.op, info.nr_sectors)) * self.over_share(client, class)) as u64;
                let after_one = self.planes[class].virtual_time + charge;
                let flow = &mut self.flows[client][class];
                flow.start = flow.start.max(first.min(after_one));
            }
        }
        self.fifo.push(Entry { id, info: *info, client, came: now, sorted_at, hashed_at });
        self.last = if info.merge == MergeLevel::Never { self.last } else { Some(id) };
        if self.of(client, class).count() == SEVERAL {
            self.take_back(client);
        }
    }

    /// The client of this class whose request goes next, and when its oldest one came.
    fn first(&self, class: usize) -> Option<(usize, Time)> {
        let waiting = (0..CLIENTS).filter(|client| self.of(*client, class).next().is_some());
        let client =
            waiting.min_by_key(|client| (self.flows[*client][class].start, self.flows[*client][class].tagged_at))?;
        let first_of = |is_read| self.of(client, class).find(|entry| entry.info.op.is_read() == is_read);
        Some((client, [true, false].into_iter().filter_map(first_of).map(|entry| entry.came).min()?))
    }

    fn dispatch(&mut self, now: Time) -> Option<RqId> {
        if let Some((rq, _)) = self.head.pop() {
            return Some(rq);
        }
        let mut classes = (0..3).filter_map(|class| Some((class, self.first(class)?)));
        let highest = classes.next()?;
        let (class, (mut client, _)) = classes.find(|(_, (_, came))| came.0 + AGED <= now.0).unwrap_or(highest);
        while let Some(idle) = self.planes[class].idle.first().copied()
            && self.flows[idle][class].idle_since.0 + ACTIVE <= now.0
        {
            self.planes[class].idle.remove(0);
            let client = self.clients[idle].expect("it is there");
            if client.is_outstanding && client.class as usize == class {
                self.planes[class].idle.push(idle);
                self.flows[idle][class].idle_since = now;
            } else {
                self.flows[idle][class].is_active = false;
            }
        }
        let continues = |(of, run_class, is_read, end, left): (usize, usize, bool, u64, u32)| {
            let ahead =
                self.of(of, run_class).filter(|entry| entry.info.op.is_read() == is_read && entry.info.sector >= end);
            let next = ahead.min_by_key(|entry| (entry.info.sector, entry.sorted_at))?;
            (run_class == class && left > 0).then_some(*next)
        };
        let entry = self.run.and_then(continues).unwrap_or_else(|| {
            let [reads, others] = self.flows[client][class].served;
            let preferred = self.of(client, class).find(|entry| entry.info.op.is_read() == (reads <= others));
            *preferred.or(self.of(client, class).next()).expect("the client has requests")
        });
        client = entry.client;
        self.forget(entry.id);
        self.charge(&entry, client, class, now);
        Some(entry.id)
    }

    fn charge(&mut self, entry: &Entry, client: usize, class: usize, now: Time) {
        let (info, tagged_at) = (&entry.info, self.stamp());
        let cost = self.costs.of(info.op, info.nr_sectors);
        let start = self.flows[client][class].start;
        let finish = start + (f64::from(cost) * self.over_share(client, class)) as u64;
        let plane = &mut self.planes[class];
        plane.virtual_time = plane.virtual_time.max(start);
        plane.last_finish = plane.last_finish.max(finish);
        plane.dispatched = now;
        self.window.ordered += 1;
        let (this, other) = (usize::from(!info.op.is_read()), usize::from(info.op.is_read()));
        let other_waits = self.of(client, class).any(|entry| entry.info.op.is_read() != info.op.is_read());
        let is_last = self.of(client, class).next().is_none();
        let flow = &mut self.flows[client][class];
        flow.served[this] += u64::from(cost);
        if !other_waits {
            flow.served[other] = flow.served[other].max(flow.served[this]);
        }
        (flow.start, flow.finish, flow.tagged_at) = (finish, finish, tagged_at);
        if is_last {
            flow.idle_since = now;
            self.planes[class].idle.push(client);
        }
        if self.rotational {
            let is_read = info.op.is_read();
            let goes_on = self.run.filter(|(of, run_class, reads, end, left)| {
                *left > 0 && (*of, *run_class, *reads) == (client, class, is_read) && *end <= info.sector
            });
            let left = goes_on.map_or(RUN, |(.., left)| left).saturating_sub(info.nr_sectors);
            self.run = Some((client, class, is_read, info.end(), left));
        }
    }

    fn forget(&mut self, id: RqId) {
        self.fifo.retain(|entry| entry.id != id);
        self.last = self.last.filter(|last| *last != id);
    }

    fn merge(&mut self, info: &Info, client: usize) -> Option<Merge> {
        let fit = |host: &Entry| {
            let (how, grown) = (host.client == client).then(|| LIMITS.merged(&host.info, info))??;
            Some((host.id, how, grown))
        };
        let last = self.fifo.iter().filter(|entry| Some(entry.id) == self.last && info.merge != MergeLevel::Never);
        let is_full = info.merge == MergeLevel::Full;
        let mergeable = || self.fifo.iter().filter(|entry| is_full && entry.info.merge == MergeLevel::Full);
        let mut back: Vec<&Entry> = mergeable().filter(|entry| entry.info.end() == info.sector).collect();
        back.sort_by_key(|entry| std::cmp::Reverse(entry.hashed_at));
        let mut front: Vec<&Entry> = self.neighbors(client, info);
        front.retain(|entry| entry.info.sector == info.end());
        let front = front.into_iter().take(8).filter(|entry| is_full && entry.info.merge == MergeLevel::Full);
        let (into, how, grown) = last.chain(back.into_iter().take(8)).chain(front).find_map(fit)?;
        self.grow(into, how, grown);
        let joined = if is_full { self.join(into, how) } else { None };
        Some(Merge { into, how, joined })
    }

    /// The requests that are sorted with one of this client, in that order.
    fn neighbors(&self, client: usize, info: &Info) -> Vec<&Entry> {
        let same = self.of(client, info.priority.class as usize);
        let mut same: Vec<&Entry> = same.filter(|entry| entry.info.op.is_read() == info.op.is_read()).collect();
        same.sort_by_key(|entry| (entry.info.sector, entry.sorted_at));
        same
    }

    fn grow(&mut self, id: RqId, how: MergeHow, grown: Info) {
        let stamp = self.stamp();
        let host = self.fifo.iter_mut().find(|entry| entry.id == id).expect("it waits");
        *(if how == MergeHow::Front { &mut host.sorted_at } else { &mut host.hashed_at }) = stamp;
        host.info = grown;
        self.last = Some(id);
    }

    fn join(&mut self, grown: RqId, how: MergeHow) -> Option<Join> {
        let host = self.fifo.iter().find(|entry| entry.id == grown)?;
        let order = self.neighbors(host.client, &host.info);
        let at = order.iter().position(|entry| entry.id == grown)?;
        let first = if how == MergeHow::Front { at.checked_sub(1)? } else { at };
        let (mut survivor, absorbed) = (**order.get(first)?, **order.get(first + 1)?);
        if how == MergeHow::Discard || [survivor, absorbed].iter().any(|entry| entry.info.merge != MergeLevel::Full) {
            return None;
        }
        let (MergeHow::Back, whole) = LIMITS.merged(&survivor.info, &absorbed.info)? else { return None };
        if absorbed.came < survivor.came {
            // It takes the place of the older one.
            survivor.came = absorbed.came;
            self.fifo.retain(|entry| entry.id != survivor.id);
            *self.fifo.iter_mut().find(|entry| entry.id == absorbed.id)? = survivor;
        }
        self.forget(absorbed.id);
        self.grow(survivor.id, MergeHow::Back, whole);
        Some(Join { survivor: survivor.id, absorbed: absorbed.id })
    }

    fn enter(&mut self, client: usize, settings: Client) {
        if let Some(known) = &mut self.clients[client] {
            let Client { weight, group, .. } = settings;
            *known = Client { weight, group, in_use: settings.full(), ..*known };
            return;
        }
        self.clients[client] = Some(Client { place: Some(client), in_use: settings.full(), ..settings });
        self.flows[client] = Default::default();
        let debt = self.debts.iter().position(|(name, _)| *name == settings.name);
        let debt = debt.map(|at| self.debts.swap_remove(at).1);
        for class in 0..3 {
            let (finish, is_new) = (debt.map_or(0, |debt| debt[class]), debt.is_none());
            self.flows[client][class] = Flow { finish, is_new, ..Flow::default() };
        }
    }

    fn leave(&mut self, client: usize) {
        let Some(left) = self.clients[client].take() else { return };
        let name = left.name;
        if self.window.began.is_some() {
            self.departed.push(Client { place: None, ..left });
        }
        let debt = (name, self.flows[client].map(|flow| flow.finish));
        self.planes.iter_mut().for_each(|plane| plane.idle.retain(|idle| *idle != client));
        self.run = self.run.filter(|(of, ..)| *of != client);
        self.flows[client] = Default::default();
        let virtual_times = [0, 1, 2].map(|class| self.planes[class].virtual_time);
        let owes = |(_, finish): &(u64, [u64; 3])| (0..3).any(|class| finish[class] > virtual_times[class]);
        self.debts.retain(owes);
        self.debts.extend((name > 0 && owes(&debt)).then_some(debt));
    }
}

/// The scheduler, the model, and how often the run has reached what it is to reach.
struct Run {
    fair: Fair,
    model: Model,
    now: Time,
    /// How often each place was given.
    times: [u32; CLIENTS],
    group_times: [u32; GROUPS],
    costs: [Costs; 3],
    next_id: u64,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    dispatched: usize,
    merged: usize,
    joined: usize,
    aged: usize,
    continued: usize,
    reweighted: usize,
    moved_groups: usize,
    debts: usize,
    fast: usize,
    fast_clients: usize,
    violated: usize,
    kept: usize,
    lenders: usize,
    lending_groups: usize,
    departed: usize,
}

impl Run {
    fn new() -> Self {
        let mut fair = Fair::new();
        fair.configure(Setting::MergeLimits(LIMITS));
        let mut slow = World::default();
        slow.run(Moment { writes: 7, read: None, ..FULL }, 10);
        slow.run(Moment { writes: 7, ..FULL }, 400);
        let costs = [Costs::default(), World::paced().limiter.costs(), slow.limiter.costs()];
        let (model, counts) = (Model::new(), Counts::default());
        Self { fair, model, now: Time(0), times: [0; _], group_times: [0; _], costs, next_id: 0, counts }
    }

    fn id(&self, client: usize) -> ClientId {
        ClientId::new(client, self.times[client])
    }

    fn group(&self, group: usize) -> GroupId {
        GroupId::new(group, self.group_times[group])
    }

    /// The place of the client in the model: that of the stranger for one that did not join.
    fn place(&self, client: usize) -> usize {
        self.model.clients[client].map_or(0, |_| client)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Insert { mut info, client, at } => {
                let (rq, place) = (RqId(self.next_id), self.place(client));
                self.next_id += 1;
                info.client = self.id(client);
                self.fair.reserve(self.fair.len() + 1);
                self.fair.insert(rq, &info, at, self.now);
                match at {
                    InsertAt::Head => self.model.head.push((rq, place)),
                    InsertAt::Sorted => self.model.insert(rq, &info, place, self.now),
                }
            }
            Step::Merge { mut info, client } => {
                info.client = self.id(client);
                let merge = self.fair.merge(&info);
                assert_eq!(merge, self.model.merge(&info, self.place(client)));
                self.counts.merged += usize::from(merge.is_some());
                self.counts.joined += usize::from(merge.is_some_and(|merge| merge.joined.is_some()));
            }
            Step::Dispatch { times } => (0..=times).for_each(|_| self.dispatch()),
            Step::Through { like, ref of } => self.dispatch_fast(&like, of),
            Step::Join { client, weight, group, name, class } => {
                self.join(client, Client { weight, group, name, class, ..Client::default() });
            }
            Step::Leave { client } => {
                let has_none = self.model.fifo.iter().all(|entry| entry.client != client);
                let has_none = has_none && self.model.head.iter().all(|(_, of)| *of != client);
                // How many are kept is a matter of `fair_churn`.
                if has_none && self.model.departed.len() < 64 {
                    self.fair.leave(self.id(client));
                    self.model.leave(client);
                }
            }
            Step::JoinGroup { group, weight, parent } => {
                let parent = if self.model.groups[parent].is_some() { parent } else { 0 };
                let is_new = self.model.groups[group].is_none();
                self.group_times[group] += u32::from(is_new);
                let settings = GroupSettings { weight, parent: self.group(parent) };
                self.fair.join_group(self.group(group), &settings);
                self.model.groups[group] = Some(Group::new(weight, parent));
                let is_active = (0..3).any(|class| self.model.sum(group, class) > 0);
                self.counts.moved_groups += usize::from(!is_new && is_active);
            }
            Step::LeaveGroup { group } => {
                let mut clients = self.model.clients.iter().flatten().map(|client| client.group);
                let mut groups = self.model.groups.iter().flatten().map(|group| group.parent);
                if clients.all(|of| of != group) && groups.all(|of| of != group) {
                    self.fair.leave_group(self.group(group));
                    if let Some(gone) = self.model.groups[group].take() {
                        let of_group = self.model.departed.iter_mut().filter(|left| left.group == group);
                        of_group.for_each(|left| left.group = gone.parent);
                    }
                }
            }
            Step::Pass { ns } => self.now = self.now.after(ns),
            Step::TurnBack { ns } => self.now = self.now.before(ns),
            Step::EndBypass if self.fair.len() == 0 => {
                self.fair.observe(Feedback::BypassEnded);
                self.model.planes.iter_mut().for_each(|plane| plane.virtual_time = plane.last_finish);
            }
            Step::EndBypass => {}
            Step::Rotate { rotational } => {
                self.fair.configure(Setting::Rotational(rotational));
                (self.model.rotational, self.model.run) = (rotational, None);
            }
            Step::Charge { costs } => {
                self.model.costs = self.costs[costs];
                self.fair.configure(Setting::Costs(self.model.costs));
            }
            Step::Usage { ref of, ns } => self.report(of, ns),
        }
        let len = self.model.fifo.len() + self.model.head.len();
        assert_eq!(self.fair.len(), len);
        let passing = self.fair.may_pass(Class::Idle, ClientId::default());
        assert_eq!(passing == Passing::All, len == 0);
        if matches!(step, Step::Pass { .. }) {
            self.compare_tags();
        }
    }

    fn join(&mut self, client: usize, settings: Client) {
        let group = if self.model.groups[settings.group].is_some() { settings.group } else { 0 };
        let (is_new, debts) = (self.model.clients[client].is_none(), self.model.debts.len());
        self.times[client] += u32::from(is_new);
        let Client { weight, name, class, .. } = settings;
        let priority = IoPriority { class, level: 4 };
        let told = ClientSettings { weight, name, group: self.group(group), priority };
        self.fair.join(self.id(client), &told);
        let waits = self.model.fifo.iter().any(|entry| entry.client == client);
        self.model.enter(client, Client { id: self.id(client), group, ..settings });
        self.counts.reweighted += usize::from(!is_new && waits);
        self.counts.debts += debts - self.model.debts.len();
    }

    /// Fewer than half of the operations of a window were ordered, so nobody is held back and nothing is priced: those
    /// are matters of `fair_lead` and `fair_usage`.
    fn report(&mut self, of: &[Reported], ns: u64) {
        self.now = self.now.after(ns);
        let usage = |&(client, before, operations, sectors, outstanding): &Reported| {
            let client = ClientId::new(client, self.times[client].saturating_sub(before));
            let ([reads, writes], sectors) = (operations, operations.map(|of| of * sectors));
            Usage { client, operations: [reads, writes, 0], sectors, outstanding }
        };
        let mut usage: Vec<Usage> = of.iter().map(usage).collect();
        let known: u64 = usage.iter().flat_map(|of| of.operations).sum::<u64>() + self.model.window.operations;
        let missing = (2 * self.model.window.ordered + 1).saturating_sub(known);
        usage.push(Usage { operations: [missing, 0, 0], ..Usage::default() });
        let fairness = self.model.report(&usage, self.now);
        assert_eq!(self.fair.observe(Feedback::Usage(&usage, self.now)), fairness);
        let [clients, groups] = self.model.lenders();
        let counts = &mut self.counts;
        counts.violated += usize::from(fairness == Fairness::Violated);
        counts.kept += usize::from(fairness == Fairness::Kept);
        counts.lenders += if fairness == Fairness::Unknown { 0 } else { clients };
        counts.lending_groups += if fairness == Fairness::Unknown { 0 } else { groups };
        counts.departed += self.model.departed.len();
        self.compare_tags();
    }

    /// Red if the choices, or the tags that they leave behind, are not those of insertion and dispatch, one by one.
    /// Also red if something changes although the scheduler declines.
    fn dispatch_fast(&mut self, like: &Info, of: &[(u64, usize)]) {
        if self.fair.len() > 8 {
            return;
        }
        while self.fair.len() > 0 {
            self.dispatch();
        }
        let request = |(rq, &(sector, client)): (u64, &(u64, usize))| {
            let info = Info { sector, client: self.id(client), ..*like };
            FastRequest { rq: RqId(rq), info }
        };
        let batch: Vec<FastRequest> = (self.next_id..).zip(of).map(request).collect();
        let mut order = vec![u8::MAX; batch.len()];
        let is_fast = self.fair.dispatch_fast(&batch, self.now, &mut order);
        for (FastRequest { rq, info }, (_, client)) in batch.iter().zip(of) {
            self.model.insert(*rq, info, self.place(*client), self.now);
            if !is_fast {
                self.fair.reserve(self.fair.len() + 1);
                self.fair.insert(*rq, info, InsertAt::Sorted, self.now);
            }
        }
        self.next_id += batch.len() as u64;
        if is_fast {
            for place in order {
                assert_eq!(self.model.dispatch(self.now), Some(batch[usize::from(place)].rq));
            }
            self.counts.fast += batch.len();
            self.counts.fast_clients +=
                usize::from(of.iter().any(|(_, client)| self.place(*client) != self.place(of[0].1)));
            self.compare_tags();
        }
    }

    fn dispatch(&mut self) {
        let first = [0, 1, 2].map(|class| self.model.first(class).map(|(client, _)| client));
        let went = self.model.fifo.clone();
        let expected = self.model.dispatch(self.now);
        assert_eq!(self.fair.dispatch(&mut (), self.now), expected);
        assert!(expected.is_some() || self.fair.len() == 0, "something goes as long as something waits");
        self.counts.dispatched += usize::from(expected.is_some());
        if let Some(entry) = went.iter().find(|entry| Some(entry.id) == expected) {
            let class = entry.info.priority.class as usize;
            self.counts.aged += usize::from(first[..class].iter().any(Option::is_some));
            self.counts.continued += usize::from(first[class] != Some(entry.client));
        }
    }

    /// Virtual times, and the share and the tags of each active client, are those that the scheduler shows.
    fn compare_tags(&self) {
        let text = shown(&self.fair);
        let has = |line: String| assert!(text.contains(&line), "no {line}in\n{text}");
        for (class, plane) in Class::ALL.iter().zip(&self.model.planes) {
            has(format!("{class:?}: virtual_time {} ns\n", plane.virtual_time));
        }
        for (client, class) in (1..CLIENTS).flat_map(|client| Class::ALL.map(|class| (client, class))) {
            let (flow, id) = (&self.model.flows[client][class.index()], self.id(client).0);
            let waiting = self.model.of(client, class.index()).count();
            let start = format!("client {id} {class:?} ");
            assert_eq!(text.contains(&start), flow.is_active, "{start}in\n{text}");
            if flow.is_active {
                let (share, Flow { start: from, finish, .. }) =
                    (1.0 / self.model.over_share(client, class.index()), flow);
                let weight = self.model.clients[client].expect("it is active").weight;
                has(format!(
                    "{start}weight {weight} share {share:.4} waiting {waiting}\n  start {from} ns finish {finish} ns\n"
                ));
            }
        }
    }
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![1 => Just(Class::RealTime), 8 => Just(Class::BestEffort), 1 => Just(Class::Idle)]
}

fn reported() -> impl Strategy<Value = Reported> {
    let number = || prop_oneof![2 => Just(0), 1 => 0..20_u64, 2 => 0..1000_u64];
    let outstanding = prop_oneof![1 => Just(0), 1 => 1..4_u32, 3 => 4..64_u32];
    let before = prop_oneof![4 => Just(0), 1 => 1..3_u32];
    (0..CLIENTS, before, [number(), number()], 1..64_u64, outstanding)
}

prop_compose! {
    fn any_info()(
        sector in 0..12_u64,
        nr_sectors in prop_oneof![8 => 1..3_u32, 1 => Just(400)],
        op in prop_oneof![6 => Just(Op::Read), 5 => Just(Op::Write), 1 => Just(Op::Discard)],
        class in class(),
        merge in prop_oneof![
            1 => Just(MergeLevel::Never),
            1 => Just(MergeLevel::LastOnly),
            6 => Just(MergeLevel::Full),
        ],
    ) -> Info {
        let priority = IoPriority { class, level: 4 };
        Info { sector, nr_sectors, nr_segments: 1, op, priority, merge, ..Info::default() }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let client = || prop_oneof![3 => 0..2_usize, 1 => 2..CLIENTS];
    let weight = || prop_oneof![Just(1_u16), 1..1000_u16, Just(1000)];
    prop_oneof![
        24 => (any_info(), client()).prop_map(|(info, client)| Step::Insert { info, client, at: InsertAt::Sorted }),
        1 => (any_info(), client()).prop_map(|(info, client)| Step::Insert { info, client, at: InsertAt::Head }),
        12 => (any_info(), client()).prop_map(|(info, client)| Step::Merge { info, client }),
        6 => (0..6_usize).prop_map(|times| Step::Dispatch { times }),
        1 => Just(Step::Dispatch { times: 60 }),
        2 => (any_info(), prop::collection::vec((0..1000_u64, client()), 1..12))
            .prop_map(|(like, of)| Step::Through { like, of }),
        6 => (1..CLIENTS, weight(), 0..GROUPS, 0..5_u64, class())
            .prop_map(|(client, weight, group, name, class)| Step::Join { client, weight, group, name, class }),
        4 => (1..CLIENTS).prop_map(|client| Step::Leave { client }),
        3 => (1..GROUPS, weight(), any::<usize>())
            .prop_map(|(group, weight, parent)| Step::JoinGroup { group, weight, parent: parent % group }),
        1 => (1..GROUPS).prop_map(|group| Step::LeaveGroup { group }),
        6 => prop_oneof![9 => 0..MS, 3 => 0..2 * ACTIVE, 1 => 0..2 * AGED].prop_map(|ns| Step::Pass { ns }),
        1 => (0..2 * MS).prop_map(|ns| Step::TurnBack { ns }),
        1 => Just(Step::EndBypass),
        1 => any::<bool>().prop_map(|rotational| Step::Rotate { rotational }),
        1 => (0..3_usize).prop_map(|costs| Step::Charge { costs }),
        4 => (prop::collection::vec(reported(), 0..8), prop_oneof![3 => 0..MS, 3 => 10 * MS..60 * MS, 1 => 0..1000 * MS])
            .prop_map(|(of, ns)| Step::Usage { of, ns }),
    ]
}

proptest! {
    #[test]
    fn every_choice_and_merge_is_the_model_s(steps in prop::collection::vec(step(), 1..400)) {
        let mut run = Run::new();
        steps.iter().for_each(|step| run.step(step));
    }
}

/// Red if a place of a merged request, a debt, a direction's turn, the end of a client's activity or a jump of virtual
/// time is left out: each was tried, as each site of `unless_mutated`. The same of usage: whether a client was there
/// when the window began, what it got under an earlier id, classes, what clients that have left lend, the group above
/// one that goes, what groups take back, and clients that count for longer because they have operations outstanding.
#[test]
fn a_long_run_is_the_model_s() {
    let mut run = Run::new();
    let operations = long_run(55, &step(), |step| run.step(step));
    println!("{:?}", run.counts);
    let Counts { dispatched, merged, joined, aged, continued, reweighted, moved_groups, debts, fast, .. } = run.counts;
    let Counts { fast_clients, violated, kept, lenders, lending_groups, departed, .. } = run.counts;
    let few = operations / 5000;
    let reached = [
        dispatched / 100,
        merged / 10,
        joined,
        aged,
        continued,
        reweighted,
        moved_groups,
        debts,
        fast,
        fast_clients,
        violated,
        kept,
        lenders,
        lending_groups,
        departed,
    ];
    assert!(reached.iter().all(|count| *count > few), "the run reaches what it is to reach: {reached:?}");
}
