//! Replays a trace of Linux on virtual time and asks our scheduler for every choice that Linux's scheduler made.
//!
//! The scheduler sees the insertions and completions of the trace at the trace's times, rounded down to Linux's
//! jiffies. Linux asks its scheduler for one request more than the driver has tags for, and keeps that one aside until
//! a tag comes free. So a choice is made long before the device takes the request:
//! - right after each issue, for the issue that comes next;
//! - if that choice found nothing, when a plug has been emptied into the scheduler (the module `plug` knows when that
//!   is);
//! - if that choice found nothing either, at the issue itself.
//!
//! A policy that takes depth tokens is also asked when an interrupt has returned some. The pools' depths come from the
//! policy's own control (the module `pools`). A message `knob NAME=VALUE` in the trace says that a knob was changed at
//! that time.
//!
//! The replay applies merges as Linux made them, and does not look for merges. What Linux chose shows only at the
//! issue. Until then our scheduler stays as its own choice found it, and what comes in has to wait. So whatever we
//! chose, our scheduler chooses as Linux did, out of what Linux saw, and the replay goes on from there.
//!
//! The replay takes the events one by one and needs memory for the requests that wait or are in the driver, not for the
//! whole trace.

mod agreement;
mod announcements;
mod answers;
mod bfq;
mod decisions;
mod driver;
mod findings;
mod pending;
mod plug;
mod pools;
mod processes;
mod steps;

use std::collections::{BTreeMap, HashSet};

use blkmq_sched::{
    Class, ClientId, Feedback, FeedbackKind, Info, IoPriority, Join, MergeHow, MergeLevel, Op, Replay as Follower,
    RqId, SCHEDULERS, SchedDomain, Tally, Time,
};

pub use self::agreement::{Adjustment, Agreement, Choice, Finding, Request};
pub use self::answers::{Answer, Expired, Replayed};
pub(crate) use self::bfq::as_linuxs;
pub use self::bfq::{Insertions, replay_bfq};
pub use self::decisions::{Decision, Decisions, Line, Queue};
use self::driver::InDriver;
pub use self::findings::{Findings, replay};
use self::pending::{Change, PendingChoice};
use self::plug::Plugs;
use self::pools::Pools;
pub(crate) use self::processes::Members;
pub use self::processes::{Groups, Process, Processes};
pub use self::steps::{Step, steps};
use crate::blktrace::{Action, Category, Event};
use crate::settings::set_knob;
use crate::{Classes, Settings, TextError};

/// One tick of Linux's timer, in nanoseconds: 250 a second.
const JIFFY: u64 = 4_000_000;

/// The most requests that wait, and the most changes since the last choice. Linux has at most 65,536 requests
/// (`nr_requests`). In a trace without issues all requests wait to its end.
const MOST_WAITING: usize = 262_144;

fn scheduler(settings: &Settings) -> Result<(Box<dyn Follower>, Pools), TextError> {
    let mut scheduler = blkmq_sched::replay(settings.scheduler()).ok_or_else(|| {
        let names = SCHEDULERS.iter().map(|scheduler| scheduler.name);
        let accepted: Vec<&str> = names.filter(|name| blkmq_sched::replay(name).is_some()).collect();
        settings.fault(format!(
            "'{}' makes no choices that can be replayed; accepted: {}",
            settings.scheduler(),
            accepted.join(", ")
        ))
    })?;
    let mut throttle = scheduler.init_hctx().and_then(|parts| parts.throttle);
    settings.apply(&mut *scheduler, throttle.as_mut())?;
    Ok((scheduler, Pools::new(throttle)))
}

/// The state of a replay between two events.
struct Replay<'a> {
    scheduler: Box<dyn Follower>,
    pools: Pools,
    classes: &'a Classes,
    plugs: Plugs,
    /// When a depth token was last returned, if the choice behind that is not made yet.
    returned: Option<u64>,
    /// Requests that were inserted and not yet issued, the chosen request included.
    waiting: BTreeMap<RqId, Waiting>,
    pending: Option<PendingChoice>,
    /// Tasks whose last action was a merge.
    merging: HashSet<u32>,
    in_driver: InDriver<Issued>,
    tally: Tally,
    next_id: u64,
    /// How many waiting requests the scheduler has room for.
    capacity: usize,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    info: Info,
    /// When the request was inserted, in nanoseconds.
    since: u64,
    /// When it was allocated.
    allocated: u64,
}

