//! The scheduler that a queue is asked to have.

use blkmq_sched::Scheduler;

use crate::queue::QueueError;

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
