//! A request and the device: it gets a tag, is issued, and comes back.
//!
//! All is done by a [`Runner`], a thread's private side. [`tags`] says how requests get tags or wait for them.
//! [`issue`] gives requests to the driver, in order. [`complete`] takes back finished requests, and runs the flush
//! machine. [`deliver`] hands completed operations to their submitters. [`timeout`] looks for overdue requests.
//! `order`, `path` and `submit` call in here. Nothing here knows which request is chosen next.

mod complete;
mod deliver;
mod index_set;
mod issue;
mod newcomers;
mod runner;
mod tags;
mod timeout;

pub(crate) use runner::{RUN_BOUND, Runner};
