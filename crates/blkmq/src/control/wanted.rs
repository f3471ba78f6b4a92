//! The scheduler that a queue is asked to have.

use blkmq_sched::Scheduler;

use crate::queue::error::QueueError;

/// The scheduler that a queue is to have.
#[derive(Debug)]
pub(crate) enum Wanted {
    Named(String),
    Own(Box<dyn Scheduler>),
}

impl Wanted {
    /// Looks the scheduler up; `None` stands for `none`.
    pub(crate) fn find(self) -> Result<Option<Box<dyn Scheduler>>, QueueError> {
        match self {
            Self::Named(name) if name == "none" => Ok(None),
            Self::Named(name) => blkmq_sched::scheduler(&name).map(Some).ok_or(QueueError::UnknownScheduler(name)),
            Self::Own(scheduler) if scheduler.is_empty() => Ok(Some(scheduler)),
            Self::Own(scheduler) => {
                let (name, waiting) = (scheduler.name(), scheduler.len());
                Err(QueueError::BadValue(format!(
                    "a queue takes a scheduler in which nothing waits, not '{name}' with {waiting} requests"
                )))
            }
        }
    }
}
