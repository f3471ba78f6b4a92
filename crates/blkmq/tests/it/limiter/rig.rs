//! A scheduler, a limiter and a device model on virtual time, in one thread: a paced reader, and writers or readers
//! that keep a number of requests outstanding. Each load is a client of its own. What waits behind the scheduler goes
//! as the limiter, a fixed depth, or the device's own depth lets it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::device::{Random, open};
use blkmq::driver::Driver;
use blkmq::driver::harness::Harness;
use blkmq::sched::limiter::{Limiter, Progress, Target};
use blkmq::sched::{
    ClientSettings, Event, Feedback, FeedbackKind, Info, InsertAt, Op, Report, RqId, Scheduler, Setting, Ticket,
    scheduler,
};
use blkmq::{Bio, Buffer, Buffers, ClientId, Time};

pub(crate) const US: u64 = 1000;
pub(crate) const MS: u64 = 1000 * US;
pub(crate) const SECOND: u64 = 1000 * MS;

/// What bounds the requests that are with the device.
#[derive(Debug, Clone)]
pub(crate) enum Control {
    Depth(usize),
    Limiter(Box<Limiter>),
}

impl Control {
    pub(crate) fn limiter() -> Self {
        Self::Limiter(Box::new(Limiter::new(Target::Auto)))
    }
}

/// Requests that come by themselves, or that one keeps outstanding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) op: Op,
    pub(crate) sectors: u32,
    /// Requests that are kept outstanding.
    pub(crate) depth: usize,
    /// If not 0, one comes each so many nanoseconds, and none is kept outstanding.
    pub(crate) period: u64,
    /// Whether each comes behind the one before, or anywhere.
    pub(crate) sequential: bool,
    /// A thread waits for each.
    pub(crate) sync: bool,
    /// Nanoseconds from a completion to the request that takes its place, if requests are kept outstanding.
    pub(crate) think: u64,
}

impl Load {
    /// A reader of 4 KiB, so many times a second.
    pub(crate) fn paced(rate: u64) -> Self {
        Self { period: SECOND / rate, ..Self::flood(Op::Read, 8, 0) }
    }

    pub(crate) fn flood(op: Op, sectors: u32, depth: usize) -> Self {
        Self { op, sectors, depth, period: 0, sequential: false, sync: op.is_read(), think: 0 }
    }
}

/// A request on its way.
#[derive(Debug, Clone, Copy)]
struct Rq {
    load: usize,
    info: Info,
    came: Time,
    went: Time,
    cost: u32,
    ticket: Option<Ticket>,
}

/// What the loads have got done since [`Rig::begin`].
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// Nanoseconds from arrival to completion, by load.
    pub(crate) latencies: Vec<Vec<u64>>,
    pub(crate) sectors: Vec<u64>,
    /// Sectors of all loads, by 100 ms.
    pub(crate) by_tenth: Vec<u64>,
    /// Nanoseconds in which the device had nothing and something waited.
    idle: u64,
    pub(crate) ns: u64,
}

impl Counts {
    /// Microseconds that so many of ten thousand requests of a load do not exceed.
    pub(crate) fn us(&self, load: usize, share: usize) -> f64 {
        let mut sorted = self.latencies[load].clone();
        sorted.sort_unstable();
        assert!(!sorted.is_empty(), "requests of load {load} completed");
        sorted[(sorted.len() * share / 10_000).min(sorted.len() - 1)] as f64 / 1000.0
    }

    /// MB/s of all loads.
    pub(crate) fn all(&self) -> f64 {
        self.sectors.iter().sum::<u64>() as f64 * 512e3 / self.ns as f64
    }

    /// Percent of the time in which the device had nothing and something waited.
    pub(crate) fn idle(&self) -> f64 {
        self.idle as f64 * 100.0 / self.ns as f64
    }

    /// By how much the worst 100 ms differ from the mean, in percent.
    pub(crate) fn unsteadiness(&self) -> f64 {
        let whole = &self.by_tenth[..(self.ns / (100 * MS)) as usize];
        let mean = whole.iter().sum::<u64>() as f64 / whole.len() as f64;
        whole.iter().map(|tenth| (*tenth as f64 - mean).abs() / mean * 100.0).fold(0.0, f64::max)
    }
}

