//! A blkmq queue as a block device of this machine: a server for Linux's ublk.
//!
//! The kernel hands each request for `/dev/ublkbN` to this process, through rings. Each queue of the device has a
//! thread with a ring and a [`blkmq::Submitter`] of its own. Requests that have arrived together go through blkmq's
//! queue as one plug, and results are told together. [`Options::recover`] makes a block device that outlives its
//! server.
//!
//! ```no_run
//! use blkmq::driver::spec;
//! use blkmq::{Client, RequestQueue};
//! use blkmq_ublk::{Added, Control, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let q = RequestQueue::builder(spec::open("ram,size=1G")?).build()?;
//! let added = Added::new(Control::open()?, &q, &Options::default())?;
//! // Here the process may give up rights: it has no thread yet.
//! let device = added.start(&Client::new("ublk"), |_| ())?;
//! println!("{}", device.path());
//! device.end()?;
//! # Ok(())
//! # }
//! ```

pub mod abi;
pub mod control;

mod descriptors;
mod device;
mod error;
mod mark;
mod parameters;
mod patience;
mod queue;
mod threads;
#[doc(hidden)]
pub mod work;

pub use control::Control;
pub use device::{Added, Device, Options};
pub use error::Error;
