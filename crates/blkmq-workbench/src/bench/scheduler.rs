//! The scheduler of a run: by its name, or a program's own.

use std::fmt;
use std::sync::Arc;

use blkmq::SchedulerChoice;
use blkmq_sched::Scheduler;

/// The scheduler of a run: one by its name, as in `"mq-deadline".into()`, or a program's own.
#[derive(Clone)]
pub struct SchedulerSource(Source);

#[derive(Clone)]
enum Source {
    Named(String),
    Own(Arc<dyn Fn() -> Box<dyn Scheduler> + Send + Sync>),
}

impl SchedulerSource {
    /// A scheduler of one's own. `make` is called for each queue that is built: a setup may serve several, and each
    /// queue needs a scheduler in which nothing waits.
    #[must_use]
    pub fn own(make: impl Fn() -> Box<dyn Scheduler> + Send + Sync + 'static) -> Self {
        Self(Source::Own(Arc::new(make)))
    }

    /// What a queue is built with.
    pub(crate) fn choice(&self) -> SchedulerChoice {
        match &self.0 {
            Source::Named(name) => name.into(),
            Source::Own(make) => make().into(),
        }
    }
}

impl<T: Into<String>> From<T> for SchedulerSource {
    fn from(name: T) -> Self {
        Self(Source::Named(name.into()))
    }
}

impl fmt::Debug for SchedulerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Named(name) => write!(f, "{name:?}"),
            Source::Own(_) => f.write_str("a scheduler of the program's own"),
        }
    }
}
