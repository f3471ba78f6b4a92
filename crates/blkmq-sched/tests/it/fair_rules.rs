//! What users of `fair` rely on. `fair_model` holds each choice against a naive model, and that something goes as long
//! as something waits.

use crate::bench::{MS, ROOMY, client, lone, of_level, shown};
use crate::counting::allocations;
use crate::random::Random;
use blkmq_sched::limiter::Costs;
use blkmq_sched::{
    Admission, Class, ClientSettings, Fair, Feedback, GroupId, GroupSettings, Info, InsertAt, Op, Outstanding, RqId,
    Scheduler, Setting, Time,
};
use proptest::prelude::*;

const SECOND: u64 = 1000 * MS;

pub(crate) fn cost(info: &Info) -> f64 {
    Costs::default().of(info.op, info.nr_sectors).into()
}

/// Eight sectors of the client with this place, which merge with nothing.
pub(crate) fn read(of: usize) -> Info {
    lone(client(of), 0, Op::Read)
}

/// A scheduler, and each request that was inserted, by number.
pub(crate) struct World {
    pub(crate) fair: Fair,
    now: Time,
    infos: Vec<Info>,
}

impl World {
    /// Clients of these weights in the root, from place 1 on, with their places as names.
    pub(crate) fn new(weights: &[u16]) -> Self {
        let mut fair = Fair::new();
        fair.configure(Setting::MergeLimits(ROOMY));
        let mut world = Self { fair, now: Time(0), infos: Vec::new() };
        (1..).zip(weights).for_each(|(of, weight)| world.join(of, *weight, GroupId::ROOT));
        world
    }

    pub(crate) fn join(&mut self, of: usize, weight: u16, group: GroupId) {
        let settings = ClientSettings { weight, group, name: of as u64, ..ClientSettings::default() };
        self.fair.join(client(of), &settings);
    }

    pub(crate) fn join_group(&mut self, place: usize, weight: u16, parent: GroupId) -> GroupId {
        let group = GroupId::new(place, 1);
        self.fair.join_group(group, &GroupSettings { weight, parent });
        group
    }

    pub(crate) fn insert(&mut self, info: Info) {
        self.fair.reserve(self.fair.len() + 1);
        self.fair.insert(RqId(self.infos.len() as u64), &info, InsertAt::Sorted, self.now);
        self.infos.push(info);
    }

    fn insert_many(&mut self, info: Info, times: usize) {
        (0..times).for_each(|_| self.insert(info));
    }

    pub(crate) fn dispatch(&mut self) -> Info {
        let rq = self.fair.dispatch(&mut (), self.now).expect("something goes as long as something waits");
        self.infos[rq.0 as usize]
    }

    /// How many of the next so many requests are those that `suits` names.
    fn count(&mut self, times: usize, suits: impl Fn(&Info) -> bool) -> usize {
        (0..times).filter(|_| suits(&self.dispatch())).count()
    }

    /// How many requests of other clients go before one of this client.
    fn ahead_of(&mut self, of: usize) -> usize {
        (0..).find(|_| self.dispatch().client == client(of)).expect("it waits")
    }

    fn drain(&mut self) {
        while self.fair.dispatch(&mut (), self.now).is_some() {}
    }
}

#[derive(Debug, Clone)]
enum Step {
    Insert { of: usize, nr_sectors: u32, times: usize },
    Dispatch { times: usize },
    Return { of: usize },
    Reweigh { of: usize, weight: u16 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..7_usize, 1..600_u32, 1..30_usize)
            .prop_map(|(of, nr_sectors, times)| Step::Insert { of, nr_sectors, times }),
        3 => (1..60_usize).prop_map(|times| Step::Dispatch { times }),
        1 => (1..7_usize).prop_map(|of| Step::Return { of }),
        1 => (1..7_usize, 1..1000_u16).prop_map(|(of, weight)| Step::Reweigh { of, weight }),
    ]
}

