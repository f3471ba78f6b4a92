//! Clients of one queue in front of a model, in one thread and on virtual time: each asks for the next operation as
//! soon as one of its own is over.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use blkmq::driver::{Driver, spec};
use blkmq::sched::GroupId;
use blkmq::{Bio, Buffer, Buffers, Client, Clock, Completion, Flags, Op, RequestQueue, Submitter, Time, VirtualClock};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

pub(super) const MS: u64 = 1_000_000;

/// Nanoseconds: completions are counted by slices of this length.
const SLICE: u64 = 10 * MS;

/// Nanoseconds: clients look for answers this often, at most.
const STEP: u64 = 2000;

const SECTOR: u64 = 512;

/// Milliseconds: no request is overdue.
const NEVER: u32 = 10_000_000;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Work {
    /// Operations of so many bytes.
    Data {
        op: Op,
        bytes: u32,
    },
    Flush,
    Discard {
        sectors: u64,
    },
    /// Reads of a block, each followed by a write of it: what a server makes of a write of a part of a block.
    Rewrite,
}

impl Work {
    pub(super) const READ: Self = Self::Data { op: Op::Read, bytes: 4096 };
    pub(super) const WRITE: Self = Self::Data { op: Op::Write, bytes: 4096 };
}

/// A client.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    /// Empty for the root.
    pub(super) group: &'static str,
    pub(super) weight: u16,
    /// How many submitters it has, and how many operations each of them has outstanding.
    pub(super) connections: usize,
    pub(super) depth: usize,
    pub(super) work: Work,
    /// What it does instead in every second stretch of so many nanoseconds.
    pub(super) alternates: Option<(Work, u64)>,
    /// The sectors that it uses; all if this is empty.
    pub(super) area: Range<u64>,
    /// Nanoseconds: how long it asks, and how long it then pauses, from the beginning on.
    pub(super) rhythm: Option<(u64, u64)>,
    /// Nanoseconds: how long a connection stays before it has its operations answered, leaves, and comes again.
    pub(super) stays: Option<u64>,
    /// Nanoseconds between the begin of two operations of a connection, at least.
    pub(super) every: Option<u64>,
    /// Nanoseconds from the beginning in which it asks for nothing.
    pub(super) delay: u64,
}

impl Plan {
    /// A client of weight 100 with one connection that reads blocks at random places.
    pub(super) fn new(name: impl Into<String>, depth: usize) -> Self {
        Self {
            name: name.into(),
            group: "",
            weight: 100,
            connections: 1,
            depth,
            work: Work::READ,
            alternates: None,
            area: 0..0,
            rhythm: None,
            stays: None,
            every: None,
            delay: 0,
        }
    }

    /// What the client asks for at `now`.
    fn work_at(&self, now: Time) -> &Work {
        match &self.alternates {
            Some((other, ns)) if now.0 / ns % 2 == 1 => other,
            _ => &self.work,
        }
    }

    /// When the client asks next, at `now` or later.
    fn asks_from(&self, now: Time) -> Time {
        let since = now.since(Time(self.delay));
        let waits = match self.rhythm {
            Some((asks, pauses)) if since % (asks + pauses) >= asks => asks + pauses - since % (asks + pauses),
            _ => 0,
        };
        now.max(Time(self.delay)).after(waits)
    }
}

/// A group: its name, that of its parent (empty for the root), and its weight.
pub(super) type Group = (&'static str, &'static str, u16);

/// One connection.
struct Connection {
    plan: usize,
    /// `None` between leaving and coming.
    submitter: Option<Submitter>,
    came: Time,
    /// When the next operation may begin.
    due: Time,
    outstanding: usize,
    rng: SmallRng,
}

/// What the clients got.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// By client and slice: operations that completed.
    slices: Vec<Vec<u32>>,
    /// Requests that bypassed the scheduler.
    pub(super) bypassed: u64,
}

impl Outcome {
    /// Operations a second of a client in these milliseconds, which begin and end with a slice.
    pub(super) fn rate(&self, client: usize, ms: Range<u64>) -> f64 {
        let at = |ms: u64| (ms * MS / SLICE) as usize;
        let slices = &self.slices[client];
        let counted: u32 = slices[at(ms.start).min(slices.len())..at(ms.end).min(slices.len())].iter().sum();
        f64::from(counted) * 1e3 / (ms.end - ms.start) as f64
    }

    /// The most milliseconds in a row of these in which nothing of a client completed.
    pub(super) fn longest_wait(&self, client: usize, ms: Range<u64>) -> u64 {
        let at = |ms: u64| (ms * MS / SLICE) as usize;
        let idle = self.slices[client][at(ms.start)..at(ms.end)].split(|completed| *completed > 0);
        idle.map(|slices| slices.len() as u64 * SLICE / MS).max().unwrap_or(0)
    }

