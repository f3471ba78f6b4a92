//! bfq alone, with clients and a device that are a few lines each: what its checkers ask holds without a queue around
//! it.

use std::collections::BTreeMap;

use blkmq_sched::{
    Class, ClientId, ClientSettings, Event as Happened, Feedback, GroupId, GroupSettings, Info, InsertAt, IoPriority,
    MergeLevel, MergeLimits, Op, Report, RqId, Scheduler, Setting, Ticket, Time,
};
use blkmq_vcpu::schedule::Uniform;
use blkmq_vcpu::{Ended, Options, Random, go_on_for, run, thread};
use blkmq_virtual::Status;

use super::Watched;
use crate::check::{Checkers, Violation};
use crate::event::{Action, Control, Event, Phase, Times};
use crate::history::History;
use crate::plan::{Demand, Plan, knobs_of_bfq};
use crate::play::facts;
use crate::settings::Settings;
use crate::witness::{Witness, stamp};

/// A client with requests.
#[derive(Debug, Clone, Copy)]
struct Client {
    id: ClientId,
    group: usize,
    depth: u64,
    outstanding: u64,
    priority: IoPriority,
    /// Percent of its requests that are writes which no thread waits for.
    asyncs: u64,
    sectors: u64,
    /// Where its next request begins, if it reads on.
    at: Option<u64>,
}

/// A request that the device has.
#[derive(Debug, Clone, Copy)]
struct Begun {
    rq: RqId,
    info: Info,
    sectors: u32,
    ticket: Option<Ticket>,
    since: Time,
}

struct World {
    random: Random,
    witness: Witness,
    bfq: Box<Watched>,
    now: Time,
    clients: Vec<Client>,
    groups: Vec<GroupId>,
    waiting: BTreeMap<RqId, (Info, u32, usize)>,
    /// By the time at which each is over.
    begun: BTreeMap<(u64, RqId), (Begun, usize)>,
    depth: usize,
    mean_ns: u64,
    nr_requests: u64,
}

impl World {
    fn new(seed: u64, witness: Witness) -> Self {
        let random = &mut Random::new(seed);
        let mut bfq = Watched::named("bfq", witness.clone(), 0).expect("there is bfq");
        bfq.reserve(4096);
        bfq.configure(Setting::MergeLimits(MergeLimits {
            max_sectors: 256,
            max_segments: 64,
            ..MergeLimits::default()
        }));
        witness.tell(Event::Installed { scheduler: Some("bfq") });
        let is_flood = random.one_in(2);
        let mut world = Self {
            random: random.fork(),
            witness,
            bfq,
            now: Time(1_000_000_000),
            clients: Vec::new(),
            groups: vec![GroupId::ROOT],
            waiting: BTreeMap::new(),
            begun: BTreeMap::new(),
            depth: *random.pick(&[1, 1, 2, 4, 16]),
            mean_ns: random.within(5_000, 500_000),
            nr_requests: 0,
        };
        for (name, value) in knobs_of_bfq(random, if is_flood { Demand::Flood } else { Demand::Any }) {
            world.set_knob(name, value);
        }
        for number in 0..random.within(2, 5) as usize {
            let id = GroupId::new(number + 1, 1);
            let parent = if is_flood { 0 } else { random.below(world.groups.len() as u64) as usize };
            let weight = crate::tenancy::weight(random);
            world.bfq.join_group(id, &GroupSettings { weight, parent: world.groups[parent] });
            world.groups.push(id);
        }
        let nr_clients = if is_flood { world.groups.len() - 1 } else { random.within(2, 8) as usize };
        for number in 0..nr_clients {
            let group = if is_flood { number + 1 } else { number % world.groups.len().min(4) };
            let level = random.below(8) as u8;
            let class = if is_flood { Class::BestEffort } else { *random.pick(&Class::ALL) };
            let client = Client {
                id: ClientId::new(number, 1),
                group,
                depth: if is_flood { 16 } else { random.within(1, 16) },
                outstanding: 0,
                priority: IoPriority { class, level },
                asyncs: *random.pick(&[0, 0, 30, 100]),
                sectors: random.within(1, 64),
                at: random.one_in(2).then(|| random.below(1 << 20)),
            };
            world.join(&client);
            world.clients.push(client);
        }
        world
    }

