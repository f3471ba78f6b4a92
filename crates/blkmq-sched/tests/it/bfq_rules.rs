//! The rules of `bfq`, one by one.

use std::num::NonZeroU32;

use crate::bench::{MS, client, completed, lone};
use blkmq_sched::{
    Admission, Bfq, Class, ClientId, ClientSettings, Event, Feedback, GroupId, GroupSettings, Info, InsertAt,
    IoPriority, Op, Outstanding, Passing, Reason, Report, RqId, Scheduler, Setting, Ticket, Time,
};

/// Without weight raising, so that shares are those of the weights.
fn steady() -> Bfq {
    let mut bfq = Bfq::new();
    bfq.set_knob("low_latency", 0).expect("there is such a knob");
    bfq.reserve(1024);
    bfq
}

/// Serves backlogged clients one request a millisecond, and returns what each of them got.
fn shares(bfq: &mut Bfq, clients: &[ClientId], rounds: u64) -> Vec<u64> {
    let mut got = vec![0; clients.len()];
    serve(bfq, clients, rounds, |of| got[of] += 1);
    got
}

/// The same; tells the place of the client of each request.
fn serve(bfq: &mut Bfq, clients: &[ClientId], rounds: u64, mut serves: impl FnMut(usize)) {
    let (mut next, mut now) = (0, Time(MS));
    let mut ask = |bfq: &mut Bfq, of: usize, now| {
        next += 1;
        let sector = next * 1_000_003 % 8_000_000;
        bfq.insert(RqId(of as u64), &lone(clients[of], sector, Op::Read), InsertAt::Sorted, now);
    };
    for of in 0..clients.len() {
        (0..16).for_each(|_| ask(bfq, of, now));
    }
    for _ in 0..rounds {
        let mut ticket = None;
        let of = bfq.dispatch(&mut ticket, now).expect("backlogged clients keep the device busy").0 as usize;
        serves(of);
        now = now.after(MS);
        bfq.observe(Feedback::Events(&[completed(ticket, &lone(clients[of], 0, Op::Read), now)], now));
        ask(bfq, of, now);
    }
}

/// Red if a client's weight is not told to virtual time.
#[test]
fn clients_get_shares_by_their_weights() {
    let mut bfq = steady();
    let clients = [client(1), client(2)];
    for (of, weight) in clients.into_iter().zip([100, 300]) {
        bfq.join(of, &ClientSettings { weight, ..ClientSettings::default() });
    }
    let got = shares(&mut bfq, &clients, 40_000);
    let ratio = got[1] as f64 / got[0] as f64;
    assert!((2.7..3.3).contains(&ratio), "{got:?}");
}

/// Red if a client is served for longer than a slice while another one waits, if it is still held to that when there is
/// none any more, or if a device that seeks goes from one client to another as often.
#[test]
fn a_client_is_served_for_a_slice_at_most() {
    for (rotational, slice, longest) in [(false, Some(64), 1..9), (false, None, 64..1000), (true, Some(64), 64..1000)] {
        let mut bfq = steady();
        bfq.configure(Setting::Rotational(rotational));
        let clients = [client(1), client(2)];
        clients.into_iter().for_each(|of| bfq.join(of, &ClientSettings::default()));
        // Whatever was told before.
        bfq.configure(Setting::Slice(Some(8)));
        bfq.configure(Setting::Slice(slice));
        let (mut latest, mut turn, mut found, mut served) = (0, 0, 0, 0);
        serve(&mut bfq, &clients, 20_000, |of| {
            turn = if of == latest { turn + 1 } else { 1 };
            latest = of;
            served += 1;
            found = if served < 2000 { 0 } else { found.max(turn) };
        });
        assert!(longest.contains(&found), "{found} requests in a row, {slice:?}");
    }
}

