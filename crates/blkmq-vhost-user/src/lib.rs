//! Virtual machines in front of a queue: vhost-user-blk devices as a library.
//!
//! A [`Server`] has [`Device`]s, each a [`blkmq::RequestQueue`] behind a Unix socket. The front-end of a virtual
//! machine (QEMU, cloud-hypervisor, libblkio) connects there and lends the machine's memory. From then on the machine's
//! driver virtio-blk puts requests straight into rings that the server reads. The data is never copied: the machine's
//! memory is the buffers of the operations.
//!
//! A device has as many rings as the machine has processors, if it likes, and as many threads as are wanted to serve
//! them, each with its own [`blkmq::Submitter`]. Requests that have arrived together go through the queue as one plug,
//! and a machine is told once of all that is over. If the device is done with requests at once, as memory is, they go
//! in plugs of eight, so that the machine has work while the server has.
//!
//! ```
//! use std::sync::Arc;
//!
//! use blkmq::RequestQueue;
//! use blkmq::driver::spec;
//! use blkmq_vhost_user::{Device, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let socket = folder.path().join("disk.sock");
//! let q = RequestQueue::builder(spec::open("ram,size=1G")?).build()?;
//! let device = Device { nr_queues: 4, nr_threads: 2, ..Device::new(&socket, q) };
//! let server = Server::start(vec![device], Arc::new(|_, line: &str| eprintln!("{line}")))?;
//! // Somewhere else, as when a signal comes:
//! server.stop().drain();
//! server.wait();
//! # Ok(())
//! # }
//! ```

mod count;
mod device;
#[doc(hidden)]
pub mod hostile;
mod inflight;
mod lane;
mod lent;
mod memory;
mod protocol;
mod quiet;
mod request;
mod ring;
mod server;
mod session;
mod stop;
mod worker;

pub use count::Stats;
pub use device::{Device, DeviceError, MAX_QUEUES};
pub use server::{Bound, Level, Log, Server, StartError};
pub use stop::Stop;
