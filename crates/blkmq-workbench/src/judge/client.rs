//! A client at work: it submits what its plan says, and notes what became of it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use blkmq::{Bio, Completion, Flags, IoPriority, Op, RejectReason, RqId, Submitter, Time};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::error::JudgeError;
use super::journal::Journal;
use super::load::{Pace, Plan, SMALL, Step};
use crate::bench::Latency;
use crate::buffers::BufferPool;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// The most reads that one step of a script submits.
pub(super) const MOST_AHEAD: usize = 64;

/// What became of a client's operations.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientResult {
    /// How long the counted operations took.
    pub(super) latency: Latency,
    /// Operations that completed after the warm-up and before the end, and their bytes.
    pub(super) operations: u64,
    pub(super) bytes: u64,
    /// Nanoseconds: the longest wait of any operation before the device got it, and the longest that the device took.
    pub(super) longest_wait_ns: u64,
    pub(super) longest_device_ns: u64,
    /// For each operation, if the plan asks for it: nanoseconds from the beginning of the run to its completion, and
    /// nanoseconds that it waited before the device got it.
    pub(super) log: Vec<(u64, u64)>,
    /// Nanoseconds from the client's beginning to the end of its script.
    pub(super) script_ns: Option<u64>,
}

/// A client at work.
#[derive(Debug)]
pub(super) struct Worker {
    plan: Plan,
    /// One for each queue.
    pub(super) submitters: Vec<Submitter>,
    /// The queue of the next operation.
    queue: usize,
    rng: SmallRng,
    journal: Option<Arc<Journal>>,
    /// The client's place in the load.
    number: usize,
    /// When the run began, and when this client does.
    start: Time,
    begin: Time,
    /// The next sector of a sequential client.
    at: u64,
    outstanding: u32,
    /// When the next operation of a paced client, or the next step of a script, is due.
    due: Time,
    /// When each operation is due that a thinking client does not have outstanding, the next one first.
    thought: BinaryHeap<Reverse<Time>>,
    /// The step of the script that is next, and the read that has to be over before it.
    step: usize,
    awaited: Option<RqId>,
    pub(super) result: ClientResult,
}

/// The times between which operations are counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) from: Time,
    pub(super) to: Time,
}

