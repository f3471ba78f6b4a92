//! The state word of a slot: where its request rests, which generation it is, and which thread may take it next.
//!
//! ```text
//!  63            32 31  17     16     15     8 7        0
//! +----------------+-----+----------+--------+----------+
//! |   generation   |  0  | borrowed | status | location |
//! +----------------+-----+----------+--------+----------+
//! ```
//!
//! A place says which thread may move the request on. `Held` and the list places belong to one thread at a time by
//! other means (a token, a list behind a lock, a chain published by a stack), so their changes are plain stores. Only
//! `Issued` has two possible takers, the driver's completion and the timeout scan. The two settle by compare-exchange
//! which of them takes the request. If the request is borrowed, only the borrower completes it. The timeout scan may
//! reserve it while it asks the driver, but cannot end it. If the driver gives it back meanwhile, its status stays with
//! the scan, and the scan completes the request for it.

use crate::request::status::Status;
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{on_line, unless_mutated};

coded! {
/// Where a request rests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Location {
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

impl Location {
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
pub(super) enum LateCompletion {
    /// The completer takes the request.
    Taken,
    /// The timeout scan has the request and will complete it with the driver's status.
    LeftToScan,
    /// No such request is with the driver: it was completed before, or never issued.
    Stale,
}

/// The state word. See the module's documentation.
#[derive(Debug)]
pub(super) struct StateWord(AtomicU64);

const GENERATION_SHIFT: u32 = 32;
const STATUS_SHIFT: u32 = 8;
/// A flag beside `Issued`, `TimingOut` and `LateDone`: the driver has borrowed the request.
const BORROWED: u64 = 1 << 16;

const fn pack(generation: u32, location: Location) -> u64 {
    (generation as u64) << GENERATION_SHIFT | location as u64
}

const fn generation_of(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}

/// The word of a request that the driver has.
const fn pack_borrowed(generation: u32, location: Location, is_borrowed: bool) -> u64 {
    pack(generation, location) | if is_borrowed { BORROWED } else { 0 }
}

impl StateWord {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(pack(0, Location::Free)))
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        on_line("request.state", &self.0)
    }

    /// A racy look, for dumps and assertions.
    #[inline]
    pub(super) fn look(&self) -> (u32, Location) {
        let word = self.word().load(Ordering::Relaxed);
        (generation_of(word), Location::from_word(word))
    }

    #[inline]
    pub(super) fn generation(&self) -> u32 {
        generation_of(self.word().load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn is_at(&self, location: Location) -> bool {
        self.word().load(Ordering::Relaxed) as u8 == location as u8
    }

    /// The owner moves the request between places that have one possible taker. Lists, locks and stacks publish the
    /// move; the word only tells where to look.
    #[inline]
    pub(super) fn rest_at(&self, location: Location) {
        let before = self.word().load(Ordering::Relaxed);
        debug_assert!(
            Location::from_word(before).leads_to(location),
            "a request does not go from {:?} to {location:?} by itself",
            Location::from_word(before)
        );
        self.word().store(pack(generation_of(before), location), Ordering::Relaxed);
    }

    /// The owner ends the operation. From here on the operation's ids are stale.
    #[inline]
    pub(super) fn free(&self) {
        let before = self.word().load(Ordering::Relaxed);
        debug_assert!(
            Location::from_word(before).has_owner() || matches!(Location::from_word(before), Location::Merged),
            "a request that ends is in one thread's hands, not at {:?}",
            Location::from_word(before)
        );
        let step = u32::from(unless_mutated("slot.generation"));
        let word = pack(generation_of(before).wrapping_add(step), Location::Free);
        self.word().store(word, Ordering::Relaxed);
    }

    /// The owner gives the request to the driver, or the driver borrows it.
    #[inline]
    pub(super) fn issue(&self, is_borrowed: bool) {
        let before = self.word().load(Ordering::Relaxed);
        debug_assert!(
            Location::from_word(before).has_owner(),
            "the driver gets requests from one thread's hands, not from {:?}",
            Location::from_word(before)
        );
        let word = pack_borrowed(generation_of(before), Location::Issued, is_borrowed);
        // ORDERING: Release publishes the request's body to the thread that completes it; pairs with the Acquire in
        // `complete` and `begin_timeout`.
        self.word().store(word, Ordering::Release);
    }

    /// Whether the driver has the request just now, as far as a thread can tell that does not own it.
    pub(super) fn is_issued(&self, generation: u32) -> bool {
        // ORDERING: Acquire pairs with the Release of `issue`: a thread that sees the request issued sees its deadline.
        self.word().load(Ordering::Acquire) & !BORROWED == pack(generation, Location::Issued)
    }

    /// Whether a request that the driver has, and that the timeout scan has reserved, is borrowed.
    pub(super) fn is_borrowed(&self) -> bool {
        self.word().load(Ordering::Relaxed) & BORROWED != 0
    }

    /// Whether the driver has the request, also while the timeout scan is asking about it: a racy look, for counts.
    pub(super) fn is_with_driver(&self, generation: u32) -> bool {
        let (now, location) = self.look();
        now == generation && matches!(location, Location::Issued | Location::TimingOut)
    }

    /// A request leaves the scheduler. Only the holder of the scheduler calls this, so load and store suffice. Returns
    /// false if the scheduler named a request that it does not have.
    #[must_use]
    pub(super) fn leave_scheduler(&self, generation: u32) -> bool {
        let has = self.word().load(Ordering::Relaxed) == pack(generation, Location::Scheduler);
        if has {
            self.word().store(pack(generation, Location::Held), Ordering::Relaxed);
        }
        has
    }

    /// The driver completes the request. `is_borrowed`: the driver has borrowed it.
    pub(super) fn complete(&self, generation: u32, status: Status, is_borrowed: bool) -> LateCompletion {
        let issued = pack_borrowed(generation, Location::Issued, is_borrowed);
        // ORDERING: Acquire sees the body that `issue` published. No thread reads `Held` in order to see what came
        // before it: the completer has the request from here on, and the completion stack publishes what the completer
        // does.
        let held = pack(generation, Location::Held);
        match self.word().compare_exchange(issued, held, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => LateCompletion::Taken,
            Err(word) if word == pack_borrowed(generation, Location::TimingOut, is_borrowed) => {
                self.complete_late(generation, status, is_borrowed)
            }
            Err(_) => LateCompletion::Stale,
        }
    }

    fn complete_late(&self, generation: u32, status: Status, is_borrowed: bool) -> LateCompletion {
        let late = pack_borrowed(generation, Location::LateDone, is_borrowed) | (status as u64) << STATUS_SHIFT;
        // ORDERING: Release publishes what the driver wrote into the buffers; pairs with the Acquire in `end_timeout`.
        let swap = self.word().compare_exchange(
            pack_borrowed(generation, Location::TimingOut, is_borrowed),
            late,
            Ordering::Release,
            Ordering::Relaxed,
        );
        match swap {
            Ok(_) => LateCompletion::LeftToScan,
            // The scan let the request go in between. The completion is an ordinary one again, or a stale one.
            Err(word) if word == pack_borrowed(generation, Location::Issued, is_borrowed) => {
                self.complete(generation, status, is_borrowed)
            }
            Err(_) => LateCompletion::Stale,
        }
    }

    /// The timeout scan reserves an issued request while it asks the driver. Returns false if the request is no longer
    /// there.
    #[must_use]
    pub(super) fn begin_timeout(&self, generation: u32) -> bool {
        // A request that has been issued anew meanwhile, borrowed where it was not or the other way round, is not
        // overdue yet.
        let is_borrowed = self.is_borrowed();
        let asked = pack_borrowed(generation, Location::TimingOut, is_borrowed);
        if !unless_mutated("timeout.reserve") {
            let is_there = self.is_issued(generation);
            if is_there {
                self.word().store(asked, Ordering::Relaxed);
            }
            return is_there;
        }
        let issued = pack_borrowed(generation, Location::Issued, is_borrowed);
        // ORDERING: Acquire sees the body that `issue` published.
        self.word().compare_exchange(issued, asked, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The timeout scan is done. `expired`: the driver gave the request up, and no completion of it will come. A
    /// request that is borrowed cannot be given up. Returns the status with which the scan, which owns the request now,
    /// must complete it; `None` if the request goes on waiting for the driver.
    #[must_use]
    pub(super) fn end_timeout(&self, generation: u32, expired: bool) -> Option<Status> {
        let is_borrowed = self.is_borrowed();
        let expired = expired && !is_borrowed;
        let next = if expired {
            pack(generation, Location::Held)
        } else {
            pack_borrowed(generation, Location::Issued, is_borrowed)
        };
        let waiting = pack_borrowed(generation, Location::TimingOut, is_borrowed);
        // ORDERING: Release hands the body on to a completer, as `issue` does; on failure Acquire sees what a late
        // completion's driver wrote, published in `complete_late`.
        match self.word().compare_exchange(waiting, next, Ordering::Release, Ordering::Acquire) {
            Ok(_) => expired.then_some(Status::Timeout),
            Err(word) => {
                self.rest_at(Location::Held);
                Some(Status::from_code((word >> STATUS_SHIFT) as u8))
            }
        }
    }
}
