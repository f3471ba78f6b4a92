//! Bugs to plant, which prove that the rig finds the bugs that it is built to find.

/// A bug that can be planted in the code that the rig compiles, and only there.
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

    /// Options of `blkmq torture` for worlds that run the code in which the bug is planted. Most other worlds do not
    /// run it, so among all worlds the bug is found too, but later.
    #[must_use]
    pub fn options(&self) -> &'static [&'static str] {
        match self.site.split_once('.') {
            Some(("bfq", _)) => &["--scheduler", "bfq"],
            Some(("fair" | "usage", _)) => &["--scheduler", "fair"],
            Some(("mq_deadline" | "limiter" | "word", _)) => &["--scheduler", "mq-deadline"],
            _ => &[],
        }
    }
}

/// All bugs that can be planted.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "lost-kick",
        what: "a thread that polls does not look whether a request waits for the tags that it has put back",
        site: "dispatcher.kick",
        found_by: &["livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "not-owner",
        what: "a thread that chose requests for another thread's hardware queue issues them itself",
        site: "issue.owner",
        found_by: &["owner: "],
    },
    Mutant {
        name: "inbox-asleep",
        what: "the owner of a hardware queue sleeps without a look at what other threads chose for the queue",
        site: "sleep.inbox",
        found_by: &["wake: ", "stall: "],
    },
    Mutant {
        name: "own-only",
        what: "a submitter that waits for others too plans for its own completions only",
        site: "sleep.all_own",
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
        site: "merge.limits",
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
        what: "a thread that completes a request of another submitter keeps the request",
        site: "complete.owner",
        found_by: &["was reaped for submitter", "attempt to subtract with overflow", "livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "flush-before-data",
        what: "a write that is to follow a flush is over after the flush, without being written",
        site: "flush.data_first",
        found_by: &["lost: ", "flush: "],
    },
    Mutant {
        name: "freeze-leak",
        what: "a thread reads the queue's word before it enters, so a freeze may let the thread through",
        site: "submit.word_inside",
        // The last two are assertions of the product. A request that the freeze let through may wait where a scheduler
        // is replaced, or have a tag while the tags are resized.
        found_by: &[
            "freeze: ",
            "order: the queue has drained, and ",
            "tags: the queue has drained, and ",
            "a scheduler is replaced only when nothing waits",
            "resized while tags are out",
        ],
    },
    Mutant {
        name: "freeze-tags",
        what: "a freeze does not wait for threads that may still be putting back the tags of what completed",
        site: "control.drained",
        found_by: &[
            "freeze: ",
            "tags: the queue has drained, and ",
            "counters: the queue has drained",
            "resized while tags are out",
        ],
    },
    Mutant {
        name: "requeue-unmarked",
        what: "a request that the driver gave back waits without the mark by which threads find it",
        site: "requeue.waiting",
        found_by: &["livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "timeout-race",
        what: "the timeout scan takes a request that another thread is just completing",
        site: "timeout.reserve",
        // A completer may take the request after the scan looked at its place and before the scan changes it. Then two
        // threads own the request. Both may end it, and the scan may overwrite the state of an operation that has the
        // slot by then. Any of these rules may be the first to see the result, and so may assertions of the product.
        found_by: &[
            "a request does not go from",
            "a request that ends is in one thread's hands",
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
        what: "a slot keeps its generation, so an old id names a new operation",
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
        site: "mq_deadline.expiry",
        found_by: &["requests passed the oldest one after it had expired"],
    },
    Mutant {
        name: "last-look",
        what: "a thread that lets go of the scheduler does not look whether another thread has left requests there",
        site: "staging.last_look",
        found_by: &["livelock: ", "lost: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "issue-look",
        what: "a thread that lets go of an issue list does not look whether another thread has appended a request",
        site: "handover.look",
        found_by: &["livelock: ", "lost: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "asleep-delivered",
        what: "a thread is not woken when operations were delivered to it",
        site: "deliver.wake",
        found_by: &["wake: ", "stall: "],
    },
    Mutant {
        name: "sleep-look",
        what: "a thread that is about to sleep does not look once more whether there is something to do",
        site: "wake.last_look",
        found_by: &["livelock: ", "lost: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "unkicked",
        what: "a thread that finds another one at the scheduler does not tell that one to look once more",
        site: "combine.kick",
        found_by: &["livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "backlog-order",
        what: "a request that was left passes an earlier one of its submitter and kind that found no room",
        site: "backlog.order",
        found_by: &["arrivals: operation "],
    },
    Mutant {
        name: "gate-class",
        what: "requests still bypass the scheduler when a request of another class comes into it",
        site: "bypass.class",
        found_by: &["gate: "],
    },
    Mutant {
        name: "gate-second-look",
        what: "a thread that bypasses the scheduler does not look again whether it still may",
        site: "word.second_look",
        found_by: &["gate: "],
    },
    Mutant {
        name: "gate-waiting",
        what: "a thread that bypasses the scheduler does not look whether requests are held back there",
        site: "bypass.waiting",
        found_by: &["gate: "],
    },
    Mutant {
        name: "fold-due",
        what: "the scheduler is not told of the requests that bypassed it before it chooses again",
        site: "bypass.fold",
        found_by: &["gate: "],
    },
    Mutant {
        name: "token-lost",
        what: "the tokens of requests that are over are not put back",
        site: "tokens.put",
        // The second is an assertion of the product where a scheduler is replaced.
        found_by: &["tokens: the queue has drained", "many tokens are out", "livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "token-twice",
        what: "a token is put back twice",
        site: "tokens.once",
        // The first is an assertion of the pool.
        found_by: &["tokens put back twice", "tokens: "],
    },
    Mutant {
        name: "token-none",
        what: "a pool gives out tokens that it does not have",
        site: "pool.empty",
        found_by: &["tokens: "],
    },
    Mutant {
        name: "token-depth",
        what: "the pools do not get the depths that were decided",
        site: "tokens.depth",
        found_by: &["tokens: "],
    },
    Mutant {
        name: "token-unheard",
        what: "a thread that brings a token looks only at its own hardware queues, and another one waits for the token",
        site: "split.all",
        found_by: &["livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "latency-kind",
        what: "the latencies of all kinds of requests are counted as those of reads",
        site: "tokens.histogram",
        found_by: &["throttle: of the "],
    },
    Mutant {
        name: "limiter-subtract",
        what: "the cost of a request that is over is not subtracted from what is with the device",
        site: "limiter.subtract",
        // The last is an assertion of the product where a limiter ends.
        found_by: &["limiter: ", "livelock: ", "stall: ", "wake: ", "so many nanoseconds of cost are not over"],
    },
    Mutant {
        name: "limiter-given-back",
        what: "the cost of a request that failed is not subtracted from what is with the device",
        site: "limiter.given_back",
        found_by: &["limiter: ", "livelock: ", "stall: ", "wake: ", "so many nanoseconds of cost are not over"],
    },
    Mutant {
        name: "limiter-failed",
        what: "a limiter learns costs from requests that failed",
        site: "limiter.failed",
        found_by: &["limiter: it was told of"],
    },
    Mutant {
        name: "limiter-anew",
        what: "a limiter refuses a request without a look at what has completed meanwhile",
        site: "limiter.anew",
        found_by: &["livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "limiter-plan",
        what: "no thread plans for the time at which a limiter lets the next request go",
        site: "limiter.plan",
        found_by: &["livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "turns",
        what: "a kind of requests has its turn only where no other kind waits",
        site: "kyber.batch",
        found_by: &["turns: "],
    },
    Mutant {
        name: "bfq-requests",
        what: "a queue of bfq ends though the device still has requests of it",
        site: "bfq.requests",
        found_by: &["requests that wait or are with the device count"],
    },
    Mutant {
        name: "bfq-waker",
        what: "a queue of bfq that ends goes on being the waker of others",
        site: "bfq.waker",
        found_by: &["no waker is a queue that ended"],
    },
    Mutant {
        name: "bfq-group",
        what: "a group of bfq goes with the queues that clients have left behind in it",
        site: "bfq.group",
        found_by: &[
            "a group that goes has no queues",
            "a group is removed after its members",
            "queues belong to groups that are there",
        ],
    },
    Mutant {
        name: "bfq-group-weight",
        what: "the weight of a group that gets another one is not applied",
        site: "bfq.group_weight",
        found_by: &["shares: group"],
    },
    Mutant {
        name: "bfq-follow",
        what: "the queue of a client does not follow the client into another group",
        site: "bfq.follow",
        found_by: &["shares: the queue of client"],
    },
    Mutant {
        name: "bfq-timer",
        what: "bfq does not say when it will wait for a client no longer",
        site: "bfq.timer",
        found_by: &["idling: ", "livelock: ", "stall: "],
    },
    Mutant {
        name: "bfq-ticket",
        what: "a request that is served while another queue is waited for has the ticket of that one",
        site: "bfq.ticket",
        found_by: &["what completes was with the device"],
    },
    Mutant {
        name: "bfq-strict",
        what: "requests bypass while bfq is to let in one at a time",
        site: "bfq.strict",
        found_by: &["gate: the scheduler lets requests"],
    },
    Mutant {
        name: "bfq-charge",
        what: "a request that is served while another queue is waited for is charged to that one",
        site: "bfq.charge",
        found_by: &["a queue is charged within the budget that it has"],
    },
    Mutant {
        name: "bfq-gone",
        what: "the queue of a client that is gone stays",
        site: "bfq.gone",
        found_by: &["no queue belongs to a client that is gone", "a client that has requests is there"],
    },
    Mutant {
        name: "bfq-most",
        what: "budgets grow beyond what people have set",
        site: "bfq.most",
        found_by: &["lag: ", "64 bits hold the virtual time of a service"],
    },
    Mutant {
        name: "bfq-early",
        what: "bfq forgets that a request is over if it hears later that the request bypassed",
        site: "bfq.early",
        found_by: &["a client leaves when all its requests are reported"],
    },
    Mutant {
        name: "fair-newcomer",
        what: "a client of fair that asked for nothing for a while goes on at its old tag",
        site: "fair.newcomer",
        found_by: &["fairness: "],
    },
    Mutant {
        name: "fair-debt",
        what: "fair forgets what a client owes that leaves",
        site: "fair.debt",
        found_by: &["fairness: "],
    },
    Mutant {
        name: "fair-direction",
        what: "a direction of which fair has no requests is owed what the other one gets",
        site: "fair.direction",
        found_by: &["than its other requests since these wait"],
    },
    Mutant {
        name: "fair-weight",
        what: "a client of fair keeps its weight and group while it asks for service",
        site: "fair.weight",
        found_by: &["fairness: "],
    },
    Mutant {
        name: "fair-floor",
        what: "fair does not say when it will hold clients back no longer",
        site: "fair.floor",
        found_by: &["conservation: ", "livelock: ", "stall: ", "wake: "],
    },
    Mutant {
        name: "usage-left",
        what: "what a submitter got that leaves is not told",
        site: "usage.left",
        found_by: &["usage: "],
    },
    Mutant {
        name: "usage-failed",
        what: "a client that had an operation fail is not charged for it",
        site: "usage.failed",
        found_by: &["usage: "],
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
