//! A request and the device: it gets a tag, is issued, and comes back.
//!
//! All is done by a [`Runner`], a thread's private side. [`tags`] says how requests get tags or wait for them.
//! [`issue`] gives requests to the driver, in order. [`complete`] takes finished requests back to their submitters, and
//! runs the flush machine. [`timeout`] looks for overdue requests. `order`, `path` and `submit` call in here. Nothing
//! here knows which request is chosen next.

mod complete;
mod issue;
mod newcomers;
mod runner;
mod tags;
mod timeout;

pub(crate) use runner::{RUN_BOUND, Runner};
