//! The scheduler of a queue: put in place, with room for the requests that the queue may have, shown, and its knobs.

use std::fmt::{self, Write};

use blkmq_sched::limiter::Target;
use blkmq_sched::{FeedbackKind, KnobError, Scheduler, Setting};

use super::domain::Domain;
use super::domains::Domains;
use crate::queue::error::QueueError;
use crate::queue::locking::Locking;
use crate::queue::settings::{NR_REQUESTS, check_within_depth};
use crate::queue::{CONTROL, Queue};
use crate::request::limits::MAX_THREADS;
use blkmq_sync::atomic::Ordering;

impl Domain {
    /// Puts a scheduler in place for so many hardware queues, and tells it of the device and of the clients.
    fn install(&self, q: &Queue, mut scheduler: Box<dyn Scheduler>, nr_hctxs: u16) {
        debug_assert!(nr_hctxs > 0 && scheduler.is_empty(), "a new scheduler is put in place for a hardware queue");
        scheduler.configure(Setting::MergeLimits(q.limits.merge_limits()));
        scheduler.configure(Setting::Rotational(q.limits.rotational));
        // What changes from here on is told to the scheduler where it is.
        let tenants = q.tenants().table();
        tenants.add_all_to(scheduler.as_mut());
        self.control().install(q, Some(scheduler), nr_hctxs.into());
    }
}

impl Domains {
    /// Puts a scheduler in place, one for each hardware queue if it orders only one. Called when nothing is in flight,
    /// or nothing has begun.
    ///
    /// # Errors
    /// The locking does not suit the scheduler. Nothing has changed then.
    pub(crate) fn install(&self, q: &Queue, scheduler: Option<Box<dyn Scheduler>>) -> Result<(), QueueError> {
        let per_hctx = scheduler.as_ref().and_then(|scheduler| scheduler.init_hctx());
        let is_split = per_hctx.is_some();
        check_locking(q.locking(), scheduler.as_deref().filter(|_| is_split))?;
        let nr_requests = q.settings.wanted_nr_requests(scheduler.is_some(), q.hctxs.depth().into());
        let throttle = per_hctx.and_then(|parts| parts.throttle);
        let wants_reports = scheduler.as_ref().is_some_and(|scheduler| scheduler.feedback() == FeedbackKind::Events);
        let wants_reports = wants_reports && !is_split;
        self.shut_gates(q);
        if is_split {
            // Before other threads see that the queue is split, because some ask a domain from outside of the queue.
            self.make(q.hctxs.layout().len());
        }
        q.settings.has_scheduler.store(scheduler.is_some(), Ordering::Relaxed);
        if wants_reports {
            q.threads.iter().for_each(|(_, thread)| thread.make_reports());
        }
        q.settings.set_ordering(is_split, throttle.is_some(), wants_reports);
        q.pools.install_throttle(q, throttle);
        // Those that are not used from now on must not keep a scheduler.
        self.made().for_each(|domain| domain.control().install(q, None, 1));
        match scheduler {
            Some(scheduler) if is_split => self.install_each(q, Some(scheduler)),
            Some(scheduler) => self.whole.install(q, scheduler, q.hctxs.layout().len()),
            None => {}
        }
        self.made().for_each(|domain| domain.note_waiting(&domain.control()));
        q.limiter_look.install(q, Target::from_usec(q.settings.wbt_lat_usec()));
        self.forget_plans();
        self.apply_nr_requests(q, nr_requests);
        Ok(())
    }

