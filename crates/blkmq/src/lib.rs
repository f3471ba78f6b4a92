//! The multi-queue block layer for user space.
//!
//! An application hands operations ([`Bio`]) to a [`Submitter`], one per thread, of a [`RequestQueue`] in front of a
//! [`driver::Driver`]. On the way they are split, merged, put in order by a scheduler, and given to the device, as in
//! Linux. Each step is a file: plug, split and merge in `submit`; insert, order, issue and complete in `dispatcher`.
//!
//! The [`guide`] shows each part of this at work, [`guide::drivers`] how a driver is written, and
//! [`guide::schedulers`] a scheduler.
//!
//! ```
//! use blkmq::driver::spec;
//! use blkmq::{Bio, Buffer, Client, RequestQueue};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = spec::open("null,irqmode=2,completion_nsec=20us,hw_queue_depth=32")?;
//! let q = RequestQueue::builder(device).scheduler("mq-deadline").build()?;
//! let mut submitter = q.submitter(&Client::new("me"))?;
//! submitter.submit(Bio::read(0, Buffer::zeroed(4096)))?;
//! submitter.wait(1, None);
//! while let Some(done) = submitter.reap() {
//!     println!("{:?}", done.into_result()?.bio.buffers);
//! }
//! # Ok(())
//! # }
//! ```

// Assertions that neither the rig nor the model of caches sees. They cannot stand in constant functions, which have
// those of `std`.
#[cfg(virtual_cpus)]
#[macro_use(debug_assert, debug_assert_eq, debug_assert_ne)]
extern crate blkmq_sync;

mod control;
mod dispatcher;
pub mod driver;
mod queue;
mod request;
mod submit;

#[doc = include_str!("../docs/guide.md")]
pub mod guide {
    #[doc = include_str!("../docs/writing-a-driver.md")]
    pub mod drivers {}
    #[doc = include_str!("../docs/writing-a-scheduler.md")]
    pub mod schedulers {}
}

pub use blkmq_sched as sched;
pub use blkmq_sched::{Class, ClientId, GroupId, IoPriority, MergeLevel, Op, Time};
#[cfg(feature = "eventfd")]
pub use blkmq_sync::event;
pub use blkmq_sync::idle;
pub use blkmq_sync::notify::Notify;
pub use control::{Change, Freeze, QUEUE_KNOBS, Quiesce};
pub use dispatcher::Background;
pub use queue::{
    Accounting, Builder, ClientInfo, DiskStats, GateCounts, GroupInfo, LimiterInfo, LimitsError, Locking,
    MAX_GROUP_DEPTH, MAX_RANGES, Measures, QueueCounters, QueueError, RangeError, RequestQueue, SchedulerChoice,
    SectorRange, Service, TenantError, Tenants, Wait, Wakeups, WeakRequestQueue, scheduler_names,
};
#[cfg(virtual_cpus)]
pub use queue::{HoldStep, HoldWatcher, LimiterStep, LimiterWatcher, watch_holds, watch_limiters};
pub use request::bio::{Bio, Flags, SECTOR_SIZE};
pub use request::buffer::{BUFFER_ALIGN, Buffer, Buffers};
pub use request::client::{Client, DEFAULT_WEIGHT};
pub use request::clock::{Clock, RealClock, VirtualClock};
pub use request::limits::{Limits, MAX_DEPTH, MAX_HW_QUEUES};
pub use request::{Completion, Failed, RejectReason, Rejected, RejectedBatch, RqId, Shown, Status, is_hidden, pages};
pub use submit::{Submitter, Waited, blocking, future};

/// Fails to compile if an error cannot go where errors go: behind a `?` into a `Box`, and to another thread.
#[cfg(test)]
const _: fn() = || {
    fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
    is_error::<QueueError>();
    is_error::<RangeError>();
    is_error::<LimitsError>();
    is_error::<TenantError>();
    is_error::<driver::TopologyError>();
    is_error::<Rejected>();
    is_error::<RejectedBatch>();
    is_error::<Failed>();
    is_error::<driver::spec::SpecError>();
};
