//! The scheduler under its lock, and what is known only there.

use blkmq_sched::{Class, Scheduler, Tally};

use crate::account::Counters;
use crate::backlog::Backlog;
use crate::clock::{Clock, Time};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{Line, Mutex, MutexGuard};

/// So many requests of one class come in behind the first before the gate is opened for that class. While classes change more
/// often than that, opening it would cost more than it saves.
const STEADY: u32 = 8;

/// The scheduler and what belongs to it, under one lock.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) scheduler: Option<Box<dyn Scheduler>>,
    /// Requests in the scheduler, by the hardware queue they will go to, and those for another than the first.
    pub(crate) queued: Vec<u32>,
    pub(crate) elsewhere: u32,
    /// A hardware queue, and for how many more requests for it there is room at least, as long as this hold goes on.
    pub(crate) room: (u16, u32),
    /// Requests other than reads that entered the scheduler since it was installed.
    pub(crate) limited: u64,
    /// What had completed when the scheduler was installed.
    pub(crate) base: Tally,
    pub(crate) base_limited: u64,
    /// What was left with the holder under the locking `combining`.
    pub(crate) backlog: Backlog,
    /// The class that may pass the scheduler by, as the queue's word says it while nothing waits.
    pub(crate) gate: Option<Class>,
    /// The class of the request that was inserted last.
    pub(crate) latest: Class,
    /// So many more requests have to come until the gate may be opened; the first after a change of class does not count.
    pub(crate) until_open: u32,
    /// Requests may have passed that the scheduler has not been told of, and it has some of another class.
    pub(crate) is_fold_due: bool,
}

/// What somebody waits for on the way to the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wait {
    /// A thread for the scheduler's lock.
    Lock,
    /// A request that was made ready for another thread to insert, until that one has inserted it, or merged it, or found no
    /// room. Also if the other one had just gone, and this one inserts it.
    Staged,
}

/// Whom to tell of waits, and the clock they are measured by: the machine's exact one, whatever the queue's is.
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

/// The hold on a line of its own, with counts that let others see without locking whether there is work.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lock: Mutex<Hold>,
    /// What tells the calling thread's CPU time, in ns.
    wait_meter: Option<fn() -> u64>,
    pub(crate) wait_observer: Option<WaitObserver>,
    counts: Line<Counts>,
}

/// What others see without locking. Apart from the lock, so that who looks does not take the line from who holds it: while
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

impl Hold {
    /// A request for a hardware queue enters the scheduler.
    pub(crate) fn count_in(&mut self, hctx: u16) {
        self.queued[usize::from(hctx)] += 1;
        self.elsewhere += u32::from(hctx != 0);
    }

    /// It leaves the scheduler.
    pub(crate) fn count_out(&mut self, hctx: u16) {
        self.queued[usize::from(hctx)] -= 1;
        self.elsewhere -= u32::from(hctx != 0);
    }

    /// So many requests of a class came in, one after the other.
    #[inline]
    pub(crate) fn note_class(&mut self, class: Class, number: u32) {
        if self.latest != class {
            self.latest = class;
            // The first of them, by which the class has changed, does not count.
            self.until_open = self.until_open.max(STEADY) + 1;
        }
        self.until_open = self.until_open.saturating_sub(number);
    }

    fn empty() -> Self {
        Self {
            scheduler: None,
            queued: Vec::new(),
            elsewhere: 0,
            room: (0, 0),
            limited: 0,
            base: Tally::default(),
            base_limited: 0,
            backlog: Backlog::new(),
            gate: None,
            latest: Class::BestEffort,
            until_open: 0,
            is_fold_due: false,
        }
    }

    /// Whether requests wait for the scheduler to choose them, or to get into it.
    pub(crate) fn has_waiting(&self) -> bool {
        self.scheduler.as_ref().is_some_and(|scheduler| !scheduler.is_empty()) || !self.backlog.is_empty()
    }
}

impl Held {
    pub(crate) fn new(wait_meter: Option<fn() -> u64>, wait_observer: Option<WaitObserver>) -> Self {
        Self {
            lock: Mutex::new(Hold::empty()),
            wait_meter,
            wait_observer,
            counts: Line::new("queue.hold_counts", Counts::default()),
        }
    }

    /// The lock, on the path of a request: holds are counted, and waits for them.
    ///
    /// COST: of a free lock a compare-exchange, and a swap to unlock; two readings of the meter, if there is one, of a held one.
    #[inline]
    pub(crate) fn hold(&self, counters: &Counters) -> MutexGuard<'_, Hold> {
        counters.held();
        let mut guard = match self.lock.try_lock() {
            Some(guard) => guard,
            None => self.wait(counters),
        };
        guard.room = (0, 0);
        guard
    }

    /// Whether somebody has the lock just now.
    pub(crate) fn is_taken(&self) -> bool {
        self.lock.try_lock().is_none()
    }

    #[cold]
    fn wait(&self, counters: &Counters) -> MutexGuard<'_, Hold> {
        let read = || self.wait_meter.map_or(0, |meter| meter());
        let since = read();
        let began = self.wait_observer.as_ref().map(WaitObserver::now);
        let guard = self.lock.lock();
        counters.waited(read().saturating_sub(since));
        if let Some((observer, began)) = self.wait_observer.as_ref().zip(began) {
            observer.tell(Wait::Lock, began, observer.now());
        }
        guard
    }

    /// Requests in the scheduler, as of a moment ago. Who inserted and then asks sees at least its own.
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

    /// Whether all that waits goes to the first hardware queue, as of a moment ago.
    pub(crate) fn is_for_first_hctx(&self) -> bool {
        self.counts.elsewhere.load(Ordering::Relaxed) == 0
    }

    /// Called before unlocking.
    pub(crate) fn note_waiting(&self, hold: &Hold) {
        let note = |count: &AtomicU32, now: u32| {
            if count.load(Ordering::Relaxed) != now {
                count.store(now, Ordering::Relaxed);
            }
        };
        note(&self.counts.waiting, hold.scheduler.as_ref().map_or(0, |scheduler| scheduler.len() as u32));
        note(&self.counts.left, hold.backlog.len() as u32);
        note(&self.counts.elsewhere, hold.elsewhere);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
