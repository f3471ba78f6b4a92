//! The rules of `bfq`, one by one.

use std::num::NonZeroU32;

use crate::bench::{MS, client, complete, in_group, join_group, lone, of_level, steady_bfq};
use blkmq_sched::{
    Admission, Bfq, Class, ClientSettings, Info, InsertAt, Op, Outstanding, Passing, Reason, RqId, Scheduler, Setting,
    Ticket, Time,
};

/// Clients that read here and there, one request a millisecond.
struct Readers {
    bfq: Bfq,
    now: Time,
    next: u64,
}

impl Readers {
    fn ask(&mut self, of: usize) {
        self.next += 1;
        let sector = self.next * 1_000_003 % 8_000_000;
        self.bfq.insert(RqId(of as u64), &lone(client(of), sector, Op::Read), InsertAt::Sorted, self.now);
    }

    /// Serves one request, and returns the number of its client.
    fn serve(&mut self) -> usize {
        let mut ticket = None;
        let of = self.bfq.dispatch(&mut ticket, self.now).expect("backlogged clients keep the device busy").0 as usize;
        self.now = self.now.after(MS);
        complete(&mut self.bfq, ticket, &lone(client(of), 0, Op::Read), self.now);
        of
    }

    /// Clients 1 to `nr_clients` are backlogged for so many requests, whose clients are told.
    fn serve_all(bfq: Bfq, nr_clients: usize, rounds: u64, mut serves: impl FnMut(usize)) -> Self {
        let mut readers = Self { bfq, now: Time(MS), next: 0 };
        for of in 1..=nr_clients {
            (0..16).for_each(|_| readers.ask(of));
        }
        for _ in 0..rounds {
            let of = readers.serve();
            serves(of);
            readers.ask(of);
        }
        readers
    }
}

/// How many requests of a client are admitted until one is refused.
fn fill(bfq: &mut Bfq, request: Info, outstanding: Outstanding) -> u64 {
    let mut admitted = 0;
    while bfq.limit_depth(&request, outstanding) != Admission::Refused {
        let sector = admitted * 8;
        bfq.insert(RqId(admitted), &Info { sector, ..request }, InsertAt::Sorted, Time(MS));
        admitted += 1;
        assert!(admitted < 1000, "there is a limit");
    }
    admitted
}

