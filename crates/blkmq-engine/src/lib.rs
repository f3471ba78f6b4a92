//! What servers of a queue have in common. A front-end speaks to clients in a protocol of its own, as NBD; this crate
//! makes their requests operations of a [`blkmq::RequestQueue`], and says how these ended.
//!
//! An [`Engine`] is what the threads of a front-end share: [`Export`]s, each a queue with a name; the [`Clients`] with
//! their statistics; bounds for what they may hold; a log, and a handle that ends all of it. An [`Acceptor`] accepts
//! clients at sockets and ports, and [`harness`] has conformance checks for front-ends.
//!
//! A client has an [`Entry`] in the engine. By [`Export::join`] it becomes a client of the queue, and gets a
//! [`blkmq::Submitter`]; [`Session::of_own`] does so for a block device or a machine that the operator has named. Then
//! the client's thread has a [`Session`], which takes the client's requests:
//!
//! ```
//! use std::sync::Arc;
//!
//! use blkmq::RequestQueue;
//! use blkmq::driver::spec;
//! use blkmq::event::EventFd;
//! use blkmq_engine::{Ask, Bounds, Engine, Export, FrontEnd, Journal, Level, Request, Session, Source, least_memory};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let q = RequestQueue::builder(spec::open("ram,size=1M")?).build()?;
//! let (journal, log_thread) = Journal::start(Arc::new(|_: Level, line: &str| eprintln!("{line}")), "log")?;
//! let [bell, own_bell] = [Arc::new(EventFd::new()?), Arc::new(EventFd::new()?)];
//! let exports = vec![Export::new("disk", q)];
//! let engine = Arc::new(Engine::new(exports, Bounds::default(), least_memory(1), 1, bell, journal));
//!
//! // A client comes, and chooses the first export.
//! let entry = engine.clients.join(FrontEnd::Nbd, "somewhere".into(), Source::User(1000), own_bell.clone());
//! let entry = entry.expect("there is a place");
//! assert!(engine.clients.admit(&entry), "there is a place for a client too");
//! let mut submitter = engine.exports[0].join(&entry).expect("anybody may use it")?;
//! let mut session = Session::new(&engine, 0, &entry, &mut submitter);
//!
//! // Its request. The front-end's own number for it comes back with it.
//! session.take(&Request::new(Ask::Read, 4096, 512, 7_u64)).expect("it has no other request");
//! session.submit(&mut submitter);
//! let (id, failure) = loop {
//!     match session.next_finished() {
//!         Some(finished) => break finished,
//!         None if session.drive(&mut submitter) => (),
//!         None => blkmq_engine::sleep(&mut submitter, &mut [], &own_bell, None)?,
//!     }
//! };
//! assert!(failure.is_none() && *session.own(id) == 7);
//! assert_eq!(session.pieces(id).flatten().count(), 512);
//! session.forget(id);
//! session.leave();
//! drop((submitter, session)); // in this order
//! engine.clients.leave(entry.number);
//! # Ok(())
//! # }
//! ```

mod acceptor;
mod ask;
mod clients;
mod engine;
mod export;
mod failure;
mod files;
pub mod harness;
mod idle_timeout;
mod log;
mod memory;
mod placement;
mod session;
mod stop;
mod wait;

pub use acceptor::{Accepted, Acceptor, Address, BoundAddress, Listener, SocketError};
pub use ask::{Ask, Hints, Request};
pub use clients::{
    ClientInfo, Clients, Entry, Errors, FrontEnd, Histogram, Kind, Latencies, NR_BUCKETS, Reason, Rejections, Source,
};
pub use engine::{Bounds, Engine};
pub use export::{Allow, Export, ExportError, ExportFault, Identity, MAX_TEXT, Permit, Terms};
pub use failure::{Cause, Failure};
pub use files::{SocketFile, open_regular, set_socket_mode};
pub use idle_timeout::IdleTimeout;
pub use log::{Journal, Level, Log, LogThread, Topic};
pub use memory::budget::least as least_memory;
pub use placement::{
    Layout, MAX_CHANGED, MAX_GROUPS, MAX_RULES, Network, NetworkError, PathError, Placement, PlacementError, Rule,
    WEIGHTS, check_group,
};
pub use rustix::event::PollFlags;
pub use session::{Piece, Session, TaskId};
pub use stop::{Phase, Stop};
pub use wait::{Sleep, Watch, sleep, wait};
