//! What it costs on this machine to sleep and be woken, and to poll, as far as it is known.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(feature = "eventfd", not(any(loom, virtual_cpus, miri))))]
use super::measure;

/// The costs that decide whether a poll pays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Costs {
    /// Nanoseconds from the moment at which one thread wakes another to the moment at which the other thread runs: the
    /// largest that was measured. 0 while it is not known. Then no thread polls.
    pub(super) wake: u64,
    /// Nanoseconds of a yield if no other thread wants the processor.
    pub(super) poll: u64,
    /// How many processors this program may use.
    pub(super) processors: u64,
}

/// The costs of the machine. `wake` publishes the two others: without them it would not tell when to poll.
struct MachineCosts {
    wake: AtomicU64,
    poll: AtomicU64,
    processors: AtomicU64,
}

static MACHINE: MachineCosts =
    MachineCosts { wake: AtomicU64::new(0), poll: AtomicU64::new(0), processors: AtomicU64::new(1) };

/// The costs on this machine. If they are not known, or were measured long ago, a thread of its own begins to measure
/// them. That takes some milliseconds, in which this function returns what was known before. Where threads or time are
/// not the machine's, the costs are never known.
///
/// COST: four loads of lines that are written every 10 s at most; as often, three threads are started.
pub(super) fn of_machine(_now: u64) -> Costs {
    #[cfg(all(feature = "eventfd", not(any(loom, virtual_cpus, miri))))]
    keep_fresh(_now);
    // Acquire pairs with the Release in `keep_fresh`, and is the first of the three loads.
    let wake = MACHINE.wake.load(Ordering::Acquire);
    let [poll, processors] = [&MACHINE.poll, &MACHINE.processors].map(|cost| cost.load(Ordering::Relaxed));
    Costs { wake, poll, processors }
}

#[cfg(all(feature = "eventfd", not(any(loom, virtual_cpus, miri))))]
fn keep_fresh(now: u64) {
    /// Nanoseconds between two measurements, while threads poll. What a wake-up takes depends on what else runs on the
    /// machine, and on how deeply its processors sleep.
    const FRESH: u64 = 10_000_000_000;
    /// When a thread last began to measure. 0 for never.
    static MEASURED: AtomicU64 = AtomicU64::new(0);
    let measured = MEASURED.load(Ordering::Relaxed);
    if measured > 0 && now.saturating_sub(measured) < FRESH {
        return;
    }
    let is_mine = MEASURED.compare_exchange(measured, now.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if is_mine {
        let work = || {
            let Some(wake) = measure::wake() else { return };
            MACHINE.poll.store(measure::poll(), Ordering::Relaxed);
            MACHINE.processors.store(measure::processors(), Ordering::Relaxed);
            // The largest time counts: a processor that is busy is quick to wake. Release publishes the other costs.
            MACHINE.wake.fetch_max(wake, Ordering::Release);
        };
        // If there is no thread left, the costs stay what they were, and are measured later.
        let _ = std::thread::Builder::new().name("blkmq-costs".to_owned()).spawn(work);
    }
}
