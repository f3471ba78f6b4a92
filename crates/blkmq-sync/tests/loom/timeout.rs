//! The model of the timeout scan: a shorter timeout counts for the scan that begins when it is set.
//!
//! The product's modules are not compiled by loom. The model restates from `control/knobs.rs` how a timeout is set, and
//! from `dispatcher/timeout.rs` how a scan begins.

// The `Arc` of std: loom's own count is one more step to be tried in every order.
use std::sync::Arc;

use crate::model::{fail_without, holds, join, spawn};
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{order, unless_mutated};

const DUE: u64 = 1;
const SHORT: u64 = 5;
const LONG: u64 = 10;

/// One thread sets a shorter timeout while another begins the scan that is due, and plans the next one. The next scan
/// comes when the shorter timeout has passed.
fn shortened() {
    let shared = Arc::new((AtomicU64::new(DUE), AtomicU64::new(LONG)));
    let setter = spawn(&shared, |(scan, timeout)| {
        timeout.store(SHORT, Ordering::Relaxed);
        // Release as in `RequestQueue::set_io_timeout_ms`.
        scan.fetch_min(SHORT, order("timeout.set", Ordering::Release));
    });
    let (scan, timeout) = &*shared;
    let planned = timeout.load(Ordering::Relaxed);
    // Acquire as in `Dispatcher::scan_timeouts`.
    let acquire = order("timeout.begin", Ordering::Acquire);
    assert!(scan.compare_exchange(DUE, planned, acquire, Ordering::Relaxed).is_ok(), "no other thread scans");
    let next = if unless_mutated("timeout.read_again") { timeout.load(Ordering::Relaxed) } else { planned };
    scan.fetch_min(next, Ordering::Relaxed);
    join(setter);
    assert_eq!(scan.load(Ordering::Relaxed), SHORT, "the next scan is too late");
}

#[test]
fn a_shorter_timeout_counts_for_the_next_scan() {
    holds(shortened);
}

#[test]
fn each_ordering_and_the_second_read_is_needed() {
    fail_without(&[("timeout.begin", shortened), ("timeout.set", shortened), ("timeout.read_again", shortened)]);
}
