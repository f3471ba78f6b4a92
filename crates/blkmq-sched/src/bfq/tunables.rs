//! The knobs of `bfq`: the kernel's names, units, defaults and ranges.

use super::clock::{NS_PER_MS, NS_PER_US, Ticks, of_ms};
use crate::knob::{checked, count, kib, ms, set_defaults, switch};
use crate::{Knob, KnobError, Unit};

/// With strict guarantees, a queue is waited for at least this long.
const LEAST_STRICT_IDLE: u64 = 8 * NS_PER_MS;

/// The knobs, in the order of the kernel's sysfs folder.
pub(super) const KNOBS: &[Knob] = &[
    ms("fifo_expire_sync", 125, "How long a synchronous request may wait before it goes first in its queue."),
    ms("fifo_expire_async", 250, "How long an asynchronous request may wait before it goes first in its queue."),
    kib("back_seek_max", 16384, "How far back from the last request the next one of a queue may be."),
    Knob { min: 1, ..count("back_seek_penalty", 2, "How many times its length a way back counts.") },
    ms("slice_idle", 8, "How long the device waits for the next request of a queue; 0: it does not."),
    Knob::new("slice_idle_us", Unit::Microseconds, 8000, "The same as slice_idle, in microseconds."),
    Knob::new(
        "max_budget",
        Unit::Sectors,
        0,
        "How much a queue is served at most before the next one; 0: as much as the device does in timeout_sync.",
    ),
    Knob { min: 1, ..ms("timeout_sync", 124, "How long a queue is served at most before the next one.") },
    switch(
        "strict_guarantees",
        0,
        "Whether to keep shares at any cost: one request in the device, and always wait for the next one.",
    ),
    switch("low_latency", 1, "Whether programs that start or play are served before those that read and write much."),
];

/// The values of the knobs, times in nanoseconds.
#[derive(Debug, Clone, Default)]
pub(super) struct Tunables {
    /// For asynchronous and for synchronous requests.
    fifo_expire: [u64; 2],
    /// In KiB.
    back_seek_max: u64,
    pub(super) back_seek_penalty: u64,
    pub(super) slice_idle: u64,
    /// In sectors; with 0 the largest budget follows the device's rate.
    pub(super) max_budget: u64,
    /// In milliseconds.
    timeout_sync: u64,
    pub(super) strict_guarantees: bool,
    pub(super) low_latency: bool,
}

impl Tunables {
    /// The defaults.
    pub(super) fn new() -> Self {
        let mut tunables = Self::default();
        set_defaults(KNOBS, |name, value| tunables.set(name, value));
        tunables
    }

    pub(super) const fn expire(&self, is_sync: bool) -> u64 {
        self.fifo_expire[is_sync as usize]
    }

    pub(super) const fn back_seek_max_sectors(&self) -> u64 {
        self.back_seek_max * 2
    }

    pub(super) const fn timeout(&self) -> Ticks {
        of_ms(self.timeout_sync)
    }

    pub(super) fn get(&self, name: &str) -> Option<i64> {
        let value = match name {
            "fifo_expire_sync" => self.fifo_expire[1] / NS_PER_MS,
            "fifo_expire_async" => self.fifo_expire[0] / NS_PER_MS,
            "back_seek_max" => self.back_seek_max,
            "back_seek_penalty" => self.back_seek_penalty,
            "slice_idle" => self.slice_idle / NS_PER_MS,
            "slice_idle_us" => self.slice_idle / NS_PER_US,
            "max_budget" => self.max_budget,
            "timeout_sync" => self.timeout_sync,
            "strict_guarantees" => u64::from(self.strict_guarantees),
            "low_latency" => u64::from(self.low_latency),
            _ => return None,
        };
        Some(value.cast_signed())
    }

    pub(super) fn set(&mut self, name: &str, value: i64) -> Result<(), KnobError> {
        let value = checked(KNOBS, name, value)?;
        debug_assert!(value >= 0, "no range begins below 0");
        let value = value.unsigned_abs();
        match name {
            "fifo_expire_sync" => self.fifo_expire[1] = value * NS_PER_MS,
            "fifo_expire_async" => self.fifo_expire[0] = value * NS_PER_MS,
            "back_seek_max" => self.back_seek_max = value,
            "back_seek_penalty" => self.back_seek_penalty = value,
            "slice_idle" => self.slice_idle = value * NS_PER_MS,
            "slice_idle_us" => self.slice_idle = value * NS_PER_US,
            "max_budget" => self.max_budget = value,
            "timeout_sync" => self.timeout_sync = value,
            "strict_guarantees" => {
                self.strict_guarantees = value == 1;
                if value == 1 {
                    self.slice_idle = self.slice_idle.max(LEAST_STRICT_IDLE);
                }
            }
            "low_latency" => self.low_latency = value == 1,
            _ => return Err(KnobError::Unknown),
        }
        Ok(())
    }
}