/// Two clients are backlogged, and a third one asks for a block each 20 ms. Red if a client that is served no longer
/// than that, since the third one comes in between, keeps the budget that it had before there was a slice.
#[test]
fn a_client_that_another_one_interrupts_is_held_to_a_slice_too() {
    let mut bfq = steady();
    let clients = [1, 2, 3].map(client);
    clients.into_iter().for_each(|of| bfq.join(of, &ClientSettings::default()));
    serve(&mut bfq, &clients[..2], 5000, |_| ());
    let mut now = Time(5001 * MS);
    bfq.configure(Setting::Slice(Some(64)));
    let (mut latest, mut turn, mut longest, mut next) = (0, 0, 0, 0);
    let mut ask = |bfq: &mut Bfq, of: usize, now| {
        next += 1;
        let sector = next * 1_000_003 % 8_000_000;
        bfq.insert(RqId(of as u64), &lone(clients[of], sector, Op::Read), InsertAt::Sorted, now);
    };
    for round in 0..4000 {
        if round % 20 == 0 {
            ask(&mut bfq, 2, now);
        }
        let mut ticket = None;
        let of = bfq.dispatch(&mut ticket, now).expect("backlogged clients keep the device busy").0 as usize;
        now = now.after(MS);
        bfq.observe(Feedback::Events(&[completed(ticket, &lone(clients[of], 0, Op::Read), now)], now));
        if of < 2 {
            turn = if of == latest { turn + 1 } else { 1 };
            latest = of;
            longest = if round < 1000 { 0 } else { longest.max(turn) };
            ask(&mut bfq, of, now);
        }
    }
    assert!(longest <= 8, "{longest} requests in a row");
}

/// Red if a group's members compete outside it.
#[test]
fn a_group_of_three_gets_no_more_than_a_group_of_one() {
    let mut bfq = steady();
    let groups = [1, 2].map(|place| GroupId::new(place, 1));
    for group in groups {
        bfq.join_group(group, &GroupSettings { weight: 100, parent: GroupId::ROOT });
    }
    let clients = [1, 2, 3, 4].map(client);
    for (of, group) in clients.into_iter().zip([groups[0], groups[1], groups[1], groups[1]]) {
        bfq.join(of, &ClientSettings { group, ..ClientSettings::default() });
    }
    let got = shares(&mut bfq, &clients, 40_000);
    let part = got[0] as f64 / 40_000.0;
    assert!((0.45..0.55).contains(&part), "{got:?}");
}

/// Red if the device serves another queue at once where it should wait for a heavier one, or waits for good.
#[test]
fn a_heavier_client_is_waited_for_until_the_timer_goes_off() {
    let mut bfq = steady();
    bfq.watch_expirations();
    bfq.join(client(1), &ClientSettings { weight: 300, ..ClientSettings::default() });
    bfq.join(client(2), &ClientSettings::default());
    let now = Time(MS);
    let first = lone(client(1), 800, Op::Read);
    bfq.insert(RqId(1), &first, InsertAt::Sorted, now);
    let mut ticket = None;
    assert_eq!(bfq.dispatch(&mut ticket, now), Some(RqId(1)));
    bfq.insert(RqId(2), &lone(client(2), 8_000_000, Op::Read), InsertAt::Sorted, now);
    let over = now.after(MS);
    bfq.observe(Feedback::Events(&[completed(ticket, &first, over)], over));
    assert_eq!(bfq.dispatch(&mut (), over), None);
    let due = bfq.next_wakeup().expect("a request waits that is held back");
    assert_eq!(due, over.after(8 * MS));
    assert_eq!(bfq.dispatch(&mut (), due), Some(RqId(2)));
    let reasons: Vec<Reason> = bfq.take_expirations().iter().map(|expiration| expiration.reason).collect();
    assert_eq!(reasons, [Reason::TooIdle]);
}

