//! What the tests under load share: random numbers, a watchdog, and submitters that check what they get.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod content;
pub(crate) mod control;
pub(crate) mod random;
pub(crate) mod watchdog;
pub(crate) mod ways;
pub(crate) mod worker;

use crate::device::open;
use blkmq::{Accounting, QueueCounters, RequestQueue};

/// A queue in front of the device that `spec` describes. Nothing times out, so no timeout scan repairs a lost wake-up
/// half a minute later.
pub(crate) fn queue(device: &str, scheduler: &str) -> RequestQueue {
    queue_with(device, scheduler, 256, u32::MAX, Accounting::PerThread)
}

/// As [`queue`], with `slots` slots per submitter, a bound on how long the driver may take, and a way of accounting.
pub(crate) fn queue_with(
    device: &str,
    scheduler: &str,
    slots: u16,
    io_timeout_ms: u32,
    accounting: Accounting,
) -> RequestQueue {
    let builder = RequestQueue::builder(open(device)).scheduler(scheduler).slots(slots).io_timeout_ms(io_timeout_ms);
    builder.accounting(accounting).build().unwrap_or_else(|error| panic!("{device}: {error}"))
}

/// What must hold when no thread has anything outstanding.
///
/// A look may fall between two steps of another thread: a thread that resizes a frozen queue's tags folds them, and a
/// thread that ends a `nowait` operation on a frozen queue counts it as entered and then as completed. So this function
/// looks again. However often it looks, a lost tag stays out and a lost operation stays uncounted.
pub(crate) fn assert_balanced(q: &RequestQueue) {
    let is_balanced =
        |stats: QueueCounters| q.busy_tags() == 0 && stats.entered == stats.completed && q.disk_stats().in_flight == 0;
    let settled = (0..100_000).any(|_| {
        std::thread::yield_now();
        is_balanced(q.counters())
    });
    assert!(
        settled,
        "nothing is outstanding, but {} tags are out: {:?} {}",
        q.busy_tags(),
        q.counters(),
        q.disk_stats()
    );
    for (range, stat) in q.range_stats() {
        assert_eq!(stat.in_flight, 0, "nothing is outstanding in {}: {stat}", range.name);
    }
}