    /// Sets the size of what depends on `nr_requests`. Called when nothing is in flight.
    fn apply_nr_requests(&self, q: &Queue, nr_requests: u32) {
        debug_assert!(NR_REQUESTS.check(nr_requests.into()).is_ok(), "nr_requests: {nr_requests} was checked");
        debug_assert!(q.hctxs.is_idle(), "nr_requests changes while nothing is in flight");
        let depth = u32::from(q.hctxs.depth());
        // No more tags than requests, because a thread that bypasses the scheduler checks nothing else.
        let tags = depth.min(nr_requests);
        for (_, hctx) in q.hctxs.iter() {
            if hctx.tags.depth() != tags {
                hctx.tags.resize(tags);
            }
        }
        q.settings.nr_requests.store(nr_requests, Ordering::Relaxed);
        for domain in q.domains() {
            let mut hold = domain.control();
            debug_assert!(!hold.has_waiting(), "nr_requests changes while nothing waits");
            if let Some(scheduler) = &mut hold.scheduler {
                // There are no more requests than slots. Memory that is not used yet is not touched.
                let nr_slots = (MAX_THREADS - 1) * usize::from(q.nr_slots);
                let nr_hctxs = domain.hctxs(q).count();
                scheduler.reserve(nr_slots.min(nr_requests as usize * nr_hctxs));
                scheduler.configure(Setting::NrRequests(nr_requests));
            }
        }
        self.reset_gates(q);
    }

    /// Changes `nr_requests`. Called when nothing is in flight.
    pub(crate) fn set_nr_requests(&self, q: &Queue, nr_requests: u32) -> Result<(), QueueError> {
        if !q.settings.has_scheduler() {
            check_within_depth(nr_requests, q.hctxs.depth())?;
        }
        q.settings.asked_nr_requests.store(nr_requests, Ordering::Relaxed);
        self.apply_nr_requests(q, nr_requests);
        Ok(())
    }

    /// Changes what a read may take. Called when nothing is in flight.
    ///
    /// # Errors
    /// There is nothing in which requests could wait, or the clock is a coarse one. Nothing has changed then.
    pub(crate) fn set_wbt_lat_usec(&self, q: &Queue, usec: i64) -> Result<(), QueueError> {
        if usec != 0 && (q.settings.is_split() || !q.settings.has_scheduler()) {
            return Err(QueueError::NoLimiter { scheduler: q.scheduler() });
        }
        if usec != 0 && q.clock.is_coarse() {
            return Err(QueueError::CoarseClock);
        }
        q.settings.set_wbt_lat_usec(usec);
        self.shut_gates(q);
        q.limiter_look.install(q, Target::from_usec(usec));
        self.reset_gates(q);
        Ok(())
    }

    /// Changes the locking. Called when nothing is in flight.
    ///
    /// # Errors
    /// The locking does not suit the scheduler. Nothing has changed then.
    pub(crate) fn set_locking(&self, q: &Queue, locking: Locking) -> Result<(), QueueError> {
        if q.settings.is_split() {
            check_locking(locking, self.first().control().scheduler())?;
        }
        q.settings.locking.store(locking.index(), Ordering::Relaxed);
        Ok(())
    }

    /// Lets requests bypass the scheduler while nothing waits, or stops it. Called when nothing is in flight.
    pub(crate) fn set_bypass(&self, q: &Queue, bypass: bool) {
        q.settings.bypass.store(bypass, Ordering::Relaxed);
        self.reset_gates(q);
    }

    /// Gives each hardware queue a domain with a scheduler, unless it has one. `scheduler` is for the first hardware
    /// queue if that has none; the others follow that of the first.
    fn install_each(&self, q: &Queue, scheduler: Option<Box<dyn Scheduler>>) {
        self.make(q.hctxs.layout().len());
        let (highest, mut next) = (q.threads.highest(), scheduler);
        for domain in q.domains() {
            let has_scheduler = {
                let mut hold = domain.control();
                hold.backlog.reserve(highest);
                hold.scheduler().is_some()
            };
            if !has_scheduler {
                let scheduler = next.take().or_else(|| self.first().control().scheduler().and_then(another));
                let scheduler = scheduler.expect("what orders one hardware queue makes another one");
                domain.install(q, scheduler, 1);
            }
        }
    }

    /// The number of hardware queues has changed. Called when nothing is in flight.
    pub(in crate::queue) fn set_nr_hctxs(&self, q: &Queue, nr_hctxs: u16) {
        match q.whole_domain() {
            Some(domain) => domain.control().set_nr_hctxs(nr_hctxs.into()),
            None => {
                let is_gone = |domain: &&Domain| domain.first_hctx() >= nr_hctxs;
                self.made().filter(is_gone).for_each(|domain| domain.control().install(q, None, 1));
                self.install_each(q, None);
            }
        }
        self.apply_nr_requests(q, q.settings.nr_requests.load(Ordering::Relaxed));
    }

