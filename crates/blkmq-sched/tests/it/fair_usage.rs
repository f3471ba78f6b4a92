//! What `fair` makes of what clients got: who lends, and who is below its due.

use crate::bench::{MS, ROOMY, client, lone};
use blkmq_sched::{
    Class, ClientSettings, Fair, Fairness, Feedback, GroupId, GroupSettings, Info, InsertAt, IoPriority, Op, RqId,
    Scheduler, Setting, Time, Usage,
};

/// A client that keeps so many requests outstanding, or has one now and then.
#[derive(Debug, Clone, Copy)]
enum Demand {
    Outstanding(usize),
    /// One for each so many requests of all clients, except that it is over when the next report comes.
    OnceIn(usize),
    Nothing,
}

/// What a client asks for, and how many nanoseconds it takes.
type Request = (u32, Op, u64);

/// Eight sectors read in 10 us.
const READ: Request = (8, Op::Read, 10_000);

/// A device that has 32 requests at once, and does one after the other. Each client's place is its index here and 1.
struct World {
    fair: Fair,
    now: Time,
    demands: Vec<Demand>,
    requests: Vec<Request>,
    /// How many operations of a client are merged into one request.
    merged: Vec<u64>,
    /// Requests that completed.
    got: Vec<usize>,
    /// What was dispatched, the oldest first, and how many requests of each client are waiting or dispatched.
    in_device: std::collections::VecDeque<usize>,
    outstanding: Vec<usize>,
    done: usize,
    fairness: Fairness,
}

impl World {
    fn new() -> Self {
        let mut fair = Fair::new();
        fair.configure(Setting::MergeLimits(ROOMY));
        Self {
            fair,
            now: Time(0),
            demands: Vec::new(),
            requests: Vec::new(),
            merged: Vec::new(),
            got: Vec::new(),
            in_device: Default::default(),
            outstanding: Vec::new(),
            done: 0,
            fairness: Fairness::Unknown,
        }
    }

    fn join_group(&mut self, place: usize, parent: GroupId) -> GroupId {
        let group = GroupId::new(place, 1);
        self.fair.join_group(group, &GroupSettings { weight: 100, parent });
        group
    }

    fn join(&mut self, class: Class, group: GroupId, demand: Demand) {
        let of = self.demands.len() + 1;
        let priority = IoPriority { class, ..IoPriority::default() };
        let settings = ClientSettings { group, priority, name: of as u64, ..ClientSettings::default() };
        self.fair.join(client(of), &settings);
        self.demands.push(demand);
        self.requests.push(READ);
        self.merged.push(1);
        self.got.push(0);
        self.outstanding.push(0);
    }

    fn insert(&mut self, of: usize) {
        let (nr_sectors, op, _) = self.requests[of];
        let info = Info { nr_sectors, nr_segments: self.merged[of] as u16, ..lone(client(of + 1), 0, op) };
        self.fair.reserve(self.fair.len() + 1);
        self.fair.insert(RqId(of as u64), &info, InsertAt::Sorted, self.now);
        self.outstanding[of] += 1;
    }

    /// One request completes.
    fn step(&mut self) {
        self.done += 1;
        for of in 0..self.demands.len() {
            let wanted = match self.demands[of] {
                Demand::Outstanding(wanted) => wanted,
                Demand::OnceIn(times) => usize::from(self.done.is_multiple_of(times)),
                Demand::Nothing => 0,
            };
            (self.outstanding[of]..wanted).for_each(|_| self.insert(of));
        }
        while self.in_device.len() < 32
            && let Some(rq) = self.fair.dispatch(&mut (), self.now)
        {
            self.in_device.push_back(rq.0 as usize);
        }
        let Some(of) = self.in_device.pop_front() else {
            self.now = self.now.after(10_000);
            return;
        };
        self.now = self.now.after(self.requests[of].2);
        self.got[of] += 1;
        self.outstanding[of] -= 1;
    }

    fn usage(&self, of: usize, before: usize) -> Usage {
        let operations = self.merged[of] * (self.got[of] - before) as u64;
        let is_seldom = matches!(self.demands[of], Demand::OnceIn(_));
        let outstanding = if is_seldom { 0 } else { self.outstanding[of] as u32 };
        let (nr_sectors, op, _) = self.requests[of];
        let sectors = operations * u64::from(nr_sectors);
        let (operations, sectors) = match op {
            Op::Read => ([operations, 0, 0], [sectors, 0]),
            Op::Write => ([0, operations, 0], [0, sectors]),
            _ => ([0, 0, operations], [0, 0]),
        };
        Usage { client: client(of + 1), operations, sectors, outstanding }
    }

