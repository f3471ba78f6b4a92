//! What the rule of lag allows and what it reports.

use blkmq_sched::{ClientSettings, GroupSettings, Op, Report};

use super::super::testing::*;
use super::*;

/// The client in each of two groups, and the groups' weights.
const CLIENTS: [ClientId; 2] = [ClientId(1), ClientId(2)];

struct World {
    told: Told<Lag>,
    last: u64,
}

impl World {
    fn new(weights: [u16; 2], knobs: &[(&'static str, i64)]) -> Self {
        let mut told = Told::new(Lag::new());
        for (at, weight) in weights.into_iter().enumerate() {
            let group = GroupId(1 + at as u32);
            told.good(Event::GroupJoined { group, settings: GroupSettings { weight, parent: GroupId::ROOT } });
            let settings = ClientSettings { group, ..ClientSettings::default() };
            told.good(Event::ClientJoined { client: CLIENTS[at], settings });
        }
        told.good(Event::Installed { scheduler: Some("bfq") });
        for (name, value) in knobs {
            told.good(changed(Control::Knob(name, *value), Phase::Done));
        }
        Self { told, last: 0 }
    }

    fn insert(&mut self, of: usize) -> RqId {
        self.last += 1;
        let rq = id(1, self.last % 1000, self.last);
        let info = Info { client: CLIENTS[of], ..info(Op::Read, 8 * self.last, 8) };
        self.told.good(inserted(rq, info, 0));
        rq
    }

    /// A request of this group is served, and another one of it waits then.
    fn serve(&mut self, waiting: &mut [RqId; 2], of: usize) -> Result<(), Violation> {
        let next = self.insert(of);
        let rq = std::mem::replace(&mut waiting[of], next);
        self.told.good(Event::Expired { reason: Reason::BudgetExhausted });
        self.told.tell(chosen(rq, 0))
    }
}

const TIGHT: [(&str, i64); 3] = [("low_latency", 0), ("slice_idle", 0), ("max_budget", 64)];

/// Serves the groups so many times in turn, again and again, until that breaks a promise.
fn play(weights: [u16; 2], knobs: &[(&'static str, i64)], times: [usize; 2]) -> Result<(), String> {
    let mut world = World::new(weights, knobs);
    let mut waiting = [world.insert(0), world.insert(1)];
    for _ in 0..WARM {
        (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
    }
    for _ in 0..400 {
        for (of, times) in times.into_iter().enumerate() {
            for _ in 0..times {
                world.serve(&mut waiting, of).map_err(|violation| violation.what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn groups_that_wait_all_the_time_get_service_by_their_weights() {
    assert_eq!(play([100, 100], &TIGHT, [8, 8]), Ok(()));
    assert_eq!(play([100, 300], &TIGHT, [8, 24]), Ok(()));
    let says = "group 2 of weight 300 has got";
    assert!(play([100, 300], &TIGHT, [8, 28]).unwrap_err().contains(says));
    assert!(play([100, 300], &TIGHT, [8, 20]).unwrap_err().contains("group 1 of weight 100 has got"));
    assert!(play([100, 100], &TIGHT, [8, 200]).is_err(), "a long time of service is too long too");
}

#[test]
fn nothing_is_compared_while_weights_may_be_raised_or_clients_be_waited_for() {
    for at in 0..3 {
        let mut knobs = TIGHT.to_vec();
        knobs.remove(at);
        assert_eq!(play([100, 100], &knobs, [8, 200]), Ok(()));
    }
}

/// Red if a group is held to small budgets while it pays for the first one of one of its queues.
#[test]
fn a_group_pays_for_the_first_time_of_service_of_any_queue() {
    let mut world = World::new([100, 100], &TIGHT);
    let mut waiting = [world.insert(0), world.insert(1)];
    for _ in 0..WARM {
        (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
    }
    (0..4).for_each(|of| world.serve(&mut waiting, of % 2).unwrap());
    let written = |number: u64| {
        let info = Info { client: CLIENTS[1], sync: false, ..info(Op::Write, 8 * number, 8) };
        (id(2, number, 0), info)
    };
    let (first, info) = written(1);
    world.told.good(inserted(first, info, 0));
    world.told.good(Event::Expired { reason: Reason::BudgetExhausted });
    for number in 1..200 {
        let (next, info) = written(number + 1);
        world.told.good(inserted(next, info, 0)).good(chosen(written(number).0, 0));
    }
    world.told.good(chosen(written(200).0, 0));
    world.told.good(Event::Expired { reason: Reason::NoMoreRequests });
    (0..200).for_each(|_| world.serve(&mut waiting, 0).unwrap());
}

/// Red if nothing is compared while some group pays.
#[test]
fn the_other_groups_are_compared_while_one_pays() {
    let mut world = World::new([100, 100], &TIGHT);
    let (client, group, parent) = (ClientId(3), GroupId(3), GroupId::ROOT);
    world.told.good(Event::GroupJoined { group, settings: GroupSettings { weight: 100, parent } });
    world.told.good(Event::ClientJoined { client, settings: ClientSettings { group, ..ClientSettings::default() } });
    let mut waiting = [world.insert(0), world.insert(1)];
    for _ in 0..WARM {
        (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
    }
    world.told.good(Event::Expired { reason: Reason::BudgetExhausted });
    let read = |number: u64| (id(3, number, 0), Info { client, ..info(Op::Read, 8 * number, 8) });
    world.told.good(inserted(read(0).0, read(0).1, 0));
    for number in 1..200 {
        world.told.good(inserted(read(number).0, read(number).1, 0)).good(chosen(read(number - 1).0, 0));
    }
    let in_turn: Vec<_> = (0..190).map(|at| world.serve(&mut waiting, at % 2)).collect();
    assert!(in_turn.iter().all(Result::is_ok), "{in_turn:?}");
    let violation = (0..190).find_map(|_| world.serve(&mut waiting, 0).err()).expect("one of two gets all");
    assert!(violation.what.contains("group 1 of weight 100 has got"), "{}", violation.what);
}

/// Red if a group that comes again is compared before it is served: others may be owed much by the clock.
#[test]
fn a_group_that_comes_is_compared_from_when_it_is_chosen() {
    let mut world = World::new([100, 100], &TIGHT);
    let mut waiting = [world.insert(0), world.insert(1)];
    for _ in 0..WARM {
        (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
    }
    world.told.good(Event::Expired { reason: Reason::BudgetExhausted });
    world.told.good(chosen(waiting[1], 0));
    waiting[1] = world.insert(1);
    (0..200).for_each(|_| world.serve(&mut waiting, 0).unwrap());
    world.serve(&mut waiting, 1).unwrap();
    let violation = (0..50).find_map(|_| world.serve(&mut waiting, 0).err()).expect("one of two gets all");
    assert!(violation.what.contains("group 1 of weight 100 has got"), "{}", violation.what);
}

/// Red if a group is held to small budgets while a queue of it may wait with its first one, and without a request.
#[test]
fn a_group_is_not_compared_while_a_preempted_queue_may_wait_with_a_large_budget() {
    let mut world = World::new([100, 100], &TIGHT);
    let mut waiting = [world.insert(0), world.insert(1)];
    for _ in 0..WARM {
        (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
    }
    let written = Info { client: CLIENTS[1], sync: false, ..info(Op::Write, 0, 8) };
    world.told.good(Event::Expired { reason: Reason::BudgetExhausted });
    world.told.good(inserted(id(2, 0, 0), written, 0)).good(chosen(id(2, 0, 0), 0));
    world.told.good(Event::Expired { reason: Reason::Preempted });
    (0..10).for_each(|at| world.serve(&mut waiting, at % 2).unwrap());
    (0..200).for_each(|_| world.serve(&mut waiting, 0).unwrap());
}

/// Red if a group is compared before it has paid for what passed by.
#[test]
fn a_group_pays_for_what_passed_by_when_it_is_served() {
    let mut world = World::new([100, 100], &TIGHT);
    let mut waiting = [world.insert(0), world.insert(1)];
    for _ in 0..WARM {
        (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
    }
    let passed = Report::of(Happened::Passed, &Info { client: CLIENTS[1], ..info(Op::Read, 0, 8) }, Time(0));
    world.told.good(Event::Reported { reports: &[passed], now: Time(0) });
    (0..4).for_each(|_| world.serve(&mut waiting, 0).unwrap());
    world.serve(&mut waiting, 1).unwrap();
    (0..200).for_each(|_| world.serve(&mut waiting, 0).unwrap());
}

/// Red if a request is taken for one of its client's present queue that may wait in another client's.
#[test]
fn nothing_is_compared_while_a_request_waits_that_came_when_its_client_was_not_alone() {
    let play = |are_together: bool| {
        let mut world = World::new([100, 100], &TIGHT);
        let group = |at: usize| ClientSettings { group: GroupId(1 + at as u32), ..ClientSettings::default() };
        if are_together {
            world.told.good(Event::ClientJoined { client: CLIENTS[0], settings: group(1) });
        }
        let mut waiting = [world.insert(0), world.insert(1)];
        world.insert(0);
        world.told.good(Event::ClientJoined { client: CLIENTS[0], settings: group(0) });
        for _ in 0..WARM {
            (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
        }
        (0..400).try_for_each(|_| world.serve(&mut waiting, 1))
    };
    assert!(play(false).is_err(), "the second client alone is served");
    assert_eq!(play(true), Ok(()));
}

/// Red if what waited before its client moved counts in the new group, or if nothing is compared after it.
#[test]
fn requests_stay_behind_when_their_client_moves() {
    let mut world = World::new([100, 100], &TIGHT);
    let mut waiting: Vec<RqId> = (0..400).map(|_| world.insert(0)).collect();
    let mut other = [waiting[0], world.insert(1)];
    let (group, parent) = (GroupId(3), GroupId::ROOT);
    world.told.good(Event::GroupJoined { group, settings: GroupSettings { weight: 400, parent } });
    let settings = ClientSettings { group, ..ClientSettings::default() };
    world.told.good(Event::ClientJoined { client: CLIENTS[0], settings });
    for at in 0.. {
        waiting.push(world.insert(0));
        world.told.good(Event::Expired { reason: Reason::BudgetExhausted });
        world.told.good(chosen(waiting[at], 0));
        if let Err(violation) = world.serve(&mut other, 1) {
            assert!(at > 400, "{at}: {}", violation.what);
            break;
        }
        assert!(at < 900, "each has got the same for long, and one should have got four times as much");
    }
}

/// Red if a queue is held to the budgets that people have set while it pays for its first one.
#[test]
fn the_first_time_of_service_may_be_long() {
    let mut world = World::new([100, 100], &TIGHT);
    let mut waiting = [world.insert(0), world.insert(1)];
    for _ in 0..WARM {
        (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
    }
    world.told.good(changed(Control::Knob("timeout_sync", 100), Phase::Done));
    (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
    for _ in 0..200 {
        let next = world.insert(1);
        world.told.good(chosen(std::mem::replace(&mut waiting[1], next), 0));
    }
    (0..200).for_each(|_| world.serve(&mut waiting, 0).unwrap());
}

#[test]
fn a_group_that_waits_for_nothing_in_between_begins_anew() {
    let mut world = World::new([100, 100], &TIGHT);
    let mut waiting = [world.insert(0), world.insert(1)];
    for _ in 0..WARM {
        (0..2).for_each(|of| world.serve(&mut waiting, of).unwrap());
    }
    for _ in 0..100 {
        (0..10).for_each(|_| world.serve(&mut waiting, 0).unwrap());
        world.told.good(chosen(waiting[1], 0));
        waiting[1] = world.insert(1);
    }
}
