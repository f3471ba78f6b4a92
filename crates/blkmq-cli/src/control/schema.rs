//! The JSON that servers answer with and commands read.

use std::collections::BTreeMap;
use std::io::{self, Write};

use blkmq_export::{Cause, Errors, FrontEnd, Latencies};
use serde::{Deserialize, Serialize};

use super::limiter::LimiterReport;

/// A queue and what it serves.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Queue {
    /// The export's name, or `default` for the one without a name.
    pub(crate) name: String,
    /// The device's spec.
    pub(crate) device: String,
    pub(crate) description: String,
    pub(crate) size_bytes: u64,
    pub(crate) read_only: bool,
    /// Whether data that was written can be read again.
    pub(crate) keeps_data: bool,
    #[serde(flatten)]
    pub(crate) health: Health,
    /// Why the weights of clients and groups do nothing, if they do nothing.
    pub(crate) idle_weights: Option<String>,
    /// The URIs at which clients find it.
    pub(crate) uris: Vec<String>,
    /// Every knob with its value. `scheduler` and `locking` list all choices, with the chosen one in brackets.
    pub(crate) knobs: BTreeMap<String, String>,
}

impl Queue {
    /// Writes a line that says that weights do nothing, and why, if they do nothing.
    pub(crate) fn tell_idle_weights(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.idle_weights {
            Some(why) => writeln!(out, "In queue {} weights do nothing: {why}", self.name),
            None => Ok(()),
        }
    }
}

/// The health of a queue's device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Health {
    /// `good`, `away`, `orphaned` or `failed`.
    pub(crate) health: String,
    /// What is wrong, if anything is.
    pub(crate) trouble: Option<String>,
}

impl Health {
    /// The present health of a queue's device.
    pub(crate) fn of(q: &blkmq::RequestQueue) -> Self {
        let health = q.driver().health();
        Self { health: health.word().to_owned(), trouble: health.trouble().map(str::to_owned) }
    }

    /// A line that says what is wrong, if anything is.
    pub(crate) fn line(&self) -> Option<String> {
        self.trouble.as_ref().map(|trouble| format!("device {}: {trouble}", self.health))
    }
}

/// The value of one knob.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) queue: String,
    pub(crate) knob: String,
    /// The client or group that has the knob, as in `client=NAME`. `None`: the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<String>,
    pub(crate) value: String,
    /// Settings of the queue's exports that have no effect since the knob was set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// The kernel's 17 numbers, in its order and with its units.
#[derive(Serialize, Deserialize)]
#[serde(remote = "blkmq::DiskStats")]
struct KernelStat {
    read_ios: u64,
    read_merges: u64,
    read_sectors: u64,
    read_ticks: u64,
    write_ios: u64,
    write_merges: u64,
    write_sectors: u64,
    write_ticks: u64,
    in_flight: u64,
    io_ticks: u64,
    time_in_queue: u64,
    discard_ios: u64,
    discard_merges: u64,
    discard_sectors: u64,
    discard_ticks: u64,
    flush_ios: u64,
    flush_ticks: u64,
}

/// A queue's statistics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stat {
    pub(crate) queue: String,
    #[serde(flatten)]
    pub(crate) health: Health,
    /// Since the queue was made.
    pub(crate) uptime_ns: u64,
    #[serde(flatten, with = "KernelStat")]
    pub(crate) kernel: blkmq::DiskStats,
    /// Reads, and other requests, that the driver has now.
    pub(crate) inflight: [u32; 2],
    /// The exports in front of it.
    pub(crate) exports: Vec<String>,
    /// Requests of their clients that were answered with an error, by its kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// The limiter in front of its device, if it has one.
    pub(crate) limiter: Option<LimiterReport>,
}

/// Requests that were answered with an error, by the word for it. Words with a count of 0 are included.
pub(crate) fn by_kind(errors: &Errors) -> BTreeMap<String, u64> {
    Cause::ALL.into_iter().map(|cause| (cause.word().to_owned(), errors.of(cause))).collect()
}

