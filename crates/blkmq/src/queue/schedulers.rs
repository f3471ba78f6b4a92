//! The schedulers that there are.

use blkmq_sched::SCHEDULERS;

/// The names that [`Builder::scheduler`](crate::Builder::scheduler) and
/// [`RequestQueue::change_scheduler`](crate::RequestQueue::change_scheduler) take.
#[must_use]
pub fn scheduler_names() -> Vec<&'static str> {
    std::iter::once("none").chain(SCHEDULERS.iter().map(|known| known.name)).collect()
}

/// The prefix that the scheduler's knobs have among the queue's knobs.
pub(crate) const SCHEDULER_PREFIX: &str = "iosched/";

/// The names of the schedulers that have a knob of this name.
pub(super) fn schedulers_with(knob: &str) -> Vec<&'static str> {
    let owners = SCHEDULERS.iter().filter(|known| known.knobs.iter().any(|known| known.name == knob));
    owners.map(|known| known.name).collect()
}
