//! Queues of `bfq` have bounded room, however clients merge and split them, and no request is refused or allocates.

use std::collections::HashMap;

use crate::bench::{client, complete, in_group, join_group, lone, of_level, shown, steady_bfq};
use crate::counting::counted;
use blkmq_sched::{Bfq, Class, ClientSettings, GroupId, Info, InsertAt, Op, RqId, Scheduler, Setting, Ticket, Time};

const NOW: Time = Time(1_000_000);
const NR_CLIENTS: usize = 64;
/// Sectors between the places at which two clients read.
const APART: u64 = 1 << 20;

/// Clients 1 to 64 and the requests of theirs that are not over.
struct World {
    bfq: Bfq,
    next: u64,
    waiting: HashMap<RqId, Info>,
    with_device: Vec<(Ticket, Info)>,
}

impl World {
    /// On a device that gains if clients cooperate, and on which no queue is waited for.
    fn new(nr_clients: usize) -> Self {
        let mut bfq = steady_bfq(nr_clients);
        bfq.configure(Setting::Rotational(true));
        bfq.set_knob("slice_idle", 0).expect("there is such a knob");
        bfq.reserve(1 << 14);
        Self { bfq, next: 0, waiting: HashMap::new(), with_device: Vec::new() }
    }

    fn ask(&mut self, info: Info) {
        let id = RqId(self.next);
        self.next += 1;
        self.waiting.insert(id, info);
        counted(|| self.bfq.insert(id, &info, InsertAt::Sorted, NOW));
    }

    /// A client reads at the place of `near`, `offset` sectors behind that.
    fn read(&mut self, of: usize, near: usize, offset: u64) {
        self.ask(Info { sector: near as u64 * APART + offset, ..lone(client(of), 0, Op::Read) });
    }

    /// The device takes everything, and finishes nothing yet.
    fn take_all(&mut self) {
        let mut ticket = None;
        while let Some(id) = counted(|| self.bfq.dispatch(&mut ticket, NOW)) {
            let info = self.waiting.remove(&id).expect("a request comes once, and only if it waits");
            self.with_device.push((ticket.take().expect("each request has a ticket"), info));
        }
        assert!(self.waiting.is_empty(), "all that waits is served");
    }

    fn finish_all(&mut self) {
        for (ticket, info) in self.with_device.drain(..) {
            counted(|| complete(&mut self.bfq, Some(ticket), &info, NOW));
        }
    }

    /// The queue of this client seeks, so the clients that share it are to get their own ones back.
    fn seek(&mut self, of: usize) {
        (0..32).for_each(|step| self.read(of, of, 10_000 + step * 2000));
        self.take_all();
    }

    fn nr_queues(&self) -> usize {
        shown(&self.bfq).lines().filter(|line| line.starts_with("queue ")).count()
    }

    /// Everything is over, and each client reads once more: it has a queue of its own, in this group.
    fn end_apart(&mut self, group: GroupId) {
        self.finish_all();
        for _ in 0..2 {
            (1..=NR_CLIENTS).for_each(|of| self.read(of, of, 0));
            self.take_all();
            self.finish_all();
        }
        let text = shown(&self.bfq);
        for of in 1..=NR_CLIENTS {
            let own = format!("queue client {of}: group {} ", group.place());
            assert!(text.contains(&own), "{of}: {text}");
        }
        assert_eq!(self.nr_queues(), NR_CLIENTS, "{text}");
    }
}

/// Each queue that a client leaves has requests that the device keeps. Red if a queue is split without a look at the
/// room that is left, or if nothing bounds the queues but those that are left behind when a merge is planned.
#[test]
fn queues_merge_and_split_while_requests_hang() {
    let mut world = World::new(NR_CLIENTS);
    for _ in 0..8 {
        (1..=NR_CLIENTS).for_each(|of| world.read(of, of, 0));
        (2..=NR_CLIENTS).for_each(|of| world.read(of, 1, of as u64 * 8));
        world.take_all();
        world.seek(1);
    }
    assert!(world.nr_queues() > 2 * NR_CLIENTS - 2, "the room is used");
    world.end_apart(GroupId::ROOT);
}

