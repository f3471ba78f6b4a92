//! Why a queue could not be built or changed.

use blkmq_sched::{ClientId, GroupId, KnobError, MAX_WEIGHT, MIN_WEIGHT};

use crate::driver::{Cause, TopologyError};
use crate::queue::schedulers::{SCHEDULER_PREFIX, scheduler_names, schedulers_with};
use crate::request::limits::MAX_THREADS;

/// Why a queue could not be built or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// No scheduler has this name.
    #[error("unknown scheduler '{0}'; there are: {known}", known = scheduler_names().join(", "))]
    UnknownScheduler(String),
    /// A queue takes a scheduler in which nothing waits, not this one.
    #[error("a queue takes a scheduler in which nothing waits, not '{name}' with {waiting} requests")]
    SchedulerInUse {
        /// The scheduler.
        name: &'static str,
        /// The requests that wait in it.
        waiting: usize,
    },
    /// Under this locking one scheduler orders the whole queue. This scheduler orders each hardware queue by itself.
    #[error(
        "the locking {locking} has one order for all hardware queues, and {scheduler} orders each of them by itself; \
         with {scheduler} the locking is single, batch or combining"
    )]
    OrdersWhole {
        /// The locking.
        locking: &'static str,
        /// The scheduler.
        scheduler: &'static str,
    },
    /// Requests can be held back only where one scheduler orders the whole queue.
    #[error(
        "wbt_lat_usec: requests can be held back only where one scheduler orders the whole queue, as mq-deadline, bfq \
         and fair do, and the scheduler is {scheduler}"
    )]
    NoLimiter {
        /// The queue's scheduler, or `none`.
        scheduler: &'static str,
    },
    /// Requests can be held back only where latencies are measured, and the queue's clock is a coarse one.
    #[error(
        "wbt_lat_usec: the latency of reads is measured by the queue's clock, and that is a coarse one, which moves \
         each 1 to 10 ms; with a limiter the queue needs an exact clock"
    )]
    CoarseClock,
    /// No locking has this name.
    #[error("there is no locking '{name}'; there are: {}", .known.join(", "))]
    UnknownLocking {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },
    /// The locking `staged` has other measures than this text names.
    #[error(
        "'{0}' names no measures of the locking staged; they are dispatch, buckets and merges, as in \
         'staged:dispatch+buckets'"
    )]
    UnknownMeasures(String),
    /// No way of accounting has this name.
    #[error("accounting: '{0}' is neither 'per-thread' nor 'shared'")]
    UnknownAccounting(String),
    /// The queue, with its scheduler, has no knob of this name.
    #[error("unknown knob '{name}'; there are: {}{}", .known.join(", "), hint(.name, .known, .scheduler))]
    UnknownKnob {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
        /// The queue's scheduler.
        scheduler: &'static str,
    },
    /// The knob of this name needs a drained queue, and is changed by
    /// [`RequestQueue::change_knob`](crate::RequestQueue::change_knob).
    #[error("the knob '{0}' needs a drained queue: begin the change by `change_knob`, and wait for it")]
    NeedsDrain(String),
    /// The knob of this name shows what the device has, and cannot be set.
    #[error("{0}: it is the device's, and cannot be set here")]
    OfDevice(String),
    /// A knob takes a whole number.
    #[error("{knob}: '{value}' is not a whole number")]
    NotANumber {
        /// The knob.
        knob: String,
        /// What it was to be set to.
        value: String,
    },
    /// A value does not suit its knob.
    #[error("{0}")]
    BadValue(#[source] KnobError),
    /// Without a scheduler each request in the queue has a tag, so `nr_requests` ends at the depth.
    #[error("nr_requests: {nr_requests} is not within 1..{depth}, the depth, without a scheduler")]
    AboveDepth {
        /// The requests that the queue was to take.
        nr_requests: u32,
        /// Tags of a hardware queue.
        depth: u16,
    },
    /// A submitter cannot have that many slots.
    #[error("slots: {0} is not within 1..32768")]
    BadSlots(u16),
    /// The ranges of sectors that are to be counted apart make no sense.
    #[error("{0}")]
    BadRange(#[from] RangeError),
    /// A client or group cannot be as it was asked for.
    #[error("{0}")]
    BadTenant(#[from] TenantError),
    /// The device's description of what it accepts makes no sense.
    #[error("{0}")]
    BadLimits(#[source] LimitsError),
    /// The device cannot have these hardware queues.
    #[error("{0}")]
    BadTopology(#[from] TopologyError),
    /// The device of this name is behind another queue.
    #[error("the device '{0}' is behind a queue already; it serves one at a time")]
    DeviceInUse(&'static str),
    /// The device has become smaller.
    #[error("the device has {found} sectors, not {known} as before; a queue's device may grow but not shrink")]
    Shrunk {
        /// The sectors that it had.
        known: u64,
        /// The sectors that it has.
        found: u64,
    },
    /// Every place for a thread is taken.
    #[error("a queue takes at most {} threads", MAX_THREADS - 1)]
    TooManySubmitters,
    /// Each hardware queue belongs to one submitter, and all of them have one. Of a type there are that many.
    #[error(
        "the device's hardware queues, {0} of a type, each belong to a submitter already: open it with more of them, \
         or as one whose hardware queues are shared"
    )]
    NoHardwareQueue(u16),
    /// Each hardware queue is polled by the submitter that owns it, so there are no background threads.
    #[error("no background threads: each of the device's hardware queues is polled by the submitter that owns it")]
    NoBackground,
    /// Submitters own hardware queues that were to go. Of each type this many must stay.
    #[error(
        "submitters own hardware queues up to number {last} of each type, so there must be {0} of each",
        last = .0 - 1
    )]
    StillOwned(u16),
    /// The system gives the thread no eventfd.
    #[error("an eventfd is needed for each thread: {0}")]
    NoEventFd(#[source] Cause),
    /// The system starts no background thread more.
    #[error("a background thread cannot be started: {0}")]
    NoThread(#[source] Cause),
}

/// What is wrong with a device's [`Limits`](crate::Limits).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// This `logical_block_size` is no power of two, or outside of its bounds.
    #[error("the logical block size is a power of two from 512 to 65536, not {0}")]
    LogicalBlock(u32),
    /// `max_sectors`, `max_segments` or `max_segment_size` is too small for one logical block of that many bytes.
    #[error("a request takes at least one logical block, which is {0} bytes, in one segment")]
    NoRoom(u32),
    /// This `boundary_sectors` lies within a logical block of that many sectors.
    #[error("the boundary is a multiple of the logical block's {block} sectors, not {boundary}")]
    Boundary {
        /// The boundary, in sectors.
        boundary: u32,
        /// The logical block, in sectors.
        block: u32,
    },
    /// These `missing_bytes` are too many, or the device cannot lack any.
    #[error("only the last sector may lack bytes, at most 511 and not {0}, and only with logical blocks of 512")]
    MissingBytes(u16),
    /// This `pages_align` is neither 0 nor a power of two.
    #[error("the alignment of data in pages is 0 or a power of two, not {0}")]
    PagesAlign(u32),
}

/// What is wrong with the ranges of sectors that are to be counted apart.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// More ranges than a queue can have.
    #[error("{nr_ranges} ranges are more than {most}")]
    TooMany {
        /// The ranges.
        nr_ranges: usize,
        /// [`MAX_RANGES`](crate::MAX_RANGES).
        most: usize,
    },
    /// The name is empty, or has spaces or control characters in it.
    #[error("range {0:?}: a name has at least one character, and no spaces")]
    BadName(String),
    /// The range of this name has no sectors.
    #[error("range '{0}': a range has at least one sector")]
    Empty(String),
    /// A range ends behind the end of the device.
    #[error("range '{name}': {first}+{nr_sectors} ends behind the device's {capacity} sectors")]
    BehindEnd {
        /// The range.
        name: String,
        /// Its first sector.
        first: u64,
        /// Its length in sectors.
        nr_sectors: u64,
        /// The sectors that the device has.
        capacity: u64,
    },
    /// There are two ranges of this name.
    #[error("range '{0}': there are two of this name")]
    SameName(String),
    /// Two ranges have sectors in common.
    #[error("range '{name}' overlaps range '{other}'")]
    Overlap {
        /// One of them.
        name: String,
        /// The other one, which was given before.
        other: String,
    },
}

/// What is wrong with a client or a group of clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TenantError {
    /// A weight is out of range.
    #[error("the weight of {name:?}: {weight} is not within {MIN_WEIGHT}..{MAX_WEIGHT}")]
    Weight {
        /// The client or group that was to have it.
        name: String,
        /// The weight.
        weight: u16,
    },
    /// No client has this name.
    #[error("no client {0:?} is there")]
    UnknownClient(String),
    /// No group has this name.
    #[error("there is no group {0:?}")]
    UnknownGroup(String),
    /// The client with this id has left.
    #[error("the client with the id {:#x} is not there any more", .0.0)]
    NoClient(ClientId),
    /// The group with this id was removed.
    #[error("the group with the id {:#x} is not there any more", .0.0)]
    NoGroup(GroupId),
    /// There is a group of this name.
    #[error("there is a group {0:?} already")]
    GroupExists(String),
    /// The name is empty, longer than 4096 bytes, or has a character in it that [`is_hidden`](crate::is_hidden). Its
    /// first 64 characters are here.
    #[error(
        "group {0:?}: a name has at least one character, at most 4096 bytes, and no characters that control a line or \
         cannot be seen"
    )]
    BadGroupName(String),
    /// The name has a character in it that [`is_hidden`](crate::is_hidden). Its first 64 characters are here.
    #[error("client {0:?}: a name has no characters that control a line or cannot be seen")]
    BadClientName(String),
    /// Each place for a group is taken.
    #[error("a queue has at most {most} groups")]
    TooManyGroups {
        /// How many there can be.
        most: usize,
    },
    /// The group would lie in too many others.
    #[error("group {name:?}: groups lie in each other at most {most} deep")]
    TooDeep {
        /// The group.
        name: String,
        /// How deep groups can lie in each other.
        most: usize,
    },
    /// The root has no weight, and cannot be removed.
    #[error("the root group has no weight and cannot be removed")]
    Root,
}

/// Names the knob of a scheduler that was probably meant.
fn hint(name: &str, known: &[String], scheduler: &str) -> String {
    let plain = name.strip_prefix(SCHEDULER_PREFIX).unwrap_or(name);
    if known.iter().any(|known| known.strip_prefix(SCHEDULER_PREFIX) == Some(plain)) {
        return format!("; for the scheduler's say '{SCHEDULER_PREFIX}{plain}'");
    }
    match &schedulers_with(plain)[..] {
        [] => String::new(),
        owners => {
            let owners = owners.join(", ");
            format!("; '{SCHEDULER_PREFIX}{plain}' belongs to {owners}, and the scheduler is {scheduler}")
        }
    }
}