    fn set_knob(&mut self, name: &'static str, value: i64) {
        for phase in [Phase::Begun, Phase::Done] {
            self.witness.tell(Event::Changed { control: Control::Knob(name, value), phase });
        }
        self.bfq.set_knob(name, value).expect("the plan has good values");
    }

    fn join(&mut self, client: &Client) {
        let weight = crate::tenancy::weight(&mut self.random);
        let settings = ClientSettings { weight, priority: client.priority, group: self.groups[client.group] };
        self.bfq.join(client.id, &settings);
    }

    fn insert(&mut self, of: usize) {
        let random = &mut self.random;
        let client = &mut self.clients[of];
        let is_async = random.below(100) < client.asyncs;
        let nr_sectors = random.within(1, client.sectors) as u32;
        let sector = match &mut client.at {
            Some(at) => std::mem::replace(at, *at + u64::from(nr_sectors)),
            None => random.below(1 << 20),
        };
        client.outstanding += 1;
        self.nr_requests += 1;
        let rq = RqId(self.nr_requests << 32 | 1 << 16 | (self.nr_requests % 4096));
        let info = Info {
            sector,
            nr_sectors,
            nr_segments: 1,
            op: if is_async { Op::Write } else { Op::Read },
            sync: !is_async,
            priority: client.priority,
            client: client.id,
            merge: MergeLevel::Full,
            merge_key: client.group as u64,
            ..Info::default()
        };
        if let Some(merge) = self.bfq.merge(&info) {
            self.clients[of].outstanding -= 1;
            self.waiting.get_mut(&merge.into).expect("it waits").1 += nr_sectors;
            if let Some(join) = merge.joined {
                let (_, sectors, owner) = self.waiting.remove(&join.absorbed).expect("it waits");
                self.clients[owner].outstanding -= 1;
                self.waiting.get_mut(&join.survivor).expect("it waits").1 += sectors;
            }
            return;
        }
        let at = if random_head(&mut self.random) { InsertAt::Head } else { InsertAt::Sorted };
        self.bfq.insert(rq, &info, at, self.now);
        self.waiting.insert(rq, (info, nr_sectors, of));
    }

    fn dispatch(&mut self) -> bool {
        let mut ticket = None;
        let Some(rq) = self.bfq.dispatch(&mut ticket, self.now) else { return false };
        let (info, sectors, of) = self.waiting.remove(&rq).expect("what is chosen waited");
        let ns = self.random.around(self.mean_ns);
        let begun = Begun { rq, info, sectors, ticket, since: self.now };
        self.begun.insert((self.now.0 + ns, rq), (begun, of));
        true
    }

    fn complete(&mut self) {
        let Some(((at, _), (begun, of))) = self.begun.pop_first() else { return };
        self.now = self.now.max(Time(at));
        let Begun { rq, info, sectors, ticket, since } = begun;
        self.clients[of].outstanding -= 1;
        self.witness.tell(Event::Acted { rq, action: Action::Completed(Status::Ok) });
        let (bio, times, data) = (rq.0 >> 32, Times::default(), &[][..]);
        self.witness.tell(Event::Reaped { submitter: 1, bio, id: rq, status: Status::Ok, times, data });
        let report = Report {
            event: Happened::Completed(ticket),
            client: info.client,
            op: info.op,
            sync: info.sync,
            priority: info.priority,
            requests: 1,
            sectors,
            at: self.now,
            in_device: self.now.since(since) as u32,
        };
        self.bfq.observe(Feedback::Events(&[report], self.now));
    }