/// Two clients in the root, two in a group, and two in a group within that. Client 0 is nobody.
struct Nested {
    world: World,
    weights: [u16; 7],
    groups: [u16; 2],
    is_active: [bool; 7],
    waiting: [usize; 7],
    /// What was dispatched of each, every request's cost over the share that its client then had, and the dearest.
    got: [f64; 7],
    dearest: [f64; 7],
    /// How far the first was ahead of the second when both began to wait.
    began: [[f64; 7]; 7],
    dispatched: f64,
}

impl Nested {
    fn new(weights: [u16; 7], groups: [u16; 2]) -> Self {
        let mut world = World::new(&weights[1..3]);
        let outer = world.join_group(1, groups[0], GroupId::ROOT);
        let inner = world.join_group(2, groups[1], outer);
        [(3, outer), (4, outer), (5, inner), (6, inner)]
            .into_iter()
            .for_each(|(of, group)| world.join(of, weights[of], group));
        let (is_active, waiting, got, dearest) = ([false; 7], [0; 7], [0.0; 7], [0.0; 7]);
        Self { world, weights, groups, is_active, waiting, got, dearest, began: [[0.0; 7]; 7], dispatched: 0.0 }
    }

    fn group(of: usize) -> GroupId {
        [GroupId::ROOT, GroupId::new(1, 1), GroupId::new(2, 1)][(of - 1) / 2]
    }

    /// One over the client's share.
    fn over_share(&self, of: usize) -> f64 {
        let sum = |first: usize| -> f64 {
            (first..first + 2).filter(|of| self.is_active[*of]).map(|of| f64::from(self.weights[of])).sum()
        };
        let beside = |below: f64, weight: u16| if below > 0.0 { f64::from(weight) } else { 0.0 };
        let [outer, inner] = self.groups;
        let in_inner = sum(5);
        let in_outer = sum(3) + beside(in_inner, inner);
        let in_root = sum(1) + beside(in_outer, outer);
        let weight = f64::from(self.weights[of]);
        match of {
            1 | 2 => in_root / weight,
            3 | 4 => in_outer / weight * in_root / f64::from(outer),
            _ => in_inner / weight * in_outer / f64::from(inner) * in_root / f64::from(outer),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Insert { of, nr_sectors, times } => {
                self.world.insert_many(Info { nr_sectors, ..read(of) }, times);
                if self.waiting[of] == 0 {
                    for other in 1..7 {
                        let ahead = self.got[of] - self.got[other];
                        (self.began[of][other], self.began[other][of]) = (ahead, -ahead);
                    }
                }
                self.is_active[of] = true;
                if self.waiting[of] == 0 {
                    // A newcomer starts as if it had had such a request before.
                    let charge = cost(&Info { nr_sectors, ..read(of) }) * self.over_share(of);
                    self.dearest[of] = self.dearest[of].max(charge);
                }
                self.waiting[of] += times;
            }
            Step::Dispatch { times } => {
                (0..times.min(self.waiting.iter().sum())).for_each(|_| self.dispatch());
            }
            Step::Return { of } if self.waiting[of] == 0 => {
                self.world.fair.leave(client(of));
                self.world.join(of, self.weights[of], Self::group(of));
                self.is_active[of] = false;
            }
            Step::Return { .. } => {}
            Step::Reweigh { of, weight } => {
                self.weights[of] = weight;
                self.world.join(of, weight, Self::group(of));
            }
        }
    }

    fn dispatch(&mut self) {
        let info = self.world.dispatch();
        let of = info.client.place();
        let charge = cost(&info) * self.over_share(of);
        self.waiting[of] -= 1;
        self.got[of] += charge;
        self.dearest[of] = self.dearest[of].max(charge);
        self.dispatched += 1.0;
        for one in 1..7 {
            for other in (1..one).filter(|other| self.waiting[*other] > 0 && self.waiting[one] > 0) {
                let ahead = self.got[one] - self.got[other] - self.began[one][other];
                // Tags are whole nanoseconds.
                let bound = self.dearest[one] + self.dearest[other] + self.dispatched;
                assert!(ahead.abs() <= bound, "{one} and {other}: {ahead} but {bound}");
            }
        }
    }
}

