//! `bfq` while clients change under way: they leave, move, share a queue, or get another weight, and meanwhile the
//! device has requests of theirs.

use crate::bench::{MS, client, complete, completed, in_group, join_group, lone, of_level, shown, steady_bfq};
use blkmq_sched::{
    Bfq, Class, ClientId, ClientSettings, Event, Feedback, Info, InsertAt, Op, Passing, Report, RqId, Scheduler,
    Setting, Ticket, Time,
};

/// A place on the device that is near no small number.
const FAR: u64 = 10_000_000;

/// A scheduler, and what it has been asked for.
struct World {
    bfq: Bfq,
    now: Time,
    /// All requests that were inserted.
    asked: Vec<Info>,
}

impl World {
    /// Clients 1 to `nr_clients`, without weight raising.
    fn new(rotational: bool, nr_clients: usize) -> Self {
        let mut bfq = steady_bfq(nr_clients);
        bfq.configure(Setting::Rotational(rotational));
        Self { bfq, now: Time(1000 * MS), asked: Vec::new() }
    }

    /// Two clients that read one area of a disk share a queue.
    fn shared() -> Self {
        let mut world = Self::new(true, 2);
        [(1, 0), (2, FAR), (2, 8)].into_iter().for_each(|(of, sector)| world.read(of, sector));
        assert!(world.line("queue client 1: ").contains(" waiting 2 "), "{}", world.shown());
        world.serve_all();
        world
    }

    fn insert(&mut self, info: &Info, at: InsertAt) {
        self.bfq.insert(RqId(self.asked.len() as u64), info, at, self.now);
        self.asked.push(*info);
    }

    fn read(&mut self, of: usize, sector: u64) {
        self.insert(&lone(client(of), sector, Op::Read), InsertAt::Sorted);
    }

    fn dispatch(&mut self) -> Option<Ticket> {
        let mut ticket = None;
        self.bfq.dispatch(&mut ticket, self.now).and(ticket)
    }

    /// Everything that waits is handed out, and completes a millisecond later.
    fn serve_all(&mut self) {
        while self.bfq.len() > 0 {
            let mut ticket = None;
            let Some(rq) = self.bfq.dispatch(&mut ticket, self.now) else {
                self.now = self.bfq.next_wakeup().expect("a timer runs while something waits").max(self.now);
                continue;
            };
            self.now = self.now.after(MS);
            complete(&mut self.bfq, ticket, &self.asked[rq.0 as usize], self.now);
        }
    }

    /// Nothing comes until no queue is waited for any more.
    fn expire_all(&mut self) {
        self.now = self.now.after(50 * MS);
        assert_eq!(self.dispatch(), None);
        assert!(self.shown().contains("in_service: none"), "{}", self.shown());
    }

    fn tell(&mut self, event: Event, info: &Info) {
        self.bfq.observe(Feedback::Events(&[Report::of(event, info, self.now)], self.now));
    }

    fn join(&mut self, of: ClientId, settings: ClientSettings) {
        self.bfq.join(of, &settings);
    }

    fn shown(&self) -> String {
        shown(&self.bfq)
    }

    /// The line of the queue that begins so.
    fn line(&self, queue: &str) -> String {
        let text = self.shown();
        let found = text.lines().find(|line| line.starts_with(queue));
        found.unwrap_or_else(|| panic!("{queue} is in {text}")).to_owned()
    }
}

fn weight(weight: u16) -> ClientSettings {
    ClientSettings { weight, ..ClientSettings::default() }
}

/// A completion is told by another thread, and may lie behind the insertion that follows it. Red if the client then
/// counts as one that thinks for long.
#[test]
fn a_completion_behind_the_next_insertion_is_no_think_time() {
    let mut world = World::new(false, 2);
    for round in 0..16 {
        world.read(1, round * 8);
        let ticket = world.dispatch();
        // While another client waits, this one is not waited for.
        world.read(2, FAR + round * 8);
        let read = lone(client(1), 0, Op::Read);
        world.bfq.observe(Feedback::Events(&[completed(ticket, &read, world.now.after(MS))], world.now));
        world.now = world.now.after(MS / 2);
        world.read(1, round * 8);
        world.serve_all();
    }
    assert!(world.line("queue client 1: ").contains(" short_ttime 1 "), "{}", world.shown());
}

