//! Bugs to plant. They prove that the rig finds the bugs that it is built to find.

/// A bug that can be planted in the code on virtual CPUs, and only there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mutant {
    /// Its name.
    pub name: &'static str,
    /// What is wrong with the code when the bug is planted, in one sentence.
    pub what: &'static str,
    /// The site in the code, as [`blkmq_sync_virtual::weaken`] knows it.
    pub(crate) site: &'static str,
    /// Parts of a report in the form `rule: what happened`. The bug counts as found by the right rule only if one of
    /// these parts is in the report.
    pub found_by: &'static [&'static str],
}

impl Mutant {
    /// The bug of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        MUTANTS.iter().copied().find(|mutant| mutant.name == name)
    }
}

/// All bugs that can be planted.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "lost-kick",
        what: "who completes does not look whether something waited for a tag",
        site: "runner.kick",
        found_by: &["livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "not-owner",
        what: "who chooses for an owned hardware queue issues there itself",
        site: "issue.owner",
        found_by: &["owner: "],
    },
    Mutant {
        name: "inbox-asleep",
        what: "who owns a hardware queue does not look for what others chose for it before it sleeps",
        site: "sleep.inbox",
        found_by: &["wake: ", "stall: "],
    },
    Mutant {
        name: "tag-twice",
        what: "a tag is put back twice",
        site: "complete.tag_once",
        // An assertion in the code itself sees this bug first.
        found_by: &["tags put back twice"],
    },
    Mutant {
        name: "tag-shared",
        what: "a driver is told the same tag for every request",
        site: "request.tag",
        found_by: &["tags: two requests have tag"],
    },
    Mutant {
        name: "merge-limit",
        what: "the scheduler does not know the device's limits when it merges",
        site: "install.merge_limits",
        found_by: &["limits: "],
    },
    Mutant {
        name: "merge-groups",
        what: "requests of two groups may merge",
        site: "merge.group",
        found_by: &["whose groups differ"],
    },
    Mutant {
        name: "uncounted-error",
        what: "requests that failed are not counted as errors",
        site: "complete.count_failed",
        found_by: &["counted errors="],
    },
    Mutant {
        name: "wrong-submitter",
        what: "who completes keeps what belongs to another submitter",
        site: "complete.owner",
        found_by: &["was reaped for submitter", "attempt to subtract with overflow", "livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "flush-before-data",
        what: "a write that asked for a flush before it is over without being written",
        site: "flush.data_first",
        found_by: &["lost: ", "flush: "],
    },
    Mutant {
        name: "freeze-leak",
        what: "the queue's word is read before entering, so a freeze may let one through",
        site: "submit.word_inside",
        // A request that the queue lets through while a scheduler is put in place is not in that scheduler's counts,
        // but is subtracted from them when it leaves.
        found_by: &["freeze: ", "order: the queue has drained, and ", "attempt to subtract with overflow"],
    },
    Mutant {
        name: "requeue-behind",
        what: "what the driver gave back goes into the scheduler again, and not to its head",
        site: "requeue.in_front",
        found_by: &["order: what the device gave back lost its place at the head"],
    },
    Mutant {
        name: "timeout-race",
        what: "the timeout scan takes a request that is just completing",
        site: "timeout.reserve",
        // A thread that completes a request which is over already hands on a slot that another request may have. Any of
        // these rules may be the first to see that.
        found_by: &[
            "a slot keeps its bio until all parts are back",
            "attempt to subtract with overflow",
            "counters: ",
            "device: a request that was over was completed once more",
            "livelock: ",
            "lost: ",
            "order: the device was offered a request that is elsewhere: Over",
            "slots: ",
            "tags: ",
            "timeouts: ",
        ],
    },
    Mutant {
        name: "generation",
        what: "a slot's generation stays, so an old id names a new operation",
        site: "slot.generation",
        found_by: &["slots: ", "is elsewhere: Over", "came by before: Over"],
    },
    Mutant {
        name: "forgotten-plug",
        what: "a leaving submitter forgets what is in its plug",
        site: "leave.plug",
        found_by: &["livelock: ", "lost: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "expired-head",
        what: "the scheduler never sees that the oldest request has expired",
        site: "policy.expiry",
        found_by: &["requests passed the oldest one after it had expired"],
    },
    Mutant {
        name: "last-look",
        what: "who lets go of the scheduler does not look whether something was left with it",
        site: "staging.last_look",
        found_by: &["livelock: ", "lost: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "unkicked",
        what: "who finds another at the scheduler does not tell it to look once more",
        site: "combine.kick",
        found_by: &["livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "backlog-order",
        what: "what was left and finds room passes what of its kind and submitter found none",
        site: "backlog.order",
        found_by: &["arrivals: operation "],
    },
    Mutant {
        name: "gate-class",
        what: "requests go on passing the scheduler when one of another class comes into it",
        site: "bypass.class",
        found_by: &["gate: "],
    },
    Mutant {
        name: "gate-second-look",
        what: "who passes the scheduler does not look again whether it still may",
        site: "word.second_look",
        found_by: &["gate: "],
    },
    Mutant {
        name: "gate-waiting",
        what: "who passes the scheduler does not look whether something was just brought or left to it",
        site: "bypass.waiting",
        found_by: &["gate: "],
    },
    Mutant {
        name: "fold-due",
        what: "the scheduler does not learn of those that passed it when it chooses next",
        site: "bypass.fold",
        found_by: &["gate: "],
    },
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
