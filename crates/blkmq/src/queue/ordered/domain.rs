//! A domain: a scheduler under its lock, and the counts that it publishes to threads without the lock.

use std::io::{self, Write};

use super::hold::Hold;
use crate::queue::Queue;
use crate::queue::accounting::{Count, Counters};
use crate::queue::experiments::{Wait, WaitMeters};
use crate::queue::topology::hctx::HwCtx;
#[cfg(virtual_cpus)]
use crate::queue::watch::{HoldStep, observe_hold};
use crate::request::clock::Time;
use blkmq_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use blkmq_sync::staging::Staging;
use blkmq_sync::{Line, Mutex, MutexGuard, unless_mutated};

/// The lock.
#[derive(Debug)]
struct Lock {
    hold: Mutex<Hold>,
    waits: WaitMeters,
}

/// The counts that other threads read without the lock. They lie apart from the lock, so that reading them does not
/// take the lock's line from the thread in the scheduler. They do not change while requests take the fast path.
#[derive(Debug, Default)]
struct Counts {
    /// Requests in the scheduler, as of the last unlock.
    waiting: AtomicU32,
    /// Requests in the backlog, as of the last unlock. Requests that no combiner has taken over yet are not counted.
    backlog: AtomicU32,
    /// Requests in the scheduler that are for another hardware queue than the first.
    elsewhere: AtomicU32,
}

/// A scheduler, its lock, and the words that arbitrate it.
#[derive(Debug)]
pub(crate) struct Domain {
    /// The hardware queue whose requests are ordered here; 0 if those of all hardware queues are.
    first: u16,
    is_whole: bool,
    lock: Line<Lock>,
    counts: Line<Counts>,
    /// When the scheduler will dispatch what it holds back, in nanoseconds; `u64::MAX` if it holds nothing back.
    planned: Line<AtomicU64>,
    /// The staging word of the locking `combining`.
    pub(crate) staging: Staging,
    /// The words of the locking `staged`: which thread inserts, which one dispatches, and whether they were kicked.
    pub(crate) inserting: Staging,
    pub(crate) dispatching: Staging,
}

/// Aborts the process if a section unwinds, or a call that gives the scheduler feedback: the scheduler, or a function
/// of the program that observes waits, has panicked.
///
/// The thread then holds requests and tags of other threads, and the scheduler's state may no longer agree with the
/// counts. Storage that hangs, or a freeze that believes a queue drained, is worse than a process that ends with a
/// reason. Model checkers and the torture rig unwind, because they report what they found.
struct EndsProcess;

impl Drop for EndsProcess {
    #[cold]
    fn drop(&mut self) {
        if cfg!(not(any(loom, virtual_cpus))) {
            let text = "blkmq: the process ends, because its scheduler panicked with the requests of all threads";
            // The panic has been reported. A closed standard error changes nothing.
            let _ = writeln!(io::stderr(), "{text}");
            std::process::abort();
        }
    }
}

impl Domain {
    /// A domain without a scheduler: of one hardware queue, or of all if `hctx` is `None`.
    pub(super) fn new(hctx: Option<u16>, waits: WaitMeters) -> Self {
        let first = hctx.unwrap_or(0);
        let hold = Mutex::new(Hold::empty(first));
        Self {
            first,
            is_whole: hctx.is_none(),
            lock: Line::new("queue.hold", Lock { hold, waits }),
            counts: Line::new("queue.hold_counts", Counts::default()),
            planned: Line::new("queue.policy_wakeup", AtomicU64::new(u64::MAX)),
            staging: Staging::new("queue.staging"),
            inserting: Staging::new("queue.inserting"),
            dispatching: Staging::new("queue.dispatching"),
        }
    }

    /// Whether the requests of all hardware queues are ordered here.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The hardware queue whose requests are ordered here, or the first one if those of all are.
    #[inline]
    pub(crate) fn first_hctx(&self) -> u16 {
        self.first
    }

