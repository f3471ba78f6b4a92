//! The scheduler that a queue is asked to have.

use blkmq_sched::Scheduler;

use crate::queue::QueueError;

/// The scheduler that a queue is to have: one by its name, such as `"mq-deadline"` or `"none"`, or one of the caller's
/// own, `Box::new(scheduler)`, in which nothing waits yet.
#[derive(Debug)]
pub struct SchedulerChoice(Source);

#[derive(Debug)]
enum Source {
    Named(String),
    Own(Box<dyn Scheduler>),
}

impl From<&str> for SchedulerChoice {
    fn from(name: &str) -> Self {
        Self(Source::Named(name.to_owned()))
    }
}

impl From<&String> for SchedulerChoice {
    fn from(name: &String) -> Self {
        name.as_str().into()
    }
}

impl<S: Scheduler + 'static> From<Box<S>> for SchedulerChoice {
    fn from(scheduler: Box<S>) -> Self {
        Self(Source::Own(scheduler))
    }
}

impl From<Box<dyn Scheduler>> for SchedulerChoice {
    fn from(scheduler: Box<dyn Scheduler>) -> Self {
        Self(Source::Own(scheduler))
    }
}

impl SchedulerChoice {
    /// Looks the scheduler up; `None` stands for `none`.
    pub(crate) fn find(self) -> Result<Option<Box<dyn Scheduler>>, QueueError> {
        match self.0 {
            Source::Named(name) if name == "none" => Ok(None),
            Source::Named(name) => blkmq_sched::scheduler(&name).map(Some).ok_or(QueueError::UnknownScheduler(name)),
            Source::Own(scheduler) if scheduler.is_empty() => Ok(Some(scheduler)),
            Source::Own(scheduler) => {
                Err(QueueError::SchedulerInUse { name: scheduler.name(), waiting: scheduler.len() })
            }
        }
    }
}