proptest! {
    /// Let c be what the dearest request of a client costs, w the client's share, and s its start tag while it waits.
    ///
    /// 1. s - s' <= c/w while both wait. The client with the least tag is next. So after a request of the first, s is
    ///    at most s' + c/w, and s' only grows. If the first begins to wait, s is virtual time v or its finish tag. No
    ///    waiting client has a tag below v, so v <= s'. And the finish tag is at most v + c/w.
    /// 2. A request that goes moves s on by its own cost over the share. So while both wait, what the first got over
    ///    its share is the growth of s, and the difference of both is that of s - s' at the end and at the beginning.
    ///    Both of these lie between -c'/w' and c/w: the difference is at most c/w + c'/w'.
    ///
    /// It holds with any shares, also if they change, if each request counts with the share at which it went, and a
    /// client's first one also with that at which it came.
    ///
    /// Red if a client that comes starts at its finish tag (`fair.newcomer`), if virtual time is where the last request
    /// ends, if a change of weight leaves the sum as it was, if a group counts that has no active client, or if groups
    /// above do not count: each was tried.
    #[test]
    fn two_clients_that_wait_get_their_shares_but_for_a_request_each(
        weights in prop::array::uniform7(1..1000_u16),
        groups in prop::array::uniform2(1..1000_u16),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut nested = Nested::new(weights, groups);
        steps.iter().for_each(|step| nested.step(step));
    }
}

/// Red if all clients have the same share of the room, or if one within a group has that of its own weight.
#[test]
fn shares_of_the_room_are_by_weight() {
    let mut world = World::new(&[100, 300]);
    let group = world.join_group(1, 100, GroupId::ROOT);
    (3..5).for_each(|of| world.join(of, 900, group));
    let dues = [(1, 200), (2, 600), (3, 100), (4, 100)];
    let reserved = Outstanding { others: 0, nr_hctxs: 1, reserved: Some(1000) };
    let filled = |world: &World| dues.map(|(of, _)| world.fair.limit_depth(&read(of), reserved) == Admission::Refused);
    dues.iter().for_each(|(of, due)| world.insert_many(read(*of), due - 1));
    assert_eq!(filled(&world), [false; 4]);
    dues.iter().for_each(|(of, _)| world.insert(read(*of)));
    assert_eq!(filled(&world), [true; 4]);
}

/// What each client asks for: the sectors of a request, whether it is read, and how many are outstanding.
type Demand = (u32, Op, usize);

/// A device that always has 32 requests completes them in any order. Returns the cost of what it did for each client
/// until the smallest due is some 200 requests of 32 sectors.
fn served(world: &mut World, due: &[f64], demand: impl Fn(usize) -> Demand) -> Vec<f64> {
    let (mut random, mut in_device, mut got) = (Random(7), Vec::new(), vec![0.0; due.len()]);
    for of in 1..=due.len() {
        let (nr_sectors, op, outstanding) = demand(of);
        world.insert_many(Info { nr_sectors, op, ..read(of) }, outstanding);
    }
    let least = due.iter().copied().fold(1.0, f64::min);
    let until = 200.0 * 5000.0 / least;
    while got.iter().sum::<f64>() < until {
        while in_device.len() < 32 {
            in_device.push(world.dispatch());
        }
        let over: Info = in_device.swap_remove(random.below(32) as usize);
        got[over.client.place() - 1] += cost(&over);
        world.now = world.now.after(10_000);
        world.insert(over);
    }
    got
}

/// Each client got its due but for 3 %.
fn assert_due(got: &[f64], due: &[f64]) {
    let total: f64 = got.iter().sum();
    let parts: Vec<f64> = got.iter().zip(due).map(|(got, due)| got / total / due).collect();
    let [sum, squares] = [parts.iter().sum::<f64>(), parts.iter().map(|part| part * part).sum()];
    assert!(parts.iter().all(|part| (0.97..=1.03).contains(part)), "{parts:?}");
    assert!(sum * sum / (parts.len() as f64 * squares) >= 0.99, "Jain's index");
}

