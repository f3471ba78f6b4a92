//! The requests that a device works on.

use blkmq_sched::{Op, RqId, Time};
use blkmq_vcpu::CpuId;
use blkmq_virtual::Status;

use super::medium::Mark;

/// What a request does to the medium.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// What is asked; a read does nothing to the medium.
    pub(crate) op: Option<Op>,
    /// Past the cache.
    pub(crate) through: bool,
    /// First sector and length of each range.
    pub(crate) ranges: Vec<(u64, u32)>,
    /// Of a write, what each sector shall hold.
    pub(crate) stamps: Vec<u64>,
    /// Of a flush, when it began.
    pub(crate) mark: Mark,
    /// It has done so already.
    pub(crate) is_done: bool,
}

/// A request that was started.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) id: RqId,
    /// Which one it was of all that were started.
    pub(crate) number: u64,
    /// When it completes; [`NEVER`]: not by itself.
    pub(crate) due: Time,
    pub(crate) status: Status,
    /// The queue is being told that it was started; only then may it complete.
    pub(crate) is_starting: bool,
    /// How often the device was asked about it.
    pub(crate) asked: u32,
    pub(crate) work: Work,
}

/// Behind every other time.
pub(crate) const NEVER: Time = Time(u64::MAX);

/// A hardware queue, as the device sees it.
#[derive(Debug)]
pub(crate) struct HwQueue {
    pub(crate) held: Vec<Held>,
    /// When the first request is due that may complete.
    pub(crate) next_due: Time,
    /// When the last one is.
    pub(crate) last_due: Time,
    /// It takes no request before.
    pub(crate) busy_until: Time,
    /// Who calls for it, if it is owned.
    pub(crate) caller: Option<CpuId>,
}

impl HwQueue {
    /// Without requests, and with room for `depth`.
    pub(crate) fn new(depth: usize) -> Self {
        Self { held: Vec::with_capacity(depth), next_due: NEVER, last_due: Time(0), busy_until: Time(0), caller: None }
    }

    pub(crate) fn find(&mut self, id: RqId) -> Option<usize> {
        self.held.iter().position(|held| held.id == id)
    }

    /// The place of each request that may complete now.
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
