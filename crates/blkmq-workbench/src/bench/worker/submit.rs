//! What a worker submits, and what keeps it from submitting more.

use blkmq::{Bio, Buffer, Buffers, Op, RejectReason, Rejected, Time};

use super::{Halt, Then, Worker, describe};
use crate::bench::pattern::Step;
use crate::bench::plan::nanoseconds;
use crate::job::Direction;

impl Worker {
    /// Submits until something is in the way.
    pub(super) fn submit(&mut self) -> Halt {
        loop {
            if self.then != Then::Submit {
                return Halt::Drain;
            }
            if self.outstanding >= self.plan.job.iodepth {
                return Halt::Full;
            }
            if let Some(halt) = self.halt() {
                return halt;
            }
            let Some(step) = self.held.take().or_else(|| self.pattern.next()) else {
                if let Some(halt) = self.pass_is_over() {
                    return halt;
                }
                continue;
            };
            if let Some(time) = self.due(&step) {
                self.held = Some(step);
                return Halt::Due(time);
            }
            if !self.submit_step(step) {
                return Halt::Full;
            }
        }
    }

    /// What is in the way of any operation.
    #[inline]
    fn halt(&mut self) -> Option<Halt> {
        if let Some(until) = self.pause {
            self.look_at_clock();
            if self.now < until {
                return Some(Halt::Due(until));
            }
            self.pause = None;
        }
        let job = &self.plan.job;
        if !job.thinktime.is_zero() && self.is_time_to_think() {
            self.then = Then::Think;
            return Some(Halt::Drain);
        }
        let every = job.fsync.max(job.fdatasync);
        if every > 0 && self.writes >= every {
            if !self.submit_bio(Bio::flush(), None) {
                return Some(Halt::Full);
            }
            self.writes = 0;
            if self.outstanding >= self.plan.job.iodepth {
                return Some(Halt::Full);
            }
        }
        None
    }

    fn is_time_to_think(&self) -> bool {
        let job = &self.plan.job;
        if job.thinktime_iotime.is_zero() {
            self.since_pause >= job.thinktime_blocks
        } else {
            self.now.since(self.io_since) >= nanoseconds(job.thinktime_iotime)
        }
    }

    /// When a step is due, if that is later than now.
    #[inline]
    fn due(&mut self, step: &Step) -> Option<Time> {
        let due = self.pace.as_ref()?.due(step.direction);
        if due > self.now {
            self.look_at_clock();
        }
        (due > self.now).then_some(due)
    }

    /// The pattern has no more operations for this pass.
    fn pass_is_over(&mut self) -> Option<Halt> {
        if self.plan.is_time_based() {
            self.pattern.begin_pass(false);
            return None;
        }
        self.then = Then::EndPass;
        Some(Halt::Drain)
    }

    /// Submits an operation; false if there was no room for it.
    #[inline]
    fn submit_step(&mut self, step: Step) -> bool {
        let bytes = step.bytes();
        let (op, buffers) = match step.direction {
            Direction::Read => (Op::Read, Buffers::One(self.buffer(bytes))),
            Direction::Write => (Op::Write, Buffers::One(self.buffer(bytes))),
            Direction::Trim => (Op::Discard, Buffers::None),
        };
        let bio = Bio { flags: self.flags[step.direction], ..Bio::new(op, step.sector, step.nr_sectors, buffers) };
        if !self.submit_bio(bio, Some(step)) {
            return false;
        }
        self.writes += u32::from(step.direction == Direction::Write);
        self.since_pause += u64::from(self.plan.job.thinktime_blocks_issue);
        if let Some(pace) = &mut self.pace {
            pace.submitted(step.direction, bytes);
        }
        true
    }

    /// A buffer of that length.
    #[inline]
    fn buffer(&mut self, bytes: u64) -> Buffer {
        match self.spare.pop() {
            Some(buffer) if buffer.len() as u64 == bytes => buffer,
            _ => self.fill.buffer(bytes),
        }
    }

    #[inline]
    pub(super) fn submit_bio(&mut self, bio: Bio, step: Option<Step>) -> bool {
        match self.submitter.submit(bio) {
            Ok(_) => {
                self.outstanding += 1;
                self.plugged += 1;
                if self.plugged >= self.plan.job.iodepth_batch_submit {
                    self.flush_plug();
                    if self.plan.job.iodepth_batch_complete_min == 0 {
                        self.take(u32::MAX);
                    }
                }
                true
            }
            Err(Rejected { bio, reason }) => {
                if let RejectReason::Bad(status) = reason {
                    self.fail(format!("{}: {status}", describe(&bio)));
                } else {
                    self.held = step;
                }
                if let Buffers::One(buffer) = bio.buffers {
                    self.spare.push(buffer);
                }
                false
            }
        }
    }

    /// Passes on what was submitted.
    #[inline]
    pub(super) fn flush_plug(&mut self) {
        if self.plugged > 0 {
            self.recorder.level.note(self.outstanding, u64::from(self.plugged));
            self.recorder.submit.note(self.plugged, 1);
            self.submitter.flush_plug();
            self.plugged = 0;
        }
    }
}