#[test]
fn what_goes_to_the_head_goes_first() {
    let mut bfq = steady();
    bfq.insert(RqId(1), &lone(client(1), 0, Op::Read), InsertAt::Sorted, Time(MS));
    bfq.insert(RqId(2), &lone(client(1), 8, Op::Read), InsertAt::Head, Time(MS));
    bfq.insert(RqId(3), &lone(client(1), 16, Op::Read), InsertAt::Head, Time(MS));
    let order: Vec<Option<RqId>> = (0..4).map(|_| bfq.dispatch(&mut (), Time(MS))).collect();
    assert_eq!(order, [Some(RqId(3)), Some(RqId(2)), Some(RqId(1)), None]);
}

/// Red if a queue stays when its client has left.
#[test]
fn a_client_that_leaves_leaves_nothing() {
    let mut bfq = steady();
    let mut before = String::new();
    bfq.show(&mut before).expect("a string takes everything");
    bfq.join(client(1), &ClientSettings::default());
    let read = lone(client(1), 0, Op::Read);
    bfq.insert(RqId(1), &read, InsertAt::Sorted, Time(MS));
    let mut ticket = None;
    assert_eq!(bfq.dispatch(&mut ticket, Time(MS)), Some(RqId(1)));
    bfq.observe(Feedback::Events(&[completed(ticket, &read, Time(2 * MS))], Time(2 * MS)));
    bfq.leave(client(1));
    let mut after = String::new();
    bfq.show(&mut after).expect("a string takes everything");
    assert!(!after.contains("queue client") && after.contains("in_service: none"), "{after}");
    assert!(before.contains("in_service: none"));
}

/// Red if the asynchronous queues of a group go with it.
#[test]
fn requests_of_a_group_that_leaves_go_on_waiting() {
    let mut bfq = steady();
    let group = GroupId::new(1, 1);
    bfq.join_group(group, &GroupSettings { weight: 100, parent: GroupId::ROOT });
    bfq.join(client(1), &ClientSettings { group, ..ClientSettings::default() });
    let write = lone(client(1), 0, Op::Write);
    bfq.insert(RqId(1), &write, InsertAt::Sorted, Time(MS));
    bfq.join(client(1), &ClientSettings::default());
    bfq.leave_group(group);
    let mut ticket = None;
    assert_eq!(bfq.dispatch(&mut ticket, Time(MS)), Some(RqId(1)));
    bfq.observe(Feedback::Events(&[completed(ticket, &write, Time(2 * MS))], Time(2 * MS)));
    bfq.leave(client(1));
    assert_eq!(bfq.len(), 0);
}

/// Red if a client without requests can be kept outside by others' requests.
#[test]
fn a_client_without_requests_is_admitted() {
    let mut bfq = steady();
    bfq.join(client(1), &ClientSettings::default());
    bfq.join(client(2), &ClientSettings::default());
    bfq.insert(RqId(1), &lone(client(1), 0, Op::Write), InsertAt::Sorted, Time(MS));
    let full = Outstanding { others: 100_000, nr_hctxs: 1 };
    assert_eq!(bfq.limit_depth(&lone(client(2), 0, Op::Write), full), Admission::First);
    assert_eq!(bfq.limit_depth(&lone(client(1), 8, Op::Write), full), Admission::Refused);
    assert_eq!(bfq.limit_depth(&lone(client(1), 8, Op::Read), full), Admission::Admitted);
}

