//! Replays a recording of Linux's BFQ: at each time at which the device asked, our scheduler says what it would answer.
//!
//! Two values of our scheduler hear of the same insertions, merges and completions. One *follows*: it decides nothing
//! by itself, and is made to do what Linux did, decision by decision. The other one is a copy of it, made behind
//! Linux's last answer, which decides *freely*, until the device asks again. So our answer to an `ask` depends on what
//! Linux decided before it, and of what is behind the `ask` on its time alone.
//!
//! What the free one expires by itself is noted.

use std::collections::{BTreeMap, HashMap};
use std::mem;

use blkmq_sched::{
    Bfq, ClientId, ClientSettings, Event as Happened, Feedback, Info, InsertAt, IoPriority, Join, MergeHow, QueueName,
    Report, RqId, Scheduler, Setting, Ticket, Time,
};

use super::answers::{Answer, Expired, Replayed};
use super::decisions::{Decision, Line, Queue};
use super::driver::InDriver;
use super::processes::{Groups, Members, Processes};
use super::steps::Step;
use super::{check_waiting, enlarge, info, op};
use crate::blktrace::{Action, Event};
use crate::{Settings, TextError};

/// What comes so many nanoseconds behind an answer, and before anything else, belongs to it: a queue that expires
/// with the request that was taken from it. In the recordings these are 2000 at most; no idle timer is as short.
const BELONGS_NS: u64 = 100_000;

/// So many nanoseconds after its last request has completed a process exits: one that had one request at a time, and
/// one that had several, whose context for asynchronous I/O Linux takes down first. In the recordings these are 1.5 to
/// 3 ms and 18 to 25 ms.
const EXITS_NS: u64 = 1_600_000;
const EXITS_SEVERAL_NS: u64 = 20_000_000;

/// How many requests each process of a trace inserts. When a process exits is an input of the scheduler as its requests
/// are, but no trace says it. So a replay has to know which request of a process is the last one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Insertions(HashMap<u32, u64>);

impl Insertions {
    /// Counts the insertions of all events.
    ///
    /// # Errors
    /// The first error of `events`.
    pub fn count(events: impl Iterator<Item = Result<Event, TextError>>) -> Result<Self, TextError> {
        let mut counts = HashMap::new();
        for event in events {
            let event = event?;
            if event.action == Action::Insert {
                *counts.entry(event.pid).or_default() += 1;
            }
        }
        Ok(Self(counts))
    }
}

/// Replays a recording on BFQ, set up as `settings` says: `steps` in the order of their times, of whose events
/// `insertions` are counted. Steps are taken as the results are.
///
/// # Errors
/// The settings name another scheduler, or a knob or value that it does not have; or there are more groups than it can
/// have. Afterwards, in place of a step: an error of `steps`, more processes than the scheduler can have, or more
/// requests that wait than a device can have.
pub fn replay_bfq<I: Iterator<Item = Result<Step, TextError>>>(
    steps: I,
    insertions: &Insertions,
    settings: &Settings,
    processes: &Processes,
    groups: &Groups,
) -> Result<impl Iterator<Item = Result<Replayed, TextError>> + use<I>, TextError> {
    let (bfq, members) = as_linuxs(settings, processes, groups)?;
    let mut replay = Replay::new(bfq, members);
    for (pid, to_come) in &insertions.0 {
        replay.remaining.entry(*pid).or_default().to_come = *to_come;
    }
    Ok(steps.map(move |step| {
        let step = step?;
        let StepResult { answer, expired, is_not_followed } = replay.take(&step)?;
        Ok(Replayed { step, answer, expired, is_followed: !is_not_followed })
    }))
}

/// BFQ that decides as Linux's does, with the clients that Linux's processes are.
pub(crate) fn as_linuxs(
    settings: &Settings,
    processes: &Processes,
    groups: &Groups,
) -> Result<(Bfq, Members), TextError> {
    let mut bfq = Bfq::new();
    bfq.merge_newborns();
    bfq.decide_early();
    if settings.scheduler() != bfq.name() {
        let what =
            format!("'{}' has no decisions that can be replayed; accepted: {}", settings.scheduler(), bfq.name());
        return Err(settings.fault(what));
    }
    settings.apply(&mut bfq, None)?;
    bfq.configure(Setting::Rotational(settings.is_rotational()?));
    let members = Members::join(&mut bfq, processes, groups)?;
    Ok((bfq, members))
}

