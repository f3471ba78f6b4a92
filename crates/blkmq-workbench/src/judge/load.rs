//! What clients ask of a device.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use blkmq::sched::DEFAULT_WEIGHT;
use blkmq::{Class, IoPriority, Op};

use super::journal::Journal;
use super::promises::Knob;
use crate::job::nanoseconds;

/// Bytes of the small operations.
pub(super) const SMALL: u32 = 4096;
/// Bytes of the operations of a flood of writes.
pub(super) const LARGE: u32 = 65536;

/// A step of a script: what is read, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    /// Nanoseconds from the end of the previous step.
    pub(super) think_ns: u64,
    /// First sectors and lengths of reads that are not waited for.
    pub(super) ahead: Vec<(u64, u32)>,
    /// The read that has to be over before the next step.
    pub(super) read: (u64, u32),
}

/// When a client submits.
#[derive(Debug, Clone)]
pub(super) enum Pace {
    /// As soon as fewer operations than `depth` are outstanding.
    Closed,
    /// The same, but each next operation comes so many nanoseconds after the end of one before.
    Thinking(u64),
    /// Every so many nanoseconds, as far as `depth` allows. A latency counts from the time at which the operation was
    /// due.
    Every(u64),
    /// By a script, once.
    Script(Vec<Step>),
}

/// One client, with one submitter.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Clients of one name are one tenant.
    pub(super) name: String,
    /// The name of its group, one of the load's; empty for the root.
    pub(super) group: &'static str,
    pub(super) weight: u16,
    pub(super) class: Class,
    /// The level of its priority in the class: 0, the highest, to 7.
    pub(super) level: u8,
    pub(super) op: Op,
    /// Bytes of an operation.
    pub(super) bytes: u32,
    /// The sectors in which its operations lie: at random places, or one behind the other from the beginning, again and
    /// again.
    pub(super) area: Range<u64>,
    pub(super) is_sequential: bool,
    /// Operations outstanding at most.
    pub(super) depth: u32,
    pub(super) pace: Pace,
    /// Nanoseconds from the beginning until its first operation.
    pub(super) begin_ns: u64,
    /// Nanoseconds from the beginning from which on it begins no more operations.
    pub(super) end_ns: u64,
    /// Whether its operations may merge with others.
    pub(super) merges: bool,
    /// Whether each completion is kept.
    pub(super) is_logged: bool,
}

impl Plan {
    /// A client that keeps `depth` operations outstanding at random places of `area`.
    pub(super) fn new(name: impl Into<String>, op: Op, bytes: u32, depth: u32, area: Range<u64>) -> Self {
        Self {
            name: name.into(),
            group: "",
            weight: DEFAULT_WEIGHT,
            class: Class::BestEffort,
            level: IoPriority::default().level,
            op,
            bytes,
            area,
            is_sequential: false,
            depth,
            pace: Pace::Closed,
            begin_ns: 0,
            end_ns: u64::MAX,
            merges: true,
            is_logged: false,
        }
    }

    /// The same client, one place behind the other in `area`.
    pub(super) fn sequential(self, area: Range<u64>) -> Self {
        Self { area, is_sequential: true, ..self }
    }

    /// The same client in a group.
    pub(super) fn of(self, group: &'static str) -> Self {
        Self { group, ..self }
    }
}

/// A group of clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) name: &'static str,
    /// The group that holds it; empty for the root.
    pub(super) parent: &'static str,
    pub(super) weight: u16,
}

impl Group {
    /// A group of the root that weighs as any other one.
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, parent: "", weight: DEFAULT_WEIGHT }
    }
}

/// Clients, and how long they go on.
#[derive(Debug, Clone)]
pub(super) struct Load {
    pub(super) clients: Vec<Plan>,
    /// Clients that run before, in the root, and whom nobody counts.
    pub(super) openers: Vec<Plan>,
    /// Each behind the one that holds it.
    pub(super) groups: Vec<Group>,
    /// Knobs that are set for this load, if there is a scheduler that has them.
    pub(super) knobs: Vec<Knob>,
    pub(super) end: End,
    /// Where each operation is noted as it is submitted.
    pub(super) journal: Option<Arc<Journal>>,
}

impl Load {
    pub(super) fn new(clients: Vec<Plan>, end: End) -> Self {
        Self { clients, openers: Vec::new(), groups: Vec::new(), knobs: Vec::new(), end, journal: None }
    }
}

/// When a run ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// Nanoseconds in which nothing is counted yet.
    pub(super) warm_ns: u64,
    /// Counting begins after this many operations, even if `warm_ns` are not over.
    pub(super) warm_operations: u64,
    /// Nanoseconds from the beginning, `warm_ns` included.
    pub(super) time_ns: u64,
    /// The run ends when this many operations were counted, even if its time is not over.
    pub(super) operations: u64,
}

impl End {
    /// After this time or this many operations, whichever comes first. Of either, a tenth more goes before what is
    /// counted.
    pub(super) fn after(time: Duration, operations: u64) -> Self {
        let time_ns = nanoseconds(time);
        Self { warm_ns: time_ns / 10, warm_operations: operations / 10, time_ns, operations }
    }

    /// After `time_ns`, of which `warm_ns` are not counted, whatever is done by then.
    pub(super) const fn at(warm_ns: u64, time_ns: u64) -> Self {
        Self { warm_ns, warm_operations: u64::MAX, time_ns, operations: u64::MAX }
    }
}
