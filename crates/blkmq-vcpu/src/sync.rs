//! Atomics, locks and condition variables as in `std::sync`. Each operation is a step.

pub mod atomic;
mod condvar;
mod mutex;
pub(crate) mod waiters;

pub use std::sync::Arc;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard};
