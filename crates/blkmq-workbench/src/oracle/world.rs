//! The load of a recording on virtual time: processes in closed loops, BFQ, and a device that takes so many requests at
//! once, and so long for each. All of them run on one modelled processor.
//!
//! When the device asks decides shares, so it asks as Linux's block layer does:
//!
//! - It asks for one request more than the device takes. That one is *kept* until there is room.
//! - Each insertion makes it ask, each issue, and each timer of the scheduler.
//! - A completion makes it ask only if a request had been kept before, or if the device is empty and is not waiting for
//!   a queue. Otherwise the next request of a client that is waited for would come too late: that of another one would
//!   be injected first.
//! - If it gets nothing, it asks again one to two of Linux's ticks later.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use blkmq_sched::{
    Admission, Bfq, Event as Happened, Expiration, Feedback, Info, InsertAt, Op, Outstanding, Report, RqId, Scheduler,
    Ticket, Time,
};

use super::client::Client;

/// What the guest's only processor takes, in nanoseconds, as the medians of the recordings say: from one issue to the
/// next.
const ISSUE_NS: u64 = 11_000;
/// From a submission to the issue of its request.
const ISSUE_AFTER_SUBMISSION_NS: u64 = 19_000;
/// From a completion to the question that it causes.
const ASK_AFTER_COMPLETION_NS: u64 = 12_000;
/// From a completion to the issue of a request that was kept.
const ISSUE_AFTER_COMPLETION_NS: u64 = 13_500;
/// The time between two ticks of the recorded Linux.
const TICK_NS: u64 = 4_000_000;

/// A request of the past.
#[derive(Debug, Clone, Copy)]
pub(super) struct CompletedRequest {
    /// Whose it was: the place of the client.
    pub(super) client: usize,
    pub(super) nr_sectors: u32,
    /// When it was inserted and when it completed, in nanoseconds.
    pub(super) inserted: u64,
    pub(super) completed: u64,
}

/// What happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum WorldEvent {
    Complete(RqId),
    Submit(usize),
    /// The processor may issue, or ask.
    GoOn,
    /// The device asks again, since it got nothing.
    Again,
    /// A timer of the scheduler goes off, if it was not stopped.
    Timer,
}

#[derive(Debug, Clone, Copy)]
struct Rq {
    client: usize,
    info: Info,
    inserted: u64,
    issued: u64,
    ticket: Option<Ticket>,
}

/// What takes the requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Device {
    /// How many requests it takes at once.
    pub(super) depth: usize,
    /// How long it has each of them, in nanoseconds.
    pub(super) completion_ns: u64,
    /// How many requests may wait or be with it.
    pub(super) nr_requests: usize,
}

/// When the device asks, and when it issues.
#[derive(Debug, Clone, Copy, Default)]
struct Asking {
    /// Something has happened since the device got nothing.
    is_due: bool,
    /// The request that was chosen beyond what the device takes, until it is issued.
    kept: Option<RqId>,
    /// The next completion makes the device ask.
    behind_kept: bool,
    /// When the device asks again by itself, in nanoseconds.
    again: Option<u64>,
    /// When the processor is free to ask, and to issue, in nanoseconds.
    ask_from: u64,
    issue_from: u64,
}

/// A world, until its processes have ended.
#[derive(Debug)]
pub(super) struct World {
    bfq: Bfq,
    clients: Vec<Client>,
    device: Device,
    now: u64,
    /// What comes, by time. The number keeps the order of what comes at one time.
    next: BinaryHeap<Reverse<(u64, u64, WorldEvent)>>,
    count: u64,
    /// All requests so far, by their ids.
    rqs: Vec<Rq>,
    /// How many requests are not over: all, and those that are no reads.
    outstanding: usize,
    others: u64,
    /// Clients whose request finds no room, in the order in which they came.
    outside: VecDeque<(usize, Info)>,
    in_device: usize,
    /// Chosen, and not issued yet.
    chosen: VecDeque<RqId>,
    asking: Asking,
    /// The timer of the scheduler that is set, in nanoseconds.
    timer: Option<u64>,
    done: Vec<CompletedRequest>,
}

impl World {
    pub(super) fn new(mut bfq: Bfq, clients: Vec<Client>, device: Device) -> Self {
        bfq.watch_expirations();
        bfq.reserve(device.nr_requests);
        Self {
            bfq,
            clients,
            device,
            now: 0,
            next: BinaryHeap::new(),
            count: 0,
            rqs: Vec::new(),
            outstanding: 0,
            others: 0,
            outside: VecDeque::new(),
            in_device: 0,
            chosen: VecDeque::new(),
            asking: Asking::default(),
            timer: None,
            done: Vec::new(),
        }
    }

    /// Runs all processes to their ends: the requests in the order in which they completed, and what was expired.
    pub(super) fn run(mut self) -> (Vec<CompletedRequest>, Vec<Expiration>) {
        for client in 0..self.clients.len() {
            self.plan(client);
        }
        let mut expired = Vec::new();
        while let Some(Reverse((time, _, next))) = self.next.pop() {
            self.now = time;
            match next {
                WorldEvent::Complete(rq) => self.complete(rq),
                WorldEvent::Submit(client) => self.submit(client),
                WorldEvent::GoOn => {}
                WorldEvent::Again => self.ask_again(),
                WorldEvent::Timer => self.run_timer(),
            }
            self.ask();
            self.issue();
            self.set_timer();
            expired.extend(self.bfq.take_expirations());
        }
        (self.done, expired)
    }

    fn at(&mut self, time: u64, next: WorldEvent) {
        self.count += 1;
        self.next.push(Reverse((time, self.count, next)));
    }