    /// So many milliseconds pass, of which what each client got is reported. Returns each client's part of the device's
    /// time in them.
    fn run(&mut self, ms: usize) -> Vec<f64> {
        let first = self.got.clone();
        for _ in 0..ms {
            let before = self.got.clone();
            let until = self.now.after(MS);
            while self.now < until {
                self.step();
            }
            let usage: Vec<Usage> = (0..self.got.len()).map(|of| self.usage(of, before[of])).collect();
            let fairness = self.fair.observe(Feedback::Usage(&usage, self.now));
            if fairness != Fairness::Unknown {
                self.fairness = fairness;
            }
        }
        let took = |((now, before), request): ((&usize, &usize), &Request)| (now - before) as f64 * request.2 as f64;
        let got = || self.got.iter().zip(&first).zip(&self.requests).map(took);
        got().map(|of| of / got().sum::<f64>()).collect()
    }
}

/// Red if what a client does not use goes to all by weight, and not to its group first (tried: its neighbor has 0.34),
/// or if the same is not true of a group in a group.
#[test]
fn what_a_client_does_not_use_is_its_groups() {
    for depth in [1, 2] {
        let mut world = World::new();
        let mut group = world.join_group(1, GroupId::ROOT);
        let hungry = group;
        if depth == 2 {
            group = world.join_group(2, group);
        }
        world.join(Class::BestEffort, hungry, Demand::Outstanding(64));
        world.join(Class::BestEffort, group, Demand::OnceIn(50));
        world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(64));
        world.run(200);
        let parts = world.run(400);
        assert!((0.46..0.50).contains(&parts[0]) && parts[1] > 0.019, "{depth}: {parts:?}");
        assert!((0.49..0.51).contains(&parts[2]), "{depth}: {parts:?}");
        assert_eq!(world.fairness, Fairness::Kept, "each gets what it is due");
    }
}

/// Red if a client that has lent does not get its share as soon as it wants it: tried without `note_hunger`, and it has
/// 0.02 then until a window is over.
#[test]
fn what_was_lent_comes_back_at_once() {
    let mut world = World::new();
    let group = world.join_group(1, GroupId::ROOT);
    world.join(Class::BestEffort, group, Demand::Outstanding(64));
    world.join(Class::BestEffort, group, Demand::OnceIn(50));
    world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(64));
    world.run(200);
    world.demands[1] = Demand::Outstanding(64);
    // What is in the device goes before.
    (0..100).for_each(|_| world.step());
    let before = world.got[1];
    (0..400).for_each(|_| world.step());
    assert!((90..=110).contains(&(world.got[1] - before)), "{} of 400 while 100 are due", world.got[1] - before);
}

/// Red if a group all of whose clients lend gets its share back only when a window is over: tried, and its client has
/// 0.03.
#[test]
fn what_a_group_has_lent_comes_back_at_once() {
    let mut world = World::new();
    let group = world.join_group(1, GroupId::ROOT);
    world.join(Class::BestEffort, group, Demand::OnceIn(50));
    world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(64));
    world.run(200);
    world.demands[0] = Demand::Outstanding(64);
    // What is in the device goes before.
    (0..100).for_each(|_| world.step());
    let before = world.got[0];
    (0..400).for_each(|_| world.step());
    assert!((180..=220).contains(&(world.got[0] - before)), "{} of 400 while 200 are due", world.got[0] - before);
}

/// Red if a hungry client of a higher class is not due what one of a lower class gets (tried: without classes both are
/// due half, and nobody is below it), or if one is that is not hungry.
#[test]
fn a_lower_class_is_due_what_a_higher_one_leaves() {
    let usage = |of: usize, operations: u64, outstanding: u32| Usage {
        client: client(of),
        operations: [operations, 0, 0],
        sectors: [8 * operations, 0],
        outstanding,
    };
    // The first client is of a higher class; what both got, and what the first one has outstanding.
    let cases = [(500, 500, 32, Fairness::Violated), (990, 10, 32, Fairness::Kept), (100, 900, 0, Fairness::Kept)];
    for [high, low] in [[Class::RealTime, Class::BestEffort], [Class::BestEffort, Class::Idle]] {
        for (first, second, outstanding, expected) in cases {
            let mut world = World::new();
            world.join(high, GroupId::ROOT, Demand::Nothing);
            world.join(low, GroupId::ROOT, Demand::Nothing);
            let mut at = Time(0);
            let mut fairness = Fairness::Unknown;
            for _ in 0..10 {
                at = at.after(20 * MS);
                let reports = [usage(1, first, outstanding), usage(2, second, 32)];
                fairness = match world.fair.observe(Feedback::Usage(&reports, at)) {
                    Fairness::Unknown => fairness,
                    known => known,
                };
            }
            assert_eq!(fairness, expected, "{high:?} {first} of {}", first + second);
        }
    }
}

