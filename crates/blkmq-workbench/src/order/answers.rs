//! What our scheduler decides in a replay of a recording of BFQ.

use std::io;

use blkmq_sched::Reason;

use super::decisions::Queue;
use super::steps::Step;

/// Our answer to an `ask`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// When the device asked, in nanoseconds.
    pub time: u64,
    /// The request that it gets: whose it is, and its first sector. `None`: nothing for now.
    pub rq: Option<(Queue, u64)>,
}

impl Answer {
    /// Writes a line: the time in nanoseconds, then the process that inserted the request (`A` if nobody waits for it)
    /// and its first sector; `-` for nothing.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        match self.rq {
            Some((queue, sector)) => writeln!(out, "{} {queue} {sector}", self.time),
            None => writeln!(out, "{} -", self.time),
        }
    }
}

/// A queue that our scheduler expired by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expired {
    /// When, in nanoseconds.
    pub time: u64,
    /// Which queue.
    pub queue: Queue,
    /// Why.
    pub reason: Reason,
}

impl Expired {
    /// Writes a line: the time in nanoseconds, the process of the queue (`A` for an asynchronous one, `SHARED` for one
    /// of several), and the reason.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn io::Write) -> io::Result<()> {
        writeln!(out, "{} {} {}", self.time, self.queue, self.reason.as_str())
    }
}

/// A step, and what our scheduler did at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replayed {
    /// The step.
    pub step: Step,
    /// Our answer, if the device asked.
    pub answer: Option<Answer>,
    /// What our scheduler expired by itself since the step before.
    pub expired: Vec<Expired>,
    /// False if Linux did what our scheduler could not follow. Then it is not as Linux's was any more.
    pub is_followed: bool,
}
