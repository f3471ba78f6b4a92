//! The in-flight limiter of a queue: it holds requests back, so that they wait in the scheduler instead of the device,
//! and learns from completions.
//!
//! [`Limiter`] decides. A queue has one if its scheduler orders the whole queue and the knob `wbt_lat_usec` is not 0.
//! The thread in the scheduler asks the limiter before each dispatch ([`LimiterState`]). A request keeps its predicted
//! service time, its cost, until it completes. The completer adds the cost to a sum of its own, together with its
//! measurements ([`flows`](crate::queue::limits::flows)). The work in flight is the cost that was dispatched less these
//! sums.
//!
//! From time to time one completer sums the measurements of all threads, and passes them to the limiter (`fold`). The
//! time of the next fold lies on a line of its own; the completer that finds that it has come wins the turn by an
//! exchange. The completer enters the scheduler for that, because while all requests bypass it no other thread does.
//!
//! # Bypass
//! Requests bypass only while the limiter is open, because a limiter that is not open has to hold them back. They have
//! no cost. So the work in flight is too low for a moment after the limiter has closed. The limiter waits until the
//! device's earlier requests have completed.
//!
//! # Liveness
//! A request that waits because enough work is in flight is treated like one without a tag: the next completion frees
//! room. The sums are read anew before a request is refused, so a thread that re-checks behind its fence finds what a
//! completer added before its fence ([`prepare_to_wait`](blkmq_sync::liveness::Liveness::prepare_to_wait)). Requests
//! are in flight then, so there will be a completion. If the limiter is pacing, the queue arms its timer for the next
//! permitted dispatch, just as it does for a scheduler's own timer.

use std::fmt::{self, Write};

use blkmq_sched::limiter::{Costs, Limiter, Target};
use blkmq_sched::{Fairness, Feedback, FeedbackKind, Knob, Setting, Time, Unit};

use super::domains::Domains;
use super::hold::Hold;
use super::limiter_state::LimiterState;
use crate::queue::Queue;
use crate::queue::tenants::service::Served;
#[cfg(virtual_cpus)]
use crate::queue::watch::{LimiterStep, observe_limiter};
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{Line, unless_mutated};

/// What a read may take in the device before the queue holds requests back.
pub(crate) const WBT_LAT_USEC: Knob = Knob {
    name: "wbt_lat_usec",
    unit: Unit::Microseconds,
    default: Some(0),
    min: -1,
    max: 60_000_000,
    about: "What a read may take in the device on average; if reads take longer, requests are held back and wait in the \
            scheduler, as long as that costs no throughput; -1: four times what the fastest read took; 0: nothing is \
            held back. Not for none and kyber.",
};

/// The state of a limiter.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LimiterInfo {
    /// The limiter as it is now.
    pub limiter: Limiter,
    /// The predicted work that the device has now, in nanoseconds. Requests that bypassed the scheduler do not count.
    pub in_flight_ns: u64,
    /// Requests that wait in the scheduler while the limiter is not open.
    pub held_back: usize,
}

impl Hold {
    /// Removes the limiter. Called while nothing is in flight.
    ///
    /// # Panics
    /// If a request's cost was lost, or was over twice.
    pub(super) fn end_limiter(&mut self, q: &Queue) {
        if let Some(mut limiter) = self.limiter.take() {
            limiter.look_up_over(q);
            let left = limiter.in_flight();
            assert!(left == 0, "nothing is in flight, and so many nanoseconds of cost are not over: {left}");
        }
    }