    /// The hardware queues whose requests are ordered here, with their numbers.
    #[inline]
    pub(crate) fn hctxs<'q>(&self, q: &'q Queue) -> impl Iterator<Item = (u16, &'q HwCtx)> + use<'q> {
        let (first, end) = if self.is_whole { (0, q.hctxs.layout().len()) } else { (self.first, self.first + 1) };
        (first..end).map(|index| (index, q.hctxs.get(index)))
    }

    /// Whether no other domain's counts say that something waits.
    #[inline(never)]
    pub(crate) fn is_rest_idle(&self, q: &Queue) -> bool {
        debug_assert!(!self.is_whole, "there is a rest");
        q.domains().all(|other| std::ptr::eq(other, self) || !other.has_work())
    }

    /// The lock, for the control path: holds are not counted.
    pub(in crate::queue) fn control(&self) -> MutexGuard<'_, Hold> {
        self.lock.hold.lock()
    }

    /// Runs a thread's section under the lock, on the path of a request. Then publishes the counts, and unlocks.
    ///
    /// COST: of a free lock a compare-exchange, and a swap to unlock; of a held lock also two readings of the meter,
    /// if there is a meter. At the end a load of the queue's word and three of the counts, which are written only if
    /// they have changed.
    #[inline]
    pub(crate) fn with_hold<R>(&self, q: &Queue, thread: u16, section: impl FnOnce(&mut Hold) -> R) -> R {
        let ends_process = EndsProcess;
        let mut hold = self.acquire(&q.threads.get(thread).counters);
        #[cfg(virtual_cpus)]
        observe_hold(HoldStep::Begins);
        hold.note_thread(thread);
        *hold.room = (0, 0);
        let result = section(&mut hold);
        debug_assert!(hold.agrees(), "the counts agree with the scheduler and the backlog: {:?}", *hold);
        // From here on requests may bypass the scheduler, or may no longer.
        if self.is_whole {
            hold.turn_gate(q);
        }
        self.note_waiting(&hold);
        #[cfg(virtual_cpus)]
        observe_hold(HoldStep::Ends);
        // COST: none. Nothing is dropped here.
        std::mem::forget(ends_process);
        result
    }

    /// Gives the scheduler the reports of all threads. For a thread on the path of a request that is not in a section.
    pub(super) fn deliver_reports(&self, q: &Queue, now: Time) {
        let ends_process = EndsProcess;
        self.control().take_reports(q, now);
        std::mem::forget(ends_process);
    }

    /// The lock on the path of a request: holds and the waits for them are counted.
    #[inline]
    fn acquire(&self, counters: &Counters) -> MutexGuard<'_, Hold> {
        counters.count(Count::Holds, 1);
        match self.lock.hold.try_lock() {
            Some(guard) => guard,
            None => self.wait(counters),
        }
    }

    #[cold]
    fn wait(&self, counters: &Counters) -> MutexGuard<'_, Hold> {
        let (guard, ns) = self.lock.waits.measure(|| {
            let guard = self.lock.hold.lock();
            counters.count(Count::Contended, 1);
            guard
        });
        counters.count(Count::LockWaitNs, ns);
        guard
    }

    /// The time by the clock that measures waits, if they are observed.
    pub(crate) fn observed_now(&self) -> Option<Time> {
        self.lock.waits.now()
    }

    /// Observes the wait, since `since`, of a request that was published for another thread to insert.
    pub(crate) fn record_staged_wait(&self, since: Time, now: Time) {
        self.lock.waits.record(Wait::Staged, since, now);
    }

    /// Whether a thread has the lock just now.
    pub(crate) fn is_taken(&self) -> bool {
        self.lock.hold.try_lock().is_none()
    }

    /// Requests in the scheduler, as of a moment ago. A thread that inserted and then asks sees at least its own.
    pub(crate) fn nr_waiting(&self) -> u32 {
        self.counts.waiting.load(Ordering::Relaxed)
    }

    /// Requests in the backlog, as of a moment ago. Published requests that no combiner has taken yet are not counted.
    pub(crate) fn nr_backlog(&self) -> u32 {
        self.counts.backlog.load(Ordering::Relaxed)
    }

    /// Whether requests wait in the scheduler or in the backlog, as of a moment ago.
    pub(crate) fn has_waiting(&self) -> bool {
        self.nr_waiting() > 0 || self.nr_backlog() > 0
    }

    /// Whether nothing waits here, checked under the lock.
    pub(crate) fn is_idle(&self, counters: &Counters) -> bool {
        !self.acquire(counters).has_waiting()
    }

    /// Whether a thread that freed something must dispatch here: requests wait in the scheduler or in the backlog, or a
    /// combiner that gave up has left some in the staging word. Also checked before WAITING is cleared. Dispatch lists
    /// are checked elsewhere.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.staging.has_published() || self.has_waiting()
    }

    /// Whether all waiting requests go to the first hardware queue, as of a moment ago.
    pub(crate) fn is_for_first_hctx(&self) -> bool {
        self.counts.elsewhere.load(Ordering::Relaxed) == 0
    }

    /// Publishes the counts. Called under the lock before it is released, and before WAITING is set for requests that
    /// other threads find by the counts.
    pub(crate) fn note_waiting(&self, hold: &Hold) {
        let note = |count: &AtomicU32, now: u32| {
            if count.load(Ordering::Relaxed) != now {
                count.store(now, Ordering::Relaxed);
            }
        };
        note(&self.counts.waiting, hold.nr_waiting() as u32);
        note(&self.counts.backlog, hold.backlog.len() as u32);
        note(&self.counts.elsewhere, *hold.elsewhere);
    }

    /// When the scheduler would let go what it holds back, in nanoseconds; `u64::MAX` if it holds nothing back.
    #[inline]
    pub(crate) fn planned(&self) -> u64 {
        self.planned.load(Ordering::Relaxed)
    }

    /// Changes [`planned`](Self::planned). Called under the lock, or in a test.
    pub(crate) fn set_planned(&self, planned: u64) {
        self.planned.store(planned, Ordering::Relaxed);
    }

    /// Plans for the time at which the scheduler will dispatch what it holds back, if it holds something back. Returns
    /// whether sleeping threads must be woken after the unlock: they have planned for a later time, or may have planned
    /// for none.
    pub(crate) fn plan(&self, hold: &Hold, is_held_back: bool, now: Time) -> bool {
        debug_assert!(!is_held_back || !hold.is_empty(), "what is held back waits in the scheduler");
        let planned = self.planned();
        let wakeup = match &hold.scheduler {
            Some(_) if is_held_back => {
                let wakeup = hold.wakeup(now);
                // A plan for a time that is still to come stands until something is dispatched. A scheduler that holds
                // back may name different times at different calls. A thread that wakes at the earlier time asks it
                // again.
                if planned > now.0 { wakeup.min(planned) } else { wakeup }
            }
            _ => u64::MAX,
        };
        if planned != wakeup {
            self.set_planned(wakeup);
        }
        // A thread that polled when the old time had passed found another thread in the scheduler. It now plans for no
        // time.
        let is_next = planned <= now.0 && now.0 < wakeup && wakeup != u64::MAX;
        wakeup < planned || is_next
    }

    /// Whether a time until which something is held back has come since `now`. If so, `now` becomes the present time.
    ///
    /// # A time that comes meanwhile
    /// ```text
    ///     a thread that asks the scheduler          a thread that has planned for the time
    ///  1. asks as of `now`: all is held back     a. comes, because the time has come
    ///  2. puts its tags back                     b. finds no tag, or the first thread at the scheduler, and leaves
    ///  3. calls this function
    /// ```
    ///
    /// If a comes before 3, then 3 finds that the time has come, and the first thread asks again. A thread that comes
    /// later finds the tag.
    ///
    /// COST: a load; the clock is read only where something is held back until a time.
    pub(crate) fn has_come(&self, q: &Queue, now: &mut Time) -> bool {
        let planned = self.planned();
        if planned == u64::MAX || planned <= now.0 || !unless_mutated("dispatch.time_anew") {
            return false;
        }
        let later = q.clock.now();
        if planned > later.0 {
            return false;
        }
        *now = later;
        true
    }

    /// For tests: what a thread sees that read the count before other threads took the requests that were counted.
    #[cfg(test)]
    fn set_nr_waiting(&self, nr: u32) {
        self.counts.waiting.store(nr, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
