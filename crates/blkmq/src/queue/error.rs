//! Why a queue could not be built or changed.

mod limits;
mod range;
mod tenant;

use std::error::Error;
use std::fmt;

use blkmq_sched::KnobError;

use crate::driver::{Cause, TopologyError};
use crate::queue::schedulers::{SCHEDULER_PREFIX, scheduler_names, schedulers_with};
use crate::request::limits::MAX_MEMBERS;
pub use limits::LimitsError;
pub use range::RangeError;
pub use tenant::TenantError;

/// Why a queue could not be built or changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueError {
    /// No scheduler has this name.
    UnknownScheduler(String),
    /// A queue takes a scheduler in which nothing waits, not this one.
    SchedulerInUse {
        /// The scheduler.
        name: &'static str,
        /// The requests that wait in it.
        waiting: usize,
    },
    /// Under this locking one scheduler orders the whole queue. This scheduler orders each hardware queue by itself.
    OrdersWhole {
        /// The locking.
        locking: &'static str,
        /// The scheduler.
        scheduler: &'static str,
    },
    /// Requests can be held back only where one scheduler orders the whole queue.
    NoWindow {
        /// The queue's scheduler, or `none`.
        scheduler: &'static str,
    },
    /// Requests can be held back only where latencies are measured, and the queue's clock is a coarse one.
    CoarseClock,
    /// No locking has this name.
    UnknownLocking {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },
    /// The locking `staged` has other measures than this text names.
    UnknownMeasures(String),
    /// No way of accounting has this name.
    UnknownAccounting(String),
    /// The queue, with its scheduler, has no knob of this name.
    UnknownKnob {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
        /// The queue's scheduler.
        scheduler: &'static str,
    },
    /// The scheduler has no knob of this name.
    UnknownSchedulerKnob {
        /// The name.
        name: String,
        /// The names that there are; none without a scheduler.
        known: Vec<&'static str>,
    },
    /// The knob of this name needs a drained queue, and is changed by
    /// [`RequestQueue::change_knob`](crate::RequestQueue::change_knob).
    NeedsDrain(String),
    /// The knob of this name shows what the device has, and cannot be set.
    OfDevice(String),
    /// A knob takes a whole number.
    NotANumber {
        /// The knob.
        knob: String,
        /// What it was to be set to.
        value: String,
    },
    /// A value does not suit its knob.
    BadValue(KnobError),
    /// Without a scheduler each request in the queue has a tag, so `nr_requests` ends at the depth.
    AboveDepth {
        /// The requests that the queue was to take.
        nr_requests: u32,
        /// Tags of a hardware queue.
        depth: u16,
    },
    /// A submitter cannot have that many slots.
    BadSlots(u16),
    /// The ranges of sectors that are to be counted apart make no sense.
    BadRange(RangeError),
    /// A client or group cannot be as it was asked for.
    BadTenant(TenantError),
    /// The device's description of what it accepts makes no sense.
    BadLimits(LimitsError),
    /// The device cannot have these hardware queues.
    BadTopology(TopologyError),
    /// The device of this name is behind another queue.
    DeviceInUse(&'static str),
    /// The device has become smaller.
    Shrunk {
        /// The sectors that it had.
        known: u64,
        /// The sectors that it has.
        found: u64,
    },
    /// Every place for a thread is taken.
    TooManySubmitters,
    /// Each hardware queue belongs to one submitter, and all of them have one. Of a type there are that many.
    NoHardwareQueue(u16),
    /// Each hardware queue is polled by the submitter that owns it, so there are no background threads.
    NoBackground,
    /// Submitters own hardware queues that were to go. Of each type this many must stay.
    StillOwned(u16),
    /// The system gives the thread no eventfd.
    NoEventFd(Cause),
    /// The system starts no background thread more.
    NoThread(Cause),
}

