//! The pauses of a job, by fio's `thinktime` options.
//!
//! As in fio, a job checks once after each operation whether to pause. If it pauses, it first waits for its outstanding
//! operations. Those complete after the check and count towards the next pause, so a job that pauses after one block
//! submits one block between two pauses, however large its `iodepth` is.

use blkmq::Time;

use crate::job::{Direction, Job, nanoseconds};

/// What a job did since its last pause.
#[derive(Debug)]
pub(crate) struct Think {
    pause_ns: u64,
    spin_ns: u64,
    /// A pause is due after this many operations, or after this long without a pause.
    blocks: u64,
    iotime_ns: Option<u64>,
    /// Whether operations count when they are submitted, not when they complete.
    counts_submitted: bool,
    counted: u64,
    /// The start of the job, or the end of its last pause.
    since: Time,
    /// The end of the part of the pause in which the job computes.
    spin_end: Time,
    /// An operation was submitted after the last check.
    is_unchecked: bool,
    last: Direction,
}

impl Think {
    /// The pauses of a job that begins now; `None` if it never pauses.
    pub(crate) fn new(job: &Job, now: Time) -> Option<Self> {
        (!job.thinktime.is_zero()).then(|| Self {
            pause_ns: nanoseconds(job.thinktime),
            spin_ns: nanoseconds(job.thinktime_spin),
            blocks: job.thinktime_blocks,
            iotime_ns: Some(nanoseconds(job.thinktime_iotime)).filter(|ns| *ns > 0),
            counts_submitted: job.thinktime_blocks_issue,
            counted: 0,
            since: now,
            spin_end: now,
            is_unchecked: false,
            last: Direction::Read,
        })
    }

    /// Called when an operation other than a flush was submitted.
    pub(crate) fn submitted(&mut self, direction: Direction) {
        self.counted += u64::from(self.counts_submitted);
        (self.last, self.is_unchecked) = (direction, true);
    }

    /// Called when an operation other than a flush completed.
    pub(crate) fn completed(&mut self) {
        self.counted += u64::from(!self.counts_submitted);
    }

    /// Checks whether the job pauses once its outstanding operations have completed. False if nothing was submitted
    /// after the last check.
    pub(crate) fn is_due(&mut self, now: Time) -> bool {
        let is_checked = !std::mem::take(&mut self.is_unchecked);
        let is_late = |ns| now.since(self.since) >= ns;
        if is_checked || self.counted < self.blocks && !self.iotime_ns.is_some_and(is_late) {
            return false;
        }
        self.counted = 0;
        true
    }

    /// Begins a pause. Returns when it ends.
    pub(crate) fn begin(&mut self, now: Time) -> Time {
        self.spin_end = now.after(self.spin_ns);
        self.since = now.after(self.pause_ns);
        self.since
    }

    /// Whether the job computes at this time of its pause, instead of sleeping.
    pub(crate) fn spins(&self, now: Time) -> bool {
        now < self.spin_end
    }

    /// Length of a pause, and the direction of the operation before it.
    pub(crate) fn pause(&self) -> (u64, Direction) {
        (self.pause_ns, self.last)
    }
}