/// Red if only queues are held to their shares, and not the groups above them: a group whose members come one after the
/// other would have more than its part, each member as much as it may have alone.
#[test]
fn a_group_has_no_more_room_than_its_share() {
    let mut bfq = steady();
    let groups = [1, 2].map(|number| GroupId::new(number, 1));
    for group in groups {
        bfq.join_group(group, &GroupSettings { parent: GroupId::ROOT, weight: 100 });
    }
    for (number, group) in [(1, groups[0]), (2, groups[0]), (3, groups[1])] {
        bfq.join(client(number), &ClientSettings { group, ..ClientSettings::default() });
    }
    let write = |of| Info { sync: true, ..lone(client(of), 0, Op::Write) };
    let outstanding = Outstanding { others: 1, nr_hctxs: 1 };
    let mut next = 0;
    let mut fill = |bfq: &mut Bfq, of| {
        let before = next;
        while bfq.limit_depth(&write(of), outstanding) != Admission::Refused {
            bfq.insert(RqId(next), &Info { sector: next * 8, ..write(of) }, InsertAt::Sorted, Time(MS));
            next += 1;
            assert!(next < 1000, "there is a limit");
        }
        next - before
    };
    bfq.insert(RqId(1000), &write(3), InsertAt::Sorted, Time(MS));
    let room = 256 * 3 / 4;
    assert_eq!(fill(&mut bfq, 1), room / 2, "the first member is alone in its group");
    assert_eq!(fill(&mut bfq, 2), 1, "the second one has its first request, which is never refused");
    assert_eq!(fill(&mut bfq, 3), room / 2 - 1);
    bfq.join(client(2), &ClientSettings { group: groups[1], ..ClientSettings::default() });
    assert_eq!(fill(&mut bfq, 1), 0);
    assert_eq!(fill(&mut bfq, 3), 0, "the newcomer has brought its request along");
}

/// The idle class is tried before the others once in 200 ms. Red if a look-up that decides nothing counts as that try:
/// then it is served once in two seconds, when it has waited for too long.
#[test]
fn the_idle_class_does_not_starve() {
    let mut bfq = steady();
    let idle = IoPriority { class: Class::Idle, level: 0 };
    let read = |number: u64| match number % 3 {
        0 => Info { priority: idle, ..lone(client(3), number * 1000, Op::Read) },
        of => lone(client(of as usize), number * 1000, Op::Read),
    };
    (1..4).for_each(|of| bfq.join(client(of), &ClientSettings::default()));
    let mut now = Time(MS);
    (0..48).for_each(|number| bfq.insert(RqId(number), &read(number), InsertAt::Sorted, now));
    let (mut next, mut served, mut longest) = (48, now, 0);
    for _ in 0..8000 {
        let mut ticket = None;
        let chosen = bfq.dispatch(&mut ticket, now).expect("backlogged clients keep the device busy").0;
        now = now.after(MS);
        bfq.observe(Feedback::Events(&[completed(ticket, &read(chosen), now)], now));
        if chosen.is_multiple_of(3) {
            longest = longest.max(now.since(served));
            served = now;
        }
        next += 3;
        let again = next + chosen % 3;
        bfq.insert(RqId(again), &read(again), InsertAt::Sorted, now);
    }
    assert!(now.since(served).max(longest) < 500 * MS, "{} ms", longest / MS);
}

/// Red if reads are not held to a share, or to the writers' part of the room, or if a hardware queue is left out.
#[test]
fn a_reader_has_no_more_room_than_its_share() {
    let mut bfq = steady();
    bfq.configure(Setting::NrRequests(100));
    (1..3).for_each(|of| bfq.join(client(of), &ClientSettings::default()));
    let full = Outstanding { others: 100_000, nr_hctxs: 4 };
    let mut next = 0;
    let mut fill = |bfq: &mut Bfq, of| {
        let before = next;
        while bfq.limit_depth(&lone(client(of), 0, Op::Read), full) != Admission::Refused {
            bfq.insert(RqId(next), &lone(client(of), next * 8, Op::Read), InsertAt::Sorted, Time(MS));
            next += 1;
            assert!(next < 1000, "there is a limit");
        }
        next - before
    };
    assert_eq!(fill(&mut bfq, 1), 400, "it is alone");
    assert_eq!(fill(&mut bfq, 2), 200);
}

