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
    /// The start of the pause that has not ended.
    began: Option<Time>,
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
            began: None,
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
        self.began = Some(now);
        self.spin_end = now.after(self.spin_ns);
        self.since = now.after(self.pause_ns);
        self.since
    }

    /// Whether the job computes at this time of its pause, instead of sleeping.
    pub(crate) fn spins(&self, now: Time) -> bool {
        now < self.spin_end
    }

    /// Ends a pause. Returns its length, which a late wake-up adds to, and the direction of the operation before it;
    /// `None` if there was no pause.
    pub(crate) fn end(&mut self, now: Time) -> Option<(u64, Direction)> {
        let began = self.began.take()?;
        self.since = now;
        Some((now.since(began), self.last))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Red if a rate that ignores pauses makes up for late wake-ups, as one that shifts by the nominal length does.
    #[test]
    fn a_late_wake_up_lengthens_the_pause() {
        let job = Job { thinktime: Duration::from_millis(10), ..Job::new("tested") };
        let mut think = Think::new(&job, Time(0)).expect("the job pauses");
        assert_eq!(think.end(Time(1)), None, "there was no pause yet");
        think.submitted(Direction::Write);
        think.completed();
        assert!(think.is_due(Time(2)) && !think.is_due(Time(2)), "it is checked once after an operation");
        assert_eq!(think.begin(Time(2)), Time(10_000_002));
        assert_eq!(think.end(Time(14_000_002)), Some((14_000_000, Direction::Write)));
    }
}