/// Red if a queue that begins to wait while the device has a request that went before all others is not weighed: then
/// the heavier client is not waited for.
#[test]
fn a_client_whose_request_went_to_the_head_is_waited_for() {
    let mut world = World::new(false, 1);
    world.join(client(2), weight(300));
    let read = lone(client(2), 0, Op::Read);
    world.insert(&read, InsertAt::Head);
    let at_head = world.dispatch();
    world.read(2, 8);
    let sorted = world.dispatch();
    world.read(1, FAR);
    world.now = world.now.after(MS);
    world.bfq.observe(Feedback::Events(
        &[completed(at_head, &read, world.now), completed(sorted, &read, world.now)],
        world.now,
    ));
    assert_eq!(world.dispatch(), None, "{}", world.shown());
    assert!(world.bfq.next_wakeup().is_some());
}

/// Red if a client's weight or level counts for all that share a queue with it: the others would get more, or less,
/// than they are due. It gets a queue of its own.
#[test]
fn a_client_with_another_weight_leaves_a_shared_queue() {
    let weights = |world: &World| {
        [1, 2].map(|of| {
            let line = world.line(&format!("queue client {of}: "));
            let (_, rest) = line.split_once(" weight ").expect("it is shown");
            rest.split(' ').next().and_then(|weight| weight.parse::<u32>().ok()).expect("a number")
        })
    };
    let mut world = World::shared();
    world.join(client(2), weight(300));
    [(1, 0), (2, 8)].into_iter().for_each(|(of, sector)| world.read(of, sector));
    assert_eq!(weights(&world), [100 * 40, 300 * 40], "{}", world.shown());

    let mut world = World::shared();
    world.read(1, 0);
    world.insert(&of_level(Class::BestEffort, 0, lone(client(2), 8, Op::Read)), InsertAt::Sorted);
    assert_eq!(weights(&world), [100 * 40, 100 * 80], "{}", world.shown());
}

/// Red if a queue that moves is counted under the class that it had before.
#[test]
fn a_queue_moves_to_another_group_and_class() {
    let mut world = World::new(false, 1);
    let group = join_group(&mut world.bfq, 1, 1);
    world.read(1, 0);
    assert!(world.shown().contains("busy: 0 1 0"), "{}", world.shown());
    world.join(client(1), in_group(group));
    world.insert(&of_level(Class::RealTime, 4, lone(client(1), 8, Op::Read)), InsertAt::Sorted);
    assert!(world.shown().contains("busy: 1 0 0"), "{}", world.shown());
    world.serve_all();
    world.expire_all();
    assert!(world.shown().contains("busy: 0 0 0"), "{}", world.shown());
}

/// Red if requests that passed, and for which no thread waits, never count as over.
#[test]
fn writes_that_pass_complete_in_their_group() {
    let mut world = World::new(false, 0);
    let group = join_group(&mut world.bfq, 1, 1);
    world.join(client(1), in_group(group));
    let write = lone(client(1), 0, Op::Write);
    assert_eq!(world.bfq.may_pass(Class::BestEffort, client(1)), Passing::All);
    world.tell(Event::Passed, &write);
    world.tell(Event::Completed(None), &write);
    assert!(world.line("group 1:").contains("inserted 1 merged 0 dispatched 1 completed 1"), "{}", world.shown());
}

/// Each discard is as large as one can be, and the group of the client is in service all the time. Red, by an assertion
/// or wrong shares, if the sum of its service overflows.
#[test]
fn a_group_of_giant_discards_gets_its_share_afterwards() {
    let mut world = World::new(false, 0);
    world.bfq.set_knob("max_budget", 64).expect("there is such a knob");
    for place in [1, 2] {
        let group = join_group(&mut world.bfq, place, 1);
        world.join(client(place), in_group(group));
    }
    let write = lone(client(1), 0, Op::Write);
    world.insert(&write, InsertAt::Sorted);
    let ticket = world.dispatch();
    let discard = Info { nr_sectors: u32::MAX, ..lone(client(1), 0, Op::Discard) };
    for _ in 0..64 {
        assert_eq!(world.bfq.may_pass(Class::BestEffort, client(1)), Passing::All);
        world.tell(Event::Passed, &discard);
        world.tell(Event::Completed(None), &discard);
    }
    complete(&mut world.bfq, ticket, &write, world.now);
    (0..16).for_each(|step| [1, 2].into_iter().for_each(|of| world.read(of, step * 8)));
    let mut got = [0.0; 2];
    for _ in 0..4000 {
        let mut ticket = None;
        let rq = world.bfq.dispatch(&mut ticket, world.now).expect("backlogged clients keep the device busy");
        let read = world.asked[rq.0 as usize];
        world.now = world.now.after(MS / 10);
        complete(&mut world.bfq, ticket, &read, world.now);
        got[read.client.place() - 1] += 1.0;
        world.insert(&read, InsertAt::Sorted);
    }
    assert!((0.9..1.1).contains(&(got[0] / got[1])), "{got:?}");
}
