//! What a worker submits, and what keeps it from submitting more.

use blkmq::{Bio, Buffers, IoPriority, Op, RejectReason, Rejected};

use super::{ALL, Halt, NextPhase, Worker, describe_failure};
use crate::bench::pattern::{Alike, Operation, below};
use crate::bench::plan::SECTOR;
use crate::bench::syncs::Syncs;
use crate::job::{Direction, Operations};

impl Worker {
    /// Submits until something prevents it.
    ///
    /// COST: for each operation of a plain job the pattern's choice, a buffer from a list, and what the block layer
    /// takes for a submission.
    pub(super) fn submit(&mut self) -> Halt {
        if self.then != NextPhase::Submit {
            return Halt::Drain;
        }
        if self.pause.is_some()
            && let Some(halt) = self.pausing()
        {
            return halt;
        }
        while self.outstanding < self.plan.job.iodepth {
            if !self.is_watched
                && self.held.is_none()
                && let Some((alike, left @ 1..)) = self.pattern.alike()
            {
                if !self.submit_alike(alike, left) {
                    break;
                }
                continue;
            }
            if self.is_watched
                && let Some(halt) = self.halt()
            {
                return halt;
            }
            let Some(operation) = self.choose() else {
                if let Some(halt) = self.pass_is_over() {
                    return halt;
                }
                continue;
            };
            if self.is_watched
                && let Some(halt) = self.not_now(&operation)
            {
                self.held = Some(operation);
                return halt;
            }
            if !self.submit_operation(operation) {
                break;
            }
        }
        Halt::Full
    }

    /// Submits operations that are alike, as many as there is room for. Returns false if one was not taken.
    ///
    /// COST: for each its place, a buffer from a list, and what the block layer takes for a submission.
    fn submit_alike(&mut self, alike: Alike, left: u64) -> bool {
        let Alike { direction, nr_sectors } = alike;
        let op = if direction == Direction::Read { Op::Read } else { Op::Write };
        let (flags, batch) = (self.flags[direction], self.plan.job.iodepth_batch_submit);
        let room = u64::from(self.plan.job.iodepth - self.outstanding);
        // The batch fits, because a batch is at most an iodepth.
        let nr = room.min(left).min(u64::from(batch - self.plugged)) as u32;
        for at in 0..nr {
            let buffer = self.spare.pop().unwrap_or_else(|| self.fill.buffer(nr_sectors * SECTOR));
            let sector = self.pattern.next_alike();
            let buffers = Buffers::One(buffer);
            let bio = Bio { op, sector, nr_sectors, flags, priority: None, buffers, user_data: 0 };
            if let Err(rejected) = self.submitter.submit(bio) {
                self.count_alike(alike, at);
                self.rejected(rejected, Some(Operation { direction, at: sector * SECTOR, bytes: nr_sectors * SECTOR }));
                return false;
            }
        }
        self.count_alike(alike, nr);
        if self.plugged >= batch {
            self.plug_is_full();
        }
        true
    }

    fn count_alike(&mut self, alike: Alike, nr: u32) {
        self.pattern.took(alike, nr.into());
        self.outstanding += nr;
        self.plugged += nr;
    }

    /// Returns a halt if a pause has not ended.
    fn pausing(&mut self) -> Option<Halt> {
        let until = self.pause?;
        self.look_at_clock();
        if self.now < until {
            return Some(Halt::Due(until));
        }
        self.end_pause();
        None
    }

    /// Returns a halt if the job pauses now.
    #[inline]
    fn halt(&mut self) -> Option<Halt> {
        let is_due = self.think.as_mut()?.is_due(self.now);
        is_due.then(|| {
            self.then = NextPhase::Think;
            Halt::Drain
        })
    }

    /// The operation that was chosen before, or the next one of the pattern.
    fn next(&mut self) -> Option<Operation> {
        if self.held.is_some() {
            return self.held.take();
        }
        if self.pace.is_some() && matches!(self.plan.job.operations, Operations::ReadWrite { .. }) {
            self.look_at_clock();
        }
        let (pace, now) = (&self.pace, self.now);
        self.pattern.next(|drawn| pace.as_ref().map_or(drawn, |pace| pace.turn(drawn, now)))
    }

    /// The next operation of a job that may have to read back what it wrote. `None` when the reading back, or the pass,
    /// is over.
    fn choose(&mut self) -> Option<Operation> {
        let Some(verifier) = &mut self.verifier else { return self.next() };
        let job = &self.plan.job;
        if self.read_back == 0 && job.verify_backlog > 0 && verifier.nr_unread() as u64 >= job.verify_backlog {
            self.read_back = job.verify_backlog_batch.max(1);
            self.read_back_since = self.now;
        }
        if self.held.is_none() && self.read_back > 0 {
            if let Some(operation) = verifier.next_read() {
                self.read_back -= u64::from(self.read_back < ALL);
                return Some(operation);
            }
            if self.read_back == ALL {
                return None;
            }
            self.read_back = 0;
        }
        self.next()
    }