impl Worker {
    pub(super) fn new(
        plan: Plan,
        submitters: Vec<Submitter>,
        journal: Option<Arc<Journal>>,
        start: Time,
        number: usize,
    ) -> Self {
        let begin = start.after(plan.begin_ns);
        let at = plan.area.start;
        let first =
            if let Pace::Script(steps) = &plan.pace { steps.first().map_or(0, |step| step.think_ns) } else { 0 };
        let nr_thinking = if let Pace::Thinking(_) = plan.pace { plan.depth } else { 0 };
        Self {
            plan,
            submitters,
            queue: 0,
            rng: SmallRng::seed_from_u64(number as u64 + 1),
            journal,
            number,
            start,
            begin,
            at,
            outstanding: 0,
            due: begin.after(first),
            thought: (0..nr_thinking).map(|_| Reverse(begin)).collect(),
            step: 0,
            awaited: None,
            result: ClientResult::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outstanding == 0
    }

    /// Whether anything is outstanding at the queue with this number.
    pub(super) fn has_at(&self, queue: usize) -> bool {
        self.submitters[queue].nr_outstanding() > 0
    }

    pub(super) const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Submits one read that is not in the plan.
    pub(super) fn read_once(&mut self, now: Time, pool: &mut BufferPool) -> Result<(), JudgeError> {
        let op = std::mem::replace(&mut self.plan.op, Op::Read);
        let submitted = self.submit_one((self.plan.area.start, SMALL / SECTOR as u32), false, now, pool);
        self.plan.op = op;
        submitted.map(drop)
    }

    /// Whether the client has a script, and is done with it.
    pub(super) fn script_is_over(&self) -> Option<bool> {
        let Pace::Script(steps) = &self.plan.pace else { return None };
        Some(self.step == steps.len() && self.is_idle())
    }

    /// The next time at which the client does something by itself.
    pub(super) fn next_time(&self, now: Time) -> Option<Time> {
        if now < self.begin {
            return Some(self.begin);
        }
        match &self.plan.pace {
            Pace::Closed => None,
            Pace::Thinking(_) => self.thought.peek().map(|Reverse(due)| *due),
            Pace::Every(_) => (self.outstanding < self.plan.depth).then_some(self.due),
            Pace::Script(steps) => (self.awaited.is_none() && self.step < steps.len()).then_some(self.due),
        }
    }

    /// Submits what may be submitted. Returns false if there was nothing.
    pub(super) fn submit(&mut self, now: Time, pool: &mut BufferPool) -> Result<bool, JudgeError> {
        if now < self.begin || now.since(self.start) >= self.plan.end_ns {
            return Ok(false);
        }
        if let Pace::Script(_) = self.plan.pace {
            return self.submit_step(now, pool);
        }
        let mut moved = false;
        while self.outstanding < self.plan.depth {
            let since = match self.plan.pace {
                Pace::Every(_) if self.due > now => break,
                Pace::Every(ns) => {
                    let due = self.due;
                    self.due = due.after(ns);
                    due
                }
                Pace::Thinking(_) => match self.thought.peek() {
                    Some(Reverse(due)) if *due <= now => self.thought.pop().map_or(now, |Reverse(due)| due),
                    _ => break,
                },
                Pace::Closed | Pace::Script(_) => now,
            };
            let sector = self.next_sector();
            let nr_sectors = self.plan.bytes / SECTOR as u32;
            self.submit_one((sector, nr_sectors), false, since, pool)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Submits the reads of the next step, if it is due.
    fn submit_step(&mut self, now: Time, pool: &mut BufferPool) -> Result<bool, JudgeError> {
        let Pace::Script(steps) = &self.plan.pace else { return Ok(false) };
        let has_room = self.outstanding as usize + MOST_AHEAD < self.plan.depth as usize;
        if self.awaited.is_some() || self.due > now || !has_room {
            return Ok(false);
        }
        let Some(Step { ahead, read, .. }) = steps.get(self.step).cloned() else { return Ok(false) };
        for place in ahead {
            self.submit_one(place, true, now, pool)?;
        }
        self.awaited = Some(self.submit_one(read, false, now, pool)?);
        Ok(true)
    }

    fn submit_one(
        &mut self,
        (sector, nr_sectors): (u64, u32),
        is_ahead: bool,
        since: Time,
        pool: &mut BufferPool,
    ) -> Result<RqId, JudgeError> {
        let Plan { op, class, level, merges, .. } = self.plan;
        let buffer = pool.take(nr_sectors as usize * SECTOR as usize);
        let flags = Flags { sync: op == Op::Write, readahead: is_ahead, nomerge: !merges, ..Flags::default() };
        let bio = Bio::new(op, sector, u64::from(nr_sectors), buffer.into())
            .with_flags(flags)
            .with_priority(IoPriority { class, level })
            .with_user_data(since.0);
        if let Some(journal) = &self.journal {
            journal.arrived(op.is_read(), sector, self.number);
        }
        let next = (self.queue + 1) % self.submitters.len();
        let submitter = &mut self.submitters[std::mem::replace(&mut self.queue, next)];
        let id = submitter.submit(bio).map_err(|rejected| match rejected.reason {
            RejectReason::Full => JudgeError::Failed(format!("{}: there is no slot for an operation", self.plan.name)),
            RejectReason::Bad(_) => JudgeError::Failed(format!("{}: {rejected}", self.plan.name)),
        })?;
        self.outstanding += 1;
        submitter.flush_plug();
        Ok(id)
    }

    fn next_sector(&mut self) -> u64 {
        let nr_sectors = u64::from(self.plan.bytes) / SECTOR;
        let area = &self.plan.area;
        if !self.plan.is_sequential {
            let places = (area.end - area.start) / nr_sectors;
            return area.start + self.rng.random_range(0..places) * nr_sectors;
        }
        let sector = if self.at + nr_sectors > area.end { area.start } else { self.at };
        self.at = sector + nr_sectors;
        sector
    }

    /// Reaps completed operations. Returns how many were counted, and how many there were.
    pub(super) fn reap(&mut self, window: Window, pool: &mut BufferPool) -> Result<(u64, u64), JudgeError> {
        let (mut counted, mut all) = (0, 0);
        while let Some(done) = self.submitters.iter_mut().find_map(Submitter::reap) {
            all += 1;
            self.outstanding -= 1;
            if !done.status.is_ok() {
                let Bio { op, sector, .. } = done.bio;
                return Err(JudgeError::Failed(format!("{op:?} at sector {sector}: {}", done.status)));
            }
            counted += u64::from(self.note(&done, window));
            pool.put(done.bio.buffers);
        }
        Ok((counted, all))
    }

    /// Notes one operation. Returns whether it counts.
    fn note(&mut self, done: &Completion, window: Window) -> bool {
        let completed = done.completed;
        let result = &mut self.result;
        result.longest_wait_ns = result.longest_wait_ns.max(done.issued.since(done.submitted));
        result.longest_device_ns = result.longest_device_ns.max(completed.since(done.issued));
        if let Pace::Thinking(ns) = self.plan.pace {
            self.thought.push(Reverse(completed.after(ns)));
        }
        if self.plan.is_logged {
            result.log.push((completed.since(self.start), done.issued.since(done.submitted)));
        }
        if self.awaited == Some(done.id) {
            self.awaited = None;
            self.step += 1;
            if let Pace::Script(steps) = &self.plan.pace {
                match steps.get(self.step) {
                    Some(step) => self.due = completed.after(step.think_ns),
                    None => result.script_ns = Some(completed.since(self.begin)),
                }
            }
        }
        if completed < window.from || completed > window.to {
            return false;
        }
        result.operations += 1;
        result.bytes += done.bio.nr_sectors * SECTOR;
        result.latency.record(completed.since(Time(done.bio.user_data)));
        true
    }
}