/// Red if a client with one request outstanding lends nothing: its neighbor then has 0.33.
#[test]
fn a_client_with_one_request_outstanding_lends_the_rest() {
    let mut world = World::new();
    let group = world.join_group(1, GroupId::ROOT);
    world.join(Class::BestEffort, group, Demand::Outstanding(64));
    world.join(Class::BestEffort, group, Demand::Outstanding(1));
    world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(64));
    world.run(200);
    let parts = world.run(400);
    assert!(parts[0] > 0.44 && (0.49..0.51).contains(&(parts[0] + parts[1])), "{parts:?}");
}

/// Red if unlike requests are shared by what is predicted and not by time: without prices (tried), a device that takes
/// as long for 64 KiB as for 4 KiB is 0.89 that of small requests.
#[test]
fn unlike_clients_share_the_time_of_the_device() {
    for (second, weights) in [((128, Op::Read, 10_000), [100, 100]), ((8, Op::Write, 40_000), [100, 300])] {
        let mut world = World::new();
        for weight in weights {
            world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(64));
            let settings = ClientSettings { weight, name: world.demands.len() as u64, ..ClientSettings::default() };
            world.fair.join(client(world.demands.len()), &settings);
        }
        world.requests[1] = second;
        world.run(2000);
        let parts = world.run(4000);
        let due = f64::from(weights[0]) / f64::from(weights[0] + weights[1]);
        assert!((0.97 * due..1.03 * due).contains(&parts[0]), "{parts:?} instead of {due} for {second:?}");
    }
}

/// Red if the time of a turn counts beside costs that are not learned as it does beside those that are: on a device
/// that takes 1 ms where 2 us are predicted, a turn then costs a client what it is due in minutes. Red if costs in time
/// are bounded by what is predicted: writes of four times the time of reads then get 0.79 (tried).
#[test]
fn times_of_a_slow_device_are_worth_what_is_predicted() {
    let mut world = World::new();
    for _ in 0..2 {
        world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(64));
    }
    world.requests = vec![(8, Op::Read, 200_000), (8, Op::Write, 800_000)];
    world.run(3000);
    let parts = world.run(6000);
    assert!((0.45..0.55).contains(&parts[0]), "{parts:?}");

    let mut world = World::new();
    for outstanding in [64, 64, 8] {
        world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(outstanding));
    }
    world.requests = vec![(8, Op::Read, 1_000_000), (8, Op::Write, 1_000_000), (8, Op::Discard, 1_000_000)];
    world.run(3000);
    let parts = world.run(10_000);
    assert!(parts[..2].iter().all(|part| *part > 0.25), "{parts:?}");
}

/// Red if a client with one operation outstanding, which always gets less than it is due, keeps those from being priced
/// that compete: the reads then have 0.20 beside 0.79.
#[test]
fn a_client_with_one_request_outstanding_keeps_nobody_from_being_priced() {
    let mut world = World::new();
    for outstanding in [64, 64, 1] {
        world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(outstanding));
    }
    world.requests[1] = (8, Op::Write, 40_000);
    world.run(3000);
    let parts = world.run(4000);
    assert!((0.9..1.1).contains(&(parts[0] / parts[1])), "{parts:?}");
}

/// Red if a client that cannot fill the device by itself has a turn each second, which says nothing and is charged by
/// time: it then gets 0.13 where it is due 0.2 (tried).
#[test]
fn turns_that_say_nothing_become_seldom() {
    let mut world = World::new();
    for (of, (outstanding, weight)) in [(64, 400), (8, 100)].into_iter().enumerate() {
        world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(outstanding));
        let settings = ClientSettings { weight, name: of as u64 + 1, ..ClientSettings::default() };
        world.fair.join(client(of + 1), &settings);
    }
    world.requests[1] = (8, Op::Write, 10_000);
    world.run(3000);
    let parts = world.run(10_000);
    assert!((0.18..0.22).contains(&parts[1]), "{parts:?}");
}

/// Red if a client is charged by request what was measured by operation.
#[test]
fn merged_requests_are_charged_as_one() {
    let mut world = World::new();
    for _ in 0..2 {
        world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(64));
    }
    (world.requests[1], world.merged[1]) = ((8, Op::Discard, 10_000), 256);
    world.run(2000);
    let parts = world.run(2000);
    assert!((0.47..0.53).contains(&parts[0]), "{parts:?}");
    assert_eq!(world.fairness, Fairness::Kept, "each gets what it is due");
}