/// A request that the driver has.
#[derive(Debug, Clone, Copy)]
struct Issued {
    class: Class,
    /// In nanoseconds.
    allocated: u64,
    issued: u64,
}

impl Waiting {
    fn describe(&self, now: u64) -> Request {
        Request {
            sector: self.info.sector,
            op: self.info.op,
            class: Some(self.info.priority.class),
            waited: now.saturating_sub(self.since),
        }
    }
}

impl<'a> Replay<'a> {
    fn new(scheduler: Box<dyn Follower>, pools: Pools, classes: &'a Classes) -> Self {
        Self {
            scheduler,
            pools,
            classes,
            plugs: Plugs::default(),
            returned: None,
            waiting: BTreeMap::new(),
            pending: None,
            merging: HashSet::new(),
            in_driver: InDriver::default(),
            tally: Tally::default(),
            next_id: 0,
            capacity: 0,
        }
    }

    /// A text in the trace. Only those that say that one of the policy's knobs was changed matter.
    fn apply(&mut self, time: u64, text: &str) -> Result<(), TextError> {
        let Some((name, value)) = text.strip_prefix("knob ").and_then(|text| text.split_once('=')) else {
            return Ok(());
        };
        self.pools.fold_before(false, time);
        let of_throttle = self.pools.throttle().and_then(|throttle| throttle.knob(name));
        if self.scheduler.knob(name).or(of_throttle).is_none() {
            return Ok(());
        }
        let fault = |what| TextError { place: format!("the trace at {time} ns: '{text}'"), what };
        match value.parse().map(|value| set_knob(&mut *self.scheduler, self.pools.throttle(), name, value)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(fault(error.to_string())),
            Err(_) => Err(fault(format!("{name}: '{value}' is not a whole number"))),
        }
    }

    /// Takes in the next event; `announced` is the number of insertions and merges that it announces and that follow.
    /// Returns the choice that an issue shows.
    fn step(&mut self, event: &Event, announced: Option<u64>) -> Result<Option<Choice>, TextError> {
        if event.action == Action::Notify {
            return Ok(None);
        }
        self.pools.fold_before(event.action == Action::Complete, event.time);
        if let Some(emptied) = self.plugs.closed_by(event) {
            self.look_ahead(emptied);
        }
        // Linux leaves this choice to a thread, which comes after the interrupt.
        if event.action != Action::Complete
            && let Some(returned) = self.returned.take()
        {
            self.look_ahead(returned);
        }
        // A completion comes in an interrupt, so it says nothing about what its task does.
        let merges_on = event.action != Action::Complete && self.merging.remove(&event.pid);
        let beyond = event.sector.checked_add(u64::from(event.nr_sectors())).is_none();
        match event.action {
            // No device has sectors beyond 2^64. The record is broken, so it is ignored.
            Action::GetRequest | Action::Insert | Action::BackMerge | Action::FrontMerge if beyond => {}
            Action::GetRequest => self.plugs.hold(event),
            Action::Insert => {
                self.insert(event);
                if self.plugs.insert(event) {
                    self.look_ahead(event.time);
                }
            }
            Action::BackMerge | Action::FrontMerge => {
                self.merge(event, merges_on);
                self.merging.insert(event.pid);
                if self.plugs.merge(event) {
                    self.look_ahead(event.time);
                }
            }
            Action::Issue => return Ok(Some(self.issue(event))),
            Action::Complete | Action::Requeue => self.leave_driver(event),
            Action::Unplug | Action::UnplugTimer => {
                if let Some(count) = announced {
                    self.plugs.announce(count, event);
                }
            }
            _ => {}
        }
        let nr_changes = self.pending.as_ref().map_or(0, |pending| pending.since.len());
        let awaited = "an issue (D); a trace is compared that has the actions queue, requeue, issue and complete";
        check_waiting(self.waiting.len().max(nr_changes), event, awaited)?;
        Ok(None)
    }

