//! The knobs of `mq-deadline`: the kernel's names, units, defaults and ranges.

use super::direction::Direction;
use crate::knob::{checked, set_defaults};
use crate::scheduler::DEFAULT_NR_REQUESTS;
use crate::{Knob, KnobError, Unit};

const INT_MAX: i64 = i32::MAX as i64;
const INT_MIN: i64 = i32::MIN as i64;
const NS_PER_MS: u64 = 1_000_000;

/// The knobs, in the order of the kernel's sysfs folder.
pub(super) const KNOBS: &[Knob] = &[
    Knob {
        name: "read_expire",
        unit: Unit::Milliseconds,
        default: Some(500),
        min: 0,
        max: INT_MAX,
        about: "How long a read may wait before it goes first in a new batch.",
    },
    Knob {
        name: "write_expire",
        unit: Unit::Milliseconds,
        default: Some(5000),
        min: 0,
        max: INT_MAX,
        about: "How long a write may wait before it goes first in a new batch.",
    },
    Knob {
        name: "writes_starved",
        unit: Unit::Count,
        default: Some(2),
        min: INT_MIN,
        max: INT_MAX,
        about: "How many batches of reads may pass waiting writes.",
    },
    Knob {
        name: "front_merges",
        unit: Unit::Switch,
        default: Some(1),
        min: 0,
        max: 1,
        about: "Whether to look for a request that a newcomer can stand in front of.",
    },
    Knob {
        name: "async_depth",
        unit: Unit::Count,
        default: None,
        min: 1,
        max: INT_MAX,
        about: "How many requests other than synchronous reads may be queued at once; by default nr_requests.",
    },
    Knob {
        name: "fifo_batch",
        unit: Unit::Count,
        default: Some(16),
        min: 0,
        max: INT_MAX,
        about: "How many requests go in sector order before direction and deadlines are looked at again.",
    },
    Knob {
        name: "prio_aging_expire",
        unit: Unit::Milliseconds,
        default: Some(10000),
        min: 0,
        max: INT_MAX,
        about: "How long a request may wait before it passes those of higher priority classes.",
    },
];

/// The values of the knobs, times in nanoseconds.
#[derive(Debug)]
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

impl Default for Tunables {
    fn default() -> Self {
        let mut tunables = Self {
            expire: [0; 2],
            writes_starved: 0,
            front_merges: false,
            async_depth: None,
            fifo_batch: 0,
            prio_aging_expire: 0,
            nr_requests: DEFAULT_NR_REQUESTS,
        };
        set_defaults(KNOBS, |name, value| tunables.set(name, value));
        tunables
    }
}

impl Tunables {
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
    debug_assert!(milliseconds >= 0, "the range of a time begins at 0");
    milliseconds.unsigned_abs() * NS_PER_MS
}

const fn milliseconds(nanoseconds: u64) -> i64 {
    (nanoseconds / NS_PER_MS).cast_signed()
}
