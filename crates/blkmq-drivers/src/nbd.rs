//! Exports of NBD servers. Each hardware queue has its own connection.
//!
//! The requests of a batch go to the server in one system call, and each receive takes all replies that are there. A
//! connection breaks when the server closes it or breaks the protocol, or when a request has taken longer than the
//! queue's `io_timeout`. Then the device connects again, for as long as it is open. It is not known which of the
//! unanswered requests the server has done. The device sends all of them once more if the server is back within
//! `reconnect_delay`. Otherwise these requests fail, and so do all requests that come while the server is away.
//!
//! A server that answers a request with `ESHUTDOWN` is about to end. The device then sends it no more requests, waits
//! for the answers to the requests that it has (up to half of `reconnect_delay`), tells it that the client leaves, and
//! connects again in the same way.
//!
//! # How it is built
//!
//! The block layer calls in by [`Nbd`], and nothing else does. `Nbd` gives a request to the `connection` of the
//! hardware queue. The connection keeps the request (`outstanding`) until the server has answered (`received`). The
//! `session` has all connections, and the thread that connects again: that thread makes sockets (`connector`),
//! negotiates (`handshake`), and gives each connection a socket. Connections do not know the session. The `cache` says
//! which writes the server may lose; the session and the connections share it.

mod address;
mod cache;
mod connection;
mod connector;
mod handshake;
mod outstanding;
mod received;
mod session;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use blkmq::SECTOR_SIZE;
use blkmq::driver::spec::{Accepts, DeviceDescription, Parameter, SpecError, Value, Values};
use blkmq::driver::{Batch, Done, Driver, Health, TimeoutAction, Topology, TopologyError};
use blkmq::{Limits, MAX_HW_QUEUES, RqId, Status, Time};
use blkmq_nbd::transmission;

pub use address::Address;
use connection::Connection;
use session::Session;

use crate::{HW_QUEUE_DEPTH, OpenError};

/// The longest discard, and the longest zeroing, in sectors. The 32 bits of a length hold far more.
const MAX_RANGE_SECTORS: u32 = 1 << 21;
/// The most pieces of memory in one request. The driver copies the pieces to and from the socket's buffers.
const MAX_SEGMENTS: u16 = 256;

/// The parameters of the device.
///
#[doc = include_str!("../docs/nbd.md")]
pub const PARAMETERS: &[Parameter] = &[
    Parameter::new(
        "uri",
        Accepts::Text,
        "",
        "the export, as in nbd+unix:///name?socket=disk.sock or nbd://host:port/name",
    ),
    Parameter::new(
        "submit_queues",
        Accepts::Count { unit: "", min: 1, max: MAX_HW_QUEUES as u64 },
        "1",
        "hardware queues, each with a connection of its own",
    ),
    HW_QUEUE_DEPTH,
    Parameter::new(
        "reconnect_delay",
        Accepts::Time { max: 1 << 62 },
        "0",
        "how long requests wait for a server that is away, to be sent to it when it is back; then they fail, 0: at once",
    ),
    Parameter::new(
        "keeps_cache",
        Accepts::Switch,
        "0",
        "1: what the server has answered outlives it, flushed or not; 0: flushes fail once it was away with something not flushed",
    ),
];

/// The device as specs name it.
pub(super) const DEVICE: DeviceDescription =
    DeviceDescription::new("nbd", "an export of an NBD server", PARAMETERS, |values| {
        Ok(Arc::new(Nbd::from_values(values)?))
    });

/// Which export is opened, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The server and the name of the export.
    pub address: Address,
    /// Hardware queues, 1 to [`MAX_HW_QUEUES`]. More than one need a server whose flushes cover every connection.
    pub queues: u16,
    /// Tags of each hardware queue, 1 to 4096.
    pub depth: u16,
    /// How long requests wait for a server that is away. If the server is back within that time, the requests are sent
    /// to it; requests that it had not answered are sent once more. Otherwise these requests fail, and so do new
    /// requests until the server is back. With 0 they fail at once. If a request was sent to several servers and none
    /// answered, the time counts from the moment when the first of them went away.
    ///
    /// A server may continue with what a closed connection had asked for. The server may then do such a write after the
    /// repetition of the write, and after a later write to the same place. Servers that end, or that finish their
    /// requests before they accept connections again, do not do that.
    pub reconnect_delay: Duration,
    /// Whether everything that the server has answered outlives the server, flushed or not: it is there when the server
    /// is started anew, as the data of a file is unless its machine stops. Without this, if the server was away while
    /// something was not flushed, flushes and FUA fail from then on, until the device is opened anew.
    pub keeps_cache: bool,
}

