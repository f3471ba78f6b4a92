//! The load of a recording on virtual time: processes in closed loops, BFQ, and a device that takes so many requests at
//! once, and so long for each.
//!
//! As in Linux, the device asks for one request more than it takes, and that one is kept until there is room.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use blkmq_sched::{
    Bfq, Event as Happened, Expiration, Info, InsertAt, MergeLevel, Op, Report, RqId, Scheduler, Ticket, Time,
};

use super::client::Client;

/// Nanoseconds from one issue to the next, and from a completion to the issue of what is kept.
const ISSUE_NS: u64 = 10_000;

/// A request of the past.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    /// Whose it was: the place of the client.
    pub(super) client: usize,
    pub(super) nr_sectors: u32,
    /// When it was inserted and when it completed, in nanoseconds.
    pub(super) inserted: u64,
    pub(super) completed: u64,
}

/// What happens at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Complete(RqId),
    Submit(usize),
    /// The device takes what is kept, or asks.
    Pump,
}

#[derive(Debug)]
struct Rq {
    client: usize,
    info: Info,
    inserted: u64,
    issued: u64,
    ticket: Option<Ticket>,
}

/// A world, until its processes have ended.
#[derive(Debug)]
pub(super) struct World {
    bfq: Bfq,
    clients: Vec<Client>,
    /// How many requests the device takes at once, and for how long it has each, in nanoseconds.
    depth: usize,
    completion_ns: u64,
    now: u64,
    /// What comes, by time. The number keeps the order of what comes at one time.
    next: BinaryHeap<Reverse<(u64, u64, Next)>>,
    count: u64,
    /// All requests so far, by their ids.
    rqs: Vec<Rq>,
    in_device: usize,
    kept: Option<RqId>,
    /// When the device may take the next request.
    may_issue: u64,
    done: Vec<Done>,
}

impl World {
    pub(super) fn new(mut bfq: Bfq, clients: Vec<Client>, depth: usize, completion_ns: u64) -> Self {
        bfq.watch_expirations();
        bfq.reserve(65536);
        Self {
            bfq,
            clients,
            depth,
            completion_ns,
            now: 0,
            next: BinaryHeap::new(),
            count: 0,
            rqs: Vec::new(),
            in_device: 0,
            kept: None,
            may_issue: 0,
            done: Vec::new(),
        }
    }

    /// Runs all processes to their ends: the requests in the order in which they completed, and what was expired.
    pub(super) fn run(mut self) -> (Vec<Done>, Vec<Expiration>) {
        for client in 0..self.clients.len() {
            self.plan(client);
        }
        let mut expired = Vec::new();
        while let Some(Reverse((time, _, next))) = self.next.pop() {
            self.now = time;
            match next {
                Next::Complete(rq) => self.complete(rq),
                Next::Submit(client) => self.submit(client),
                Next::Pump => {}
            }
            self.pump();
            expired.extend(self.bfq.take_expirations());
        }
        (self.done, expired)
    }

    fn at(&mut self, time: u64, next: Next) {
        self.count += 1;
        self.next.push(Reverse((time, self.count, next)));
    }

    fn plan(&mut self, client: usize) {
        for time in self.clients[client].plan(self.now) {
            self.at(time, Next::Submit(client));
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
            ctx: 0,
            merge: MergeLevel::Never,
            merge_key: 0,
        };
        let id = RqId(self.rqs.len() as u64);
        self.bfq.insert(id, &info, InsertAt::Sorted, Time(self.now));
        self.rqs.push(Rq { client: place, info, inserted: self.now, issued: 0, ticket: None });
    }

    /// The device takes what it may, and asks for more.
    fn pump(&mut self) {
        loop {
            if let Some(rq) = self.kept {
                if self.in_device >= self.depth {
                    return;
                }
                if self.now < self.may_issue {
                    self.at(self.may_issue, Next::Pump);
                    return;
                }
                self.kept = None;
                self.in_device += 1;
                self.may_issue = self.now + ISSUE_NS;
                self.rqs[rq.0 as usize].issued = self.now;
                self.at(self.now + self.completion_ns, Next::Complete(rq));
                // The next question comes behind this issue.
                self.at(self.may_issue, Next::Pump);
                return;
            }
            if self.now < self.may_issue {
                return;
            }
            let Some(rq) = self.bfq.dispatch(Time(self.now)) else {
                if let Some(wakeup) = self.bfq.next_wakeup() {
                    self.at(wakeup.0.max(self.now + 1), Next::Pump);
                }
                return;
            };
            self.rqs[rq.0 as usize].ticket = self.bfq.ticket();
            self.kept = Some(rq);
        }
    }

    fn complete(&mut self, id: RqId) {
        let rq = &self.rqs[id.0 as usize];
        let report = Report {
            event: Happened::Completed(rq.ticket),
            client: rq.info.client,
            op: rq.info.op,
            sync: rq.info.sync,
            priority: rq.info.priority,
            requests: 1,
            sectors: rq.info.nr_sectors,
            at: Time(self.now),
            in_device: u32::try_from(self.now - rq.issued).unwrap_or(u32::MAX),
        };
        let client = rq.client;
        self.done.push(Done {
            client,
            nr_sectors: rq.info.nr_sectors,
            inserted: rq.inserted,
            completed: self.now,
        });
        self.bfq.report(&[report], Time(self.now));
        self.in_device -= 1;
        self.may_issue = self.may_issue.max(self.now + ISSUE_NS);
        self.at(self.may_issue, Next::Pump);
        self.clients[client].complete();
        self.plan(client);
    }
}