/// Counts of the answers for an export.
#[derive(Debug, Clone)]
pub(crate) struct Answered {
    /// What commands call its queue.
    pub(crate) queue: String,
    /// What commands call it.
    pub(crate) export: String,
    /// By front-end, as all are.
    pub(crate) errors: [Errors; FrontEnd::ALL.len()],
}

impl Stat {
    /// The present numbers of a queue.
    pub(crate) fn of(queue: &str, q: &blkmq::RequestQueue, answered: &[Answered]) -> Self {
        let exports: Vec<_> = answered.iter().filter(|answered| answered.queue == queue).collect();
        let mut errors = Errors::default();
        exports.iter().flat_map(|answered| answered.errors).for_each(|of| errors += of);
        Self {
            queue: queue.to_owned(),
            health: Health::of(q),
            // The queue's clock begins when the queue is made.
            uptime_ns: q.clock().now().0,
            kernel: q.disk_stats(),
            inflight: q.inflight(),
            exports: exports.iter().map(|answered| answered.export.clone()).collect(),
            errors: by_kind(&errors),
            limiter: LimiterReport::of(q),
        }
    }
}

/// A connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Connection {
    /// The first connection has number 1. No two connections have the same number.
    pub(crate) number: u64,
    /// The word for the front-end through which it comes.
    pub(crate) front_end: String,
    /// Its queue. `None` before it has chosen an export.
    pub(crate) queue: Option<String>,
    /// What commands call its export; `None` before it has chosen one.
    pub(crate) export: Option<String>,
    /// Where it comes from.
    pub(crate) peer: String,
    /// The name in the client's certificate, if it had to show one.
    pub(crate) name: Option<String>,
    /// The client of the queue to which the connection belongs; `None` before it has chosen an export.
    pub(crate) client: Option<String>,
    /// Requests taken from the client.
    pub(crate) requests: u64,
    /// Bytes that the client has read or written.
    pub(crate) bytes: u64,
    /// The client's requests that were answered with an error, by kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Only for the metrics.
    #[serde(skip)]
    pub(crate) latencies: Latencies,
}

/// A part of all sectors of a queue, from 0 to 1; `None` if there were none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parts {
    /// What should have been received.
    pub(crate) due: Option<f64>,
    pub(crate) received: Option<f64>,
}

impl Parts {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        let sum =
            |one: Option<f64>, other: Option<f64>| one.or(other).map(|_| one.unwrap_or(0.0) + other.unwrap_or(0.0));
        Self { due: sum(self.due, other.due), received: sum(self.received, other.received) }
    }
}

/// A client of a queue, with its share. All connections of the queue that have the client's name are one client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) queue: String,
    /// Its name.
    pub(crate) client: String,
    /// The path of its group; `None` if it is in none.
    pub(crate) group: Option<String>,
    pub(crate) weight: u16,
    pub(crate) connections: u32,
    /// The last second.
    pub(crate) second: Parts,
    /// The last minute.
    pub(crate) minute: Parts,
    /// Operations that are not over.
    pub(crate) outstanding: u64,
    /// Requests that the device does not have yet.
    pub(crate) waiting: u64,
    /// Whether its requests waited in the last second.
    pub(crate) waits: bool,
    /// Whether it asked for less than it could have had in the last second. Then its due is what it asked for.
    pub(crate) asks_for_less: bool,
}

/// A group of a queue, with the share of all clients in it and in its groups.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Group {
    pub(crate) queue: String,
    /// Its path.
    pub(crate) group: String,
    pub(crate) weight: u16,
    /// Clients in the group itself.
    pub(crate) clients: u32,
    /// The last second.
    pub(crate) second: Parts,
    /// The last minute.
    pub(crate) minute: Parts,
}

/// Why a request was not granted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) error: String,
}