pub(crate) struct Rig<'d> {
    devices: Vec<Harness<'d>>,
    drivers: Vec<&'d dyn Driver>,
    /// Where requests go: a device that becomes another one is another device.
    pub(crate) active: usize,
    scheduler: Box<dyn Scheduler>,
    pub(crate) control: Control,
    loads: Vec<Load>,
    /// Requests of each load that are not over.
    outstanding: Vec<usize>,
    due: Vec<Time>,
    /// When the requests of each load come that its client still thinks about.
    thoughts: Vec<VecDeque<Time>>,
    places: Vec<u64>,
    pub(crate) now: Time,
    rqs: HashMap<u64, Rq>,
    next_id: u64,
    in_device: usize,
    work: u64,
    progress: Progress,
    least_read: Option<u64>,
    held_back: bool,
    /// Whether something waits and may not go just now.
    holds: bool,
    begun: Time,
    counts: Counts,
    spare: BTreeMap<usize, VecDeque<Buffer>>,
    random: Random,
    /// How far apart folds are at least, in nanoseconds.
    pub(crate) fold_each: u64,
    /// Whether the scheduler is told of the limiter's slice. Only a planted mistake does not tell it.
    pub(crate) tells_slice: bool,
    folded: Time,
    /// Whether something has completed since the last fold: a queue's limiter is folded by a completer.
    has_completed: bool,
    /// The most work that was with the device beside another request, over the bound.
    pub(crate) exceeded: u64,
    /// A thread comes at multiples of this, in nanoseconds, and not as soon as there is something to do.
    pub(crate) comes_each: u64,
}

/// The client that a load is. The first id belongs to no client.
pub(crate) fn client(load: usize) -> ClientId {
    ClientId::new(load + 1, 0)
}

/// Opens a device for the length of the program, as a rig borrows it.
pub(crate) fn device(spec: &str) -> &'static dyn Driver {
    &**Box::leak(Box::new(open(spec)))
}