/// Red if a client is served for longer than a slice while another one waits, if it is still held to that when there is
/// none any more, or if a device that seeks goes from one client to another as often.
#[test]
fn a_client_is_served_for_a_slice_at_most() {
    for (rotational, slice, longest) in [(false, Some(64), 1..9), (false, None, 64..1000), (true, Some(64), 64..1000)] {
        let mut bfq = steady_bfq(2);
        bfq.configure(Setting::Rotational(rotational));
        // Whatever was told before.
        bfq.configure(Setting::Slice(Some(8)));
        bfq.configure(Setting::Slice(slice));
        let (mut latest, mut turn, mut found, mut served) = (0, 0, 0, 0);
        Readers::serve_all(bfq, 2, 20_000, |of| {
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
    let mut readers = Readers::serve_all(steady_bfq(3), 2, 5000, |_| ());
    readers.bfq.configure(Setting::Slice(Some(64)));
    let (mut latest, mut turn, mut longest) = (0, 0, 0);
    for round in 0..4000 {
        if round % 20 == 0 {
            readers.ask(3);
        }
        let of = readers.serve();
        if of < 3 {
            turn = if of == latest { turn + 1 } else { 1 };
            latest = of;
            longest = if round < 1000 { 0 } else { longest.max(turn) };
            readers.ask(of);
        }
    }
    assert!(longest <= 8, "{longest} requests in a row");
}

/// Red if the device serves another queue at once where it should wait for a heavier one, or waits for good.
#[test]
fn a_heavier_client_is_waited_for_until_the_timer_goes_off() {
    let mut bfq = steady_bfq(2);
    bfq.watch_expirations();
    bfq.join(client(1), &ClientSettings { weight: 300, ..ClientSettings::default() });
    let now = Time(MS);
    let first = lone(client(1), 800, Op::Read);
    bfq.insert(RqId(1), &first, InsertAt::Sorted, now);
    let mut ticket = None;
    assert_eq!(bfq.dispatch(&mut ticket, now), Some(RqId(1)));
    bfq.insert(RqId(2), &lone(client(2), 8_000_000, Op::Read), InsertAt::Sorted, now);
    let over = now.after(MS);
    complete(&mut bfq, ticket, &first, over);
    assert_eq!(bfq.dispatch(&mut (), over), None);
    let due = bfq.next_wakeup().expect("a request waits that is held back");
    assert_eq!(due, over.after(8 * MS));
    assert_eq!(bfq.dispatch(&mut (), due), Some(RqId(2)));
    let reasons: Vec<Reason> = bfq.take_expirations().iter().map(|expiration| expiration.reason).collect();
    assert_eq!(reasons, [Reason::TooIdle]);
}

/// Red if a client without requests can be kept outside by others' requests.
#[test]
fn a_client_without_requests_is_admitted() {
    let mut bfq = steady_bfq(2);
    bfq.insert(RqId(1), &lone(client(1), 0, Op::Write), InsertAt::Sorted, Time(MS));
    let full = Outstanding { others: 100_000, nr_hctxs: 1, reserved: None };
    assert_eq!(bfq.limit_depth(&lone(client(2), 0, Op::Write), full), Admission::First);
    assert_eq!(bfq.limit_depth(&lone(client(1), 8, Op::Write), full), Admission::Refused);
    assert_eq!(bfq.limit_depth(&lone(client(1), 8, Op::Read), full), Admission::Admitted);
}

/// Red if only queues are held to their shares, and not the groups above them: a group whose members come one after the
/// other would have more than its part, each member as much as it may have alone.
#[test]
fn a_group_has_no_more_room_than_its_share() {
    let mut bfq = steady_bfq(0);
    let groups = [1, 2].map(|place| join_group(&mut bfq, place, 1));
    (1..4).for_each(|of| bfq.join(client(of), &in_group(groups[usize::from(of > 2)])));
    let write = |of| Info { sync: true, ..lone(client(of), 0, Op::Write) };
    let fill = |bfq: &mut Bfq, of| fill(bfq, write(of), Outstanding { others: 1, nr_hctxs: 1, reserved: None });
    bfq.insert(RqId(1000), &write(3), InsertAt::Sorted, Time(MS));
    let room = 256 * 3 / 4;
    assert_eq!(fill(&mut bfq, 1), room / 2, "the first member is alone in its group");
    assert_eq!(fill(&mut bfq, 2), 1, "the second one has its first request, which is never refused");
    assert_eq!(fill(&mut bfq, 3), room / 2 - 1);
    bfq.join(client(2), &in_group(groups[1]));
    assert_eq!(fill(&mut bfq, 1), 0);
    assert_eq!(fill(&mut bfq, 3), 0, "the newcomer has brought its request along");
}

/// The idle class is tried before the others once in 200 ms. Red if a look-up that decides nothing counts as that try:
/// then it is served once in two seconds, when it has waited for too long.
#[test]
fn the_idle_class_does_not_starve() {
    let mut bfq = steady_bfq(3);
    let read = |number: u64| match number % 3 {
        0 => of_level(Class::Idle, 0, lone(client(3), number * 1000, Op::Read)),
        of => lone(client(of as usize), number * 1000, Op::Read),
    };
    let mut now = Time(MS);
    (0..48).for_each(|number| bfq.insert(RqId(number), &read(number), InsertAt::Sorted, now));
    let (mut next, mut served, mut longest) = (48, now, 0);
    for _ in 0..8000 {
        let mut ticket = None;
        let chosen = bfq.dispatch(&mut ticket, now).expect("backlogged clients keep the device busy").0;
        now = now.after(MS);
        complete(&mut bfq, ticket, &read(chosen), now);
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
    let mut bfq = steady_bfq(2);
    bfq.configure(Setting::NrRequests(100));
    let full = Outstanding { others: 100_000, nr_hctxs: 4, reserved: None };
    let fill = |bfq: &mut Bfq, of| fill(bfq, lone(client(of), 0, Op::Read), full);
    assert_eq!(fill(&mut bfq, 1), 400, "it is alone");
    assert_eq!(fill(&mut bfq, 2), 200);
}

/// Red if a queue leaves service because the device asks while nothing waits: Linux's device does not ask then, and a
/// queue that has another request by the time that its last one is over goes on.
#[test]
fn nothing_is_decided_while_nothing_waits() {
    let mut bfq = steady_bfq(1);
    bfq.watch_expirations();
    let write = lone(client(1), 8, Op::Write);
    bfq.insert(RqId(1), &write, InsertAt::Sorted, Time(MS));
    let mut ticket = None;
    assert_eq!(bfq.dispatch(&mut ticket, Time(MS)), Some(RqId(1)));
    assert_eq!(bfq.dispatch(&mut (), Time(MS)), None);
    assert_eq!(bfq.take_expirations(), []);
    assert_eq!(bfq.may_pass(Class::BestEffort, client(2)), Passing::All, "nobody is owed anything");
    complete(&mut bfq, ticket, &write, Time(2 * MS));
    let reasons: Vec<Reason> = bfq.take_expirations().iter().map(|expiration| expiration.reason).collect();
    assert_eq!(reasons, [Reason::NoMoreRequests], "with its last request it has left service");
}

/// Red if somebody passes while another client is in service.
#[test]
fn only_the_client_in_service_passes() {
    let mut bfq = steady_bfq(2);
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
    let mut bfq = steady_bfq(2);
    for class in [Class::Idle, Class::RealTime] {
        bfq.insert(RqId(1), &of_level(class, 4, lone(client(1), 0, Op::Read)), InsertAt::Sorted, Time(MS));
        assert_eq!(bfq.dispatch(&mut (), Time(MS)), Some(RqId(1)));
    }
    assert_ne!(bfq.may_pass(Class::BestEffort, client(2)), Passing::All);
    bfq.insert(RqId(2), &lone(client(2), 8_000_000, Op::Read), InsertAt::Sorted, Time(MS));
    assert_eq!(bfq.dispatch(&mut (), Time(MS)), None, "it is held back");
}

/// A broken ticket is an embedder's mistake; number 0 of a queue names none.
#[test]
fn a_ticket_of_no_queue_is_ignored() {
    let mut bfq = steady_bfq(0);
    let ticket = NonZeroU32::new(1 << 20).map(Ticket);
    complete(&mut bfq, ticket, &lone(client(1), 0, Op::Read), Time(MS));
    assert_eq!(bfq.len(), 0);
}
