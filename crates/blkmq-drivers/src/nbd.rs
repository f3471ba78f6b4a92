//! Exports of NBD servers, each hardware queue with a connection of its own.
//!
//! The requests of a batch go to the server in one system call, and replies come as many at a time as there are. What the
//! server has done of what a connection asked that breaks is not known, so its requests fail, and so do all that come after. A
//! connection breaks too when a request has lasted longer than the queue's `io_timeout`.

mod address;
mod connection;
mod handshake;

use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use blkmq::driver::spec::{Accepts, Parameter, Value, Values};
use blkmq::driver::{Batch, Done, Driver, RqId, TimeoutAction, Topology};
use blkmq::limits::SECTOR_SIZE;
use blkmq::{Limits, MAX_HW_QUEUES, Time};

pub use address::Address;
use connection::Connection;
use handshake::Terms;

use crate::HW_QUEUE_DEPTH;

/// Longest discard, and zeroing, in sectors: what 32 bits of a length hold, by far.
const MAX_RANGE_SECTORS: u32 = 1 << 21;
/// Pieces of memory in one request. They are copied to and from the socket's buffers.
const MAX_SEGMENTS: u16 = 256;

/// The parameters of the device.
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
];

/// Which export, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The server and the name of the export.
    pub address: Address,
    /// Hardware queues, 1 to [`MAX_HW_QUEUES`]. More than one ask for a server whose flush covers every connection.
    pub queues: u16,
    /// Tags of each, 1 to 4096.
    pub depth: u16,
}

impl Config {
    /// One connection with 128 tags.
    #[must_use]
    pub const fn new(address: Address) -> Self {
        Self { address, queues: 1, depth: 128 }
    }

    fn from_values(values: &Values) -> Result<Self, String> {
        let Some(Value::Text(uri)) = values.get("uri") else {
            return Err("a URI is missing, as in nbd,uri=nbd+unix:///?socket=disk.sock".to_owned());
        };
        Ok(Self {
            queues: values.number("submit_queues"),
            depth: values.number("hw_queue_depth"),
            ..Self::new(uri.parse()?)
        })
    }
}

/// An export of an NBD server.
#[derive(Debug)]
pub struct Nbd {
    config: Config,
    terms: Terms,
    /// Made when a hardware queue is first there; none goes before the device.
    connections: Box<[OnceLock<Connection>]>,
}

impl Nbd {
    /// Connects to the server.
    ///
    /// # Errors
    /// Why there is no such export for us, in one sentence.
    pub fn open(config: Config) -> Result<Self, String> {
        let (socket, terms) = handshake::connect(&config.address)?;
        let nbd = Self { connections: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(), terms, config };
        nbd.begin(0, socket)?;
        nbd.connect(nbd.config.queues)?;
        Ok(nbd)
    }

    pub(crate) fn from_values(values: &Values) -> Result<Self, String> {
        Self::open(Config::from_values(values)?)
    }

    /// Makes the connections that are missing.
    fn connect(&self, queues: u16) -> Result<(), String> {
        let address = &self.config.address;
        if queues > 1 && !self.terms.can_multi_conn {
            return Err(format!("{address}: the server allows one connection; submit_queues must be 1"));
        }
        for hctx in 0..queues {
            if self.connections[usize::from(hctx)].get().is_some() {
                continue;
            }
            let (socket, terms) = handshake::connect(address)?;
            // The export may have grown since the first one came.
            if (Terms { size: self.terms.size, ..terms }) != self.terms || terms.size < self.terms.size {
                return Err(format!("{address}: the server promises each connection something else"));
            }
            self.begin(hctx, socket)?;
        }
        Ok(())
    }

    fn begin(&self, hctx: u16, socket: OwnedFd) -> Result<(), String> {
        let connection = Connection::new(socket, self.config.depth);
        let _ = self.connections[usize::from(hctx)]
            .set(connection.map_err(|error| format!("{}: {error}", self.config.address))?);
        Ok(())
    }

    fn connection(&self, hctx: u16) -> &Connection {
        self.connections[usize::from(hctx)].get().expect("a hardware queue has been connected since it was first there")
    }
}

impl Driver for Nbd {
    fn name(&self) -> &'static str {
        "nbd"
    }

    fn limits(&self) -> Limits {
        let terms = &self.terms;
        let range = |can: bool| if can { MAX_RANGE_SECTORS } else { 0 };
        Limits {
            capacity_sectors: terms.size / SECTOR_SIZE as u64,
            logical_block_size: terms.block_size,
            physical_block_size: terms.block_size.max(4096),
            max_sectors: terms.max_bytes / SECTOR_SIZE as u32,
            max_segments: MAX_SEGMENTS,
            max_segment_size: terms.max_bytes,
            max_discard_sectors: range(terms.can_trim),
            max_write_zeroes_sectors: range(terms.can_zero),
            write_cache: terms.can_flush,
            fua: terms.can_fua,
            rotational: terms.is_rotational,
            read_only: terms.is_read_only,
            ..Limits::default()
        }
    }

    fn topology(&self) -> Topology {
        let Config { queues, depth, .. } = self.config;
        Topology { default_queues: queues, read_queues: 0, poll_queues: 0, depth }
    }

    fn set_topology(&self, topology: Topology) -> Result<(), String> {
        self.connect(u16::try_from(topology.nr_queues()).unwrap_or(u16::MAX))
    }

    /// COST: a system call for all requests; for each a header of 28 bytes and a copy of what it writes, and a lock of its
    /// own that nobody waits for.
    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, _now: Time) {
        self.connection(hctx).start(batch);
    }

    /// COST: a system call for all replies that have come, a copy of what was read, and for each reply a lock that nobody
    /// waits for; for one with data another.
    fn poll(&self, hctx: u16, done: &mut Done<'_>, _now: Time) {
        self.connection(hctx).reap(done);
    }

    fn ready_fd(&self, hctx: u16) -> Option<BorrowedFd<'_>> {
        self.connections[usize::from(hctx)].get().map(Connection::fd)
    }

    fn timeout(&self, hctx: u16, _id: RqId, _now: Time) -> TimeoutAction {
        // The next poll fails all that the connection was asked.
        self.connection(hctx).give_up();
        TimeoutAction::ResetTimer
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "nbd {} ({} bytes)", self.config.address, self.terms.size)?;
        for (hctx, connection) in self.connections.iter().enumerate() {
            if let Some(connection) = connection.get() {
                writeln!(out, "  connection {hctx}: {connection:?}")?;
            }
        }
        Ok(())
    }
}
