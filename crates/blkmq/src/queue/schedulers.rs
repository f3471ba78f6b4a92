//! The schedulers that there are.

/// The names that [`Builder::scheduler`](crate::Builder::scheduler) and
/// [`RequestQueue::change_scheduler`](crate::RequestQueue::change_scheduler) take.
#[must_use]
pub fn scheduler_names() -> Vec<&'static str> {
    std::iter::once("none").chain(blkmq_sched::SCHEDULERS.iter().map(|known| known.name)).collect()
}
