//! Virtual machines in front of a queue: vhost-user-blk devices as a library.
//!
//! A [`Server`] has [`Device`]s, each an [export](blkmq_engine::Export) of an [`Engine`](blkmq_engine::Engine) behind a
//! Unix socket. The front-end of a virtual machine (QEMU, cloud-hypervisor, libblkio) connects there and lends the
//! machine's memory. From then on the machine's driver virtio-blk puts requests straight into rings that the server
//! reads. The machine's memory is the buffers of the operations. Only data of no whole sectors or blocks is copied.
//!
//! A device has as many rings as the machine has processors, if it likes, and as many threads as are wanted to serve
//! them, each with its own [`blkmq::Submitter`]. A machine is a client of the engine, beside those of other front-ends.
//! Requests that arrive together are submitted as one plug, and the machine is notified once of all completions. If the
//! device completes requests at once, as memory does, a plug has eight, so that machine and server work side by side.
//!
//! ```
//! use std::sync::Arc;
//!
//! use blkmq::RequestQueue;
//! use blkmq::driver::spec;
//! use blkmq::event::EventFd;
//! use blkmq_engine::{Bounds, Engine, Export, Journal, Level, least_memory};
//! use blkmq_vhost_user::{Device, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let socket = folder.path().join("disk.sock");
//! let q = RequestQueue::builder(spec::open("ram,size=1G")?).build()?;
//! let (journal, log_thread) = Journal::start(Arc::new(|_: Level, line: &str| eprintln!("{line}")), "log")?;
//! let (exports, bell) = (vec![Export::new("disk", q)], Arc::new(EventFd::new()?));
//! let engine = Arc::new(Engine::new(exports, Bounds::default(), least_memory(1), 1, bell, journal));
//! let device = Device { nr_queues: 4, nr_threads: 2, ..Device::new(&socket) };
//! let server = Server::start(vec![device], &engine)?;
//! // Somewhere else, as when a signal comes:
//! engine.stop.drain();
//! server.wait();
//! engine.end_log(&log_thread);
//! # Ok(())
//! # }
//! ```

mod connection;
mod device;
mod external;
mod foreign;
#[doc(hidden)]
pub mod hostile;
mod inflight;
mod kicks;
mod memory;
mod notifier;
mod protocol;
mod request;
mod ring;
mod ring_server;
mod server;
mod virtqueue;
mod worker;

pub use device::{Device, DeviceError, MAX_QUEUES};
pub use server::{Bound, Server, StartError};
