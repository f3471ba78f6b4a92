//! Counting without a shared line: every thread adds to a line of its own, and readers sum the lines.
//!
//! This file holds what the layer counts for itself and its tests. The statistics that users know from Linux are in the
//! modules below: `stat` is what is shown, `sums` a thread's sums, `gauge` the busy time, and `range` the named ranges
//! of sectors. The path of a request counts through [`threads::counting`](super::threads::counting). `wakeups` and
//! `gate` say how threads wait for each other.

/// Defines a struct of sums, which can be added up, and of which earlier ones can be subtracted.
macro_rules! sums {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $sum:ty,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name {
            $($(#[$doc])* pub $field: $sum,)+
        }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)+
            }
        }

        impl std::ops::Sub for $name {
            type Output = Self;

            /// What was counted since `earlier`.
            fn sub(self, earlier: Self) -> Self {
                Self { $($field: self.$field - earlier.$field,)+ }
            }
        }
    };
}

mod gate;
mod gauge;
mod range;
mod stat;
mod sums;
mod wakeups;

use blkmq_sched::{Class, Tally, Time};

pub use self::gate::GateCounts;
use self::gate::GateMeter;
pub(super) use self::gauge::Gauge;
use self::range::Ranges;
pub(crate) use self::range::check_ranges;
pub use self::range::{MAX_RANGES, SectorRange};
pub use self::stat::DiskStats;
pub(super) use self::sums::{Group, Sums};
pub(crate) use self::wakeups::WakeCause;
use self::wakeups::WakeupCells;
pub use self::wakeups::Wakeups;
use super::experiments::Accounting;
use blkmq_sync::Line;
use blkmq_sync::atomic::{AtomicU64, Ordering};

/// What the statistics of a queue keep beside each thread's sums.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) gauge: Gauge,
    pub(super) ranges: Ranges,
    pub(super) gate: GateMeter,
}

impl Account {
    pub(super) fn new(accounting: Accounting, now: Time) -> Self {
        Self { gauge: Gauge::new(accounting, now), ranges: Ranges::new(), gate: GateMeter::new() }
    }
}

/// One thread's counters. Only that thread writes them. A reader may see some counts of a batch and not the rest.
#[derive(Debug)]
pub(crate) struct Counters(Line<Cells>);

/// What a thread counts, each by a number of its own. [`QueueCounters`] says what each means to users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    MergesPlug,
    MergesInsert,
    Issued,
    Requeued,
    Timeouts,
    Errors,
    DispatchBatches,
    Contended,
    LockWaitNs,
    /// Requests that were about to bypass the scheduler, and have passed.
    Passed,
    Staged,
    Holds,
    /// Requests that a scheduler chose, and requests that were put in its order without being inserted.
    Dispatched,
    DispatchedFast,
    TrylockFailed,
}

impl Count {
    const NR: usize = Self::TrylockFailed as usize + 1;
}

#[derive(Debug, Default)]
struct Cells {
    entered: AtomicU64,
    completed: AtomicU64,
    /// By class: requests that a scheduler had dispatched and that are over, and requests that bypassed the scheduler,
    /// or were about to.
    ordered: [AtomicU64; 3],
    bypassed: [AtomicU64; 3],
    limited: AtomicU64,
    counts: [AtomicU64; Count::NR],
    wakeups: WakeupCells,
}

sums! {
    /// What the threads of a queue have counted since it was built.
    pub struct QueueCounters {
        /// Operations, after splitting, that left a plug.
        pub entered: u64,
        /// Operations, after splitting, that were handed to their submitter's completion ring.
        pub completed: u64,
        /// Operations that joined another one in a plug.
        pub merges_plug: u64,
        /// Operations and requests that joined another one in the scheduler.
        pub merges_insert: u64,
        /// Requests offered to the driver. A request counts each time that it is offered.
        pub issued: u64,
        /// Requests that the driver gave back for another try.
        pub requeued: u64,
        /// Requests completed because the driver gave them up to a timeout.
        pub timeouts: u64,
        /// Operations that completed with an error.
        pub errors: u64,
        /// Holds of the scheduler's lock under which a request was dispatched. Without a scheduler: batches in which
        /// tags were taken for requests.
        pub dispatch_batches: u64,
        /// How often the path of a request found the scheduler's lock taken, and waited.
        pub contended: u64,
        /// Nanoseconds that these waits took, by [`Builder::wait_meter`](crate::Builder::wait_meter).
        pub lock_wait_ns: u64,
        /// Requests that bypassed the scheduler.
        pub bypassed: u64,
        /// Requests that were left with the thread at the scheduler.
        pub staged: u64,
        /// Acquisitions of the scheduler's lock, to insert or to dispatch or both.
        pub holds: u64,
        /// Requests that the scheduler dispatched under these holds.
        pub dispatched: u64,
        /// Requests that were dispatched in the scheduler's order without being inserted, as the locking `combining`
        /// does while nothing waits.
        pub dispatched_fast: u64,
        /// Times that a thread found another one at the scheduler, and left its requests to that one.
        pub trylock_failed: u64,
        /// Threads that were woken.
        pub wakeups: Wakeups,
        /// The gate of the bypass.
        pub gate: GateCounts,
    }
}

