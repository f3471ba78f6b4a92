//! The scheduler that is watched.

use std::fmt::{self, Debug};
use std::ops::{Deref, DerefMut};

use blkmq_sched::{Bfq, Class, ClientId, Fair, Info, InsertAt, IoPriority, Op, Reason, RqId, Scheduler, Time};

/// The scheduler that is watched. Of bfq it is known which it is, because bfq can be copied, and says when a time of
/// service ends; of fair, because it says what it charges.
pub(super) enum Inner {
    Any(Box<dyn Scheduler>),
    Bfq(Box<Bfq>),
    Fair(Box<Fair>),
}

impl Inner {
    /// The scheduler of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "bfq" => {}
            "fair" => return Some(Self::Fair(Box::default())),
            _ => return Some(Self::Any(blkmq_sched::scheduler(name)?)),
        }
        let mut bfq = Bfq::new();
        bfq.watch_expirations();
        Some(Self::Bfq(Box::new(bfq)))
    }

    /// Whether it shows its queues with their groups and weights.
    pub(super) const fn shows_shares(&self) -> bool {
        matches!(self, Self::Bfq(_))
    }

    /// The tag of a client in a class, whether it is not by cost and weights alone, and whether the client is served
    /// exclusively, if it is fair.
    pub(super) fn tag(&self, client: ClientId, class: Class) -> Option<(u64, bool, bool)> {
        let Self::Fair(fair) = self else { return None };
        Some((fair.tag(client, class), fair.is_special(client), fair.is_exclusive(client, class)))
    }

    /// Why times of service have ended since this was asked last.
    pub(super) fn ends_of_service(&mut self) -> impl Iterator<Item = Reason> {
        let ends = match self {
            Self::Any(_) | Self::Fair(_) => Vec::new(),
            Self::Bfq(bfq) => bfq.take_expirations(),
        };
        ends.into_iter().map(|end| end.reason)
    }

    /// Whether a request that comes now, while nothing waits, would be handed out as soon as it is inserted. Asks a
    /// copy, if there can be one.
    pub(super) fn would_hand_out(&self, class: Class, client: ClientId, op: Op, now: Time) -> bool {
        let Self::Bfq(bfq) = self else { return true };
        let info = Info {
            nr_sectors: 8,
            nr_segments: 1,
            op,
            sync: op.is_read(),
            priority: IoPriority { class, ..IoPriority::default() },
            client,
            ..Info::default()
        };
        let (mut copy, rq) = (bfq.clone(), RqId(u64::MAX));
        copy.insert(rq, &info, InsertAt::Sorted, now);
        copy.dispatch(&mut (), now) == Some(rq)
    }
}

impl Deref for Inner {
    type Target = dyn Scheduler;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Any(scheduler) => &**scheduler,
            Self::Bfq(bfq) => &**bfq,
            Self::Fair(fair) => &**fair,
        }
    }
}

impl DerefMut for Inner {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Any(scheduler) => &mut **scheduler,
            Self::Bfq(bfq) => &mut **bfq,
            Self::Fair(fair) => &mut **fair,
        }
    }
}

impl Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
