//! Experiments: what a queue has only to be measured, or to be measured against. All of it is off unless the builder
//! asks for it, and the path of a request calls it in single lines.
//!
//! - [`Accounting::Shared`] counts every request in a line that all threads write, as Linux did before 4.14.
//! - [`WaitMeters`] measures how long threads and requests wait for the scheduler.
//! - `stages_all`: under the locking `combining` every submitter finds the scheduler taken and stages its requests.

use crate::queue::error::QueueError;
use crate::request::clock::{Clock, Time};
use blkmq_sync::atomic::{AtomicU64, Ordering};

/// The experiments that a queue takes part in.
#[derive(Debug, Clone, Default)]
pub(super) struct Experiments {
    pub(super) accounting: Accounting,
    pub(super) waits: WaitMeters,
    pub(super) stages_all: bool,
}

/// What is waited for on the way to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wait {
    /// A thread waits for the scheduler's lock.
    Lock,
    /// A request that was made ready for another thread to insert waits until that thread has inserted it, or merged
    /// it, or found no room. The wait also counts if the other thread had just gone, and the request's own thread
    /// inserts it.
    Staged,
}

/// A function that is called with each wait and its nanoseconds.
type Observer = fn(Wait, u64);

/// How waits on the way to the scheduler are measured.
#[derive(Debug, Clone, Default)]
pub(super) struct WaitMeters {
    /// Returns the calling thread's CPU time, in ns.
    pub(super) meter: Option<fn() -> u64>,
    /// Called with each wait. The clock that measures the wait is the machine's exact one, whatever the queue's is.
    observer: Option<(Observer, Clock)>,
}

impl WaitMeters {
    /// From now on `observer` is called with each wait.
    pub(super) fn observe(&mut self, observer: Observer) {
        self.observer = Some((observer, Clock::real()));
    }

    /// The time by the clock that measures waits, if they are observed.
    pub(super) fn now(&self) -> Option<Time> {
        self.observer.as_ref().map(|(_, clock)| clock.now())
    }

    /// A wait from `since` to `now` is over.
    pub(super) fn record(&self, wait: Wait, since: Time, now: Time) {
        if let Some((observer, _)) = &self.observer {
            observer(wait, now.since(since));
        }
    }

    /// Waits for a lock by `lock`. Returns the lock, and the CPU time that the wait took by the meter.
    pub(super) fn measure<G>(&self, lock: impl FnOnce() -> G) -> (G, u64) {
        let read = || self.meter.map_or(0, |meter| meter());
        let (since, began) = (read(), self.now());
        let guard = lock();
        let ns = read().saturating_sub(since);
        if let Some((began, now)) = began.zip(self.now()) {
            self.record(Wait::Lock, began, now);
        }
        (guard, ns)
    }
}

/// How the statistics know what is in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Accounting {
    /// Every thread counts on lines of its own, and readers sum.
    #[default]
    PerThread,
    /// Every request counts up, and down again, a number that all threads share, as Linux did before 4.14. The other
    /// way is measured against this one. The numbers shown are the same.
    Shared,
}

impl Accounting {
    /// The name by which a user chooses it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerThread => "per-thread",
            Self::Shared => "shared",
        }
    }
}

impl std::str::FromStr for Accounting {
    type Err = QueueError;

    fn from_str(text: &str) -> Result<Self, QueueError> {
        [Self::PerThread, Self::Shared]
            .into_iter()
            .find(|known| known.name() == text)
            .ok_or_else(|| QueueError::UnknownAccounting(text.to_owned()))
    }
}

/// How many requests of a queue, or of a range of its sectors, are in flight. Counted under [`Accounting::Shared`]
/// alone.
#[derive(Debug)]
pub(super) struct SharedCount {
    accounting: Accounting,
    nr: AtomicU64,
}

impl SharedCount {
    pub(super) const fn new(accounting: Accounting) -> Self {
        Self { accounting, nr: AtomicU64::new(0) }
    }

    pub(super) const fn accounting(&self) -> Accounting {
        self.accounting
    }

    /// Whether requests count here.
    #[inline]
    pub(super) const fn is_used(&self) -> bool {
        matches!(self.accounting, Accounting::Shared)
    }

    /// A request began.
    #[inline]
    pub(super) fn start(&self) {
        if self.is_used() {
            self.nr.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request is over.
    #[inline]
    pub(super) fn end(&self) {
        if self.is_used() {
            let before = self.nr.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a request that is over was counted when it began");
        }
    }

    /// How many requests are in flight, if they count here.
    pub(super) fn nr(&self) -> Option<u64> {
        self.is_used().then(|| self.nr.load(Ordering::Relaxed))
    }
}