/// Names the knob of a scheduler that was probably meant.
fn hint(f: &mut fmt::Formatter<'_>, name: &str, known: &[String], scheduler: &str) -> fmt::Result {
    let plain = name.strip_prefix(SCHEDULER_PREFIX).unwrap_or(name);
    if known.iter().any(|known| known.strip_prefix(SCHEDULER_PREFIX) == Some(plain)) {
        return write!(f, "; for the scheduler's say '{SCHEDULER_PREFIX}{plain}'");
    }
    match &schedulers_with(plain)[..] {
        [] => Ok(()),
        owners => {
            let owners = owners.join(", ");
            write!(f, "; '{SCHEDULER_PREFIX}{plain}' belongs to {owners}, and the scheduler is {scheduler}")
        }
    }
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownScheduler(name) => {
                write!(f, "unknown scheduler '{name}'; there are: {}", scheduler_names().join(", "))
            }
            Self::SchedulerInUse { name, waiting } => {
                write!(f, "a queue takes a scheduler in which nothing waits, not '{name}' with {waiting} requests")
            }
            Self::OrdersWhole { locking, scheduler } => write!(
                f,
                "the locking {locking} has one order for all hardware queues, and {scheduler} orders each of them by \
                 itself; with {scheduler} the locking is single, batch or combining"
            ),
            Self::NoWindow { scheduler } => write!(
                f,
                "wbt_lat_usec: requests can be held back only where one scheduler orders the whole queue, as \
                 mq-deadline and bfq do, and the scheduler is {scheduler}"
            ),
            Self::CoarseClock => write!(
                f,
                "wbt_lat_usec: the latency of reads is measured by the queue's clock, and that is a coarse one, which \
                 moves each 1 to 10 ms; with a window the queue needs an exact clock"
            ),
            Self::UnknownLocking { name, known } => {
                write!(f, "there is no locking '{name}'; there are: {}", known.join(", "))
            }
            Self::UnknownMeasures(text) => write!(
                f,
                "'{text}' names no measures of the locking staged; they are dispatch, buckets and merges, as in \
                 'staged:dispatch+buckets'"
            ),
            Self::UnknownAccounting(name) => write!(f, "accounting: '{name}' is neither 'per-thread' nor 'shared'"),
            Self::UnknownKnob { name, known, scheduler } => {
                write!(f, "unknown knob '{name}'; there are: {}", known.join(", "))?;
                hint(f, name, known, scheduler)
            }
            Self::UnknownSchedulerKnob { name, known } if known.is_empty() => {
                write!(f, "unknown knob '{name}'; there are: none, without a scheduler")
            }
            Self::UnknownSchedulerKnob { name, known } => {
                write!(f, "unknown knob '{name}'; there are: {}", known.join(", "))
            }
            Self::NeedsDrain(name) => {
                write!(f, "the knob '{name}' needs a drained queue: begin the change by `change_knob`, and wait for it")
            }
            Self::OfDevice(name) => write!(f, "{name}: it is the device's, and cannot be set here"),
            Self::NotANumber { knob, value } => write!(f, "{knob}: '{value}' is not a whole number"),
            Self::BadValue(error) => error.fmt(f),
            Self::AboveDepth { nr_requests, depth } => {
                write!(f, "nr_requests: {nr_requests} is not within 1..{depth}, the depth, without a scheduler")
            }
            Self::BadSlots(slots) => write!(f, "slots: {slots} is not within 1..32768"),
            Self::BadRange(error) => error.fmt(f),
            Self::BadTenant(error) => error.fmt(f),
            Self::BadLimits(error) => error.fmt(f),
            Self::BadTopology(error) => error.fmt(f),
            Self::DeviceInUse(name) => {
                write!(f, "the device '{name}' is behind a queue already; it serves one at a time")
            }
            Self::Shrunk { known, found } => write!(
                f,
                "the device has {found} sectors, not {known} as before; a queue's device may grow but not shrink"
            ),
            Self::TooManySubmitters => write!(f, "a queue takes at most {} threads", MAX_MEMBERS - 1),
            Self::NoHardwareQueue(nr_owners) => write!(
                f,
                "the device's hardware queues, {nr_owners} of a type, each belong to a submitter already: open it with \
                 more of them, or as one whose hardware queues are shared"
            ),
            Self::NoBackground => f.write_str(
                "no background threads: each of the device's hardware queues is polled by the submitter that owns it",
            ),
            Self::StillOwned(nr_owners) => write!(
                f,
                "submitters own hardware queues up to number {} of each type, so there must be {nr_owners} of each",
                nr_owners - 1
            ),
            Self::NoEventFd(cause) => write!(f, "an eventfd is needed for each thread: {cause}"),
            Self::NoThread(cause) => write!(f, "a background thread cannot be started: {cause}"),
        }
    }
}

impl Error for QueueError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::BadValue(error) => Some(error),
            Self::BadRange(error) => Some(error),
            Self::BadTenant(error) => Some(error),
            Self::BadLimits(error) => Some(error),
            Self::BadTopology(error) => Some(error),
            Self::NoEventFd(cause) | Self::NoThread(cause) => Some(&**cause),
            _ => None,
        }
    }
}

impl From<TopologyError> for QueueError {
    fn from(error: TopologyError) -> Self {
        Self::BadTopology(error)
    }
}

impl From<TenantError> for QueueError {
    fn from(error: TenantError) -> Self {
        Self::BadTenant(error)
    }
}

impl From<RangeError> for QueueError {
    fn from(error: RangeError) -> Self {
        Self::BadRange(error)
    }
}