    /// A request enters the scheduler.
    fn insert(&mut self, event: &Event) {
        let id = RqId(self.next_id);
        self.next_id += 1;
        let info = self.info(event);
        if self.waiting.len() >= self.capacity {
            self.capacity = (2 * self.capacity).max(64);
            self.scheduler.reserve(self.capacity);
        }
        let allocated = self.plugs.allocated(event).unwrap_or(event.time);
        self.waiting.insert(id, Waiting { info, since: event.time, allocated });
        self.change(Change::Insert(id, info, jiffies(event.time)));
    }

    /// Changes what waits in the scheduler: at once, or behind the choice that waits for its issue.
    fn change(&mut self, change: Change) {
        match &mut self.pending {
            Some(pending) => pending.since.push(change),
            None => change.apply(&mut *self.scheduler),
        }
    }

    /// Called when a bio or a request joins a request. If that request is still in its submitter's plug, the merge does
    /// not concern the scheduler. `merges_on`: the last action of the task was another merge.
    fn merge(&mut self, event: &Event, merges_on: bool) {
        let absorbed = self.absorbed(event).filter(|_| merges_on && !self.plugs.holds(event));
        if absorbed.is_none() && self.plugs.grow(event) {
            return;
        }
        let Some(id) = self.target(event) else { return };
        let (newcomer, how) = match event.action {
            Action::BackMerge => (self.info(event), MergeHow::Back),
            _ => (self.info(event), MergeHow::Front),
        };
        match absorbed {
            None => self.change(Change::Merge(id, newcomer, how)),
            Some(absorbed) => {
                // In Linux too, no request absorbs itself or one of another class.
                let class = |id| self.waiting[&id].info.priority.class;
                if id == absorbed || class(id) != class(absorbed) {
                    return;
                }
                self.change(Change::Join(Join { survivor: id, absorbed }));
                self.waiting.remove(&absorbed);
            }
        }
        if let Some(rq) = self.waiting.get_mut(&id) {
            enlarge(&mut rq.info, &newcomer);
        }
    }

    /// Called when the device takes a request, which shows Linux's choice.
    fn issue(&mut self, event: &Event) -> Choice {
        let Some(linux) = self.find(event) else {
            // The request never was in the scheduler: it is a flush, or it was inserted before the recording began.
            self.plugs.forget(event);
            let linux = Request { sector: event.sector, op: op(event), class: None, waited: 0 };
            return Choice { time: event.time, linux, ours: None };
        };
        self.look_ahead(event.time);
        let pending = self.pending.take();
        let choice = Choice {
            time: event.time,
            linux: self.waiting[&linux].describe(event.time),
            ours: pending.as_ref().map(|pending| pending.rq.describe(event.time)),
        };
        if let Some(pending) = &pending {
            self.pools.put_back(SchedDomain::of(pending.rq.info.op));
        }
        self.pools.follow(SchedDomain::of(op(event)));
        match pending {
            Some(pending) => pending.settle(linux, &mut *self.scheduler),
            None => assert!(self.scheduler.force(linux, jiffies(event.time)), "it waits"),
        }
        if let Some(rq) = self.waiting.remove(&linux) {
            let issued = Issued { class: rq.info.priority.class, allocated: rq.allocated, issued: event.time };
            self.in_driver.push((event.sector, op(event)), issued);
        }
        if !self.plugs.postpone(event) {
            self.look_ahead(event.time);
        }
        choice
    }

    /// Called when a request completes, or when the driver gives it back. In both cases the driver no longer has it.
    fn leave_driver(&mut self, event: &Event) {
        let Some(rq) = self.in_driver.pop_newest((event.sector, op(event))) else { return };
        self.tally.completed[rq.class.index()] += 1;
        let of = SchedDomain::of(op(event));
        if event.action == Action::Complete {
            let [total, in_device] = [rq.allocated, rq.issued].map(|since| event.time.saturating_sub(since));
            self.pools.complete(of, event.time, total, in_device);
        }
        self.pools.put_back(of);
        self.returned = self.pools.takes_tokens().then_some(event.time);
    }