    /// The value of a knob of the scheduler. `None` if it has no such knob.
    pub(crate) fn knob(&self, q: &Queue, name: &str) -> Option<i64> {
        let shared = q.pools().and_then(|pools| pools.with_throttle(|throttle| throttle.knob(name)));
        shared.or_else(|| q.domain(0).control().scheduler()?.knob(name))
    }

    /// The names of the scheduler's knobs. There are none without a scheduler.
    pub(crate) fn knobs(&self, q: &Queue) -> Vec<&'static str> {
        let own = q.domain(0).control().scheduler().map_or(&[][..], |scheduler| scheduler.knobs());
        let shared = q.pools().map(|pools| pools.with_throttle(|throttle| throttle.knobs())).unwrap_or_default();
        shared.iter().chain(own).map(|knob| knob.name).collect()
    }

    /// Sets a knob of the scheduler at once.
    ///
    /// # Errors
    /// There is no such knob, or the value is out of range. Nothing has changed then.
    pub(crate) fn set_knob(&self, q: &Queue, name: &str, value: i64) -> Result<(), KnobError> {
        // No scheduler comes or goes meanwhile.
        let alone = q.control.lock();
        match q.pools().map(|pools| pools.with_throttle(|throttle| throttle.set_knob(name, value))) {
            None | Some(Err(KnobError::Unknown)) => self.set_each(q, name, value)?,
            Some(set) => set?,
        }
        drop(alone);
        // The scheduler may take more now, and may let go what it held back.
        q.live.fence_before_notify();
        q.notify_others(CONTROL);
        Ok(())
    }

    /// Sets a knob of each scheduler. What the first one refuses, each refuses.
    fn set_each(&self, q: &Queue, name: &str, value: i64) -> Result<(), KnobError> {
        for domain in q.domains() {
            let mut hold = domain.control();
            hold.scheduler.as_mut().map_or(Err(KnobError::Unknown), |scheduler| scheduler.set_knob(name, value))?;
            // Whether requests may bypass depends on the scheduler's limits.
            if domain.is_whole() {
                hold.reset_gate(q);
            }
        }
        if q.settings.is_split() {
            self.reset_split_gate(q);
        }
        Ok(())
    }

    /// For dumps.
    pub(crate) fn show(&self, q: &Queue, out: &mut dyn Write) -> fmt::Result {
        for domain in q.domains() {
            let hold = domain.control();
            let Some(scheduler) = hold.scheduler() else { return writeln!(out, "no scheduler") };
            let (name, len) = (scheduler.name(), scheduler.len());
            write!(out, "scheduler {name} ")?;
            if !domain.is_whole() {
                write!(out, "of hctx {} ", domain.first_hctx())?;
            }
            writeln!(out, "holds {len} queued per hctx {:?}", hold.queued)?;
            scheduler.show(out)?;
            hold.show_limiter(out)?;
        }
        q.pools().map_or(Ok(()), |pools| pools.show(out))
    }
}

/// A scheduler for another hardware queue, with the same knobs, in which nothing waits.
pub(super) fn another(scheduler: &dyn Scheduler) -> Option<Box<dyn Scheduler>> {
    let another = scheduler.init_hctx()?.scheduler;
    debug_assert!(another.is_empty(), "nothing waits in a new scheduler");
    Some(another)
}

/// Whether a scheduler, if it orders one hardware queue, can be reached under a locking.
fn check_locking(locking: Locking, of_one: Option<&dyn Scheduler>) -> Result<(), QueueError> {
    match of_one {
        Some(scheduler) if matches!(locking, Locking::Staged(_)) => {
            Err(QueueError::OrdersWhole { locking: locking.name(), scheduler: scheduler.name() })
        }
        _ => Ok(()),
    }
}
