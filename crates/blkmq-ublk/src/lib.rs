//! A blkmq queue as a block device of this machine: a server for Linux's ublk.
//!
//! The kernel hands each request for `/dev/ublkbN` to this process, through rings. A device is a client of an
//! [`Engine`](blkmq_engine::Engine), beside those of other front-ends. Each of its queues has a thread with a ring, a
//! [`Session`](blkmq_engine::Session) and a [`blkmq::Submitter`] of its own. Requests that have arrived together go
//! through blkmq's queue as one plug, and results are told together. [`Options::recover`] makes a block device that
//! outlives its server.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use blkmq::RequestQueue;
//! use blkmq::driver::spec;
//! use blkmq::event::EventFd;
//! use blkmq_engine::{Bounds, Engine, Export, Journal, Level, least_memory};
//! use blkmq_ublk::{Added, Control, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let q = RequestQueue::builder(spec::open("ram,size=1G")?).build()?;
//! let added = Added::new(Control::open()?, &q, &Options::default())?;
//! // Here the process may give up rights: it has no thread yet.
//! let (journal, _teller) = Journal::start(Arc::new(|_: Level, line: &str| eprintln!("{line}")), "log")?;
//! let (exports, bell) = (vec![Export::new("disk", q)], Arc::new(EventFd::new()?));
//! let engine = Arc::new(Engine::new(exports, Bounds::default(), least_memory(1), 1, bell, journal));
//! let device = added.start(&engine, 0, |_| ())?;
//! println!("{}", device.path());
//! device.end()?;
//! # Ok(())
//! # }
//! ```

pub mod abi;
pub mod control;

mod character;
mod descriptors;
mod device;
mod error;
mod exchange;
mod growth;
mod opening;
mod ownership;
mod pages;
mod parameters;
mod queue;
mod ring;
mod stall;
mod threads;
#[doc(hidden)]
pub mod work;

pub use control::Control;
pub use device::{Abandoner, Added, Device, Options};
pub use error::Error;