    /// Operations a second of all clients in these milliseconds.
    pub(super) fn total(&self, ms: Range<u64>) -> f64 {
        (0..self.slices.len()).map(|client| self.rate(client, ms.clone())).sum()
    }

    /// The rates of all clients in these milliseconds.
    pub(super) fn rates(&self, ms: Range<u64>) -> Vec<f64> {
        (0..self.slices.len()).map(|client| self.rate(client, ms.clone())).collect()
    }
}

/// A queue in front of the model of this spec.
pub(super) fn open(device: &str) -> Arc<dyn Driver> {
    spec::open(device).expect("there is such a device")
}

/// Runs clients for so many milliseconds.
pub(super) fn run(device: &str, scheduler: &str, plans: &[Plan], groups: &[Group], ms: u64) -> Outcome {
    run_on(open(device), scheduler, plans, groups, ms)
}

pub(super) fn run_on(driver: Arc<dyn Driver>, scheduler: &str, plans: &[Plan], groups: &[Group], ms: u64) -> Outcome {
    let clock = VirtualClock::new();
    let most = plans.iter().map(|plan| plan.depth).max().expect("there are clients");
    let slots = u16::try_from(most * 2 + 1).map_or(32768, |slots| slots.min(32768));
    let q = RequestQueue::builder(driver)
        .clock(Clock::Virtual(clock.clone()))
        .slots(slots)
        .scheduler(scheduler)
        .io_timeout_ms(NEVER)
        .build()
        .expect("the device is good");
    let mut ids = HashMap::from([("", GroupId::ROOT)]);
    for (name, parent, weight) in groups {
        ids.insert(*name, q.tenants().add_group(name, ids[parent], *weight).expect("there is room for it"));
    }
    let connections = plans.iter().enumerate().flat_map(|(at, plan)| std::iter::repeat_n(at, plan.connections));
    let connection = |(number, plan): (usize, usize)| Connection {
        plan,
        submitter: None,
        came: Time(0),
        due: Time(plans[plan].delay),
        outstanding: 0,
        rng: SmallRng::seed_from_u64(number as u64 + 1),
    };
    let mut run = Run {
        connections: connections.enumerate().map(connection).collect(),
        plans,
        ids,
        spare: HashMap::new(),
        end: Time(ms * MS),
        poller: 0,
        outcome: Outcome { slices: vec![vec![0; (ms * MS / SLICE) as usize]; plans.len()], bypassed: 0 },
        clock,
        q,
    };
    run.go();
    run.outcome.bypassed = run.q.counters().bypassed;
    run.outcome
}

struct Run<'p> {
    q: RequestQueue,
    clock: VirtualClock,
    plans: &'p [Plan],
    ids: HashMap<&'static str, GroupId>,
    connections: Vec<Connection>,
    spare: HashMap<usize, Vec<Buffers>>,
    end: Time,
    /// Who polled last.
    poller: usize,
    outcome: Outcome,
}

