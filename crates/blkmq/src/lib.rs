//! The multi-queue block layer for user space.

pub mod grace;
pub mod handover;
pub mod stack;
pub mod sync;
pub mod tags;
pub mod word;

// loom checks the pieces above in small models; everything below is built on them and too large for it.
macro_rules! not_under_loom {
    ($($item:item)*) => { $(#[cfg(not(loom))] $item)* };
}

#[cfg(all(feature = "eventfd", not(loom)))]
pub mod event;

not_under_loom! {
    mod account;
    mod background;
    pub mod bio;
    pub mod buffer;
    mod builder;
    pub mod client;
    pub mod clock;
    mod complete;
    mod control;
    mod ctx;
    mod dispatch;
    pub mod driver;
    mod dump;
    mod flush;
    pub mod future;
    mod hctx;
    mod insert;
    mod issue;
    mod knobs;
    pub mod limits;
    mod member;
    mod merge;
    mod queue;
    mod request;
    mod runner;
    mod split;
    mod status;
    mod submit;
    mod timeout;
    mod wake;

    pub use account::Stats;
    pub use background::Background;
    pub use bio::{Bio, Flags};
    pub use buffer::{Buffer, Buffers};
    pub use client::Client;
    pub use clock::{Clock, VirtualClock};
    pub use control::{Change, Freeze, Quiesce};
    pub use hctx::{MAX_DEPTH, MAX_HW_QUEUES};
    pub use knobs::QUEUE_KNOBS;
    pub use limits::Limits;
    pub use builder::Builder;
    pub use queue::{QueueError, RequestQueue, scheduler_names};
    pub use request::RqId;
    pub use status::Status;
    pub use submit::{Completion, RejectReason, Rejected, Submitter};
    pub use wake::Notify;

    pub use blkmq_sched::{Class, IoPriority, Op, Time};
}