/// Red if a queue leaves service because the device asks while nothing waits: Linux's device does not ask then, and a
/// queue that has another request by the time that its last one is over goes on.
#[test]
fn nothing_is_decided_while_nothing_waits() {
    let mut bfq = steady();
    bfq.watch_expirations();
    let write = |number: u64| Info { sync: false, ..lone(client(1), number * 8, Op::Write) };
    bfq.join(client(1), &ClientSettings::default());
    bfq.insert(RqId(1), &write(1), InsertAt::Sorted, Time(MS));
    let mut ticket = None;
    assert_eq!(bfq.dispatch(&mut ticket, Time(MS)), Some(RqId(1)));
    assert_eq!(bfq.dispatch(&mut (), Time(MS)), None);
    assert_eq!(bfq.take_expirations(), []);
    assert_eq!(bfq.may_pass(Class::BestEffort, client(2)), Passing::All, "nobody is owed anything");
    bfq.observe(Feedback::Events(&[completed(ticket, &write(1), Time(2 * MS))], Time(2 * MS)));
    let reasons: Vec<Reason> = bfq.take_expirations().iter().map(|expiration| expiration.reason).collect();
    assert_eq!(reasons, [Reason::NoMoreRequests], "with its last request it has left service");
}

/// Red if somebody passes while another client is in service.
#[test]
fn only_the_client_in_service_passes() {
    let mut bfq = steady();
    bfq.join(client(1), &ClientSettings::default());
    bfq.join(client(2), &ClientSettings::default());
    let passing = |bfq: &Bfq, of| bfq.may_pass(Class::BestEffort, client(of));
    assert_eq!(passing(&bfq, 1), Passing::All);
    bfq.insert(RqId(1), &lone(client(1), 0, Op::Read), InsertAt::Sorted, Time(MS));
    assert_eq!(passing(&bfq, 1), Passing::Nobody);
    assert_eq!(bfq.dispatch(&mut (), Time(MS)), Some(RqId(1)));
    assert_eq!([passing(&bfq, 1), passing(&bfq, 2)], [Passing::Client, Passing::Nobody]);
}

/// 1. Requests of class idle and then of class real-time of client 1 go out. Its queue is still served as one of class
///    idle, which is not waited for.
/// 2. A request of client 2 comes. The queue leaves service and is one of class real-time from then on, which is waited
///    for while the device has requests of it.
///
/// Red if a request of client 2 could pass after step 1, since it would be held back.
#[test]
fn no_other_client_passes_while_the_queue_in_service_changes_its_class() {
    let mut bfq = steady();
    [1, 2].into_iter().for_each(|of| bfq.join(client(of), &ClientSettings::default()));
    for class in [Class::Idle, Class::RealTime] {
        let read = Info { priority: IoPriority { class, level: 4 }, ..lone(client(1), 0, Op::Read) };
        bfq.insert(RqId(1), &read, InsertAt::Sorted, Time(MS));
        assert_eq!(bfq.dispatch(&mut (), Time(MS)), Some(RqId(1)));
    }
    assert_ne!(bfq.may_pass(Class::BestEffort, client(2)), Passing::All);
    bfq.insert(RqId(2), &lone(client(2), 8_000_000, Op::Read), InsertAt::Sorted, Time(MS));
    assert_eq!(bfq.dispatch(&mut (), Time(MS)), None, "it is held back");
}

/// Two threads tell: one that a request passed, the other that it is over. Red if the second is lost when it comes
/// first, or if it ends a request of another client.
#[test]
fn a_request_may_be_over_before_it_is_known_to_have_passed() {
    for op in [Op::Read, Op::Write] {
        let mut bfq = steady();
        (1..3).for_each(|of| bfq.join(client(of), &ClientSettings::default()));
        let report = |of, event| Report { event, ..completed(None, &lone(client(of), 0, op), Time(MS)) };
        let owned = |bfq: &Bfq| {
            let mut text = String::new();
            bfq.show(&mut text).expect("a text takes everything");
            let (_, rest) = text.split_once("owned_by_driver: ").expect("it is shown");
            rest.lines().next().expect("a number").to_owned()
        };
        bfq.observe(Feedback::Events(&[report(1, Event::Completed(None)), report(2, Event::Passed)], Time(MS)));
        assert_eq!(owned(&bfq), "1", "the device has the other client's request");
        bfq.observe(Feedback::Events(&[report(1, Event::Passed)], Time(MS)));
        assert_eq!(owned(&bfq), "1");
        bfq.observe(Feedback::Events(&[report(2, Event::Completed(None))], Time(MS)));
        assert_eq!(owned(&bfq), "0");
    }
}

