//! What the tests under load share: random numbers, a watchdog, and submitters that check what they get.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod content;
pub(crate) mod control;
pub(crate) mod random;
pub(crate) mod rounds;
pub(crate) mod watchdog;
pub(crate) mod worker;

use std::sync::Arc;

use blkmq::RequestQueue;
use blkmq::driver::spec;

/// A queue in front of the device that `spec` describes. Nothing times out: a wake-up that is lost stays lost, and is
/// not repaired by the timeout scan half a minute later.
pub(crate) fn queue(device: &str, scheduler: &str) -> Arc<RequestQueue> {
    queue_with(device, scheduler, 256, u32::MAX)
}

/// The same with this many slots per submitter, and a bound on what the driver may take.
pub(crate) fn queue_with(device: &str, scheduler: &str, slots: u16, io_timeout_ms: u32) -> Arc<RequestQueue> {
    let driver = spec::open(device).unwrap_or_else(|error| panic!("{device}: {error}"));
    let builder = RequestQueue::builder(driver).scheduler(scheduler).slots(slots).io_timeout_ms(io_timeout_ms);
    builder.build().unwrap_or_else(|error| panic!("{device}: {error}"))
}

/// What must hold when nobody has anything outstanding.
pub(crate) fn assert_balanced(q: &RequestQueue) {
    // Another thread that resizes a frozen queue's tags folds them, and a count taken in the middle of that is too high.
    // A tag that is lost stays out however often one looks.
    let is_clear = (0..100_000).any(|_| {
        std::thread::yield_now();
        q.in_flight() == 0
    });
    let stats = q.stats();
    assert!(is_clear, "tags are out though nothing is outstanding: {stats:?}");
    assert_eq!(stats.entered, stats.completed, "{stats:?}");
}
