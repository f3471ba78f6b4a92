//! What an operator decides of all worlds of a run.

use blkmq_sched::{Description, FeedbackKind};
use blkmq_virtual::{Locking, scheduler_names};

use super::mutant::Mutant;

/// The most virtual CPUs that submit.
pub const MOST_CPUS: u16 = 64;

/// What all worlds of a run have in common.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Virtual CPUs that submit, 1 to [`MOST_CPUS`]. Background threads and the operators that change the queue have
    /// further CPUs.
    pub cpus: u16,
    /// The scheduler, by a name that [`scheduler_names`] has. `None`: any scheduler, and it changes under load.
    pub scheduler: Option<String>,
    /// The locking around the scheduler. `None`: any locking, and it changes under load.
    pub locking: Option<Locking>,
    /// A bug to plant.
    pub mutant: Option<Mutant>,
    /// Returns how many bytes of memory the calling thread holds. Without this function memory is not checked.
    pub live: Option<fn() -> i64>,
}

impl Settings {
    /// Says what is wrong with the settings, if anything is wrong.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !(1..=MOST_CPUS).contains(&self.cpus) {
            return Err(format!("{} CPUs submit; right would be 1 to {MOST_CPUS}", self.cpus));
        }
        let known = scheduler_names();
        match &self.scheduler {
            Some(name) if !known.contains(&name.as_str()) => {
                Err(format!("there is no scheduler '{name}'; there are: {}", known.join(", ")))
            }
            Some(name) if self.locking.is_some_and(|locking| !go_together(name, locking)) => Err(format!(
                "{name} orders each hardware queue by itself, so the locking staged has no place for it; right would be \
                 single, batch or combining"
            )),
            _ => Ok(()),
        }
    }
}

/// Whether one value of this scheduler orders one hardware queue, and knows nothing of the others.
pub(crate) fn orders_one_hctx(scheduler: &str) -> bool {
    Description::named(scheduler).is_some_and(Description::is_per_hctx)
}

/// Whether a value of this scheduler orders the whole queue.
pub(crate) fn orders_all(scheduler: &str) -> bool {
    scheduler != "none" && !orders_one_hctx(scheduler)
}

/// Whether this scheduler is told of each request that completes.
pub(crate) fn wants_reports(scheduler: &str) -> bool {
    Description::named(scheduler).is_some_and(|known| known.feedback() == FeedbackKind::Events)
}

/// Whether this scheduler is told what each client got. Then the queue has a limiter, whatever `wbt_lat_usec` says.
pub(crate) fn wants_usage(scheduler: &str) -> bool {
    Description::named(scheduler).is_some_and(|known| known.feedback() == FeedbackKind::Usage)
}

/// Whether under this locking a thread that finds another thread inserting publishes its plug for that thread. Then
/// these hold too:
///
/// - Requests count as staged (`QueueCounters::staged`).
/// - Other threads see at once that a request has come into the scheduler: the word that the inserting thread holds is
///   free again only after the counts, or WAITING, show the request.
/// - No request that is submitted after a submitter's call that passed on its plug bypasses the scheduler while a
///   request of the plug waits, whether this one has come into the scheduler or not.
pub(crate) const fn takes_all(locking: Locking) -> bool {
    match locking {
        Locking::Single | Locking::Batch => false,
        Locking::Staged(measures) => measures.buckets,
        Locking::Combining => true,
    }
}

/// Whether one hold dispatches many requests. Then one hardware queue gets them in exactly the scheduler's order, for
/// they are appended to its issue list under that hold.
pub(crate) const fn dispatches_in_batches(locking: Locking) -> bool {
    match locking {
        Locking::Single | Locking::Staged(_) => false,
        Locking::Batch | Locking::Combining => true,
    }
}

/// Whether a queue takes this scheduler under this locking. Under `staged` one thread inserts what all others have
/// published, and there is no such thread for each hardware queue.
pub(crate) fn go_together(scheduler: &str, locking: Locking) -> bool {
    !(orders_one_hctx(scheduler) && matches!(locking, Locking::Staged(_)))
}
