//! The interference table of "BFQ, Multiqueue-Deadline, or Kyber?" (ICPE'24, doi 10.1145/3629526.3645053, figures 11
//! and 12): a reader of 4 KiB, one read at a time, beside applications with 128 operations outstanding each.
//!
//! The publication measured Linux 6.3 with eight SSDs, which each job takes in turn, and ten cores. There the
//! processors were the limit beside reads of 4 KiB. Of a model, there are eight here too, but computing takes no
//! virtual time.

use std::time::Duration;

use blkmq::Op;
use serde::Serialize;

use super::Contestant;
use super::error::JudgeError;
use super::load::{LARGE, Plan, SMALL};
use super::measuring::{Measuring, ms};
use super::row::digits;

/// Devices that each client takes in turn.
const DEVICES: usize = 8;
/// Operations that an application of the background has outstanding.
const DEPTH: u32 = 128;

/// p99 and p99.9 of the reader in milliseconds, as published.
type Published = (f64, f64);

/// What runs beside the reader: applications, how many, their operations and the bytes of each, and what was published
/// of the schedulers of [`PUBLISHED`].
type Background = (&'static str, u32, Op, u32, [Published; 4]);

const PUBLISHED: [&str; 4] = ["none", "mq-deadline", "kyber", "bfq"];

const BACKGROUNDS: [Background; 7] = [
    ("nothing", 0, Op::Read, SMALL, [(0.0896, 0.66), (0.0896, 0.102), (0.0896, 0.102), (0.0906, 0.103)]),
    ("reads of 4 KiB", 16, Op::Read, SMALL, [(0.21, 0.309), (0.157, 0.224), (0.179, 0.264), (0.138, 0.194)]),
    ("reads of 4 KiB", 256, Op::Read, SMALL, [(3.752, 5.603), (0.253, 0.404), (0.305, 0.49), (2.605, 4.751)]),
    ("reads of 64 KiB", 32, Op::Read, LARGE, [(304.0, 346.0), (211.0, 325.0), (217.0, 354.0), (300.0, 1216.0)]),
    ("writes of 4 KiB", 8, Op::Write, SMALL, [(14.4, 28.4), (13.3, 27.4), (2.6, 4.4), (2.2, 4.6)]),
    ("writes of 64 KiB", 8, Op::Write, LARGE, [(75.0, 152.0), (101.0, 209.0), (2.9, 23.0), (3.0, 27.0)]),
    ("writes of 64 KiB", 32, Op::Write, LARGE, [(405.0, 776.0), (367.0, 810.0), (34.0, 312.0), (2.9, 16.7)]),
];

/// How many rows the table has for each scheduler.
pub(super) const NR_ROWS: usize = BACKGROUNDS.len();

/// A row of the interference table, for one scheduler.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Interference {
    /// What the other applications do.
    pub background: &'static str,
    /// How many there are.
    pub applications: u32,
    /// The scheduler's name.
    pub scheduler: String,
    /// Milliseconds: the latency that 99 of 100 reads did not exceed.
    pub p99_ms: f64,
    /// Milliseconds: the latency that 999 of 1000 reads did not exceed.
    pub p99_9_ms: f64,
    /// What the other applications got done, in MiB/s.
    pub background_mib_s: f64,
    /// The published p99 in milliseconds. `None` for a scheduler that the publication does not have.
    pub published_p99_ms: Option<f64>,
    /// The published p99.9 in milliseconds.
    pub published_p99_9_ms: Option<f64>,
}

/// Measures one row for one scheduler.
pub(super) fn measure(number: usize, on: &mut Measuring<'_>) -> Result<Interference, JudgeError> {
    let (background, applications, op, bytes, published) = BACKGROUNDS[number];
    let area = on.site.area();
    let mut clients = vec![Plan::new("reader", Op::Read, SMALL, 1, area.clone())];
    clients.extend((0..applications).map(|n| Plan::new(format!("application {n}"), op, bytes, DEPTH, area.clone())));
    let operations = match applications {
        0 => 20_000,
        // Many submitters take long to run, and reads have no rare delays.
        256 => 400_000,
        _ => 1_500_000,
    };
    let outcome = on.run_on_many(DEVICES, clients, on.end(Duration::from_secs(300), operations))?;
    let Contestant { name: scheduler, .. } = on.contestant;
    let at = |percent| digits(ms(outcome.clients[0].latency.percentile(percent)));
    let published = PUBLISHED.iter().position(|other| other == scheduler).map(|place| published[place]);
    Ok(Interference {
        background,
        applications,
        scheduler: scheduler.clone(),
        p99_ms: at(99.0),
        p99_9_ms: at(99.9),
        background_mib_s: digits(outcome.rate(1..outcome.clients.len()) / f64::from(1 << 20)),
        published_p99_ms: published.map(|(p99, _)| p99),
        published_p99_9_ms: published.map(|(_, p99_9)| p99_9),
    })
}