/// A request that waits.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    info: Info,
    /// Whose it is: the process that inserted it.
    of: Queue,
}

/// A request that was served, and is on its way to the device or there.
#[derive(Debug, Clone, Copy)]
struct Served {
    info: Info,
    ticket: Option<Ticket>,
    /// In nanoseconds; when the device took it, if the trace says it.
    since: u64,
}

/// The requests of a process that are not over.
#[derive(Debug, Clone, Copy, Default)]
struct Remaining {
    /// Those that it will insert.
    to_come: u64,
    /// Those that wait or are with the device.
    outstanding: usize,
    /// The most of these that there were.
    most: usize,
}

/// The state of a replay between two steps.
struct Replay {
    follows: Bfq,
    free: Bfq,
    /// When Linux gave its last answer, until the free one is a copy again of the one that follows.
    answered: Option<u64>,
    members: Members,
    waiting: BTreeMap<RqId, Waiting>,
    served: InDriver<Served>,
    /// By process.
    remaining: HashMap<u32, Remaining>,
    /// The processes that exit, and when, in nanoseconds.
    exits: Vec<(u64, ClientId)>,
    next_id: u64,
    /// How many waiting requests the values have room for.
    capacity: usize,
    /// What the step did that is being taken.
    done: StepResult,
}

/// What one step did.
#[derive(Debug, Default)]
struct StepResult {
    answer: Option<Answer>,
    expired: Vec<Expired>,
    is_not_followed: bool,
}

impl Replay {
    fn new(mut bfq: Bfq, members: Members) -> Self {
        bfq.watch_expirations();
        bfq.set_following(true);
        let mut replay = Self {
            free: bfq.clone(),
            follows: bfq,
            answered: None,
            members,
            waiting: BTreeMap::new(),
            served: InDriver::default(),
            remaining: HashMap::new(),
            exits: Vec::new(),
            next_id: 0,
            capacity: 0,
            done: StepResult::default(),
        };
        replay.free.set_following(false);
        replay
    }

    /// Takes the next step. Returns what it did.
    fn take(&mut self, step: &Step) -> Result<StepResult, TextError> {
        match step {
            Step::Event(event) => self.apply(event)?,
            Step::Line(line) => self.read(line),
        }
        Ok(mem::take(&mut self.done))
    }

    /// Something happened outside the scheduler.
    fn apply(&mut self, event: &Event) -> Result<(), TextError> {
        let concerns = match event.action {
            // No device has sectors beyond 2^64. The record is broken, so it is ignored.
            Action::Insert | Action::BackMerge | Action::FrontMerge => {
                event.sector.checked_add(u64::from(event.nr_sectors())).is_some()
            }
            Action::Issue => {
                self.issue(event);
                false
            }
            Action::Complete => true,
            _ => false,
        };
        if !concerns {
            return Ok(());
        }
        self.part();
        self.tick(event.time);
        match event.action {
            Action::Insert => self.insert(event)?,
            Action::Complete => self.complete(event),
            _ => self.merge(event),
        }
        self.note();
        Ok(())
    }

    /// Linux decided something.
    fn read(&mut self, line: &Line) {
        let now = Time(line.time);
        let belongs = self.answered.is_some_and(|answered| line.time.saturating_sub(answered) <= BELONGS_NS);
        let is_done = match line.what {
            Decision::Ask => return self.ask(line.time),
            _ if !belongs && self.answered.is_some() => {
                self.part();
                return self.read(line);
            }
            Decision::Expire(_, reason) => {
                self.follows.force_expire(reason, now);
                true
            }
            Decision::Slot(queue) => {
                self.follows.tick(now);
                self.name(queue).is_some_and(|queue| self.follows.force_slot(queue, now))
            }
            Decision::Serve(queue, sector) => {
                self.answered = Some(line.time);
                self.serve(queue, sector, line.time)
            }
            Decision::Nothing => {
                self.answered = Some(line.time);
                self.follows.force_none(now);
                true
            }
        };
        self.done.is_not_followed |= !is_done;
    }