/// Operations that entered and are not gone, by the counts of the threads, which are read one after the other. A look
/// while requests move may miss the beginning of a request whose end it sees. So the difference is held at zero.
fn in_flight(entered: impl Iterator<Item = u64>, gone: impl Iterator<Item = u64>) -> u64 {
    // First those that are gone: a request that moves between the two sums then counts as in flight.
    let gone = gone.fold(0_u64, u64::wrapping_add);
    let entered = entered.fold(0_u64, u64::wrapping_add);
    u64::try_from(entered.wrapping_sub(gone).cast_signed()).unwrap_or(0)
}

/// Adds to a sum that only the calling thread writes.
///
/// COST: a load and a store of the thread's own line; no read-modify-write.
#[inline]
pub(super) fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

fn get(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

impl Counters {
    pub(super) fn new() -> Self {
        Self(Line::new("submitter.counters", Cells::default()))
    }

    pub(crate) fn entered(&self, n: u64) {
        let entered = self.0.entered.load(Ordering::Relaxed).wrapping_add(n);
        // ORDERING: Release pairs with the Acquire in `nr_entered`. A reader that sees these operations in flight also
        // sees the stamp of the busy time, which was moved before they came, so it takes no idle time for theirs.
        self.0.entered.store(entered, Ordering::Release);
    }

    pub(crate) fn completed(&self, n: u64) {
        let completed = self.0.completed.load(Ordering::Relaxed).wrapping_add(n);
        // ORDERING: Release pairs with the Acquire in `nr_completed`. A reader of this count sees these operations
        // among the entered ones. Otherwise a queue that a thread waits for would look drained too early.
        self.0.completed.store(completed, Ordering::Release);
    }

    /// A request that the scheduler had dispatched has completed.
    pub(crate) fn ordered(&self, class: Class, limited: bool) {
        add(&self.0.ordered[class.index()], 1);
        if limited {
            add(&self.0.limited, 1);
        }
    }

    /// Counts `n` more.
    #[inline]
    pub(crate) fn count(&self, count: Count, n: u64) {
        add(&self.0.counts[count as usize], n);
    }

    /// The thread has woken `woken` others. `is_shared`: the counters belong to no single thread.
    pub(super) fn woke(&self, cause: WakeCause, woken: u64, is_shared: bool) {
        self.0.wakeups.count(cause, woken, is_shared);
    }

    pub(crate) fn nr_entered(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `entered`.
        self.0.entered.load(Ordering::Acquire)
    }

    pub(crate) fn nr_completed(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `completed`.
        self.0.completed.load(Ordering::Acquire)
    }

    pub(super) fn nr_limited(&self) -> u64 {
        get(&self.0.limited)
    }

    pub(super) fn add_tally(&self, tally: &mut Tally) {
        let cells = self.0.ordered.iter().chain(&self.0.bypassed);
        for (sum, cell) in tally.completed.iter_mut().chain(&mut tally.bypassed).zip(cells) {
            *sum += get(cell);
        }
    }

    /// Requests of a class are about to bypass the scheduler; `limited` of them are other than reads. The requests are
    /// counted before the look at the gate that decides.
    pub(crate) fn bypassing(&self, class: Class, requests: u64, limited: u64) {
        add(&self.0.bypassed[class.index()], requests);
        // Their completion is counted against the requests that the scheduler let in, and these requests never came in.
        add(&self.0.limited, limited.wrapping_neg());
    }

    /// Requests that were about to pass have not passed. For the scheduler they are over.
    pub(crate) fn turned_back(&self, class: Class, requests: u64, limited: u64) {
        add(&self.0.ordered[class.index()], requests);
        add(&self.0.limited, limited);
    }

    pub(super) fn read(&self) -> QueueCounters {
        let nr = |count: Count| get(&self.0.counts[count as usize]);
        QueueCounters {
            entered: get(&self.0.entered),
            completed: get(&self.0.completed),
            merges_plug: nr(Count::MergesPlug),
            merges_insert: nr(Count::MergesInsert),
            issued: nr(Count::Issued),
            requeued: nr(Count::Requeued),
            timeouts: nr(Count::Timeouts),
            errors: nr(Count::Errors),
            dispatch_batches: nr(Count::DispatchBatches),
            contended: nr(Count::Contended),
            lock_wait_ns: nr(Count::LockWaitNs),
            bypassed: nr(Count::Passed),
            staged: nr(Count::Staged),
            holds: nr(Count::Holds),
            dispatched: nr(Count::Dispatched),
            dispatched_fast: nr(Count::DispatchedFast),
            trylock_failed: nr(Count::TrylockFailed),
            wakeups: self.0.wakeups.read(),
            // Counted for the queue, and not by thread.
            gate: GateCounts::default(),
        }
    }
}
