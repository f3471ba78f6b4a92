//! The state word of a slot: where its request rests, which generation it is, and which thread may take it next.
//!
//! ```text
//!  63            32 31  17  16  15     8 7      0
//! +----------------+-----+----+--------+--------+
//! |   generation   |  0  |lent| status | place  |
//! +----------------+-----+----+--------+--------+
//! ```
//!
//! A place says which thread may move the request on. `Held` and the list places belong to one thread at a time by
//! other means (a token, a list behind a lock, a chain published by a stack), so their changes are plain stores. Only
//! `Issued` has two possible takers, the driver's completion and the timeout scan. The two settle by compare-exchange
//! which of them takes the request. If the request is lent, only the loan ends it. The timeout scan may reserve it
//! while it asks the driver, but cannot end it. If the loan comes back meanwhile, its status stays with the scan, and
//! the scan completes the request for it.

use crate::request::status::Status;
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{on_line, unless_mutated};

coded! {
/// Where a request rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Place {
    /// In its submitter's pool, without an operation.
    Free,
    /// In the hands of one thread, or on a list that one thread owns.
    Held,
    /// In its submitter's plug.
    Plugged,
    /// In its submitter's software queue.
    SoftwareQueue,
    /// In the staging word, in a bucket, or in the backlog.
    Staged,
    /// In the scheduler.
    Scheduler,
    /// Part of another request.
    Merged,
    /// On a hardware queue's dispatch list.
    DispatchList,
    /// With the flush machine.
    Flush,
    /// On a hardware queue's issue list, with a tag.
    IssueList,
    /// With the driver.
    Issued,
    /// With the driver, and the timeout scan is asking the driver about it.
    TimingOut,
    /// The driver completed it while the timeout scan was asking.
    LateDone,
    /// On its way to the submitter's completion ring, or in it.
    Completed,
}
}

impl Place {
    const fn from_word(word: u64) -> Self {
        Self::ALL[(word & 0xff) as usize]
    }

    /// Whether a request that rests here has one owner, which may end it or give it to the driver. A request that the
    /// driver or the scheduler has leaves them by transitions of their own. For assertions.
    const fn has_owner(self) -> bool {
        !matches!(self, Self::Free | Self::Scheduler | Self::Merged | Self::Issued | Self::TimingOut | Self::LateDone)
    }

    /// Whether the owner may move a request from here to `next`. A submitter takes free slots of its own straight into
    /// its plug. For assertions.
    const fn leads_to(self, next: Self) -> bool {
        match next {
            Self::Free | Self::Issued | Self::TimingOut | Self::LateDone => false,
            Self::Held => {
                self.has_owner() && !matches!(self, Self::Completed) || matches!(self, Self::Free | Self::LateDone)
            }
            Self::Plugged => matches!(self, Self::Free | Self::Held | Self::Plugged | Self::IssueList),
            Self::SoftwareQueue => matches!(self, Self::Held | Self::Plugged),
            Self::Staged => matches!(self, Self::Held | Self::Plugged | Self::Staged),
            Self::Scheduler => matches!(self, Self::Held | Self::Plugged | Self::Staged),
            Self::Merged => matches!(self, Self::Free | Self::Held | Self::Plugged | Self::Staged),
            Self::DispatchList => matches!(self, Self::Held),
            Self::Flush => matches!(self, Self::Held | Self::Plugged | Self::IssueList),
            Self::IssueList => self.has_owner() && !matches!(self, Self::Completed | Self::Flush),
            Self::Completed => self.has_owner() || matches!(self, Self::Free | Self::Merged),
        }
    }
}

/// What became of a completion that met the timeout scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Late {
    /// The completer takes the request.
    Taken,
    /// The timeout scan has the request and will complete it with the driver's status.
    LeftToScan,
    /// No such request is with the driver: it was completed before, or never issued.
    Stale,
}

/// The state word. See the module's documentation.
#[derive(Debug)]
pub(super) struct State(AtomicU64);

const GENERATION_SHIFT: u32 = 32;
const STATUS_SHIFT: u32 = 8;
/// A flag beside `Issued`, `TimingOut` and `LateDone`: there is a loan of the request.
const LENT: u64 = 1 << 16;

const fn pack(generation: u32, place: Place) -> u64 {
    (generation as u64) << GENERATION_SHIFT | place as u64
}

const fn generation_of(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}

/// The word of a request that the driver has.
const fn pack_lent(generation: u32, place: Place, is_lent: bool) -> u64 {
    pack(generation, place) | if is_lent { LENT } else { 0 }
}