impl<'d> Rig<'d> {
    pub(crate) fn new(drivers: &[&'d dyn Driver], policy: &str, control: Control, loads: &[Load]) -> Self {
        let mut scheduler = scheduler(policy).expect("there is such a scheduler");
        scheduler.reserve(loads.iter().map(|load| load.depth + 4096).sum());
        scheduler.configure(Setting::Rotational(drivers[0].limits().rotational));
        (0..loads.len()).for_each(|load| scheduler.join(client(load), &ClientSettings::default()));
        Self {
            devices: drivers.iter().map(|driver| Harness::new(*driver, 0)).collect(),
            drivers: drivers.to_vec(),
            active: 0,
            scheduler,
            control,
            loads: loads.to_vec(),
            outstanding: vec![0; loads.len()],
            due: vec![Time(0); loads.len()],
            thoughts: vec![VecDeque::new(); loads.len()],
            places: (0..loads.len() as u64).map(|load| load << 22).collect(),
            now: Time(0),
            rqs: HashMap::new(),
            next_id: 0,
            in_device: 0,
            work: 0,
            progress: Progress::default(),
            least_read: None,
            held_back: false,
            holds: false,
            begun: Time(0),
            counts: Counts::default(),
            spare: BTreeMap::new(),
            random: Random(1),
            fold_each: MS,
            tells_slice: true,
            folded: Time(0),
            has_completed: false,
            exceeded: 0,
            comes_each: 1,
        }
        .started()
    }

    fn started(mut self) -> Self {
        self.begin();
        for load in 0..self.loads.len() {
            self.fill(load);
        }
        self
    }

    /// Counts from now on.
    pub(crate) fn begin(&mut self) -> Counts {
        self.counts.ns = self.now.since(self.begun);
        self.begun = self.now;
        let nr = self.loads.len();
        let fresh = Counts { latencies: vec![Vec::new(); nr], sectors: vec![0; nr], ..Counts::default() };
        std::mem::replace(&mut self.counts, fresh)
    }

    /// Runs for so many nanoseconds, and returns what was counted in them.
    pub(crate) fn run(&mut self, ns: u64) -> Counts {
        self.begin();
        let end = self.now.after(ns);
        while self.now < end {
            self.step(end);
        }
        self.begin()
    }

    pub(crate) fn limiter(&mut self) -> &mut Limiter {
        match &mut self.control {
            Control::Limiter(limiter) => limiter,
            Control::Depth(_) => panic!("there is no limiter"),
        }
    }

    pub(crate) fn scheduler(&mut self) -> &mut dyn Scheduler {
        &mut *self.scheduler
    }

    /// From now on a load keeps so many requests outstanding.
    pub(crate) fn set_depth(&mut self, load: usize, depth: usize) {
        self.loads[load].depth = depth;
        self.fill(load);
    }

    /// From now on the client that a load is has this weight.
    pub(crate) fn set_weight(&mut self, load: usize, weight: u16) {
        self.scheduler.join(client(load), &ClientSettings { weight, ..ClientSettings::default() });
    }

    fn fill(&mut self, load: usize) {
        while self.outstanding[load] + self.thoughts[load].len() < self.loads[load].depth {
            self.insert(load);
        }
    }

    fn insert(&mut self, load: usize) {
        self.outstanding[load] += 1;
        let Load { op, sectors, sequential, sync, .. } = self.loads[load];
        let place = &mut self.places[load];
        if sequential {
            *place += u64::from(sectors);
        } else {
            *place = self.random.below(1 << 20) * 128;
        }
        let info = Info {
            sector: *place,
            nr_sectors: sectors,
            nr_segments: 1,
            op,
            sync,
            client: client(load),
            ..Info::default()
        };
        let id = self.next_id;
        self.next_id += 1;
        self.rqs.insert(id, Rq { load, info, came: self.now, went: self.now, cost: 0, ticket: None });
        self.scheduler.insert(RqId(id), &info, InsertAt::Sorted, self.now);
    }

    /// Whether the next request may go now.
    fn may_go(&self) -> bool {
        if self.in_device >= usize::from(self.drivers[self.active].topology().depth) {
            return false;
        }
        match &self.control {
            Control::Depth(depth) => self.in_device < *depth,
            Control::Limiter(limiter) => limiter.has_room(self.work, 0) && limiter.opens_at(self.now).is_none(),
        }
    }

    /// Asks the scheduler, and once more if it would let something go by now, as a queue does.
    fn choose(&mut self, ticket: &mut Option<Ticket>) -> Option<RqId> {
        let first = self.scheduler.dispatch(ticket, self.now);
        let is_due = first.is_none() && self.scheduler.next_wakeup().is_some_and(|due| due <= self.now);
        if is_due { self.scheduler.dispatch(ticket, self.now) } else { first }
    }

    fn dispatch(&mut self) {
        while !self.scheduler.is_empty() && self.may_go() {
            let mut ticket = None;
            let Some(RqId(id)) = self.choose(&mut ticket) else { break };
            let rq = self.rqs.get_mut(&id).expect("what is dispatched was inserted");
            rq.went = self.now;
            rq.ticket = ticket;
            if let Control::Limiter(limiter) = &mut self.control {
                rq.cost = limiter.cost(rq.info.op, rq.info.nr_sectors);
                if let Some(bound) = limiter.bound().filter(|_| self.work > 0) {
                    self.exceeded = self.exceeded.max(self.work.saturating_sub(bound));
                }
                limiter.sent(rq.cost, self.now);
            }
            self.work += u64::from(rq.cost);
            self.in_device += 1;
            let Info { sector, nr_sectors, op, .. } = rq.info;
            let bytes = nr_sectors as usize * 512;
            let buffer = self.spare.entry(bytes).or_default().pop_front();
            let buffer = buffer.unwrap_or_else(|| Buffer::zeroed(bytes));
            let bio = Bio::new(op, sector, u64::from(nr_sectors), buffer.into()).with_user_data(id);
            self.devices[self.active].push(bio);
            let finished = self.devices[self.active].issue(self.now);
            finished.into_iter().for_each(|(bio, _)| self.complete(bio));
        }
        let in_time = matches!(&self.control, Control::Limiter(limiter) if !limiter.is_open());
        self.holds = !self.scheduler.is_empty() && in_time;
        self.held_back |= self.holds;
    }

    fn complete(&mut self, bio: Bio) {
        let rq = self.rqs.remove(&bio.user_data).expect("it was under way");
        if let Buffers::One(buffer) = bio.buffers {
            self.spare.entry(rq.info.nr_sectors as usize * 512).or_default().push_back(buffer);
        }
        self.has_completed = true;
        self.in_device -= 1;
        self.work -= u64::from(rq.cost);
        let in_device = self.now.since(rq.went);
        if rq.info.op.is_read() {
            self.progress.reads.add(rq.info.op, rq.info.nr_sectors, in_device);
            self.progress.reads_under_way += self.now.since(rq.came);
            self.least_read = Some(self.least_read.unwrap_or(u64::MAX).min(in_device));
        } else {
            self.progress.others.add(rq.info.op, rq.info.nr_sectors, in_device);
        }
        if self.scheduler.feedback() == FeedbackKind::Events {
            let report = Report::of(Event::Completed(rq.ticket), &rq.info, self.now);
            let in_device = in_device.min(u32::MAX.into()) as u32;
            self.scheduler.observe(Feedback::Events(&[Report { in_device, ..report }], self.now));
        }
        self.counts.latencies[rq.load].push(self.now.since(rq.came));
        self.counts.sectors[rq.load] += u64::from(rq.info.nr_sectors);
        let tenth = (self.now.since(self.begun) / (100 * MS)) as usize;
        if self.counts.by_tenth.len() <= tenth {
            self.counts.by_tenth.resize(tenth + 1, 0);
        }
        self.counts.by_tenth[tenth] += u64::from(rq.info.nr_sectors);
        self.outstanding[rq.load] -= 1;
        let Load { depth, think, .. } = self.loads[rq.load];
        if think > 0 && self.outstanding[rq.load] + self.thoughts[rq.load].len() < depth {
            self.thoughts[rq.load].push_back(self.now.after(think));
        }
        self.fill(rq.load);
    }

    /// When the limiter is to learn, if something has completed by then.
    fn next_fold(&self) -> Option<Time> {
        let Control::Limiter(limiter) = &self.control else { return None };
        let look = limiter.next_look().filter(|_| self.has_completed)?;
        Some(look.max(self.folded.after(self.fold_each)))
    }

    fn fold(&mut self) {
        if self.next_fold().is_none_or(|next| next > self.now) {
            return;
        }
        if let Control::Limiter(limiter) = &mut self.control {
            (self.folded, self.has_completed) = (self.now, false);
            let progress = Progress {
                least_read: self.least_read.take(),
                in_flight: self.work,
                held_back: std::mem::replace(&mut self.held_back, self.holds),
                ..self.progress
            };
            limiter.fold(&progress, self.now);
            self.scheduler.configure(Setting::Slice(limiter.slice().filter(|_| self.tells_slice)));
        }
    }

    /// Does all that is to be done now, and goes on to the next event.
    fn step(&mut self, end: Time) {
        for device in 0..self.devices.len() {
            let finished = self.devices[device].poll(self.now);
            finished.into_iter().for_each(|(bio, _)| self.complete(bio));
        }
        for load in 0..self.loads.len() {
            while self.loads[load].period > 0 && self.due[load] <= self.now {
                self.insert(load);
                self.due[load] = self.due[load].after(self.loads[load].period);
            }
            while self.thoughts[load].pop_front_if(|due| *due <= self.now).is_some() {
                self.insert(load);
            }
        }
        self.fold();
        self.dispatch();
        let mut next = end;
        for driver in &self.drivers {
            next = next.min(driver.next_event(0).time().unwrap_or(end));
        }
        for (load, due) in self.loads.iter().zip(&self.due) {
            next = if load.period > 0 { next.min(*due) } else { next };
        }
        next = self.thoughts.iter().filter_map(|thoughts| thoughts.front()).fold(next, |next, due| next.min(*due));
        if !self.scheduler.is_empty() {
            next = next.min(self.scheduler.next_wakeup().unwrap_or(end));
        }
        next = self.next_fold().map_or(next, |fold| next.min(fold));
        if let Control::Limiter(limiter) = &self.control
            && !self.scheduler.is_empty()
        {
            next = next.min(limiter.opens_at(self.now).unwrap_or(end));
        }
        let next = Time(next.max(Time(self.now.0 + 1)).0.next_multiple_of(self.comes_each)).min(end);
        if self.in_device == 0 && !self.scheduler.is_empty() {
            self.counts.idle += next.since(self.now);
        }
        self.now = next;
    }
}
