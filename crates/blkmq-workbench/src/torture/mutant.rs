//! Bugs to plant: proof that the rig finds what it is for.

/// A bug that can be planted in the code on virtual CPUs, and only there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What is wrong with the code then, in one sentence.
    pub what: &'static str,
    /// The site in the code, as [`blkmq_virtual::sync::weaken`] knows it.
    pub(crate) site: &'static str,
}

impl Mutant {
    const fn new(name: &'static str, site: &'static str, what: &'static str) -> Self {
        Self { name, what, site }
    }

    /// The bug of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        MUTANTS.iter().copied().find(|mutant| mutant.name == name)
    }
}

/// All bugs that can be planted.
pub const MUTANTS: &[Mutant] = &[
    Mutant::new("lost-kick", "runner.kick", "who completes does not look whether something waited for a tag"),
    Mutant::new("tag-twice", "complete.tag_once", "a tag is put back twice"),
    Mutant::new(
        "merge-limit",
        "install.merge_limits",
        "the scheduler does not know the device's limits when it merges",
    ),
    Mutant::new("uncounted-error", "complete.count_failed", "requests that failed are not counted as errors"),
    Mutant::new("wrong-submitter", "complete.owner", "who completes keeps what belongs to another submitter"),
    Mutant::new(
        "flush-before-data",
        "flush.data_first",
        "a write that asked for a flush before it is over without being written",
    ),
    Mutant::new(
        "freeze-leak",
        "submit.word_inside",
        "the queue's word is read before entering, so a freeze may let one through",
    ),
    Mutant::new(
        "requeue-behind",
        "requeue.in_front",
        "what the driver gave back goes behind what waits in the scheduler",
    ),
    Mutant::new("timeout-race", "timeout.reserve", "the timeout scan takes a request that is just completing"),
    Mutant::new("generation", "slot.generation", "a slot's generation stays, so an old id names a new operation"),
    Mutant::new("forgotten-plug", "leave.plug", "a leaving submitter forgets what is in its plug"),
    Mutant::new("expired-head", "dispatch.now", "the scheduler never sees that the oldest request has expired"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sites_are_unique() {
        for (at, mutant) in MUTANTS.iter().enumerate() {
            assert_eq!(Mutant::by_name(mutant.name), Some(*mutant));
            assert!(MUTANTS[..at].iter().all(|before| before.site != mutant.site), "{}", mutant.name);
        }
    }
}
