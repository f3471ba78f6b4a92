//! The I/O schedulers of blkmq, alone.
//!
//! A scheduler is a policy: *which request next?* Here it is a plain value with `&mut self` methods that take `now` as
//! an argument. A scheduler knows no thread, lock, clock, driver or tag. So the same value serves I/O, replays a
//! recorded trace, and is judged by a property test. The embedder decides how many threads reach it.
//!
//! The crate is `no_std` with `alloc`, has no unsafe code and no dependency. After construction (and
//! [`Scheduler::reserve`]) nothing is allocated: what waits lives in slabs sized once, linked by index.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;
// Assertions that neither the rig nor the model of caches sees. They cannot stand in constant functions, which have
// those of `core`.
#[cfg(virtual_cpus)]
#[macro_use(debug_assert, debug_assert_eq, debug_assert_ne)]
extern crate blkmq_sync;

mod bfq;
mod data;
mod direction;
mod domain;
mod fair;
mod group;
mod hash;
mod info;
mod knob;
mod kyber;
pub mod limiter;
mod list;
mod merge;
mod mergeable;
mod mq_deadline;
#[cfg(test)]
#[path = "../tests/it/random.rs"]
mod random;
mod registry;
mod report;
mod scheduler;
mod site;
mod slab;
mod throttle;
mod tree;
mod waiting;

pub use bfq::{Bfq, Expiration, QueueName, Reason};
pub use domain::{DispatchContext, SchedDomain};
pub use fair::Fair;
pub use group::{ClientSettings, DEFAULT_WEIGHT, GroupId, GroupSettings, MAX_WEIGHT, MIN_WEIGHT};
pub use info::{Class, ClientId, Info, InsertAt, IoPriority, MergeLevel, Op, RqId, Time};
pub use knob::{Knob, KnobError, Unit};
pub use kyber::Kyber;
pub use merge::{Join, Merge, MergeHow, MergeLimits};
pub use mq_deadline::MqDeadline;
pub use registry::{Description, Priorities, SCHEDULERS, replay, scheduler};
pub use report::{Event, Fairness, Report, Ticket, Usage};
pub use scheduler::{
    Admission, FastRequest, Feedback, FeedbackKind, MAX_FAST_BATCH, Outstanding, Passing, PerHctx, Replay, Scheduler,
    Setting, Tally,
};
pub use throttle::{FoldObserver, Latency, NewDepths, Sums, Throttle};