    /// The device asks: our answer.
    fn ask(&mut self, time: u64) {
        self.part();
        self.tick(time);
        let chosen = self.free.dispatch(&mut (), Time(time));
        let rq = chosen.and_then(|id| self.waiting.get(&id)).map(|rq| (rq.of, rq.info.sector));
        self.done.answer = Some(Answer { time, rq });
        self.note();
        // Until Linux's answer comes the free one has gone ahead. If none comes, it goes back all the same.
        self.answered = Some(time);
    }

    /// Behind an answer of Linux the free value goes on from what follows.
    fn part(&mut self) {
        if self.answered.take().is_some() {
            self.free = self.follows.clone();
            self.free.set_following(false);
        }
    }

    /// Lets the idle timers go off, and processes exit.
    fn tick(&mut self, time: u64) {
        while let Some(at) = self.exits.iter().position(|(due, _)| *due <= time) {
            let (due, client) = self.exits.swap_remove(at);
            for bfq in [&mut self.free, &mut self.follows] {
                bfq.tick(Time(due));
                bfq.leave(client);
            }
        }
        self.free.tick(Time(time));
        self.follows.tick(Time(time));
        self.note();
    }

    /// Notes what the free value has expired.
    fn note(&mut self) {
        for expiration in self.free.take_expirations() {
            let queue = match expiration.queue {
                QueueName::Sync(client) => self.members.pid(client).map_or(Queue::Shared, Queue::Sync),
                QueueName::Async => Queue::Async,
                QueueName::Shared => Queue::Shared,
            };
            self.done.expired.push(Expired { time: expiration.at.0, queue, reason: expiration.reason });
        }
        // What was forced is none of ours.
        self.follows.take_expirations();
    }

    /// Our scheduler's name of a queue.
    fn name(&self, queue: Queue) -> Option<QueueName> {
        match queue {
            Queue::Sync(pid) => self.members.client(pid).map(|(client, _)| QueueName::Sync(client)),
            Queue::Async => Some(QueueName::Async),
            Queue::Shared => Some(QueueName::Shared),
        }
    }

    fn insert(&mut self, event: &Event) -> Result<(), TextError> {
        let (client, priority) = self.client(event)?;
        let info = info(event, client, priority);
        let id = RqId(self.next_id);
        self.next_id += 1;
        if self.waiting.len() >= self.capacity {
            self.capacity = (2 * self.capacity).max(64);
            self.follows.reserve(self.capacity);
            self.free.reserve(self.capacity);
        }
        let of = if info.sync { Queue::Sync(event.pid) } else { Queue::Async };
        let remaining = self.remaining.entry(event.pid).or_default();
        remaining.to_come = remaining.to_come.saturating_sub(1);
        remaining.outstanding += 1;
        remaining.most = remaining.most.max(remaining.outstanding);
        self.waiting.insert(id, Waiting { info, of });
        let awaited = "a line 'serve'; the decisions have one for each request that Linux's scheduler gave the device";
        check_waiting(self.waiting.len(), event, awaited)?;
        for bfq in [&mut self.follows, &mut self.free] {
            bfq.insert(id, &info, InsertAt::Sorted, Time(event.time));
        }
        Ok(())
    }

    /// The client that a task is. One that the files do not name joins the root.
    fn client(&mut self, event: &Event) -> Result<(ClientId, IoPriority), TextError> {
        if let Some(known) = self.members.client(event.pid) {
            return Ok(known);
        }
        let priority = IoPriority::default();
        let client = self.members.add(event.pid, priority).ok_or_else(|| TextError {
            place: format!("the trace at {} ns", event.time),
            what: format!("there are more than {} processes", ClientId::PLACES - 1),
        })?;
        for bfq in [&mut self.follows, &mut self.free] {
            bfq.join(client, &ClientSettings::default());
        }
        Ok((client, priority))
    }