    /// Creates a limiter, if one is wanted and there is a scheduler in which requests can wait. Returns whether there
    /// is one. Called while nothing is in flight.
    fn make_limiter(&mut self, q: &Queue, target: Target) -> bool {
        debug_assert!(!self.has_waiting(), "a limiter is made while nothing waits");
        self.end_limiter(q);
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.configure(Setting::Slice(None));
            // A new limiter knows no costs yet, and both charge alike.
            scheduler.configure(Setting::Costs(Costs::default()));
        }
        let wants_usage = self.scheduler().is_some_and(|scheduler| scheduler.feedback() == FeedbackKind::Usage);
        // Without latencies a scheduler that shares orders only what waits.
        let for_shares = wants_usage && !q.clock.is_coarse();
        let is_wanted = (target != Target::Off || for_shares) && self.scheduler().is_some();
        self.limiter = is_wanted.then(|| Box::new(LimiterState::new(q, target, for_shares)));
        #[cfg(virtual_cpus)]
        if is_wanted {
            observe_limiter(LimiterStep::Created);
        }
        self.note_special(q);
        is_wanted
    }

    /// Whether there is no limiter, or it is open.
    #[inline]
    pub(super) fn is_limiter_open(&self) -> bool {
        self.limiter.as_ref().is_none_or(|limiter| limiter.limiter.is_open())
    }

    /// When a request that is held back may be dispatched. The limiter decides before the scheduler is asked.
    pub(super) fn wakeup(&self, now: Time) -> u64 {
        let limiter = self.limiter.as_ref().filter(|_| unless_mutated("limiter.plan"));
        let opens_at = limiter.and_then(|limiter| limiter.opens_at(now));
        let next = opens_at.or_else(|| self.scheduler()?.next_wakeup());
        next.map_or(u64::MAX, |time| time.0)
    }

    /// Passes the measurements to the limiter, and what follows from them to the scheduler. Returns the time of the
    /// next fold, in nanoseconds.
    fn fold_limiter(&mut self, q: &Queue, now: Time) -> u64 {
        let has_choice = !self.is_empty();
        let (Some(limiter), Some(scheduler)) = (&mut self.limiter, &mut self.scheduler) else { return u64::MAX };
        let fairness = limiter.usage.as_mut().map_or(Fairness::Unknown, |usage| {
            let fairness = scheduler.observe(Feedback::Usage(usage.collect(q), now));
            usage.clear();
            fairness
        });
        limiter.fold(q, has_choice, fairness, now);
        scheduler.configure(Setting::Slice(limiter.limiter.slice()));
        scheduler.configure(Setting::Costs(limiter.limiter.costs()));
        limiter.limiter.next_look().map_or(u64::MAX, |time| time.0)
    }

    /// For dumps.
    pub(super) fn show_limiter(&self, out: &mut dyn Write) -> fmt::Result {
        match &self.limiter {
            None => Ok(()),
            Some(limiter) => {
                writeln!(out, "limiter:")?;
                limiter.limiter.show(out)
            }
        }
    }

    pub(in crate::queue) fn limiter_info(&mut self, q: &Queue) -> Option<LimiterInfo> {
        let waiting = self.nr_waiting();
        let limiter = self.limiter.as_mut()?;
        limiter.look_up_over(q);
        let held_back = if limiter.limiter.is_open() { 0 } else { waiting };
        Some(LimiterInfo { limiter: limiter.limiter.clone(), in_flight_ns: limiter.in_flight(), held_back })
    }
}

impl Domains {
    /// Ends the service of a submitter that leaves for its client. What the client got since the last fold is kept
    /// until the next one. Called under the lock of the table of clients.
    pub(in crate::queue) fn end_service(&self, q: &Queue, thread: u16) -> Served {
        // A fold counts what the submitter got before this or behind it, and not twice.
        let mut hold = q.whole_domain().filter(|_| q.settings.has_limiter()).map(|domain| domain.control());
        let limiter = hold.as_mut().and_then(|hold| hold.limiter.as_mut());
        if let Some(usage) = limiter.and_then(|limiter| limiter.usage.as_mut()).filter(|_| unless_mutated("usage.left"))
        {
            usage.note_leaving(q, thread);
        }
        q.threads.get(thread).serve_nobody()
    }
}

/// The time of the next fold, in nanoseconds; `u64::MAX` if there is no limiter, or during a fold.
#[derive(Debug)]
pub(crate) struct LimiterLook(Line<AtomicU64>);

impl LimiterLook {
    pub(in crate::queue) fn new() -> Self {
        Self(Line::new("queue.limiter_look", AtomicU64::new(u64::MAX)))
    }

    /// Folds, if the time has come. Called by a completer.
    ///
    /// COST: a load of a line that is written each 50 ms while the limiter is open, and each 1 ms while it is not.
    #[inline]
    pub(crate) fn look(&self, q: &Queue, thread: u16, now: Time) {
        let due = self.0.load(Ordering::Relaxed);
        if due <= now.0 {
            self.fold(q, thread, due, now);
        }
    }

    #[cold]
    fn fold(&self, q: &Queue, thread: u16, due: u64, now: Time) {
        // Relaxed: the scheduler's lock orders folds.
        let won = self.0.compare_exchange(due, u64::MAX, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if won && let Some(domain) = q.whole_domain() {
            domain.with_hold(q, thread, |hold| self.0.store(hold.fold_limiter(q, now), Ordering::Relaxed));
        }
    }

    /// Creates a limiter for this target, or removes the present one. Called when nothing is in flight.
    pub(super) fn install(&self, q: &Queue, target: Target) {
        debug_assert!(q.hctxs.is_idle(), "a limiter is made while nothing is in flight");
        let has_limiter = q.whole_domain().is_some_and(|domain| domain.control().make_limiter(q, target));
        q.settings.has_limiter.store(has_limiter, Ordering::Relaxed);
        self.0.store(if has_limiter { 0 } else { u64::MAX }, Ordering::Relaxed);
    }
}
