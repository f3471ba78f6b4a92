//! The counters of a queue: families with one value for each queue.

use blkmq::{DiskStats, QueueCounters};

const SECTOR: u64 = 512;

/// The unit of a counter.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unit {
    /// None, or that in which the family's name ends.
    One,
    /// Milliseconds, shown in seconds.
    Ticks,
    /// Shown in seconds.
    Nanoseconds,
}

/// A family of counters, with a value for each queue.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) unit: Unit,
    pub(super) of: fn(&DiskStats, &QueueCounters) -> u64,
}

const fn count(name: &'static str, help: &'static str, of: fn(&DiskStats, &QueueCounters) -> u64) -> Family {
    Family { name, help, unit: Unit::One, of }
}

const fn ticks(name: &'static str, help: &'static str, of: fn(&DiskStats, &QueueCounters) -> u64) -> Family {
    Family { name, help, unit: Unit::Ticks, of }
}

const fn nanoseconds(name: &'static str, help: &'static str, of: fn(&DiskStats, &QueueCounters) -> u64) -> Family {
    Family { name, help, unit: Unit::Nanoseconds, of }
}

pub(super) const COUNTERS: &[Family] = &[
    count("reads_completed", "Reads that completed.", |stat, _| stat.read_ios),
    count("reads_merged", "Reads that joined another one.", |stat, _| stat.read_merges),
    count("read_bytes", "Bytes of reads that completed.", |stat, _| stat.read_sectors.wrapping_mul(SECTOR)),
    ticks("read_time_seconds", "Time that reads took.", |stat, _| stat.read_ticks),
    count("writes_completed", "Writes that completed.", |stat, _| stat.write_ios),
    count("writes_merged", "Writes that joined another one.", |stat, _| stat.write_merges),
    count("written_bytes", "Bytes of writes that completed.", |stat, _| stat.write_sectors.wrapping_mul(SECTOR)),
    ticks("write_time_seconds", "Time that writes took.", |stat, _| stat.write_ticks),
    ticks("io_time_seconds", "Time in which something was in the queue.", |stat, _| stat.io_ticks),
    ticks("io_time_weighted_seconds", "Time that all requests took.", |stat, _| stat.time_in_queue),
    count("discards_completed", "Discards that completed.", |stat, _| stat.discard_ios),
    count("discards_merged", "Discards that joined another one.", |stat, _| stat.discard_merges),
    count("discarded_bytes", "Bytes of discards that completed.", |stat, _| stat.discard_sectors.wrapping_mul(SECTOR)),
    ticks("discard_time_seconds", "Time that discards took.", |stat, _| stat.discard_ticks),
    count("flush_requests", "Flushes of the device that completed.", |stat, _| stat.flush_ios),
    ticks("flush_requests_time_seconds", "Time that flushes took.", |stat, _| stat.flush_ticks),
    count("errors", "Operations that completed with an error.", |_, stats| stats.errors),
    count("timeouts", "Requests completed because of a timeout.", |_, stats| stats.timeouts),
    count("requeues", "Requests that the device gave back for another try.", |_, stats| stats.requeued),
    count("bypassed", "Requests that bypassed the scheduler.", |_, stats| stats.bypassed),
    count("scheduler_holds", "Acquisitions of the scheduler's lock.", |_, stats| stats.holds),
    count("scheduler_dispatched", "Requests that the scheduler dispatched.", |_, stats| {
        stats.dispatched + stats.dispatched_fast
    }),
    count(
        "bypass_gate_opened",
        "Openings of the gate that lets requests bypass the scheduler while nothing waits.",
        |_, stats| stats.gate.opened,
    ),
    count("bypass_gate_shut", "Closings of the gate that lets requests bypass the scheduler.", |_, stats| {
        stats.gate.shut
    }),
    nanoseconds("bypass_gate_shut_seconds", "Time in which the gate was shut.", |_, stats| stats.gate.shut_ns),
];
