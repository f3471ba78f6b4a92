//! Why a queue could not be built or changed.

mod limits;
mod range;
mod tenant;

use blkmq_sched::KnobError;

use crate::driver::{Cause, TopologyError};
use crate::queue::schedulers::{SCHEDULER_PREFIX, scheduler_names, schedulers_with};
use crate::request::limits::MAX_MEMBERS;
pub use limits::LimitsError;
pub use range::RangeError;
pub use tenant::TenantError;

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
        "wbt_lat_usec: requests can be held back only where one scheduler orders the whole queue, as mq-deadline and \
         bfq do, and the scheduler is {scheduler}"
    )]
    NoWindow {
        /// The queue's scheduler, or `none`.
        scheduler: &'static str,
    },
    /// Requests can be held back only where latencies are measured, and the queue's clock is a coarse one.
    #[error(
        "wbt_lat_usec: the latency of reads is measured by the queue's clock, and that is a coarse one, which moves \
         each 1 to 10 ms; with a window the queue needs an exact clock"
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
    #[error("a queue takes at most {} threads", MAX_MEMBERS - 1)]
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
