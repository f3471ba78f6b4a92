//! What is ordered together: a scheduler under its lock, and what threads know of it without the lock.

use super::hold::Hold;
use crate::account::Counters;
use crate::clock::{Clock, Time};
use crate::queue::RequestQueue;
use crate::staging::Staging;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Line, Mutex, MutexGuard, kept};

/// What is waited for on the way to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wait {
    /// A thread waits for the scheduler's lock.
    Lock,
    /// A request that was made ready for another thread to insert waits until that one has inserted it, or merged it,
    /// or found no room. Also if the other thread had just gone, and this one inserts it.
    Staged,
}

/// What is called with each wait, and the clock they are measured by: the machine's exact one, whatever the queue's is.
#[derive(Debug, Clone)]
pub(crate) struct WaitObserver {
    clock: Clock,
    tell: fn(Wait, u64),
}

impl WaitObserver {
    pub(crate) fn new(tell: fn(Wait, u64)) -> Self {
        Self { clock: Clock::real(), tell }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn tell(&self, wait: Wait, since: Time, now: Time) {
        (self.tell)(wait, now.since(since));
    }
}

/// The lock, with how waits for it are measured.
#[derive(Debug)]
struct Lock {
    hold: Mutex<Hold>,
    /// What tells the calling thread's CPU time, in ns.
    wait_meter: Option<fn() -> u64>,
    wait_observer: Option<WaitObserver>,
}

/// What others see without locking. Apart from the lock, so that a look does not take the line from the holder: while
/// requests are handed through, nothing changes here.
#[derive(Debug, Default)]
struct Counts {
    /// Requests in the scheduler, as of the last unlock.
    waiting: AtomicU32,
    /// Requests that were left and are not in it yet.
    left: AtomicU32,
    /// Of those in the scheduler, those for another hardware queue than the first.
    elsewhere: AtomicU32,
}

/// A scheduler, its lock, and the words by which threads take turns at it.
#[derive(Debug)]
pub(crate) struct Domain {
    lock: Line<Lock>,
    counts: Line<Counts>,
    /// When the scheduler would let go what it holds back, in nanoseconds; `u64::MAX` if it holds nothing back.
    planned: Line<AtomicU64>,
    /// Which thread is at the scheduler under the locking `combining`, and what the others left.
    pub(super) staging: Staging,
    /// Which thread inserts and which one chooses under the locking `staged`, and whether the others have kicked.
    pub(super) inserting: Staging,
    pub(super) dispatching: Staging,
}

impl Domain {
    pub(crate) fn new(wait_meter: Option<fn() -> u64>, wait_observer: Option<WaitObserver>) -> Self {
        Self {
            lock: Line::new("queue.hold", Lock { hold: Mutex::new(Hold::empty()), wait_meter, wait_observer }),
            counts: Line::new("queue.hold_counts", Counts::default()),
            planned: Line::new("queue.policy_wakeup", AtomicU64::new(u64::MAX)),
            staging: Staging::new("queue.staging"),
            inserting: Staging::new("queue.inserting"),
            dispatching: Staging::new("queue.dispatching"),
        }
    }

    /// The lock, for the control path: holds are not counted.
    pub(crate) fn control(&self) -> MutexGuard<'_, Hold> {
        self.lock.hold.lock()
    }