    fn plan(&mut self, client: usize) {
        for time in self.clients[client].plan(self.now) {
            self.at(time, WorldEvent::Submit(client));
        }
    }

    fn submit(&mut self, place: usize) {
        let client = &mut self.clients[place];
        let info = Info {
            sector: client.submit(),
            nr_sectors: client.nr_sectors,
            nr_segments: 1,
            op: if client.is_write { Op::Write } else { Op::Read },
            sync: true,
            priority: client.priority,
            client: client.id,
            ..Info::default()
        };
        self.outside.push_back((place, info));
        self.admit();
        self.asking.is_due = true;
        self.spend(0, ISSUE_AFTER_SUBMISSION_NS);
    }

    /// Lets in those that find room. A process waits behind its own earlier request, and not behind others'.
    fn admit(&mut self) {
        let mut behind = Vec::new();
        let mut at = 0;
        while let Some((place, info)) = self.outside.get(at).copied() {
            let outstanding = Outstanding { others: self.others, nr_hctxs: 1, reserved: None };
            let admission = self.bfq.limit_depth(&info, outstanding);
            let has_room = self.outstanding < self.device.nr_requests && admission != Admission::Refused;
            if !has_room || behind.contains(&place) {
                behind.push(place);
                at += 1;
                continue;
            }
            self.outside.remove(at);
            self.outstanding += 1;
            self.others += u64::from(!info.op.is_read());
            let id = RqId(self.rqs.len() as u64);
            self.bfq.insert(id, &info, InsertAt::Sorted, Time(self.now));
            self.rqs.push(Rq { client: place, info, inserted: self.now, issued: 0, ticket: None });
        }
    }

    /// Asks for requests, if there is a reason to, until one is kept or there is none.
    fn ask(&mut self) {
        if self.now < self.asking.ask_from {
            return;
        }
        let mut got_nothing = true;
        while self.asking.is_due && self.in_device + self.chosen.len() <= self.device.depth {
            let mut ticket = None;
            let Some(rq) = self.bfq.dispatch(&mut ticket, Time(self.now)) else {
                self.asking.is_due = false;
                if got_nothing && self.bfq.len() > 0 {
                    self.plan_to_ask_again();
                }
                return;
            };
            got_nothing = false;
            self.rqs[rq.0 as usize].ticket = ticket;
            self.chosen.push_back(rq);
            if self.in_device + self.chosen.len() > self.device.depth {
                self.asking.kept = Some(rq);
                self.asking.behind_kept = true;
            }
        }
    }

    fn plan_to_ask_again(&mut self) {
        let again = (self.now / TICK_NS + 2) * TICK_NS;
        if self.asking.again != Some(again) {
            self.asking.again = Some(again);
            self.at(again, WorldEvent::Again);
        }
    }

    fn ask_again(&mut self) {
        if self.asking.again == Some(self.now) {
            self.asking.again = None;
            self.asking.is_due = true;
        }
    }

    /// The device takes the next request that was chosen.
    fn issue(&mut self) {
        if self.in_device == self.device.depth || self.chosen.is_empty() {
            return;
        }
        if self.now < self.asking.issue_from {
            self.at(self.asking.issue_from, WorldEvent::GoOn);
            return;
        }
        let rq = self.chosen.pop_front().expect("a request was chosen");
        if self.asking.kept == Some(rq) {
            self.asking.kept = None;
            self.asking.behind_kept = true;
        }
        self.in_device += 1;
        self.rqs[rq.0 as usize].issued = self.now;
        self.at(self.now + self.device.completion_ns, WorldEvent::Complete(rq));
        self.asking.issue_from = self.now + ISSUE_NS;
        self.asking.is_due = true;
        self.at(self.now, WorldEvent::GoOn);
    }

    /// The processor is busy with an event: it asks nothing before `ask`, and issues nothing before `issue`, in
    /// nanoseconds from now.
    fn spend(&mut self, ask: u64, issue: u64) {
        self.asking.ask_from = self.asking.ask_from.max(self.now + ask);
        self.asking.issue_from = self.asking.issue_from.max(self.now + issue);
        self.at(self.asking.ask_from, WorldEvent::GoOn);
    }

    fn set_timer(&mut self) {
        if let Some(due) = self.bfq.next_wakeup().filter(|due| self.timer != Some(due.0)) {
            self.timer = Some(due.0);
            self.at(due.0.max(self.now + 1), WorldEvent::Timer);
        }
    }

    fn run_timer(&mut self) {
        self.timer = None;
        if self.bfq.next_wakeup().is_some_and(|due| due.0 <= self.now) {
            self.bfq.tick(Time(self.now));
            self.asking.is_due = true;
        }
    }

    fn complete(&mut self, id: RqId) {
        let Rq { client, info, inserted, issued, ticket } = self.rqs[id.0 as usize];
        let in_device = u32::try_from(self.now - issued).unwrap_or(u32::MAX);
        let report = Report { in_device, ..Report::of(Happened::Completed(ticket), &info, Time(self.now)) };
        self.bfq.observe(Feedback::Events(&[report], Time(self.now)));
        self.done.push(CompletedRequest { client, nr_sectors: info.nr_sectors, inserted, completed: self.now });
        self.in_device -= 1;
        self.outstanding -= 1;
        self.others -= u64::from(!info.op.is_read());
        let is_idle = self.in_device == 0 && self.bfq.next_wakeup().is_none();
        self.asking.is_due |= core::mem::take(&mut self.asking.behind_kept) || is_idle;
        self.spend(ASK_AFTER_COMPLETION_NS, ISSUE_AFTER_COMPLETION_NS);
        self.clients[client].complete();
        self.plan(client);
        if self.clients[client].is_done() {
            self.bfq.leave(info.client);
        }
        self.admit();
    }
}