/// Red if the share of a client is not its weight over the sum of the weights, or is not that for many clients.
#[test]
fn each_client_gets_its_due_of_a_full_device() {
    for nr_clients in [2, 3, 10, 64, 256] {
        for heavy in [100, 1000] {
            let weights: Vec<u16> = (0..nr_clients).map(|of| if of % 2 == 0 { 100 } else { heavy }).collect();
            let sum: f64 = weights.iter().copied().map(f64::from).sum();
            let due: Vec<f64> = weights.iter().map(|weight| f64::from(*weight) / sum).collect();
            let got = served(&mut World::new(&weights), &due, |of| ([8, 32][of % 2], Op::Read, 64));
            assert_due(&got, &due);
        }
    }
}

/// Red if a share is that within the group alone (tried), or if clients of groups count beside those above.
#[test]
fn groups_of_groups_get_their_due() {
    let mut world = World::new(&[100, 100]);
    let outer = world.join_group(1, 200, GroupId::ROOT);
    let inner = world.join_group(2, 300, outer);
    let beside = world.join_group(3, 400, GroupId::ROOT);
    [(3, 100, outer), (4, 100, inner), (5, 300, inner), (6, 1, beside), (7, 3, beside), (8, 4, beside)]
        .into_iter()
        .for_each(|(of, weight, group)| world.join(of, weight, group));
    let due = [8.0, 8.0, 4.0, 3.0, 9.0, 4.0, 12.0, 16.0].map(|part| part / 64.0);
    let got = served(&mut world, &due, |of| ([8, 32][of % 2], Op::Read, 64));
    assert_due(&got, &due);
}

/// Red if requests are counted instead of their costs (tried), or if more of them get more.
#[test]
fn neither_size_nor_number_of_requests_gains_anything() {
    let demand = |of| [(8, Op::Read, 64), (256, Op::Read, 64), (8, Op::Read, 1024), (32, Op::Write, 64)][of - 1];
    let got = served(&mut World::new(&[100; 4]), &[0.005; 4], demand);
    assert_due(&got, &[0.25; 4]);
}

/// Red if a client that pauses, or a new one, gets what it did not ask for (`fair.newcomer`), or if one that was alone
/// pays for that: tried.
#[test]
fn a_pause_earns_nothing_and_owes_nothing() {
    let mut world = World::new(&[100; 3]);
    let is_first = |info: &Info| info.client == client(1);
    world.insert_many(read(1), 2000);
    world.insert_many(read(2), 100);
    assert!((99..=101).contains(&world.count(200, is_first)));
    assert_eq!(world.count(1000, is_first), 1000);
    world.insert_many(read(2), 200);
    assert!((99..=101).contains(&world.count(200, is_first)), "a client that returns");
    world.insert_many(read(3), 200);
    assert!((99..=101).contains(&world.count(300, is_first)), "a new one");
}

/// Red if what was charged counts behind a time in which nothing waited (20 ms), or in which all passed: tried.
#[test]
fn nobody_owes_anything_once_nothing_was_asked() {
    for (pause, has_passed, owes) in [(MS, false, true), (21 * MS, false, false), (MS, true, false)] {
        let mut world = World::new(&[1, 1000]);
        (1..=2).for_each(|of| world.insert(read(of)));
        world.drain();
        world.now = world.now.after(pause);
        if has_passed {
            world.fair.observe(Feedback::BypassEnded);
        }
        (1..=2).for_each(|of| world.insert(read(of)));
        assert_eq!(world.ahead_of(1), usize::from(owes), "after {pause} ns");
    }
}

/// Red if a client that leaves and comes again is not charged for what it got (`fair.debt`), or another one is, or if
/// it is charged twice. The first two were tried.
#[test]
fn a_debt_stays_with_a_name_until_it_is_paid() {
    for (name, meanwhile, ahead) in [(1, 0, 9..=11), (77, 0, 0..=1), (0, 0, 0..=1), (1, 6, 4..=6), (1, 12, 0..=1)] {
        let mut world = World::new(&[100, 1000]);
        world.insert_many(read(2), 100);
        world.insert(read(1));
        world.ahead_of(1);
        world.fair.leave(client(1));
        assert_eq!(world.count(meanwhile, |info| info.client == client(2)), meanwhile);
        world.fair.join(client(1), &ClientSettings { name, ..ClientSettings::default() });
        world.insert(read(1));
        let went = world.ahead_of(1);
        assert!(ahead.contains(&went), "{went} before the client of name {name}, {meanwhile} meanwhile");
    }
}

