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

mod account;
mod attached;
mod background;
pub mod bio;
pub mod buffer;
mod builder;
mod bypass;
pub mod client;
mod clients;
pub mod clock;
mod complete;
mod completion;
mod control;
mod ctx;
mod dispatch;
pub mod driver;
mod dump;
mod error;
mod flush;
pub mod future;
mod hctx;
mod insert;
mod issue;
mod knobs;
mod layout;
pub mod limits;
mod looks;
mod member;
mod merge;
mod order;
mod plug;
mod queue;
#[cfg(feature = "eventfd")]
mod readiness;
mod request;
mod runner;
mod schedulers;
mod settings;
mod split;
mod started;
mod status;
mod submit;
mod timeout;

pub use account::{Accounting, MAX_RANGES, SectorRange, Stat, Stats};
pub use background::Background;
pub use bio::{Bio, Flags};
pub use blkmq_sched::{Class, IoPriority, Op, Time};
#[cfg(feature = "eventfd")]
pub use blkmq_sync::event;
pub use blkmq_sync::notify::Notify;
pub use buffer::{Buffer, Buffers};
pub use builder::Builder;
pub use client::Client;
pub use clock::{Clock, VirtualClock};
pub use completion::{Completion, Failed, RejectReason, Rejected};
pub use control::{Change, Freeze, Quiesce};
pub use error::QueueError;
pub use hctx::{MAX_DEPTH, MAX_HW_QUEUES};
pub use knobs::QUEUE_KNOBS;
pub use limits::Limits;
pub use order::{Locking, Measures, Wait};
pub use queue::RequestQueue;
pub use request::RqId;
pub use schedulers::scheduler_names;
pub use status::Status;
pub use submit::Submitter;
