//! The multi-queue block layer for user space.
//!
//! An application hands operations ([`Bio`]) to a [`Submitter`], one per thread, of a [`RequestQueue`] in front of a
//! [`driver::Driver`]. On the way they are split, merged, put in order by a scheduler, and given to the device, as in
//! Linux. The modules are named after the steps: submit, merge, insert, dispatch, issue, complete, account.
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
//! submitter.wait(None);
//! while let Some(done) = submitter.reap() {
//!     assert!(done.status.is_ok());
//! }
//! # Ok(())
//! # }
//! ```

pub mod grace;
pub mod handover;
pub mod left;
pub mod liveness;
mod notify;
pub mod room;
pub mod stack;
pub mod staging;
pub mod sync;
pub mod tags;
pub mod wake;
pub mod word;

// loom checks the pieces above in small models; everything below is built on them and too large for it.
#[cfg(not(loom))]
mod account;
#[cfg(not(loom))]
mod attached;
#[cfg(not(loom))]
mod background;
#[cfg(not(loom))]
pub mod bio;
#[cfg(not(loom))]
pub mod buffer;
#[cfg(not(loom))]
mod builder;
#[cfg(not(loom))]
mod bypass;
#[cfg(not(loom))]
pub mod client;
#[cfg(not(loom))]
mod clients;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
mod complete;
#[cfg(not(loom))]
mod completion;
#[cfg(not(loom))]
mod control;
#[cfg(not(loom))]
mod ctx;
#[cfg(not(loom))]
mod dispatch;
#[cfg(not(loom))]
pub mod driver;
#[cfg(not(loom))]
mod dump;
#[cfg(not(loom))]
mod error;
#[cfg(all(feature = "eventfd", not(loom)))]
pub mod event;
#[cfg(not(loom))]
mod flush;
#[cfg(not(loom))]
pub mod future;
#[cfg(not(loom))]
mod hctx;
#[cfg(not(loom))]
mod insert;
#[cfg(not(loom))]
mod issue;
#[cfg(not(loom))]
mod knobs;
#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
pub mod limits;
#[cfg(not(loom))]
mod looks;
#[cfg(not(loom))]
mod member;
#[cfg(not(loom))]
mod merge;
#[cfg(not(loom))]
mod order;
#[cfg(not(loom))]
mod plug;
#[cfg(not(loom))]
mod queue;
#[cfg(all(feature = "eventfd", not(loom)))]
mod readiness;
#[cfg(not(loom))]
mod request;
#[cfg(not(loom))]
mod runner;
#[cfg(not(loom))]
mod schedulers;
#[cfg(not(loom))]
mod settings;
#[cfg(not(loom))]
mod split;
#[cfg(not(loom))]
mod started;
#[cfg(not(loom))]
mod status;
#[cfg(not(loom))]
mod submit;
#[cfg(not(loom))]
mod timeout;

#[cfg(not(loom))]
pub use account::{Accounting, MAX_RANGES, SectorRange, Stat, Stats};
#[cfg(not(loom))]
pub use background::Background;
#[cfg(not(loom))]
pub use bio::{Bio, Flags};
#[cfg(not(loom))]
pub use blkmq_sched::{Class, IoPriority, Op, Time};
#[cfg(not(loom))]
pub use buffer::{Buffer, Buffers};
#[cfg(not(loom))]
pub use builder::Builder;
#[cfg(not(loom))]
pub use client::Client;
#[cfg(not(loom))]
pub use clock::{Clock, VirtualClock};
#[cfg(not(loom))]
pub use completion::{Completion, RejectReason, Rejected};
#[cfg(not(loom))]
pub use control::{Change, Freeze, Quiesce};
#[cfg(not(loom))]
pub use error::QueueError;
#[cfg(not(loom))]
pub use hctx::{MAX_DEPTH, MAX_HW_QUEUES};
#[cfg(not(loom))]
pub use knobs::QUEUE_KNOBS;
#[cfg(not(loom))]
pub use limits::Limits;
pub use notify::Notify;
#[cfg(not(loom))]
pub use order::{Locking, Measures, Wait};
#[cfg(not(loom))]
pub use queue::RequestQueue;
#[cfg(not(loom))]
pub use request::RqId;
#[cfg(not(loom))]
pub use schedulers::scheduler_names;
#[cfg(not(loom))]
pub use status::Status;
#[cfg(not(loom))]
pub use submit::Submitter;