    /// Lets the scheduler choose the request for the next issue, unless it has chosen already.
    fn look_ahead(&mut self, time: u64) {
        if self.pending.is_some() || self.scheduler.len() == 0 {
            return;
        }
        if self.scheduler.feedback() == FeedbackKind::Sums {
            self.scheduler.observe(Feedback::Sums(&self.tally));
        }
        let at = jiffies(time);
        let chosen = self.scheduler.peek(&mut self.pools, at);
        self.pending = chosen.map(|chosen| PendingChoice { chosen, rq: self.waiting[&chosen], at, since: Vec::new() });
        if self.pending.is_none() {
            // A search for aged requests that finds none may have begun a batch, and one for a token may have ended
            // one.
            self.scheduler.dispatch(&mut self.pools, at);
        }
    }

    /// The waiting request that the merge of `event` enlarges. If several fit, it is the newest one, which Linux finds
    /// first in its hash.
    fn target(&self, event: &Event) -> Option<RqId> {
        let end = event.sector + u64::from(event.nr_sectors());
        let fits = |rq: &Waiting| {
            let touches =
                if event.action == Action::BackMerge { rq.info.end() == event.sector } else { rq.info.sector == end };
            touches && rq.info.op == op(event)
        };
        self.waiting.iter().rev().find(|(_, rq)| fits(rq)).map(|(id, _)| *id)
    }

    /// The waiting request that the merge of `event` removes. `None` if the merge is that of a bio.
    fn absorbed(&self, event: &Event) -> Option<RqId> {
        let is_it = |rq: &Waiting| {
            (rq.info.sector, rq.info.nr_sectors, rq.info.op) == (event.sector, event.nr_sectors(), op(event))
        };
        self.waiting.iter().find(|(_, rq)| event.action == Action::BackMerge && is_it(rq)).map(|(id, _)| *id)
    }

    /// The waiting request that the device takes: our choice if it fits the event, otherwise the oldest request that
    /// fits.
    fn find(&self, event: &Event) -> Option<RqId> {
        let fits = |rq: &Waiting| rq.info.sector == event.sector && rq.info.op == op(event);
        let ours =
            self.pending.as_ref().map(|pending| pending.chosen).filter(|id| self.waiting.get(id).is_some_and(fits));
        ours.or_else(|| self.waiting.iter().find(|(_, rq)| fits(rq)).map(|(id, _)| *id))
    }

    /// What a scheduler would know of the bio or the request of an event.
    fn info(&self, event: &Event) -> Info {
        let priority = IoPriority { class: self.classes.of(event.sector), ..IoPriority::default() };
        info(event, ClientId(0), priority)
    }
}

/// What a scheduler would know of the bio or the request of an event.
fn info(event: &Event, client: ClientId, priority: IoPriority) -> Info {
    let op = op(event);
    Info {
        sector: event.sector,
        nr_sectors: event.nr_sectors(),
        nr_segments: 1,
        op,
        sync: op.is_read() || event.category.contains(Category::SYNC),
        priority,
        client,
        merge: MergeLevel::Full,
        ..Info::default()
    }
}

/// Makes the copy of a request as large as the scheduler's request is.
fn enlarge(info: &mut Info, newcomer: &Info) {
    info.sector = info.sector.min(newcomer.sector);
    info.nr_sectors = info.nr_sectors.saturating_add(newcomer.nr_sectors);
}

/// Refuses more waiting requests, or merges into them, than there can be. `awaited` says what ends their wait, and what
/// the recording must have for it.
fn check_waiting(number: usize, event: &Event, awaited: &str) -> Result<(), TextError> {
    if number <= MOST_WAITING {
        return Ok(());
    }
    let what = format!("more than {MOST_WAITING} insertions and merges wait for {awaited}");
    Err(TextError { place: format!("the trace at {} ns", event.time), what })
}

fn op(event: &Event) -> Op {
    match (event.category.contains(Category::DISCARD), event.is_write()) {
        (true, _) => Op::Discard,
        (false, true) => Op::Write,
        (false, false) => Op::Read,
    }
}

/// The time as Linux's scheduler sees it.
fn jiffies(time: u64) -> Time {
    Time(time - time % JIFFY)
}