    /// The lock on the path of a request: holds are counted, and waits for them.
    #[inline]
    pub(super) fn acquire(&self, counters: &Counters) -> MutexGuard<'_, Hold> {
        counters.held();
        match self.lock.hold.try_lock() {
            Some(guard) => guard,
            None => self.wait(counters),
        }
    }

    #[cold]
    fn wait(&self, counters: &Counters) -> MutexGuard<'_, Hold> {
        let read = || self.lock.wait_meter.map_or(0, |meter| meter());
        let since = read();
        let began = self.wait_observer().map(WaitObserver::now);
        let guard = self.lock.hold.lock();
        counters.waited(read().saturating_sub(since));
        if let Some((observer, began)) = self.wait_observer().zip(began) {
            observer.tell(Wait::Lock, began, observer.now());
        }
        guard
    }

    pub(super) fn wait_observer(&self) -> Option<&WaitObserver> {
        self.lock.wait_observer.as_ref()
    }

    /// Whether a thread has the lock just now.
    pub(super) fn is_taken(&self) -> bool {
        self.lock.hold.try_lock().is_none()
    }

    /// Requests in the scheduler, as of a moment ago. A thread that inserted and then asks sees at least its own.
    pub(crate) fn nr_waiting(&self) -> u32 {
        self.counts.waiting.load(Ordering::Relaxed)
    }

    /// Requests that were left and are not in the scheduler yet, as of a moment ago.
    pub(crate) fn nr_left(&self) -> u32 {
        self.counts.left.load(Ordering::Relaxed)
    }

    /// Whether requests wait for the scheduler, as of a moment ago.
    pub(crate) fn has_waiting(&self) -> bool {
        self.nr_waiting() > 0 || self.nr_left() > 0
    }

    /// Whether nothing waits here, looked at under the lock.
    pub(crate) fn is_idle(&self, counters: &Counters) -> bool {
        !self.acquire(counters).has_waiting()
    }

    /// Whether all that waits goes to the first hardware queue, as of a moment ago.
    pub(super) fn is_for_first_hctx(&self) -> bool {
        self.counts.elsewhere.load(Ordering::Relaxed) == 0
    }

    /// Brings up to date what others see. Called under the lock, before it is let go.
    pub(crate) fn note_waiting(&self, hold: &Hold) {
        let note = |count: &AtomicU32, now: u32| {
            if count.load(Ordering::Relaxed) != now {
                count.store(now, Ordering::Relaxed);
            }
        };
        note(&self.counts.waiting, hold.nr_waiting() as u32);
        note(&self.counts.left, hold.backlog.len() as u32);
        note(&self.counts.elsewhere, hold.elsewhere);
    }

    /// When the scheduler would let go what it holds back, in nanoseconds; `u64::MAX` if it holds nothing back.
    #[inline]
    pub(crate) fn planned(&self) -> u64 {
        self.planned.load(Ordering::Relaxed)
    }

    /// Changes that. Called under the lock, or in a test.
    pub(crate) fn set_planned(&self, planned: u64) {
        self.planned.store(planned, Ordering::Relaxed);
    }

    /// Notes when the scheduler would let go what it holds back, if it does. Returns whether that is earlier than what
    /// the threads that sleep have planned for, or they may have planned for nothing; they are woken when the lock has
    /// been let go.
    pub(super) fn plan(&self, hold: &Hold, is_held_back: bool, now: Time) -> bool {
        let planned = self.planned();
        let wakeup = match &hold.scheduler {
            Some(scheduler) if is_held_back => {
                let wakeup = scheduler.next_wakeup().map_or(u64::MAX, |time| time.0);
                // A plan that is still to come stands until something is chosen. A scheduler that is asked in vain may
                // name now this time and now that, and a thread that is woken for the earlier one asks it again.
                if planned > now.0 { wakeup.min(planned) } else { wakeup }
            }
            _ => u64::MAX,
        };
        if planned != wakeup {
            self.set_planned(wakeup);
        }
        // A thread that looked when the old time had passed found another one at the scheduler, and plans for no time
        // by now.
        let is_next = planned <= now.0 && now.0 < wakeup && wakeup != u64::MAX;
        wakeup < planned || is_next
    }

    /// Whether the time until which something is held back has come since `now`, which then becomes the time of now.
    ///
    /// COST: a load; the clock is read where something is held back until a time.
    pub(super) fn has_come(&self, q: &RequestQueue, now: &mut Time) -> bool {
        let planned = self.planned();
        if planned == u64::MAX || planned <= now.0 || !kept("dispatch.time_anew") {
            return false;
        }
        let later = q.clock.now();
        if planned > later.0 {
            return false;
        }
        *now = later;
        true
    }

    /// For tests: as it looks to a thread that read the count before others took what it counted.
    #[cfg(all(test, not(any(loom, shuttle))))]
    fn set_nr_waiting(&self, nr: u32) {
        self.counts.waiting.store(nr, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