    /// Something about the clients changes.
    fn change(&mut self) {
        let of = self.random.below(self.clients.len() as u64) as usize;
        match self.random.below(4) {
            0 => {
                self.clients[of].group = self.random.below(self.groups.len() as u64) as usize;
                let client = self.clients[of];
                self.join(&client);
            }
            1 if self.clients[of].outstanding == 0 => {
                self.bfq.leave(self.clients[of].id);
                let times = self.nr_requests as u32;
                self.clients[of].id = ClientId::new(of, 2 + times);
                let client = self.clients[of];
                self.join(&client);
            }
            2 if self.groups.len() > 1 => {
                let at = self.random.within(1, self.groups.len() as u64 - 1) as usize;
                let settings =
                    GroupSettings { weight: crate::tenancy::weight(&mut self.random), parent: GroupId::ROOT };
                self.bfq.join_group(self.groups[at], &settings);
            }
            3 if self.groups.len() > 1 => {
                // The groups in it belong to the root first.
                let at = self.random.within(1, self.groups.len() as u64 - 1) as usize;
                let settings = GroupSettings { weight: 100, parent: GroupId::ROOT };
                let others: Vec<_> = self.groups.iter().copied().filter(|id| *id != GroupId::ROOT).collect();
                others.into_iter().for_each(|id| self.bfq.join_group(id, &settings));
                for of in 0..self.clients.len() {
                    if self.clients[of].group == at {
                        self.clients[of].group = 0;
                        let client = self.clients[of];
                        self.join(&client);
                    }
                }
                let old = self.groups[at];
                self.bfq.leave_group(old);
                let id = GroupId::new(old.place(), self.nr_requests as u32 + 2);
                self.bfq.join_group(id, &settings);
                self.groups[at] = id;
            }
            _ => {}
        }
    }

    fn play(&mut self, nr_requests: u64) {
        let (changes, floods) = (self.random.below(3), self.random.one_in(2));
        let mut rounds = 0_u64;
        while self.nr_requests < nr_requests || !self.waiting.is_empty() || !self.begun.is_empty() {
            // A step, at which a world ends that has broken a promise.
            thread::yield_now();
            rounds += 1;
            assert!(rounds < 100 * nr_requests, "{} requests wait, and none goes", self.waiting.len());
            for of in 0..self.clients.len() {
                while self.nr_requests < nr_requests
                    && self.clients[of].outstanding < self.clients[of].depth
                    && (floods || self.random.one_in(3))
                {
                    self.insert(of);
                }
            }
            while self.begun.len() < self.depth && self.dispatch() {}
            if changes > 0 && self.random.one_in(100) {
                self.change();
            }
            let next = self.begun.keys().next().map(|(at, _)| *at);
            let has_room = self.begun.len() < self.depth;
            let wakeup = self.bfq.next_wakeup().filter(|_| has_room).map(|wakeup| wakeup.0);
            match (next, wakeup) {
                (Some(next), wakeup) if wakeup.is_none_or(|wakeup| next <= wakeup) => self.complete(),
                (_, Some(wakeup)) => self.now = self.now.max(Time(wakeup)),
                _ if self.nr_requests < nr_requests => self.now = self.now.after(self.random.below(5_000_000)),
                _ => {}
            }
        }
        for client in std::mem::take(&mut self.clients) {
            self.bfq.leave(client.id);
        }
    }
}

fn random_head(random: &mut Random) -> bool {
    random.one_in(200)
}

/// Plays a world; the promise that was broken, if one was.
fn broken(seed: u64) -> Option<(u64, Violation)> {
    let settings = Settings { cpus: 1, scheduler: None, locking: None, mutant: None, live: None };
    let checkers = Checkers::of_bfq(&facts(&Plan::draw(seed, &settings)));
    let witness = Witness::new(History::new(None), checkers, None);
    let ended = run(Box::new(Uniform::new(Random::new(seed), 1000)), Options::default(), {
        let witness = witness.clone();
        move || {
            go_on_for(u64::MAX / 2);
            World::new(seed, witness).play(4000);
        }
    });
    let (violation, _) = witness.end(stamp(), ended == Ended::Finished);
    match (violation, ended) {
        (Some((_, violation)), _) => Some((seed, violation)),
        (None, Ended::Finished) => None,
        (None, other) => Some((seed, Violation::new("panic", format!("{other:?}")))),
    }
}

/// Red if bfq leaves the device idle, gives a group too much, forgets a client's request, or breaks down when groups
/// and clients change.
#[test]
fn bfq_alone_keeps_what_it_promises() {
    assert_eq!((0..600).find_map(broken), None);
}