/// One client after the other stops to ask. It counts in each queue with which its queue is to be merged, so these stay
/// when all others have gone on, without any request. Red as above.
#[test]
fn queues_wait_for_clients_that_have_not_followed() {
    let mut world = World::new(NR_CLIENTS);
    for silent in 1..NR_CLIENTS - 2 {
        [silent, silent + 1].into_iter().for_each(|of| world.read(of, of, 0));
        world.read(silent + 1, silent, 8);
        world.take_all();
        for of in silent + 1..NR_CLIENTS {
            // The client that leads the others to the next client's queue leaves the queue of the silent one.
            [of, of + 1].into_iter().for_each(|of| world.read(of, of, 0));
            world.read(of, of + 1, 8);
            world.take_all();
        }
        (silent + 1..NR_CLIENTS).for_each(|of| world.read(of, NR_CLIENTS, 8));
        world.seek(NR_CLIENTS);
        world.finish_all();
    }
    assert!(world.nr_queues() > 2 * NR_CLIENTS - 2, "the room is used");
    world.end_apart(GroupId::ROOT);
}

/// Clients that share a queue move to another group, and leave it. Red if they do without a look at the room, or if a
/// client that had to stay does not move later.
#[test]
fn clients_that_share_move_while_requests_hang() {
    let mut world = World::new(NR_CLIENTS);
    let groups = [1, 2].map(|place| join_group(&mut world.bfq, place, 1));
    for round in 0..8 {
        (1..=NR_CLIENTS).for_each(|of| world.bfq.join(client(of), &in_group(groups[round % 2])));
        (1..=NR_CLIENTS).for_each(|of| world.read(of, of, 0));
        (2..=NR_CLIENTS).for_each(|of| world.read(of, 1, of as u64 * 8));
        world.take_all();
    }
    assert!(world.nr_queues() > 2 * NR_CLIENTS - 2, "the room is used");
    world.seek(1);
    world.end_apart(groups[1]);
}

/// Red if only the asynchronous queues of groups that are there have room: those of a group that went have it too,
/// while requests of theirs are with the device.
#[test]
fn groups_come_and_go_while_requests_hang() {
    let mut world = World::new(1);
    for times in 1..20 {
        let group = join_group(&mut world.bfq, 1, times);
        world.bfq.join(client(1), &in_group(group));
        for class in Class::ALL {
            (0..8)
                .for_each(|level| world.ask(of_level(class, level, lone(client(1), 8 * u64::from(level), Op::Write))));
        }
        world.take_all();
        world.bfq.join(client(1), &ClientSettings::default());
        world.bfq.leave_group(group);
    }
    world.finish_all();
    assert_eq!(world.nr_queues(), 0, "{}", shown(&world.bfq));
}

/// A client leaves a shared queue as it moves, beside asynchronous queues that a group has left behind. Red if room is
/// made only for the groups that are there: then those queues take the room of the client's next one.
#[test]
fn a_client_moves_beside_what_a_group_has_left() {
    let mut world = World::new(4);
    let first = join_group(&mut world.bfq, 1, 1);
    world.bfq.join(client(1), &in_group(first));
    for level in 0..5 {
        world.ask(of_level(Class::BestEffort, level, lone(client(1), 8 * u64::from(level), Op::Write)));
    }
    world.take_all();
    world.bfq.join(client(1), &ClientSettings::default());
    world.bfq.leave_group(first);
    let second = join_group(&mut world.bfq, 1, 2);
    (1..=4).for_each(|of| world.read(of, of, 0));
    world.read(2, 1, 8);
    world.take_all();
    world.bfq.join(client(2), &in_group(second));
    world.read(2, 2, 0);
    let text = shown(&world.bfq);
    let moved = text.lines().find(|line| line.starts_with("queue client 2: group 1 "));
    assert!(moved.is_some_and(|line| line.contains(" waiting 1 ")), "{text}");
    world.take_all();
    world.finish_all();
}