/// Red if flows, debts or active weights of clients that have left stay, or what they got in a window of usage: the
/// room for them would grow. Tried.
#[test]
fn ten_thousand_joins_and_leaves_leave_nothing_behind() {
    let mut world = World::new(&[1000]);
    world.infos.reserve(30_000);
    world.fair.observe(Feedback::Usage(&[], Time(0)));
    world.insert_many(read(1), 8);
    let mut before = 0;
    for round in 0..10_000_u32 {
        if round == 5000 {
            before = allocations();
        }
        let group = world.join_group(1 + round as usize % 4, 10, GroupId::ROOT);
        let of = 2 + round as usize % 8;
        let settings = ClientSettings { weight: 1, group, name: 100 + u64::from(round), ..ClientSettings::default() };
        world.fair.join(client(of), &settings);
        world.insert(read(of));
        let went = world.ahead_of(of);
        world.insert_many(read(1), went);
        world.fair.leave(client(of));
        world.fair.leave_group(group);
    }
    assert_eq!(allocations() - before, 0);
    world.drain();
    let text = shown(&world.fair);
    assert!(text.matches("client ").count() == 1 && text.contains("share 1.0000"), "{text}");
}

/// Red if one direction goes first for longer than the other, if requests count instead of cost, or if a direction that
/// had nothing is owed that (`fair.direction`): tried.
#[test]
fn directions_of_a_client_take_turns_by_cost() {
    let mut world = World::new(&[100]);
    let write = Info { nr_sectors: 64, ..lone(client(1), 0, Op::Write) };
    let [of_read, of_write] = [cost(&read(1)), cost(&write)];
    world.insert_many(read(1), 2000);
    assert_eq!(world.count(1000, |info| info.op.is_read()), 1000);
    world.insert_many(write, 200);
    let (mut ahead, mut writes) = (0.0_f64, 0);
    for _ in 0..900 {
        let is_read = world.dispatch().op.is_read();
        ahead += if is_read { of_read } else { -of_write };
        writes += usize::from(!is_read);
        assert!(ahead.abs() <= of_read + of_write, "{ahead}");
    }
    assert!(writes > 100);
}

/// Red if requests of a run go by turns, or if a run does not end while its client has the next sector: tried.
#[test]
fn clients_of_a_rotating_disk_are_served_for_half_a_mebibyte_each() {
    let mut world = World::new(&[100; 2]);
    world.fair.configure(Setting::Rotational(true));
    for number in 0..1024 {
        (1..=2).for_each(|of| world.insert(Info { sector: ((of as u64) << 30) | (number * 8), ..read(of) }));
    }
    let order: Vec<usize> = (0..2048).map(|_| world.dispatch().client.place()).collect();
    assert!(order.chunk_by(|one, next| one == next).all(|run| run.len() == 128), "{order:?}");
}

/// Red if a lower class goes while a higher one waits, before 10 s, or if it does not go then, or goes on: tried.
#[test]
fn classes_are_strict_until_a_request_has_waited_for_ten_seconds() {
    let mut world = World::new(&[100; 2]);
    let in_class = |class, of| of_level(class, 4, read(of));
    let class_of = |world: &mut World| world.dispatch().priority.class;
    (0..2).for_each(|_| Class::ALL.into_iter().rev().for_each(|class| world.insert(in_class(class, 1))));
    let order: Vec<Class> = (0..6).map(|_| class_of(&mut world)).collect();
    assert!(order.is_sorted());
    for lower in [Class::BestEffort, Class::Idle] {
        world.insert(in_class(lower, 2));
        let came = world.now;
        world.now = came.after(SECOND);
        world.insert(in_class(lower, 2));
        world.insert_many(in_class(Class::RealTime, 1), 100);
        world.now = came.after(10 * SECOND - 1);
        assert_eq!(world.count(10, |info| info.priority.class == Class::RealTime), 10);
        world.now = came.after(10 * SECOND);
        assert_eq!(class_of(&mut world), lower);
        assert_eq!(class_of(&mut world), Class::RealTime, "the next one came a second later");
        world.drain();
    }
}
