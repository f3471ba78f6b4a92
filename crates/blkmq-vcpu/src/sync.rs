//! What `std::sync` has, with a step at every operation.

pub mod atomic;
mod condvar;
mod mutex;

pub use std::sync::Arc;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use mutex::{Mutex, MutexGuard};
