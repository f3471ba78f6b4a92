//! How a load scales: the same load with more and more threads, beside itself without a scheduler.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::load::Load;
use crate::point::{Setting, measure};
use crate::tally::{Tally, Thread};

/// What a load came to with so many threads. All of it is modelled.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Row {
    /// The threads.
    pub threads: usize,
    /// Operations per second.
    pub requests_per_s: f64,
    /// The same load without a scheduler.
    pub none_requests_per_s: f64,
    /// `requests_per_s` divided by `none_requests_per_s`.
    pub ratio_to_none: f64,
    /// The share of the threads' time in which they waited for lines that were busy with other CPUs, or for the
    /// scheduler's lock.
    pub wait_share: f64,
    /// The part of that in which they waited for the scheduler's lock.
    pub lock_share: f64,
    /// The share of the threads' time in which they waited for operations to complete, without their private work
    /// meanwhile.
    pub idle_share: f64,
    /// The share of the threads' time that is such work: while a thread waits, it looks whether something has
    /// completed, and does what it finds, for itself or for other threads.
    pub work_in_wait_share: f64,
    /// Lines that moved from one CPU to another for each operation, by the name of the line.
    pub lines_per_request: BTreeMap<&'static str, f64>,
    /// How long CPUs waited because a line was busy, in nanoseconds for each operation, by the name of the line.
    pub wait_ns_per_request: BTreeMap<&'static str, f64>,
    /// The share of the requests that bypassed the scheduler.
    pub bypassed: f64,
    /// The share of the requests that were left with another thread.
    pub staged: f64,
    /// How often a thread was at the scheduler, for each operation.
    pub holds_per_request: f64,
    /// Requests that the scheduler chose, and that were handed through it, for each time that a thread was there.
    pub requests_per_hold: f64,
    /// How long a thread had the scheduler's lock, in nanoseconds.
    pub hold_ns: Summary,
    /// The share of the time in which the gate was shut, so that no request bypassed the scheduler. `None`: requests
    /// never bypass it.
    pub gate_shut_share: Option<f64>,
    /// Threads that were woken for each operation, by cause ([`Wakeups`](blkmq_virtual::Wakeups)).
    pub wakeups_per_request: BTreeMap<&'static str, f64>,
    /// The requests that a thread brings to the scheduler while it is there, its own and those that were left with it.
    pub batch: Summary,
    /// How long a request that was left waited for the thread that took it over, in nanoseconds.
    pub staged_ns: Summary,
    /// How long operations took, in nanoseconds, whose submitters took over other threads' requests meanwhile.
    pub combining_ns: Summary,
    /// How long other operations took, in nanoseconds.
    pub others_ns: Summary,
    /// How long the operations of each thread took, in nanoseconds. The counts are the operations that the threads
    /// completed in the measured time.
    pub threads_ns: Vec<Summary>,
    /// Of the requests that were left, the share that each thread took over.
    pub combining_share: Vec<f64>,
}

/// A distribution.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Summary {
    /// How many there are. Without any, everything is 0.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// What half of them are not above.
    pub p50: u64,
    /// What 99 of 100 are not above.
    pub p99: u64,
}

impl Summary {
    fn of(mut values: Vec<u64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_unstable();
        let percentile = |percent: usize| values[(values.len() * percent).div_ceil(100).max(1) - 1];
        let sum: u64 = values.iter().sum();
        let count = values.len() as u64;
        Self { count, mean: sum as f64 / count as f64, p50: percentile(50), p99: percentile(99) }
    }
}

/// The row of `load` with so many threads.
///
/// # Errors
/// It cannot be run.
pub fn row(load: &Load, threads: usize, setting: &Setting) -> Result<Row, String> {
    let tally = measure(load, threads, setting)?;
    let none_rate = if setting.scheduler == "none" {
        None
    } else {
        let none = Setting { scheduler: "none".to_owned(), ..setting.clone() };
        Some(requests_per_s(load, threads, &none)?)
    };
    Ok(row_of(tally, threads, setting, none_rate))
}

/// Operations per second of `load` with so many threads, for a caller that asks for nothing else: one run.
///
/// # Errors
/// It cannot be run.
pub fn requests_per_s(load: &Load, threads: usize, setting: &Setting) -> Result<f64, String> {
    Ok(rate(&measure(load, threads, setting)?, setting))
}

/// Operations per second.
fn rate(tally: &Tally, setting: &Setting) -> f64 {
    setting.requests as f64 * 1e9 / tally.ns.max(1) as f64
}

fn row_of(tally: Tally, threads: usize, setting: &Setting, none: Option<f64>) -> Row {
    let (ns, operations) = (tally.ns.max(1) as f64 * threads as f64, setting.requests as f64);
    let lock_ns = tally.stats.lock_wait_ns as f64;
    let work_in_wait_ns = tally.work_in_wait as f64 / 1e3;
    let requests_per_s = rate(&tally, setting);
    let none = none.unwrap_or(requests_per_s);
    let moved = tally.lines.iter().filter(|(_, moves)| moves.moved > 0);
    let waited = tally.lines.iter().filter(|(_, moves)| moves.waited > 0);
    let ordered = tally.stats.dispatched + tally.stats.dispatched_fast;
    let passes_by = setting.scheduler != "none" && setting.bypasses();
    let queues_ns = tally.ns.max(1) as f64 * setting.devices as f64;
    let wakeups = tally.stats.wakeups.by_cause();
    let of_thread = |thread: &Thread| Summary::of(thread.latencies.iter().map(|(ns, _)| *ns).collect());
    Row {
        threads,
        requests_per_s,
        none_requests_per_s: none,
        ratio_to_none: requests_per_s / none,
        wait_share: (tally.waited as f64 / 1e3 + lock_ns) / ns,
        lock_share: lock_ns / ns,
        idle_share: (tally.in_wait_ns as f64 - work_in_wait_ns).max(0.0) / ns,
        work_in_wait_share: work_in_wait_ns / ns,
        lines_per_request: moved.map(|(name, moves)| (*name, moves.moved as f64 / operations)).collect(),
        wait_ns_per_request: waited.map(|(name, moves)| (*name, moves.waited as f64 / 1e3 / operations)).collect(),
        bypassed: tally.stats.bypassed as f64 / operations,
        staged: tally.stats.staged as f64 / operations,
        holds_per_request: tally.stats.holds as f64 / operations,
        requests_per_hold: ordered as f64 / tally.stats.holds.max(1) as f64,
        gate_shut_share: passes_by.then(|| tally.stats.gate.shut_ns as f64 / queues_ns),
        wakeups_per_request: wakeups.map(|(name, woken)| (name, woken as f64 / operations)).into(),
        combining_share: tally.shares(),
        threads_ns: tally.threads.iter().map(of_thread).collect(),
        combining_ns: Summary::of(tally.latencies_ns(true)),
        others_ns: Summary::of(tally.latencies_ns(false)),
        batch: Summary::of(tally.batches),
        hold_ns: Summary::of(tally.hold_ns),
        staged_ns: Summary::of(tally.staged_ns),
    }
}