/// A broken ticket is an embedder's mistake; number 0 of a queue names none.
#[test]
fn a_ticket_of_no_queue_is_ignored() {
    let mut bfq = steady();
    let ticket = NonZeroU32::new(1 << 20).map(Ticket);
    bfq.observe(Feedback::Events(&[completed(ticket, &lone(client(1), 0, Op::Read), Time(MS))], Time(MS)));
    assert_eq!(bfq.len(), 0);
}

/// What four readers of these levels get in percent. Each of them waits for its read and then asks for the next one, of
/// a device that does one read at a time, in 0.8 ms. They begin one after the other, as those of the recording below.
fn one_read_at_a_time(levels: [u8; 4]) -> [f64; 4] {
    const READ: u64 = 800_000;
    const THINK: u64 = 20_000;
    let mut bfq = steady();
    let read = |of: usize, sector| Info {
        priority: IoPriority { class: Class::BestEffort, level: levels[of] },
        ..lone(client(of + 1), sector, Op::Read)
    };
    (0..4).for_each(|of| bfq.join(client(of + 1), &ClientSettings::default()));
    let mut got = [0_u32; 4];
    let (mut now, mut next) = (Time(MS), 0);
    let mut arrivals: Vec<(Time, usize)> = (0..4).map(|of| (now.after(of as u64 * 300 * MS), of)).collect();
    let mut in_device: Option<(Time, usize, Option<Ticket>)> = None;
    while now < Time(60_000 * MS) {
        let arrival = arrivals.iter().copied().min();
        let over = in_device.map(|(at, ..)| at);
        let timer = if in_device.is_none() { bfq.next_wakeup() } else { None };
        now =
            [arrival.map(|(at, _)| at), over, timer].into_iter().flatten().min().expect("a reader or the device acts");
        if over == Some(now) {
            let (_, of, ticket) = in_device.take().expect("it is over");
            got[of] += u32::from(now > Time(1000 * MS));
            bfq.observe(Feedback::Events(&[completed(ticket, &read(of, 0), now)], now));
            arrivals.push((now.after(THINK), of));
        } else if let Some((at, of)) = arrival
            && at == now
        {
            arrivals.retain(|arrival| *arrival != (at, of));
            next += 1;
            bfq.insert(RqId(of as u64), &read(of, next * 1_000_003 % 8_000_000), InsertAt::Sorted, now);
        }
        let mut ticket = None;
        if in_device.is_none()
            && let Some(rq) = bfq.dispatch(&mut ticket, now)
        {
            in_device = Some((now.after(READ), rq.0 as usize, ticket));
        }
    }
    let all: u32 = got.iter().sum();
    got.map(|got| 100.0 * f64::from(got) / f64::from(all))
}

/// The levels and the device are those of the recording `prio1248-sync-d1`, in which Linux gave the readers 1.8, 11.9,
/// 30.3 and 56.0 %. Their weights are 7, 13, 27 and 53 %: short turns of the lightest one are charged by time. Red if
/// they are not, or if levels are not looked at.
#[test]
fn readers_of_one_read_get_what_linux_gives_them() {
    let got = one_read_at_a_time([7, 6, 4, 0]);
    let is_near = |(got, linux): (&f64, f64)| (got - linux).abs() <= 2.5;
    assert!(got.iter().zip([1.8, 11.9, 30.3, 56.0]).all(is_near), "{got:?}");
    let equal = one_read_at_a_time([4; 4]);
    assert!(equal.iter().all(|got| (got - 25.0).abs() <= 2.5), "{equal:?}");
}
