//! A choice that waits for its issue.

use blkmq_sched::{Info, InsertAt, Join, MergeHow, Replay as Follower, RqId, Time};

use super::Waiting;

/// What our scheduler chose for the next issue. The scheduler stays as the choice found it until the issue shows what
/// Linux chose.
#[derive(Debug)]
pub(super) struct PendingChoice {
    pub(super) chosen: RqId,
    /// What was chosen, as it was then.
    pub(super) rq: Waiting,
    /// When the choice was made, in jiffies.
    pub(super) at: Time,
    /// What came in or grew since, and has not reached the scheduler.
    pub(super) since: Vec<Change>,
}

impl PendingChoice {
    /// Makes the scheduler choose as Linux did, then applies the changes since the choice.
    pub(super) fn settle(self, linux: RqId, scheduler: &mut dyn Follower) {
        // If it came in or grew since, it was chosen after that.
        let late = self.since.iter().rposition(|change| change.is_about(linux)).map_or(0, |last| last + 1);
        let (before, after) = self.since.split_at(late);
        before.iter().for_each(|change| change.apply(scheduler));
        assert!(scheduler.force(linux, self.at), "it waits");
        after.iter().for_each(|change| change.apply(scheduler));
    }
}

/// What changes in a scheduler other than by a choice.
#[derive(Debug)]
pub(super) enum Change {
    /// A request comes in.
    Insert(RqId, Info, Time),
    /// A request takes in a bio, or a request that never was in the scheduler.
    Merge(RqId, Info, MergeHow),
    /// A request absorbs another.
    Join(Join),
}

impl Change {
    pub(super) fn apply(&self, scheduler: &mut dyn Follower) {
        match self {
            Self::Insert(id, info, now) => scheduler.insert(*id, info, InsertAt::Sorted, *now),
            Self::Merge(into, newcomer, how) => assert!(scheduler.force_merge(*into, newcomer, *how), "it waits"),
            Self::Join(join) => assert!(scheduler.force_join(*join), "both wait, in one list"),
        }
    }

    /// True if the request came in by this change, or grew by it.
    fn is_about(&self, id: RqId) -> bool {
        match self {
            Self::Insert(other, ..) | Self::Merge(other, ..) => *other == id,
            Self::Join(join) => join.survivor == id,
        }
    }
}
