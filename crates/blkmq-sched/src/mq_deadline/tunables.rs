//! The knobs of `mq-deadline`: the kernel's names, units, defaults and ranges.

use crate::direction::Direction;
use crate::knob::{checked, count, ms, set_defaults, switch};
use crate::scheduler::DEFAULT_NR_REQUESTS;
use crate::{Knob, KnobError};

const INT_MIN: i64 = i32::MIN as i64;
const NS_PER_MS: u64 = 1_000_000;

/// The knobs, in the order of the kernel's sysfs folder.
pub(super) const KNOBS: &[Knob] = &[
    ms("read_expire", 500, "How long a read may wait before it goes first in a new batch."),
    ms("write_expire", 5000, "How long a write may wait before it goes first in a new batch."),
    Knob { min: INT_MIN, ..count("writes_starved", 2, "How many batches of reads may pass waiting writes.") },
    switch("front_merges", 1, "Whether to look for a request that a newcomer can stand in front of."),
    Knob {
        default: None,
        min: 1,
        ..count(
            "async_depth",
            0,
            "How many requests other than synchronous reads may be queued at once; by default nr_requests.",
        )
    },
    count("fifo_batch", 16, "How many requests go in sector order before direction and deadlines are looked at again."),
    ms("prio_aging_expire", 10000, "How long a request may wait before it passes those of higher priority classes."),
];

/// The values of the knobs, times in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Tunables {
    expire: [u64; 2],
    pub(super) writes_starved: i64,
    pub(super) front_merges: bool,
    /// `None`: as many as the queue has requests.
    async_depth: Option<u32>,
    /// Requests per batch in sector order.
    pub(super) fifo_batch: i64,
    pub(super) prio_aging_expire: u64,
    /// The size of the queue.
    nr_requests: u32,
}

impl Tunables {
    /// The defaults.
    pub(super) fn new() -> Self {
        let mut tunables = Self { nr_requests: DEFAULT_NR_REQUESTS, ..Self::default() };
        set_defaults(KNOBS, |name, value| tunables.set(name, value));
        tunables
    }

    pub(super) const fn expire(&self, direction: Direction) -> u64 {
        self.expire[direction as usize]
    }

    pub(super) fn get(&self, name: &str) -> Option<i64> {
        Some(match name {
            "read_expire" => milliseconds(self.expire[Direction::Read as usize]),
            "write_expire" => milliseconds(self.expire[Direction::Write as usize]),
            "writes_starved" => self.writes_starved,
            "front_merges" => i64::from(self.front_merges),
            "async_depth" => i64::from(self.async_depth()),
            "fifo_batch" => self.fifo_batch,
            "prio_aging_expire" => milliseconds(self.prio_aging_expire),
            _ => return None,
        })
    }

    pub(super) fn set(&mut self, name: &str, value: i64) -> Result<(), KnobError> {
        let value = checked(KNOBS, name, value)?;
        match name {
            "read_expire" => self.expire[Direction::Read as usize] = nanoseconds(value),
            "write_expire" => self.expire[Direction::Write as usize] = nanoseconds(value),
            "writes_starved" => self.writes_starved = value,
            "front_merges" => self.front_merges = value == 1,
            "async_depth" => self.async_depth = Some(u32::try_from(value).expect("the range is within 32 bits")),
            "fifo_batch" => self.fifo_batch = value,
            "prio_aging_expire" => self.prio_aging_expire = nanoseconds(value),
            _ => return Err(KnobError::Unknown),
        }
        Ok(())
    }

    /// How many requests other than synchronous reads may be queued at once.
    pub(super) fn async_depth(&self) -> u32 {
        self.async_depth.unwrap_or(self.nr_requests)
    }

    pub(super) fn set_nr_requests(&mut self, nr_requests: u32) {
        self.nr_requests = nr_requests.max(1);
    }
}

const fn nanoseconds(milliseconds: i64) -> u64 {
    core::debug_assert!(milliseconds >= 0, "the range of a time begins at 0");
    milliseconds.unsigned_abs() * NS_PER_MS
}

const fn milliseconds(nanoseconds: u64) -> i64 {
    (nanoseconds / NS_PER_MS).cast_signed()
}