    /// A bio or a request joined a request that waits.
    fn merge(&mut self, event: &Event) {
        let is_back = event.action == Action::BackMerge;
        let how = if is_back { MergeHow::Back } else { MergeHow::Front };
        let end = event.sector + u64::from(event.nr_sectors());
        let own = Queue::Sync(event.pid);
        let touches = |rq: &&(&RqId, &Waiting)| {
            let Info { sector, .. } = rq.1.info;
            rq.1.info.op == op(event) && if is_back { rq.1.info.end() == event.sector } else { sector == end }
        };
        // Of several it is the newest one of the process itself, which Linux finds first.
        let fitting = || self.waiting.iter().rev();
        let own_first = fitting().filter(|(_, rq)| rq.of == own).find(|rq| touches(&rq));
        let Some((into, rq)) = own_first.or_else(|| fitting().find(|rq| touches(&rq))).map(|(id, rq)| (*id, *rq))
        else {
            return;
        };
        let newcomer = info(event, rq.info.client, rq.info.priority);
        let is_it = |(id, other): &(&RqId, &Waiting)| {
            let Info { sector, nr_sectors, op, .. } = other.info;
            is_back && **id != into && (sector, nr_sectors, op) == (newcomer.sector, newcomer.nr_sectors, newcomer.op)
        };
        let absorbed = self.waiting.iter().find(is_it).map(|(id, _)| *id);
        let mut is_done = true;
        for bfq in [&mut self.follows, &mut self.free] {
            is_done &= match absorbed {
                Some(absorbed) => bfq.force_join(Join { survivor: into, absorbed }),
                None => bfq.force_merge(into, &newcomer, how),
            };
        }
        if !is_done {
            self.done.is_not_followed = true;
            return;
        }
        if let Some(absorbed) = absorbed {
            self.waiting.remove(&absorbed);
        }
        if let Some(rq) = self.waiting.get_mut(&into) {
            enlarge(&mut rq.info, &newcomer);
        }
    }

    /// Lets the follower answer as Linux did. False if it has no such request.
    fn serve(&mut self, queue: Queue, sector: u64, time: u64) -> bool {
        let fitting = || self.waiting.iter().filter(|(_, rq)| rq.info.sector == sector);
        let Some((id, rq)) = fitting().find(|(_, rq)| rq.of == queue).or_else(|| fitting().next()) else {
            return false;
        };
        let (id, info) = (*id, rq.info);
        let ticket = self.follows.force_serve(id, Time(time));
        if ticket.is_some() {
            self.waiting.remove(&id);
            let served = Served { info, ticket, since: time };
            self.served.push((info.sector, info.op), served);
        }
        ticket.is_some()
    }

    /// The device takes a request.
    fn issue(&mut self, event: &Event) {
        if let Some(served) = self.served.oldest((event.sector, op(event))) {
            served.since = event.time;
        }
    }

    fn complete(&mut self, event: &Event) {
        let Some(Served { info, ticket, since }) = self.served.pop_oldest((event.sector, op(event))) else { return };
        let in_device = u32::try_from(event.time.saturating_sub(since)).unwrap_or(u32::MAX);
        let report = Report { in_device, ..Report::of(Happened::Completed(ticket), &info, Time(event.time)) };
        for bfq in [&mut self.follows, &mut self.free] {
            bfq.observe(Feedback::Events(&[report], Time(event.time)));
        }
        self.note_end(info.client, event.time);
    }

    /// Counts a completed request of a process, which exits after its last one.
    fn note_end(&mut self, client: ClientId, now: u64) {
        let Some(remaining) = self.members.pid(client).and_then(|pid| self.remaining.get_mut(&pid)) else { return };
        remaining.outstanding = remaining.outstanding.saturating_sub(1);
        if remaining.outstanding == 0 && remaining.to_come == 0 {
            let after = if remaining.most > 1 { EXITS_SEVERAL_NS } else { EXITS_NS };
            self.exits.push((now.saturating_add(after), client));
        }
    }
}
