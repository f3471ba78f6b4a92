//! The whole of `bfq` under random clients, groups, requests and completions, against what is known of each request.
//!
//! Nothing is lost and nothing comes twice, the counts are right, each request that waits is served in the end, and
//! what does the work of a request allocates nothing. Some requests bypass, and some of these complete before the
//! scheduler is told that they passed.

use std::collections::{BTreeMap, BTreeSet};

use crate::counting::counted;
use blkmq_sched::{
    Bfq, Class, ClientId, ClientSettings, Event, Feedback, GroupId, GroupSettings, Info, InsertAt, IoPriority,
    MergeLevel, MergeLimits, Op, Passing, Report, RqId, Scheduler, Setting, Ticket, Time,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const NR_CLIENTS: usize = 12;
const NR_GROUPS: usize = 4;
/// Requests that wait or are with the device at most.
const MOST: usize = 256;
/// Places at which clients read: near each other, so that requests merge and queues are merged.
const AREA: u64 = 1 << 14;

const LIMITS: MergeLimits = MergeLimits {
    max_sectors: 256,
    max_segments: 16,
    boundary_sectors: 0,
    max_discard_sectors: 256,
    max_discard_segments: 2,
    max_write_zeroes_sectors: 256,
};

/// One step of a run. Numbers are taken modulo the range that makes sense.
#[derive(Debug, Clone)]
enum Step {
    Ask {
        of: usize,
        sector: u64,
        op: Op,
        class: Class,
        level: u8,
        merge: MergeLevel,
        at: InsertAt,
    },
    /// Requests bypass the scheduler if its gate allows it, in most cases after all waiting requests were dispatched.
    /// They are reported before the next dispatch.
    Pass {
        drains: bool,
        of: usize,
        op: Op,
        class: Class,
        level: u8,
        requests: u16,
    },
    /// The device has finished all but the oldest `keeps` of its requests, and nothing waits. Then nothing happens for
    /// long, which opens the gate.
    Rest {
        keeps: usize,
    },
    Dispatch {
        times: usize,
    },
    Complete {
        which: usize,
    },
    Wait {
        ns: u64,
    },
    /// The next call comes from a thread that has read the clock so much earlier.
    Back {
        ns: u64,
    },
    /// The client comes, or gets another group and weight.
    Join {
        of: usize,
        group: usize,
        weight: u16,
    },
    /// The client goes, if it has nothing outstanding, and its place is given to the next one. That one may have the
    /// same id.
    Leave {
        of: usize,
        same_id: bool,
    },
    JoinGroup {
        group: usize,
        weight: u16,
    },
    LeaveGroup {
        group: usize,
    },
    Set {
        knob: &'static str,
        value: i64,
    },
    /// Requests are held back from now on, or no longer.
    Slice {
        sectors: Option<u64>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    // A few clients ask for most, so that much happens to each of them.
    let of = || prop_oneof![0..NR_CLIENTS / 4, 0..NR_CLIENTS];
    let group = || 0..=NR_GROUPS;
    // Queues of one weight and class may be merged, so most have these.
    let weight = || prop_oneof![3 => Just(100), 1 => 1_u16..=1000];
    let level = || prop_oneof![3 => Just(4_u8), 1 => 0_u8..8];
    let class = || prop_oneof![1 => Just(Class::RealTime), 6 => Just(Class::BestEffort), 1 => Just(Class::Idle)];
    let op = prop_oneof![4 => Just(Op::Read), 2 => Just(Op::Write), 1 => Just(Op::Discard)];
    let passing_op = prop_oneof![3 => Just(Op::Read), 1 => Just(Op::Write)];
    // Queues that seek are not merged, and are split.
    let sector = prop_oneof![0..AREA, 0..AREA / 16];
    let merge = prop_oneof![1 => Just(MergeLevel::Never), 1 => Just(MergeLevel::LastOnly), 4 => Just(MergeLevel::Full)];
    let at = prop_oneof![12 => Just(InsertAt::Sorted), 1 => Just(InsertAt::Head)];
    let knob = prop_oneof![
        Just(("low_latency", 0)),
        Just(("low_latency", 1)),
        Just(("slice_idle", 0)),
        Just(("slice_idle", 8)),
        Just(("max_budget", 64)),
        Just(("strict_guarantees", 1)),
        Just(("strict_guarantees", 0)),
        Just(("strict_guarantees", 0)),
    ];
    prop_oneof![
        24 => (of(), sector, op, class(), level(), merge, at).prop_map(|(of, sector, op, class, level, merge, at)| {
            Step::Ask { of, sector, op, class, level, merge, at }
        }),
        12 => (prop::bool::weighted(0.7), of(), passing_op, class(), level(), 1_u16..4).prop_map(
            |(drains, of, op, class, level, requests)| Step::Pass { drains, of, op, class, level, requests }
        ),
        3 => (0_usize..8).prop_map(|keeps| Step::Rest { keeps }),
        10 => (1_usize..16).prop_map(|times| Step::Dispatch { times }),
        12 => (0..MOST).prop_map(|which| Step::Complete { which }),
        4 => (0..40 * MS).prop_map(|ns| Step::Wait { ns }),
        2 => (0..40 * MS).prop_map(|ns| Step::Back { ns }),
        4 => (of(), group(), weight()).prop_map(|(of, group, weight)| Step::Join { of, group, weight }),
        4 => (of(), any::<bool>()).prop_map(|(of, same_id)| Step::Leave { of, same_id }),
        2 => (1..=NR_GROUPS, weight()).prop_map(|(group, weight)| Step::JoinGroup { group, weight }),
        2 => (1..=NR_GROUPS).prop_map(|group| Step::LeaveGroup { group }),
        1 => knob.prop_map(|(knob, value)| Step::Set { knob, value }),
        1 => prop::option::of(prop_oneof![0..64_u64, any::<u64>()]).prop_map(|sectors| Step::Slice { sectors }),
    ]
}

/// A request with the device: one that the scheduler dispatched, with its ticket, or one that bypassed it.
type InDevice = (Option<Ticket>, Info);

struct World {
    bfq: Bfq,
    now: Time,
    next: u64,
    /// How often a place was given to a client, and the settings of the one that is there.
    clients: Vec<(u32, Option<ClientSettings>)>,
    groups: Vec<(u32, bool)>,
    waiting: BTreeMap<RqId, Info>,
    /// Those of them that go before all others.
    at_head: BTreeSet<RqId>,
    in_device: Vec<InDevice>,
    /// Requests that bypassed, of which the scheduler is to be told: when, and how many.
    untold: Vec<(Time, u16, Info)>,
    /// Of each client's synchronous and other requests that bypassed: those that passed less those that are over, as
    /// the scheduler was told. Less than nothing if it was told of the end first.
    passing: BTreeMap<(ClientId, bool), i64>,
}

impl World {
    fn new(rotational: bool) -> Self {
        let mut bfq = Bfq::new();
        bfq.configure(Setting::Rotational(rotational));
        bfq.configure(Setting::MergeLimits(LIMITS));
        bfq.reserve(MOST);
        Self {
            bfq,
            now: Time(MS),
            next: 0,
            clients: vec![(0, None); NR_CLIENTS],
            groups: vec![(0, false); NR_GROUPS + 1],
            waiting: BTreeMap::new(),
            at_head: BTreeSet::new(),
            in_device: Vec::new(),
            untold: Vec::new(),
            passing: BTreeMap::new(),
        }
    }

    fn client(&self, of: usize) -> ClientId {
        ClientId::new(of + 1, self.clients[of].0)
    }

    /// The root, if the group is not there.
    fn group(&self, place: usize) -> GroupId {
        let (times, is_there) = self.groups[place];
        if is_there { GroupId::new(place, times) } else { GroupId::ROOT }
    }

    fn info(&self, of: usize, sector: u64, op: Op) -> Info {
        Info {
            sector: sector / 8 * 8,
            nr_sectors: 8,
            nr_segments: 1,
            op,
            sync: op.is_read(),
            client: self.client(of),
            ..Info::default()
        }
    }

    fn report(&mut self, event: Event, info: &Info, requests: u16, at: Time) {
        let report = Report {
            event,
            client: info.client,
            op: info.op,
            sync: info.sync,
            priority: info.priority,
            requests,
            sectors: info.nr_sectors * u32::from(requests),
            at,
            in_device: 0,
        };
        let told = match event {
            Event::Passed => i64::from(requests),
            Event::Completed(None) => -i64::from(requests),
            Event::Completed(Some(_)) => 0,
        };
        if told != 0 {
            *self.passing.entry((info.client, info.sync)).or_default() += told;
        }
        counted(|| self.bfq.observe(Feedback::Events(&[report], self.now)));
    }

    /// What passed is told before the next choice, and before clients and groups change.
    fn tell_what_passed(&mut self) {
        for (at, requests, info) in std::mem::take(&mut self.untold) {
            self.report(Event::Passed, &info, requests, at);
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Ask { of, sector, op, class, level, merge, at } => {
                let priority = IoPriority { class, level };
                let is_known = self.clients[of].1.is_some();
                if is_known && self.waiting.len() + self.in_device.len() < MOST {
                    self.ask(Info { priority, merge, ..self.info(of, sector, op) }, at);
                }
            }
            Step::Pass { drains, of, op, class, level, requests } => {
                while drains && self.dispatch() {}
                let info = Info { priority: IoPriority { class, level }, ..self.info(of, 0, op) };
                let passing = counted(|| self.bfq.may_pass(info.priority.class, info.client));
                if passing == Passing::All && self.untold.is_empty() {
                    self.check_passing(&info);
                }
                if passing != Passing::Nobody && self.clients[of].1.is_some() && self.in_device.len() < MOST {
                    self.untold.push((self.now, requests, info));
                    self.in_device.extend((0..requests).map(|_| (None, info)));
                }
            }
            Step::Rest { keeps } => self.rest(keeps),
            Step::Dispatch { times } => {
                (0..times).for_each(|_| {
                    self.dispatch();
                });
            }
            Step::Complete { which } => self.complete(which),
            Step::Wait { ns } => self.now = self.now.after(ns),
            Step::Back { ns } => self.now = self.now.before(ns),
            Step::Join { of, group, weight } => {
                let group = self.group(group);
                let settings = ClientSettings { weight, group, ..ClientSettings::default() };
                self.clients[of].1 = Some(settings);
                self.tell_what_passed();
                self.bfq.join(self.client(of), &settings);
            }
            Step::Leave { of, same_id } => self.leave(of, same_id),
            Step::JoinGroup { group, weight } => {
                self.groups[group].1 = true;
                self.tell_what_passed();
                // The lower half is in the root, and the others are in those, if these are there.
                let parent = if group > NR_GROUPS / 2 { self.group(group - NR_GROUPS / 2) } else { GroupId::ROOT };
                self.bfq.join_group(self.group(group), &GroupSettings { weight, parent });
            }
            Step::LeaveGroup { group } => self.leave_group(group),
            Step::Set { knob, value } => self.bfq.set_knob(knob, value).expect("the value is accepted"),
            Step::Slice { sectors } => counted(|| self.bfq.configure(Setting::Slice(sectors))),
        }
        self.check();
    }

    /// While all may pass, a request of any client that came now would be handed out at once. One of another level
    /// than the client had would show another weight, of which the scheduler does not know yet.
    ///
    /// Red if all may pass although clients differ, or while the queue in service is waited for.
    fn check_passing(&self, like: &Info) {
        for of in 0..self.clients.len() {
            if let (_, Some(_)) = self.clients[of] {
                let mut bfq = self.bfq.clone();
                let rq = RqId(u64::MAX);
                let priority = IoPriority { class: like.priority.class, ..IoPriority::default() };
                bfq.insert(rq, &Info { client: self.client(of), priority, ..*like }, InsertAt::Sorted, self.now);
                assert_eq!(bfq.dispatch(&mut (), self.now), Some(rq), "client {of} may pass: {bfq:?}");
            }
        }
    }

    fn ask(&mut self, info: Info, at: InsertAt) {
        let merge = if at == InsertAt::Sorted { counted(|| self.bfq.merge(&info)) } else { None };
        let Some(merge) = merge else {
            let id = RqId(self.next);
            self.next += 1;
            self.waiting.insert(id, info);
            if at == InsertAt::Head {
                self.at_head.insert(id);
            }
            counted(|| self.bfq.insert(id, &info, at, self.now));
            return;
        };
        let host = self.waiting.get_mut(&merge.into).expect("a newcomer merges with a request that waits");
        assert_eq!(host.op, info.op);
        host.nr_sectors += info.nr_sectors;
        if let Some(join) = merge.joined {
            let absorbed = self.waiting.remove(&join.absorbed).expect("what is absorbed has waited");
            let survivor = self.waiting.get_mut(&join.survivor).expect("what absorbs waits");
            survivor.nr_sectors += absorbed.nr_sectors;
        }
    }

    fn dispatch(&mut self) -> bool {
        self.tell_what_passed();
        let mut ticket = None;
        let Some(id) = counted(|| self.bfq.dispatch(&mut ticket, self.now)) else { return false };
        let info = self.waiting.remove(&id).expect("what is dispatched has waited, and comes once");
        let was_at_head = self.at_head.remove(&id);
        assert!(was_at_head || self.at_head.is_empty(), "what is at the head goes first");
        assert!(ticket.is_some(), "each request has a ticket");
        self.in_device.push((ticket, info));
        true
    }

    fn complete(&mut self, which: usize) {
        if self.in_device.is_empty() {
            return;
        }
        let (ticket, info) = self.in_device.swap_remove(which % self.in_device.len());
        self.report(Event::Completed(ticket), &info, 1, self.now);
    }

    /// The device finishes requests, the latest first, and none waits any more. Then time goes on.
    fn rest(&mut self, keeps: usize) {
        for _ in 0..20 * MOST {
            if self.dispatch() {
                continue;
            }
            if self.waiting.is_empty() && self.in_device.len() <= keeps {
                break;
            }
            match self.bfq.next_wakeup() {
                Some(wakeup) if self.in_device.len() <= keeps => self.now = self.now.max(wakeup),
                // A request that the device was to keep may hold others back.
                _ => self.complete(self.in_device.len().checked_sub(1).expect("what waits has something to wait for")),
            }
        }
        self.now = self.now.after(40 * MS);
        self.dispatch();
    }

    fn leave(&mut self, of: usize, same_id: bool) {
        let client = self.client(of);
        let mut outstanding = self.waiting.values().chain(self.in_device.iter().map(|(_, info)| info));
        if self.clients[of].1.is_some() && outstanding.all(|info| info.client != client) {
            self.tell_what_passed();
            self.bfq.leave(client);
            self.clients[of] = (self.clients[of].0 + u32::from(!same_id), None);
        }
    }

    /// The group goes if nobody is in it.
    fn leave_group(&mut self, place: usize) {
        let group = self.group(place);
        let is_used = self.clients.iter().any(|(_, settings)| settings.is_some_and(|settings| settings.group == group));
        let has_child = place <= NR_GROUPS / 2 && self.groups[place + NR_GROUPS / 2].1;
        if group != GroupId::ROOT && !is_used && !has_child {
            self.tell_what_passed();
            self.bfq.leave_group(group);
            self.groups[place] = (self.groups[place].0 + 1, false);
        }
    }

    fn shown(&self) -> String {
        let mut text = String::new();
        self.bfq.show(&mut text).expect("a text takes everything");
        text
    }

    /// The counts are those of the requests that are known.
    fn check(&self) {
        assert_eq!(self.bfq.len(), self.waiting.len());
        let text = self.shown();
        let chosen = self.in_device.iter().filter(|(ticket, _)| ticket.is_some()).count();
        let passing: i64 = self.passing.values().map(|passing| (*passing).max(0)).sum();
        let with_device = chosen as i64 + passing;
        let counts = format!("waiting: {}\nowned_by_driver: {with_device}\n", self.waiting.len());
        assert!(text.contains(&counts), "{counts} {text}");
        let of_queues = |what: &str| -> usize {
            let lines = text.lines().filter(|line| line.starts_with("queue "));
            lines.filter_map(|line| line.split_once(what)?.1.split(' ').next()?.parse::<usize>().ok()).sum()
        };
        assert_eq!(of_queues(" waiting ") + self.at_head.len(), self.waiting.len(), "{text}");
    }

    /// No more requests come. Everything that waits is served, though one request at a time completes.
    fn end(&mut self) {
        for turn in 0..20 * MOST {
            if self.waiting.is_empty() && self.in_device.is_empty() {
                break;
            }
            if !self.dispatch() {
                let wakeup = self.bfq.next_wakeup().filter(|_| self.in_device.is_empty());
                assert!(
                    wakeup.is_some() || !self.in_device.is_empty(),
                    "the scheduler or the device says when to ask again"
                );
                self.now = wakeup.unwrap_or(self.now.after(MS)).max(self.now);
                self.complete(turn);
            }
            self.check();
        }
        assert!(self.waiting.is_empty() && self.in_device.is_empty(), "each request that waits is served in the end");
        (0..NR_CLIENTS).for_each(|of| self.leave(of, false));
        let is_left = |line: &&str| line.starts_with("queue ") && !line.starts_with("queue async ");
        (1..=NR_GROUPS).rev().for_each(|group| self.leave_group(group));
        let text = self.shown();
        assert_eq!(text.lines().filter(is_left).count(), 0, "a queue without clients ends: {text}");
        assert_eq!(text.lines().filter(|line| line.starts_with("group ")).count(), 1, "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2048, ..Default::default() })]

    /// Red if a queue ends while the device has requests of it, if it outlives its clients, if requests wait and no
    /// timer runs, or if there is no room for queues and the path of a request allocates.
    #[test]
    fn nothing_is_lost_and_each_request_is_served(
        rotational in any::<bool>(),
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let mut world = World::new(rotational);
        for of in 0..NR_CLIENTS / 2 {
            world.apply(&Step::Join { of, group: 0, weight: 100 });
        }
        steps.iter().for_each(|step| world.apply(step));
        world.end();
    }
}

/// Backlogged clients in groups get their shares of the sectors. If they move, they wait in another group first, with
/// another weight.
fn shares_are_kept(groups: &[u16], clients: &[(usize, u16, u32)], moves: bool, slice: Option<u64>) {
    const SECTORS: f64 = 600_000.0;
    // A first budget, with which a client may be ahead, and two later ones.
    const SLACK: f64 = 10_922.0 + 2.0 * 512.0;
    let mut world = World::new(false);
    for (knob, value) in [("low_latency", 0), ("max_budget", 256)] {
        world.bfq.set_knob(knob, value).expect("the value is accepted");
    }
    world.bfq.configure(Setting::Slice(slice));
    for (place, weight) in groups.iter().enumerate() {
        world.apply(&Step::JoinGroup { group: place + 1, weight: *weight });
    }
    let within = |group: usize| group % (groups.len() + 1);
    for (of, (group, weight, _)) in clients.iter().enumerate() {
        let (first, weight) = if moves { (within(group + 1), 100) } else { (within(*group), *weight) };
        world.apply(&Step::Join { of, group: first, weight });
    }
    let ask = |world: &mut World, of: usize| {
        // Each client has an area of its own: clients that read one area share a queue.
        let sector = ((of as u64) << 24) + world.next * 1_000_003 % 8_000_000;
        let info = Info { nr_sectors: clients[of].2, ..world.info(of, sector, Op::Read) };
        world.ask(info, InsertAt::Sorted);
    };
    (0..clients.len()).for_each(|of| (0..8).for_each(|_| ask(&mut world, of)));
    for (of, (group, weight, _)) in clients.iter().enumerate() {
        world.apply(&Step::Join { of, group: within(*group), weight: *weight });
    }
    let mut got = vec![0.0; clients.len()];
    // The first budgets, which are large, do not count.
    let (mut all, mut warm) = (0.0, 0.0);
    while all < SECTORS {
        assert!(world.dispatch(), "backlogged clients keep the device busy");
        let info = world.in_device[0].1;
        let of = info.client.place() - 1;
        world.now = world.now.after(u64::from(info.nr_sectors) * 1000);
        world.complete(0);
        ask(&mut world, of);
        warm += f64::from(info.nr_sectors);
        if warm > 400_000.0 {
            got[of] += f64::from(info.nr_sectors);
            all += f64::from(info.nr_sectors);
        }
    }
    let weight_of = |entity: usize| f64::from(groups[entity - 1]) * 100.0;
    let in_group = |group: usize| clients.iter().filter(move |client| within(client.0) == group);
    let own = |group: usize| in_group(group).map(|client| f64::from(client.1) * 40.0).sum::<f64>();
    let used = (1..=groups.len()).filter(|group| in_group(*group).count() > 0);
    let root = own(0) + used.map(weight_of).sum::<f64>();
    for (of, (group, weight, _)) in clients.iter().enumerate() {
        let group = within(*group);
        let of_group = if group == 0 { own(0) / root } else { weight_of(group) / root };
        let due = all * of_group * f64::from(*weight) * 40.0 / own(group);
        assert!((got[of] - due).abs() <= 0.05 * due + SLACK, "client {of}: {} of {due} sectors", got[of]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 48, ..Default::default() })]

    /// Red if a weight is not told to virtual time, or if a client that moves stays where it was.
    #[test]
    fn backlogged_clients_get_their_shares(
        groups in prop::collection::vec(50_u16..=500, 0..=NR_GROUPS / 2),
        clients in prop::collection::vec((0..=NR_GROUPS, 50_u16..=500, prop_oneof![Just(8_u32), Just(64)]), 2..6),
        moves in any::<bool>(),
        slice in prop::option::of(1..256_u64),
    ) {
        shares_are_kept(&groups, &clients, moves, slice);
    }
}

/// A client goes over to the queue of another one while the device waits for its own queue, and then all clients go.
/// Found by the test above. Red if the queue that no client sends to stays in service.
#[test]
fn a_queue_that_is_waited_for_goes_with_its_client() {
    use Class::{BestEffort, RealTime};
    use InsertAt::{Head, Sorted};
    let ask = |of, sector, class, level, at| Step::Ask {
        of,
        sector,
        op: Op::Read,
        class,
        level,
        merge: MergeLevel::Never,
        at,
    };
    let pass = |of| Step::Pass { drains: false, of, op: Op::Read, class: RealTime, level: 4, requests: 1 };
    let steps = [
        pass(2),
        ask(0, 0, RealTime, 4, Sorted),
        ask(0, 0, RealTime, 4, Sorted),
        ask(2, 0, RealTime, 0, Sorted),
        ask(2, 8, RealTime, 4, Sorted),
        Step::Rest { keeps: 1 },
        ask(0, 0, RealTime, 4, Sorted),
        ask(2, 0, BestEffort, 4, Sorted),
        Step::Dispatch { times: 1 },
        ask(1, 8208, RealTime, 4, Sorted),
        Step::Rest { keeps: 1 },
        ask(1, 0, RealTime, 4, Sorted),
        ask(2, 0, RealTime, 4, Sorted),
        Step::Dispatch { times: 1 },
        Step::Complete { which: 0 },
        Step::Dispatch { times: 1 },
        pass(0),
        Step::Complete { which: 0 },
        Step::Wait { ns: 20_000_000 },
        ask(1, 0, BestEffort, 0, Sorted),
        Step::Dispatch { times: 1 },
        ask(0, 0, RealTime, 4, Head),
        Step::Complete { which: 0 },
        ask(0, 0, BestEffort, 4, Sorted),
        ask(1, 0, RealTime, 4, Sorted),
    ];
    let mut world = World::new(true);
    for of in 0..NR_CLIENTS / 2 {
        world.apply(&Step::Join { of, group: 0, weight: 100 });
    }
    steps.iter().for_each(|step| world.apply(step));
    world.end();
}
