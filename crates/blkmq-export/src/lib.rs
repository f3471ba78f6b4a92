//! NBD clients in front of a queue: a server as a library.
//!
//! A [`Server`] has exports, each a [`blkmq::RequestQueue`] with a name, and listens at Unix sockets and TCP ports.
//! Each connection has a thread with its own [`blkmq::Submitter`]. Requests that arrive together go through the queue
//! as one plug, and replies that are ready together are sent in one system call. What a connection may hold is bounded:
//! a client that asks for more, or that does not read its replies, waits, and no other client does. [`Tls`] encrypts
//! connections and verifies clients. Connections without TLS cost no more because TLS exists.
//!
//! ```
//! use blkmq::RequestQueue;
//! use blkmq::driver::spec;
//! use blkmq_export::{Address, Export, Server};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let q = RequestQueue::builder(spec::open("ram,size=1G")?).build()?;
//! let server = Server::builder().export(Export::new("disk", q)).listen(Address::loopback(0)).start()?;
//! println!("{}", server.uris()[0]);
//! // Somewhere else, as when a signal comes:
//! server.stop().drain();
//! server.wait();
//! # Ok(())
//! # }
//! ```

pub mod handed;
pub mod nbd;

mod connection;
mod server;
mod tls;

pub use blkmq_engine::{
    Address, Allow, Bounds, Cause, ClientInfo, Engine, Errors, Export, ExportError, ExportFault, FrontEnd, Histogram,
    Identity, Kind, Latencies, Layout, Level, Log, MAX_CHANGED, MAX_GROUPS, MAX_RULES, NR_BUCKETS, Network,
    NetworkError, PathError, Permit, Placement, PlacementError, Rejections, Rule, SocketError, SocketFile, Stop,
    WEIGHTS, check_group, open_regular, set_socket_mode,
};
pub use server::{Bound, Builder, MAX_CONNECTIONS, Server, StartError, available_memory};
pub use tls::{Tls, TlsError};
