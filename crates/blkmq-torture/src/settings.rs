//! What an operator decides of all worlds of a run.

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
            _ => Ok(()),
        }
    }
}