impl Config {
    /// One connection with 128 tags. Requests do not wait for a server that is away.
    #[must_use]
    pub const fn new(address: Address) -> Self {
        Self { address, queues: 1, depth: 128, reconnect_delay: Duration::ZERO, keeps_cache: false }
    }

    /// Returns true if requests wait for a server that is away.
    const fn keeps(&self) -> bool {
        !self.reconnect_delay.is_zero()
    }

    fn from_values(values: &Values) -> Result<Self, SpecError> {
        let Some(Value::Text(uri)) = values.get("uri") else {
            return Err(SpecError::new("a URI is missing, as in nbd,uri=nbd+unix:///?socket=disk.sock"));
        };
        Ok(Self {
            queues: values.number("submit_queues"),
            depth: values.number("hw_queue_depth"),
            reconnect_delay: Duration::from_nanos(values.number("reconnect_delay")),
            keeps_cache: values.is_on("keeps_cache"),
            ..Self::new(uri.parse()?)
        })
    }
}

/// An export of an NBD server.
#[derive(Debug)]
pub struct Nbd {
    session: Arc<Session>,
}

impl Nbd {
    /// Connects to the server.
    ///
    /// # Errors
    /// Why there is no such export for this device, in one sentence.
    pub fn open(config: Config) -> Result<Self, OpenError> {
        Ok(Self { session: Session::open(config)? })
    }

    fn from_values(values: &Values) -> Result<Self, SpecError> {
        Ok(Self::open(Config::from_values(values)?)?)
    }

    fn connection(&self, hctx: u16) -> &Connection {
        self.session.get(hctx).expect("a hardware queue has been connected since it was first there")
    }
}

impl Drop for Nbd {
    fn drop(&mut self) {
        self.session.close();
    }
}

impl Driver for Nbd {
    fn name(&self) -> &'static str {
        "nbd"
    }

    fn limits(&self) -> Limits {
        let terms = &self.session.terms;
        let range = |flag| if terms.has(flag) { MAX_RANGE_SECTORS } else { 0 };
        let (read_only, can_flush) = (terms.has(transmission::READ_ONLY), terms.has(transmission::SEND_FLUSH));
        Limits {
            capacity_sectors: self.session.size() / SECTOR_SIZE as u64,
            logical_block_size: terms.block_size,
            physical_block_size: terms.block_size.max(4096),
            max_sectors: terms.max_bytes / SECTOR_SIZE as u32,
            max_segments: MAX_SEGMENTS,
            max_segment_size: terms.max_bytes,
            max_discard_sectors: range(transmission::SEND_TRIM),
            max_write_zeroes_sectors: range(transmission::SEND_WRITE_ZEROES),
            write_cache: can_flush,
            fua: terms.has(transmission::SEND_FUA),
            // A server that does not mention flushes may still have a cache.
            no_flush: !can_flush && !read_only,
            rotational: terms.has(transmission::ROTATIONAL),
            read_only,
            ..Limits::default()
        }
    }

    fn health(&self) -> Health {
        self.session.health()
    }

    fn identity(&self) -> Option<String> {
        Some(self.session.config.address.identity())
    }

    fn topology(&self) -> Topology {
        let Config { queues, depth, .. } = self.session.config;
        Topology::new(queues, depth)
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        let queues = u16::try_from(topology.nr_queues()).unwrap_or(u16::MAX);
        self.session.connect(queues).map_err(TopologyError::refused)
    }

    /// COST: a system call for all requests; for each request a header of 28 bytes, a copy of what it writes, and a
    /// lock of its own. Another thread holds that lock only for a moment, while the server leaves or a request is
    /// overdue.
    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        if !self.session.is_attended() && !self.session.attend() {
            return batch.finish_all(Status::IoError);
        }
        self.connection(hctx).start(batch);
    }

    /// COST: a system call for all replies that have come, a copy of what was read, and for each reply the lock of its
    /// request, as in [`queue_rqs`](Self::queue_rqs); for a reply with data once more.
    fn poll(&self, hctx: u16, done: &mut Done<'_>, _now: Time) {
        if self.connection(hctx).reap(done) {
            self.session.wake();
        }
    }

    fn ready_fd(&self, hctx: u16) -> Option<BorrowedFd<'_>> {
        self.session.get(hctx).map(Connection::fd)
    }

    fn timeout(&self, hctx: u16, id: RqId, _now: Time) -> TimeoutAction {
        // If the connection is given up because of this request, the next poll finds that.
        self.connection(hctx).is_late(id);
        TimeoutAction::ResetTimer
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "nbd {} ({} bytes)", self.session.config.address, self.session.size())?;
        for (hctx, connection) in self.session.iter().enumerate() {
            writeln!(out, "  connection {hctx}: {connection:?}")?;
        }
        Ok(())
    }
}