impl Run<'_> {
    fn go(&mut self) {
        let (mut first, len) = (0, self.connections.len());
        loop {
            let now = self.clock.now();
            let mut moved = self.poll(first);
            // The first of a round gets what is scarce, so each round begins with another one.
            for at in (first..len).chain(0..first) {
                moved |= self.reap(at);
                moved |= now < self.end && self.submit(at, now);
            }
            first = (first + 1) % len;
            if moved || self.q.busy_tags() == 0 && self.poll_all() {
                continue;
            }
            if now >= self.end && self.connections.iter().all(|one| one.outstanding == 0) {
                return;
            }
            let next = self.next_time(now).unwrap_or_else(|| panic!("requests wait for nothing at {now:?}"));
            self.clock.advance_to(next.max(now.after(STEP)));
        }
    }

    /// Lets one connection drive the queue for all.
    fn poll(&mut self, first: usize) -> bool {
        let len = self.connections.len();
        let busy = (first..len).chain(0..first).find(|at| self.connections[*at].outstanding > 0);
        let Some(at) = busy else { return false };
        self.poller = at;
        self.connections[at].submitter.as_mut().is_some_and(Submitter::poll)
    }

    fn poll_all(&mut self) -> bool {
        let busy = self.connections.iter_mut().filter(|one| one.outstanding > 0);
        busy.fold(false, |any, one| any | one.submitter.as_mut().is_some_and(Submitter::poll))
    }

    /// When something happens next.
    fn next_time(&self, now: Time) -> Option<Time> {
        let wakeup = |one: &Connection| one.submitter.as_ref().and_then(Submitter::next_wakeup);
        let poller = &self.connections[self.poller];
        let of_queue = if self.q.busy_tags() > 0 && poller.outstanding > 0 {
            wakeup(poller)
        } else {
            self.connections.iter().filter_map(wakeup).min()
        };
        let own = self.connections.iter().filter_map(|one| self.next_begin(one, now)).min().filter(|_| now < self.end);
        let end = (now < self.end).then_some(self.end);
        [of_queue, own, end].into_iter().flatten().min()
    }

    /// When a connection that asks for nothing now does so by itself.
    fn next_begin(&self, one: &Connection, now: Time) -> Option<Time> {
        let plan = &self.plans[one.plan];
        let asks = plan.asks_from(one.due.max(now));
        (asks > now && one.outstanding < plan.depth).then_some(asks)
    }

    fn reap(&mut self, at: usize) -> bool {
        let Some(mut submitter) = self.connections[at].submitter.take() else { return false };
        let mut any = false;
        while let Some(done) = submitter.reap() {
            any = true;
            self.note(at, done, &mut submitter);
        }
        if any {
            submitter.flush_plug();
        }
        self.connections[at].submitter = Some(submitter);
        any
    }

    /// An operation is over.
    fn note(&mut self, at: usize, done: Completion, submitter: &mut Submitter) {
        assert!(done.status.is_ok(), "{:?}: {}", done.bio.op, done.status);
        let plan = self.connections[at].plan;
        if self.plans[plan].work == Work::Rewrite && done.bio.op == Op::Read {
            submitter.submit(Bio { op: Op::Write, ..done.bio }).expect("there is a slot");
            return;
        }
        self.connections[at].outstanding -= 1;
        if let Some(slice) = self.outcome.slices[plan].get_mut((done.completed.0 / SLICE) as usize) {
            *slice += 1;
        }
        if !matches!(done.bio.buffers, Buffers::None) {
            self.spare.entry(done.bio.nr_sectors as usize).or_default().push(done.bio.buffers);
        }
    }

    fn submit(&mut self, at: usize, now: Time) -> bool {
        let plan = &self.plans[self.connections[at].plan];
        if plan.asks_from(now) > now {
            return false;
        }
        let one = &self.connections[at];
        if plan.stays.is_some_and(|ns| one.submitter.is_some() && now.since(one.came) > ns) {
            if one.outstanding > 0 {
                return false;
            }
            self.connections[at].submitter = None;
        }
        if self.connections[at].submitter.is_none() {
            let group = self.ids[plan.group];
            let client = Client { weight: plan.weight, group, ..Client::new(plan.name.clone()) };
            self.connections[at].submitter = Some(self.q.submitter(&client).expect("there is a place"));
            self.connections[at].came = now;
        }
        let mut any = false;
        while self.connections[at].outstanding < plan.depth && self.connections[at].due <= now {
            let bio = self.next(at);
            let one = &mut self.connections[at];
            one.submitter.as_mut().expect("it has come").submit(bio).expect("there is a slot");
            one.outstanding += 1;
            if let Some(ns) = plan.every {
                one.due = one.due.after(ns).max(now);
            }
            any = true;
        }
        if any && let Some(submitter) = &mut self.connections[at].submitter {
            submitter.flush_plug();
        }
        any
    }

    /// The next operation of a connection.
    fn next(&mut self, at: usize) -> Bio {
        let one = &mut self.connections[at];
        let plan = &self.plans[one.plan];
        let area = &plan.area;
        let (op, sectors) = match plan.work_at(self.clock.now()) {
            Work::Data { op, bytes } => (*op, u64::from(*bytes) / SECTOR),
            Work::Flush => return Bio::flush(),
            Work::Discard { sectors } => (Op::Discard, *sectors),
            Work::Rewrite => (Op::Read, 8),
        };
        let area = if area.is_empty() { 0..self.q.limits().capacity_sectors } else { area.clone() };
        let sector = area.start + one.rng.random_range(0..(area.end - area.start) / sectors) * sectors;
        let buffers = match op {
            Op::Read | Op::Write => {
                let spare = self.spare.entry(sectors as usize).or_default().pop();
                spare.unwrap_or_else(|| Buffer::zeroed((sectors * SECTOR) as usize).into())
            }
            _ => Buffers::None,
        };
        let flags = Flags { nomerge: true, sync: op == Op::Write, ..Flags::default() };
        Bio::new(op, sector, sectors, buffers).with_flags(flags)
    }
}