    /// Why an operation that was chosen cannot be submitted now. Submits the flush that comes before it, if any.
    fn not_now(&mut self, operation: &Operation) -> Option<Halt> {
        if self.read_back == 0
            && self.syncs.as_mut().is_some_and(Syncs::is_due)
            && (!self.submit_flush() || self.outstanding >= self.plan.job.iodepth)
        {
            return Some(Halt::Full);
        }
        if self.verifier.as_ref().is_some_and(|verifier| verifier.overlaps(operation)) {
            return Some(Halt::Full);
        }
        let due = self.pace.as_ref()?.due(operation.direction);
        if due > self.now {
            self.look_at_clock();
        }
        (due > self.now).then_some(Halt::Due(due))
    }

    /// Called when the pattern has no more operations for this pass.
    fn pass_is_over(&mut self) -> Option<Halt> {
        let is_reading_back = self.read_back == ALL;
        if self.plan.is_time_based() && !is_reading_back && !self.must_read_back() {
            self.pattern.begin_pass(false);
            return None;
        }
        self.then = if is_reading_back && self.is_ending { NextPhase::End } else { NextPhase::EndPass };
        Some(Halt::Drain)
    }

    /// Submits an operation. Returns false if it was not taken.
    fn submit_operation(&mut self, operation: Operation) -> bool {
        let (op, buffers) = match operation.direction {
            Direction::Read => (Op::Read, Buffers::One(self.buffer(&operation))),
            Direction::Write => (Op::Write, Buffers::One(self.buffer(&operation))),
            Direction::Trim => (Op::Discard, Buffers::None),
        };
        let Operation { direction, at, bytes } = operation;
        let (flags, priority) = (self.flags[direction], self.draw_priority(direction));
        if let Some(partials) = &mut self.partials {
            partials.submit(&mut self.submitter, operation, flags, priority, buffers);
        } else {
            let (sector, nr_sectors) = (at / SECTOR, bytes / SECTOR);
            let bio = Bio { op, sector, nr_sectors, flags, priority, buffers, user_data: 0 };
            if let Err(rejected) = self.submitter.submit(bio) {
                self.rejected(rejected, Some(operation));
                return false;
            }
        }
        if self.is_watched {
            if let Some(syncs) = &mut self.syncs {
                syncs.submitted(direction);
            }
            if let Some(think) = &mut self.think {
                think.submitted(direction);
            }
            if let Some(pace) = &mut self.pace {
                pace.submitted(direction, bytes);
            }
            if let Some(verifier) = &mut self.verifier {
                verifier.submitted(&operation);
            }
        }
        self.is_plugged();
        true
    }

    /// The priority of an operation, if it is not the client's.
    fn draw_priority(&mut self, direction: Direction) -> Option<IoPriority> {
        let job = &self.plan.job;
        let percent = job.cmdprio_percentage[direction];
        (percent > 0 && below(&mut self.fill.rng, 100) < percent.into()).then_some(job.cmdprio[direction])
    }

    /// Submits a flush. Returns false if it was not taken.
    #[inline(never)]
    pub(super) fn submit_flush(&mut self) -> bool {
        if let Err(rejected) = self.submitter.submit(Bio::flush()) {
            self.rejected(rejected, None);
            return false;
        }
        if let Some(syncs) = &mut self.syncs {
            syncs.flushed();
        }
        self.is_plugged();
        true
    }

    /// Called when an operation was submitted. Passes the plug on if it has enough operations.
    fn is_plugged(&mut self) {
        self.outstanding += 1;
        self.plugged += 1;
        if self.plugged >= self.plan.job.iodepth_batch_submit {
            self.plug_is_full();
        }
    }

    /// Called when the plug has as many operations as are passed on together.
    #[inline(always)]
    fn plug_is_full(&mut self) {
        self.flush_plug();
        if self.plan.job.iodepth_batch_complete_min == 0 {
            self.take(u32::MAX);
        }
    }

    /// Called when an operation was not taken. If there was no room, it is tried again. Otherwise it is never
    /// submitted.
    #[cold]
    fn rejected(&mut self, rejected: Rejected, operation: Option<Operation>) {
        let Rejected { bio, reason } = rejected;
        match reason {
            RejectReason::Bad(status) => {
                self.fail(describe_failure(bio.op, bio.sector * SECTOR, bio.nr_sectors * SECTOR, status));
            }
            RejectReason::Full => self.held = operation,
        }
        if let Buffers::One(buffer) = bio.buffers {
            self.spare.push(buffer);
        }
    }

    /// Passes on what was submitted.
    #[inline]
    pub(super) fn flush_plug(&mut self) {
        if self.plugged > 0 {
            self.recorder.level.note(self.outstanding, u64::from(self.plugged));
            self.recorder.submit.note(self.plugged, 1);
            self.submitter.flush_batch();
            self.plugged = 0;
        }
    }
}
