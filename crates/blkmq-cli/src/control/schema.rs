//! The JSON that servers answer with and commands read.

use std::collections::BTreeMap;

use blkmq_export::nbd::Errno;
use blkmq_export::{Errors, Latencies};
use serde::{Deserialize, Serialize};

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
    /// Whether what is written can be read again.
    pub(crate) keeps_data: bool,
    #[serde(flatten)]
    pub(crate) health: Health,
    /// Where clients find it.
    pub(crate) uris: Vec<String>,
    /// Every knob with its value; `scheduler` and `locking` show all, the chosen one in brackets.
    pub(crate) knobs: BTreeMap<String, String>,
}

/// How a queue's device is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Health {
    /// `good`, `away` or `failed`.
    pub(crate) health: String,
    /// What is wrong, if anything is.
    pub(crate) trouble: Option<String>,
}

impl Health {
    /// The health of a queue's device just now.
    pub(crate) fn of(q: &blkmq::RequestQueue) -> Self {
        let health = q.driver().health();
        Self { health: health.word().to_owned(), trouble: health.trouble().map(str::to_owned) }
    }

    /// The line for people, if anything is wrong.
    pub(crate) fn line(&self) -> Option<String> {
        self.trouble.as_ref().map(|trouble| format!("device {}: {trouble}", self.health))
    }
}

/// The value of one knob.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Value {
    pub(crate) queue: String,
    pub(crate) knob: String,
    pub(crate) value: String,
    /// What is configured for the queue's exports and does nothing since the knob was set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// A queue's statistics: the kernel's 17 numbers, in its order and with its units.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stat {
    pub(crate) queue: String,
    #[serde(flatten)]
    pub(crate) health: Health,
    /// Since the queue was made.
    pub(crate) uptime_ns: u64,
    pub(crate) read_ios: u64,
    pub(crate) read_merges: u64,
    pub(crate) read_sectors: u64,
    pub(crate) read_ticks: u64,
    pub(crate) write_ios: u64,
    pub(crate) write_merges: u64,
    pub(crate) write_sectors: u64,
    pub(crate) write_ticks: u64,
    pub(crate) in_flight: u64,
    pub(crate) io_ticks: u64,
    pub(crate) time_in_queue: u64,
    pub(crate) discard_ios: u64,
    pub(crate) discard_merges: u64,
    pub(crate) discard_sectors: u64,
    pub(crate) discard_ticks: u64,
    pub(crate) flush_ios: u64,
    pub(crate) flush_ticks: u64,
    /// Reads, and other requests, that the driver has just now.
    pub(crate) inflight: [u32; 2],
    /// The exports in front of it.
    pub(crate) exports: Vec<String>,
    /// Requests of their clients that were answered with an error, by its kind.
    pub(crate) errors: BTreeMap<String, u64>,
}

/// Requests that were answered with an error, by the word for it; those that there were none of are there as well.
pub(crate) fn by_kind(errors: &Errors) -> BTreeMap<String, u64> {
    Errno::ALL.into_iter().map(|errno| (errno.word().to_owned(), errors.of(errno))).collect()
}

/// What was answered for an export.
#[derive(Debug, Clone)]
pub(crate) struct Answered {
    /// What commands call its queue.
    pub(crate) queue: String,
    /// What commands call it.
    pub(crate) export: String,
    pub(crate) errors: Errors,
}

impl Stat {
    /// The numbers of a queue just now.
    pub(crate) fn of(queue: &str, q: &blkmq::RequestQueue, answered: &[Answered]) -> Self {
        let stat = q.stat();
        let exports: Vec<_> = answered.iter().filter(|answered| answered.queue == queue).collect();
        let mut errors = Errors::default();
        exports.iter().for_each(|answered| errors += answered.errors);
        Self {
            queue: queue.to_owned(),
            health: Health::of(q),
            // The queue's clock begins when the queue is made.
            uptime_ns: q.clock().now().0,
            read_ios: stat.read_ios,
            read_merges: stat.read_merges,
            read_sectors: stat.read_sectors,
            read_ticks: stat.read_ticks,
            write_ios: stat.write_ios,
            write_merges: stat.write_merges,
            write_sectors: stat.write_sectors,
            write_ticks: stat.write_ticks,
            in_flight: stat.in_flight,
            io_ticks: stat.io_ticks,
            time_in_queue: stat.time_in_queue,
            discard_ios: stat.discard_ios,
            discard_merges: stat.discard_merges,
            discard_sectors: stat.discard_sectors,
            discard_ticks: stat.discard_ticks,
            flush_ios: stat.flush_ios,
            flush_ticks: stat.flush_ticks,
            inflight: q.inflight(),
            exports: exports.iter().map(|answered| answered.export.clone()).collect(),
            errors: by_kind(&errors),
        }
    }
}

/// Somebody who is connected.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Client {
    /// The first to connect has 1, and no other one the same.
    pub(crate) number: u64,
    /// `None` before it has chosen one.
    pub(crate) queue: Option<String>,
    /// What commands call its export; `None` before it has chosen one.
    pub(crate) export: Option<String>,
    /// Where it comes from.
    pub(crate) peer: String,
    /// Who its certificate says it is, if it had to show one.
    pub(crate) name: Option<String>,
    /// Requests taken from it.
    pub(crate) requests: u64,
    /// Bytes that it has read or written.
    pub(crate) bytes: u64,
    /// Its requests that were answered with an error, by its kind.
    pub(crate) errors: BTreeMap<String, u64>,
    /// For the metrics alone.
    #[serde(skip)]
    pub(crate) latencies: Latencies,
}

/// Why a request was not granted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) error: String,
}
