//! The requests that a device works on.

use blkmq_sched::{Op, RqId, Time};
use blkmq_vcpu::CpuId;
use blkmq_virtual::Status;

use super::medium::Mark;

/// How a request changes the medium.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// What the request asks for. A read does not change the medium.
    pub(crate) op: Option<Op>,
    /// Whether the data goes past the cache.
    pub(crate) through: bool,
    /// First sector and length of each range.
    pub(crate) ranges: Vec<(u64, u32)>,
    /// What each sector shall hold, for a write.
    pub(crate) stamps: Vec<u64>,
    /// When the flush began, for a flush.
    pub(crate) mark: Mark,
    /// Whether the medium has been changed already.
    pub(crate) is_done: bool,
}

/// A request that was started.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) id: RqId,
    /// The number of the request among all that were started.
    pub(crate) number: u64,
    /// When the request completes. [`NEVER`]: not by itself.
    pub(crate) due: Time,
    pub(crate) status: Status,
    /// The queue is just being told that the request was started. The request may complete only after that.
    pub(crate) is_starting: bool,
    /// How often the device was asked about it.
    pub(crate) asked: u32,
    pub(crate) work: Work,
}

/// Later than every other time.
pub(crate) const NEVER: Time = Time(u64::MAX);

/// A hardware queue, as the device sees it.
#[derive(Debug)]
pub(crate) struct HwQueue {
    pub(crate) held: Vec<Held>,
    /// When the first of the requests that may complete is due.
    pub(crate) next_due: Time,
    /// When the last of them is due.
    pub(crate) last_due: Time,
    /// When the hardware queue has worked on all that it has, if it has a limit.
    pub(crate) works_until: Time,
    /// The hardware queue takes no request before this time.
    pub(crate) busy_until: Time,
    /// The CPU that is calling for the hardware queue, if the hardware queue is owned.
    pub(crate) caller: Option<CpuId>,
}

impl HwQueue {
    /// A hardware queue without requests, and with room for `depth` of them.
    pub(crate) fn new(depth: usize) -> Self {
        Self {
            held: Vec::with_capacity(depth),
            next_due: NEVER,
            last_due: Time(0),
            works_until: Time(0),
            busy_until: Time(0),
            caller: None,
        }
    }

    pub(crate) fn find(&mut self, id: RqId) -> Option<usize> {
        self.held.iter().position(|held| held.id == id)
    }

    /// The index of each request that may complete now.
    pub(crate) fn due(&self, now: Time) -> impl Iterator<Item = usize> {
        let due = self.held.iter().enumerate().filter(move |(_, held)| !held.is_starting && held.due <= now);
        due.map(|(place, _)| place)
    }

    /// Forgets a request.
    pub(crate) fn take(&mut self, place: usize) -> Held {
        let held = self.held.swap_remove(place);
        if held.due <= self.next_due {
            self.note_next_due();
        }
        held
    }

    /// Called when a request became due earlier or later, or was forgotten.
    pub(crate) fn note_next_due(&mut self) {
        let may_complete = self.held.iter().filter(|held| !held.is_starting);
        self.next_due = may_complete.map(|held| held.due).min().unwrap_or(NEVER);
    }
}
