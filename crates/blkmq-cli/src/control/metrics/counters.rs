//! The counters of a queue: families with one value for each queue.

use blkmq::{DiskStats, QueueCounters};

const SECTOR: u64 = 512;

/// The value of a family, in the unit that ends the family's name.
pub(super) enum Sample {
    Count(u64),
    /// Milliseconds, shown in seconds.
    Ticks(u64),
    /// Shown in seconds.
    Nanoseconds(u64),
}

/// A family of counters, with a value for each queue.
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) of: fn(&DiskStats, &QueueCounters) -> Sample,
}

pub(super) const COUNTERS: &[Family] = &[
    Family { name: "reads_completed", help: "Reads that completed.", of: |stat, _| Sample::Count(stat.read_ios) },
    Family {
        name: "reads_merged",
        help: "Reads that joined another one.",
        of: |stat, _| Sample::Count(stat.read_merges),
    },
    Family {
        name: "read_bytes",
        help: "Bytes of reads that completed.",
        of: |stat, _| Sample::Count(stat.read_sectors.wrapping_mul(SECTOR)),
    },
    Family { name: "read_time_seconds", help: "Time that reads took.", of: |stat, _| Sample::Ticks(stat.read_ticks) },
    Family { name: "writes_completed", help: "Writes that completed.", of: |stat, _| Sample::Count(stat.write_ios) },
    Family {
        name: "writes_merged",
        help: "Writes that joined another one.",
        of: |stat, _| Sample::Count(stat.write_merges),
    },
    Family {
        name: "written_bytes",
        help: "Bytes of writes that completed.",
        of: |stat, _| Sample::Count(stat.write_sectors.wrapping_mul(SECTOR)),
    },
    Family {
        name: "write_time_seconds",
        help: "Time that writes took.",
        of: |stat, _| Sample::Ticks(stat.write_ticks),
    },
    Family {
        name: "io_time_seconds",
        help: "Time in which something was in the queue.",
        of: |stat, _| Sample::Ticks(stat.io_ticks),
    },
    Family {
        name: "io_time_weighted_seconds",
        help: "Time that all requests took.",
        of: |stat, _| Sample::Ticks(stat.time_in_queue),
    },
    Family {
        name: "discards_completed",
        help: "Discards that completed.",
        of: |stat, _| Sample::Count(stat.discard_ios),
    },
    Family {
        name: "discards_merged",
        help: "Discards that joined another one.",
        of: |stat, _| Sample::Count(stat.discard_merges),
    },
    Family {
        name: "discarded_bytes",
        help: "Bytes of discards that completed.",
        of: |stat, _| Sample::Count(stat.discard_sectors.wrapping_mul(SECTOR)),
    },
    Family {
        name: "discard_time_seconds",
        help: "Time that discards took.",
        of: |stat, _| Sample::Ticks(stat.discard_ticks),
    },
    Family {
        name: "flush_requests",
        help: "Flushes of the device that completed.",
        of: |stat, _| Sample::Count(stat.flush_ios),
    },
    Family {
        name: "flush_requests_time_seconds",
        help: "Time that flushes took.",
        of: |stat, _| Sample::Ticks(stat.flush_ticks),
    },
    Family {
        name: "errors",
        help: "Operations that completed with an error.",
        of: |_, stats| Sample::Count(stats.errors),
    },
    Family {
        name: "timeouts",
        help: "Requests completed because of a timeout.",
        of: |_, stats| Sample::Count(stats.timeouts),
    },
    Family {
        name: "requeues",
        help: "Requests that the device gave back for another try.",
        of: |_, stats| Sample::Count(stats.requeued),
    },
    Family {
        name: "bypassed",
        help: "Requests that passed the scheduler by.",
        of: |_, stats| Sample::Count(stats.bypassed),
    },
    Family {
        name: "scheduler_holds",
        help: "Acquisitions of the scheduler's lock.",
        of: |_, stats| Sample::Count(stats.holds),
    },
    Family {
        name: "scheduler_dispatched",
        help: "Requests that the scheduler dispatched.",
        of: |_, stats| Sample::Count(stats.dispatched + stats.dispatched_fast),
    },
    Family {
        name: "bypass_gate_opened",
        help: "Openings of the gate that lets requests pass the scheduler by while nothing waits.",
        of: |_, stats| Sample::Count(stats.gate.opened),
    },
    Family {
        name: "bypass_gate_shut",
        help: "Closings of the gate that lets requests pass the scheduler by.",
        of: |_, stats| Sample::Count(stats.gate.shut),
    },
    Family {
        name: "bypass_gate_shut_seconds",
        help: "Time in which the gate was shut.",
        of: |_, stats| Sample::Nanoseconds(stats.gate.shut_ns),
    },
];
