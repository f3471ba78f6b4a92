//! The protocols by which the threads of a queue share its state, below the block layer. They know threads and
//! numbers, and nothing of requests, schedulers or devices.
//!
//! | module | what threads do with it |
//! |---|---|
//! | [`tags`] | take and give back a hardware queue's tags |
//! | [`word`] | agree on whether a request waits |
//! | [`staging`] | publish requests for the thread in the scheduler |
//! | [`ring`] | report events to the thread in the scheduler |
//! | [`handover`], [`stack`] | append to a list that one thread at a time drains |
//! | [`liveness`] | wait for tags and room, and notify |
//! | [`wake`], [`event`], [`notify`] | sleep, and be woken |
//! | [`grace`] | be seen inside a queue, so that a freeze can wait until no thread is |
//!
//! The models in `tests/loom` explore them, and call the functions that the product calls. No model has [`event`],
//! which is a file descriptor. The rest of the crate is where atomics, locks and threads come from: std, or a model
//! checker, or virtual CPUs.

#[cfg(all(feature = "eventfd", not(loom)))]
pub mod event;
pub mod grace;
pub mod handover;
pub mod idle;
pub mod liveness;
pub mod notify;
mod platform;
pub mod pool;
pub mod ring;
pub mod stack;
pub mod staging;
pub mod tags;
pub mod wake;
pub mod word;

pub use platform::*;