impl State {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(pack(0, Place::Free)))
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        on_line("request.state", &self.0)
    }

    /// A racy look, for dumps and assertions.
    #[inline]
    pub(super) fn look(&self) -> (u32, Place) {
        let word = self.word().load(Ordering::Relaxed);
        (generation_of(word), Place::from_word(word))
    }

    #[inline]
    pub(super) fn generation(&self) -> u32 {
        generation_of(self.word().load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn is_at(&self, place: Place) -> bool {
        self.word().load(Ordering::Relaxed) as u8 == place as u8
    }

    /// The owner moves the request between places that have one possible taker. Lists, locks and stacks publish the
    /// move; the word only tells where to look.
    #[inline]
    pub(super) fn rest_at(&self, place: Place) {
        let before = self.word().load(Ordering::Relaxed);
        debug_assert!(
            Place::from_word(before).leads_to(place),
            "a request does not go from {:?} to {place:?} by itself",
            Place::from_word(before)
        );
        self.word().store(pack(generation_of(before), place), Ordering::Relaxed);
    }

    /// The owner ends the operation. From here on the operation's ids are stale.
    #[inline]
    pub(super) fn free(&self) {
        let before = self.word().load(Ordering::Relaxed);
        debug_assert!(
            Place::from_word(before).has_owner() || matches!(Place::from_word(before), Place::Merged),
            "a request that ends is in one thread's hands, not at {:?}",
            Place::from_word(before)
        );
        let step = u32::from(unless_mutated("slot.generation"));
        let word = pack(generation_of(before).wrapping_add(step), Place::Free);
        self.word().store(word, Ordering::Relaxed);
    }

    /// The owner gives the request to the driver, or lends it.
    #[inline]
    pub(super) fn issue(&self, is_lent: bool) {
        let before = self.word().load(Ordering::Relaxed);
        debug_assert!(
            Place::from_word(before).has_owner(),
            "the driver gets requests from one thread's hands, not from {:?}",
            Place::from_word(before)
        );
        let word = pack_lent(generation_of(before), Place::Issued, is_lent);
        // ORDERING: Release publishes the request's body to the thread that completes it; pairs with the Acquire in
        // `complete` and `begin_timeout`.
        self.word().store(word, Ordering::Release);
    }

    /// Whether the driver has the request just now, as far as a thread can tell that does not own it.
    pub(super) fn is_issued(&self, generation: u32) -> bool {
        // ORDERING: Acquire pairs with the Release of `issue`: a thread that sees the request issued sees its deadline.
        self.word().load(Ordering::Acquire) & !LENT == pack(generation, Place::Issued)
    }

    /// Whether a request that the driver has, and that the timeout scan has reserved, is lent.
    pub(super) fn is_lent(&self) -> bool {
        self.word().load(Ordering::Relaxed) & LENT != 0
    }

    /// Whether the driver has the request, also while the timeout scan is asking about it: a racy look, for counts.
    pub(super) fn is_with_driver(&self, generation: u32) -> bool {
        let (now, place) = self.look();
        now == generation && matches!(place, Place::Issued | Place::TimingOut)
    }

    /// A request leaves the scheduler. Only the holder of the scheduler calls this, so load and store suffice. Returns
    /// false if the scheduler named a request that it does not have.
    #[must_use]
    pub(super) fn leave_scheduler(&self, generation: u32) -> bool {
        let has = self.word().load(Ordering::Relaxed) == pack(generation, Place::Scheduler);
        if has {
            self.word().store(pack(generation, Place::Held), Ordering::Relaxed);
        }
        has
    }

    /// The driver completes the request. `is_lent`: the driver has a loan of it.
    pub(super) fn complete(&self, generation: u32, status: Status, is_lent: bool) -> Late {
        let issued = pack_lent(generation, Place::Issued, is_lent);
        // ORDERING: Acquire sees the body that `issue` published. No thread reads `Held` in order to see what came
        // before it: the completer has the request from here on, and the completion stack publishes what the completer
        // does.
        let held = pack(generation, Place::Held);
        match self.word().compare_exchange(issued, held, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Late::Taken,
            Err(word) if word == pack_lent(generation, Place::TimingOut, is_lent) => {
                self.complete_late(generation, status, is_lent)
            }
            Err(_) => Late::Stale,
        }
    }

    fn complete_late(&self, generation: u32, status: Status, is_lent: bool) -> Late {
        let late = pack_lent(generation, Place::LateDone, is_lent) | (status as u64) << STATUS_SHIFT;
        // ORDERING: Release publishes what the driver wrote into the buffers; pairs with the Acquire in `end_timeout`.
        let swap = self.word().compare_exchange(
            pack_lent(generation, Place::TimingOut, is_lent),
            late,
            Ordering::Release,
            Ordering::Relaxed,
        );
        match swap {
            Ok(_) => Late::LeftToScan,
            // The scan let the request go in between. The completion is an ordinary one again, or a stale one.
            Err(word) if word == pack_lent(generation, Place::Issued, is_lent) => {
                self.complete(generation, status, is_lent)
            }
            Err(_) => Late::Stale,
        }
    }

    /// The timeout scan reserves an issued request while it asks the driver. Returns false if the request is no longer
    /// there.
    #[must_use]
    pub(super) fn begin_timeout(&self, generation: u32) -> bool {
        // A request that has been issued anew meanwhile, lent where it was not or the other way round, is not overdue
        // yet.
        let is_lent = self.is_lent();
        let asked = pack_lent(generation, Place::TimingOut, is_lent);
        if !unless_mutated("timeout.reserve") {
            let is_there = self.is_issued(generation);
            if is_there {
                self.word().store(asked, Ordering::Relaxed);
            }
            return is_there;
        }
        let issued = pack_lent(generation, Place::Issued, is_lent);
        // ORDERING: Acquire sees the body that `issue` published.
        self.word().compare_exchange(issued, asked, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The timeout scan is done. `expired`: the driver gave the request up, and no completion of it will come. A
    /// request that is lent cannot be given up. Returns the status with which the scan, which owns the request now,
    /// must complete it; `None` if the request goes on waiting for the driver.
    #[must_use]
    pub(super) fn end_timeout(&self, generation: u32, expired: bool) -> Option<Status> {
        let is_lent = self.is_lent();
        let expired = expired && !is_lent;
        let next = if expired { pack(generation, Place::Held) } else { pack_lent(generation, Place::Issued, is_lent) };
        let waiting = pack_lent(generation, Place::TimingOut, is_lent);
        // ORDERING: Release hands the body on to a completer, as `issue` does; on failure Acquire sees what a late
        // completion's driver wrote, published in `complete_late`.
        match self.word().compare_exchange(waiting, next, Ordering::Release, Ordering::Acquire) {
            Ok(_) => expired.then_some(Status::Timeout),
            Err(word) => {
                self.rest_at(Place::Held);
                Some(Status::from_code((word >> STATUS_SHIFT) as u8))
            }
        }
    }
}