/// Red if a client that leaves and joins again has the predicted price: tried, and the writes then get 0.95.
#[test]
fn a_price_stays_with_a_name() {
    let mut world = World::new();
    for _ in 0..2 {
        world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(64));
    }
    world.requests[1] = (8, Op::Write, 40_000);
    world.run(2000);
    let mut parts = Vec::new();
    for _ in 0..20 {
        world.demands[1] = Demand::Nothing;
        while world.outstanding[1] > 0 {
            world.step();
        }
        world.fair.leave(client(2));
        world.fair.join(client(2), &ClientSettings { name: 2, ..ClientSettings::default() });
        world.demands[1] = Demand::Outstanding(64);
        world.run(20);
        parts.push(world.run(20)[1]);
    }
    let mean = parts.iter().sum::<f64>() / parts.len() as f64;
    assert!((0.45..0.55).contains(&mean), "{mean}: {parts:.2?}");
}

/// What the queue names a request that the client with the place 1 asks for in the class real-time.
const URGENT: RqId = RqId(99);

fn insert_urgent(fair: &mut Fair, now: Time) {
    let priority = IoPriority { class: Class::RealTime, ..IoPriority::default() };
    fair.reserve(fair.len() + 1);
    fair.insert(URGENT, &Info { priority, ..lone(client(1), 0, Op::Read) }, InsertAt::Sorted, now);
}

/// A window passes in which three clients got much less than they were due, though they had operations outstanding.
fn lack(world: &mut World, ns: u64) {
    world.now = world.now.after(ns);
    let usage = |of| {
        let operations = [if of == 4 { 600 } else { 10 }, 0, 0];
        Usage { client: client(of), operations, sectors: [8 * operations[0], 0], outstanding: 32 }
    };
    world.fair.observe(Feedback::Usage(&[1, 2, 3, 4].map(usage), world.now));
}

/// Three clients that lack and have nothing waiting. From now on the fourth one is held back for them, on trial.
fn held_back() -> World {
    let mut world = World::new();
    (0..4).for_each(|_| world.join(Class::BestEffort, GroupId::ROOT, Demand::Nothing));
    for _ in 0..50 {
        lack(&mut world, 50 * MS);
        (0..2000).for_each(|_| world.insert(3));
        while world.fair.dispatch(&mut (), world.now).is_some() {}
        if world.fair.len() > 0 {
            return world;
        }
    }
    panic!("nobody is held back for those that lack");
}

/// Red if those for whom others are held back are given up one after the other, each after a time of its own.
#[test]
fn clients_that_ask_for_nothing_are_given_up_together() {
    let mut world = held_back();
    world.now = world.fair.next_wakeup().expect("requests are held back");
    assert_eq!(world.fair.dispatch(&mut (), world.now), Some(RqId(3)), "all three have had the time");
}

/// Red if a request that has waited for ten seconds and must not go yet keeps one of the class real-time from going.
#[test]
fn a_request_that_is_held_back_keeps_no_higher_class_waiting() {
    let mut world = held_back();
    lack(&mut world, 10_000 * MS);
    assert_eq!(world.fair.dispatch(&mut (), world.now), None, "it is still held back");
    insert_urgent(&mut world.fair, world.now);
    assert_eq!(world.fair.dispatch(&mut (), world.now), Some(URGENT));
}

/// Red if requests that have waited for ten seconds let those of the client that goes alone go before the class
/// real-time.
#[test]
fn a_client_that_goes_alone_keeps_no_higher_class_waiting() {
    let mut world = World::new();
    (0..2).for_each(|_| world.join(Class::BestEffort, GroupId::ROOT, Demand::Outstanding(64)));
    world.requests[1] = (128, Op::Read, 10_000);
    let next = |world: &World, number| {
        let mut fair = world.fair.clone();
        (0..number).filter_map(|_| fair.dispatch(&mut (), world.now)).collect::<Vec<_>>()
    };
    let is_alone = |world: &World| next(world, 20).iter().all(|rq| *rq == RqId(1));
    // While it catches up after the other one's turn only its requests go, for less than 15 ms. Late in its own turn it
    // is ahead.
    let mut turn = Vec::new();
    (0..5000).find(|_| {
        world.run(1);
        if is_alone(&world) {
            turn.push((world.fair.clone(), world.now));
        } else if turn.len() < 15 {
            turn.clear();
        }
        !turn.is_empty() && !is_alone(&world)
    });
    let (mut fair, now) = turn.pop().expect("the client of large requests goes alone");
    let later = now.after(10_000 * MS);
    insert_urgent(&mut fair, later);
    assert_eq!(fair.dispatch(&mut (), later), Some(URGENT));
}
