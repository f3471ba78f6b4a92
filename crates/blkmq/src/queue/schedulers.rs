//! The schedulers that there are, and the one that a queue is asked to have.

use blkmq_sched::{SCHEDULERS, Scheduler};

use crate::queue::QueueError;

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

/// The scheduler that a queue is to have: one by its name, such as `"mq-deadline"` or `"none"`, or one of the caller's
/// own, `Box::new(scheduler)`, in which nothing waits yet.
#[derive(Debug)]
pub struct SchedulerChoice(Wanted);

#[derive(Debug)]
enum Wanted {
    Named(String),
    Own(Box<dyn Scheduler>),
}

impl From<&str> for SchedulerChoice {
    fn from(name: &str) -> Self {
        Self(Wanted::Named(name.to_owned()))
    }
}

impl From<&String> for SchedulerChoice {
    fn from(name: &String) -> Self {
        name.as_str().into()
    }
}

impl<S: Scheduler + 'static> From<Box<S>> for SchedulerChoice {
    fn from(scheduler: Box<S>) -> Self {
        Self(Wanted::Own(scheduler))
    }
}

impl From<Box<dyn Scheduler>> for SchedulerChoice {
    fn from(scheduler: Box<dyn Scheduler>) -> Self {
        Self(Wanted::Own(scheduler))
    }
}

impl SchedulerChoice {
    /// Looks the scheduler up; `None` stands for `none`.
    pub(crate) fn find(self) -> Result<Option<Box<dyn Scheduler>>, QueueError> {
        match self.0 {
            Wanted::Named(name) if name == "none" => Ok(None),
            Wanted::Named(name) => blkmq_sched::scheduler(&name).map(Some).ok_or(QueueError::UnknownScheduler(name)),
            Wanted::Own(scheduler) if scheduler.is_empty() => Ok(Some(scheduler)),
            Wanted::Own(scheduler) => {
                Err(QueueError::SchedulerInUse { name: scheduler.name(), waiting: scheduler.len() })
            }
        }
    }
}
