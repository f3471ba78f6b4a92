//! The scheduler of a queue: put in place, with room for the requests that the queue may have, shown, and its knobs.

use std::fmt::{self, Write};

use blkmq_sched::window::Target;
use blkmq_sched::{FeedbackKind, KnobError, Scheduler, Setting};

use super::domain::Domain;
use crate::queue::error::QueueError;
use crate::queue::locking::Locking;
use crate::queue::settings::{NR_REQUESTS, check_within_depth};
use crate::queue::{CONTROL, RequestQueue};
use crate::request::limits::MAX_MEMBERS;
use blkmq_sync::atomic::Ordering;

impl RequestQueue {
    /// Puts a scheduler in place, one for each hardware queue if it orders only one. Called when nothing is in flight,
    /// or nothing has begun.
    ///
    /// # Errors
    /// The locking does not suit the scheduler. Nothing has changed then.
    pub(crate) fn install(&self, scheduler: Option<Box<dyn Scheduler>>) -> Result<(), QueueError> {
        let per_hctx = scheduler.as_ref().and_then(|scheduler| scheduler.init_hctx());
        let is_split = per_hctx.is_some();
        check_locking(self.locking(), scheduler.as_deref().filter(|_| is_split))?;
        let nr_requests = self.wanted_nr_requests(scheduler.is_some());
        let throttle = per_hctx.and_then(|parts| parts.throttle);
        let wants_reports = scheduler.as_ref().is_some_and(|scheduler| scheduler.feedback() == FeedbackKind::Events);
        let wants_reports = wants_reports && !is_split;
        self.shut_gates();
        if is_split {
            // Before other threads see that the queue is split, because some ask a domain from outside of the queue.
            self.domains.make(self.hctxs.layout().len());
        }
        self.settings.set_has_scheduler(scheduler.is_some());
        if wants_reports {
            self.members.iter().for_each(|(_, member)| member.make_reports());
        }
        self.settings.set_ordering(is_split, throttle.is_some(), wants_reports);
        self.install_throttle(throttle);
        // Those that are not used from now on must not keep a scheduler.
        self.domains.made().for_each(|domain| domain.control().install(self, None, 1));
        match scheduler {
            Some(scheduler) if is_split => self.install_for_each(Some(scheduler)),
            Some(scheduler) => self.install_in(&self.domains.whole, scheduler, self.hctxs.layout().len()),
            None => {}
        }
        self.domains.made().for_each(|domain| domain.note_waiting(&domain.control()));
        self.install_window(Target::from_usec(self.settings.wbt_lat_usec()));
        self.forget_plans();
        self.apply_nr_requests(nr_requests);
        Ok(())
    }

    fn install_in(&self, domain: &Domain, mut scheduler: Box<dyn Scheduler>, nr_hctxs: u16) {
        scheduler.configure(Setting::MergeLimits(self.limits.merge_limits()));
        scheduler.configure(Setting::Rotational(self.limits.rotational));
        // What changes from here on is told to the scheduler where it is.
        let tenants = self.tenants().lock();
        tenants.tell_all(scheduler.as_mut());
        domain.control().install(self, Some(scheduler), nr_hctxs.into());
    }

    /// Gives each hardware queue a domain with a scheduler, unless it has one. `scheduler` is for the first hardware
    /// queue if that has none; the others follow that of the first.
    fn install_for_each(&self, scheduler: Option<Box<dyn Scheduler>>) {
        self.domains.make(self.hctxs.layout().len());
        let (highest, mut next) = (self.members.highest(), scheduler);
        for domain in self.domains() {
            let has_scheduler = {
                let mut hold = domain.control();
                hold.reserve(highest);
                hold.scheduler().is_some()
            };
            if !has_scheduler {
                let scheduler = next.take().or_else(|| self.domains.first().control().scheduler().and_then(another));
                self.install_in(domain, scheduler.expect("what orders one hardware queue makes another one"), 1);
            }
        }
    }

    /// How many requests each hardware queue may have. If no number was asked for, a scheduler gets the most: what
    /// waits in a scheduler holds no tag, so the scheduler may choose from everything that there is.
    fn wanted_nr_requests(&self, has_scheduler: bool) -> u32 {
        let depth = u32::from(self.hctxs.depth());
        match (self.settings.asked_nr_requests.load(Ordering::Relaxed), has_scheduler) {
            (0, true) => NR_REQUESTS.max as u32,
            (0, false) => depth,
            (asked, true) => asked,
            (asked, false) => asked.min(depth),
        }
    }

    /// Sets the size of what depends on `nr_requests`. Called when nothing is in flight.
    fn apply_nr_requests(&self, nr_requests: u32) {
        debug_assert!(NR_REQUESTS.check(nr_requests.into()).is_ok(), "nr_requests: {nr_requests} was checked");
        let depth = u32::from(self.hctxs.depth());
        // There are as many tags as there may be requests, because a thread that passes the scheduler by looks at
        // nothing else.
        let tags = depth.min(nr_requests);
        for (_, hctx) in self.hctxs.iter() {
            if hctx.tags.depth() != tags {
                hctx.tags.resize(tags);
            }
        }
        self.settings.nr_requests.store(nr_requests, Ordering::Relaxed);
        for domain in self.domains() {
            let mut hold = domain.control();
            debug_assert!(!hold.has_waiting(), "nr_requests changes while nothing waits");
            if let Some(scheduler) = hold.scheduler_mut() {
                // There are no more requests than slots. Memory that is not used yet is not touched.
                let nr_slots = (MAX_MEMBERS - 1) * usize::from(self.nr_slots);
                let nr_hctxs = self.hctxs_of(domain).count();
                scheduler.reserve(nr_slots.min(nr_requests as usize * nr_hctxs));
                scheduler.configure(Setting::NrRequests(nr_requests));
            }
        }
        self.reset_gates();
    }

    /// Shuts the gate, and opens it again if the present settings allow that.
    fn reset_gates(&self) {
        match self.whole_domain() {
            Some(domain) => domain.control().reset_gate(self),
            None => self.reset_split_gate(),
        }
    }

    /// Shuts the gate until [`reset_gates`](Self::reset_gates).
    fn shut_gates(&self) {
        match self.whole_domain() {
            Some(domain) => domain.control().end_gate(self),
            None => self.shut_split_gate(),
        }
    }

    /// Changes `nr_requests`. Called when nothing is in flight.
    pub(crate) fn ask_nr_requests(&self, nr_requests: u32) -> Result<(), QueueError> {
        if !self.settings.has_scheduler() {
            check_within_depth(nr_requests, self.hctxs.depth())?;
        }
        self.settings.asked_nr_requests.store(nr_requests, Ordering::Relaxed);
        self.apply_nr_requests(nr_requests);
        Ok(())
    }

    /// The number of hardware queues has changed. Called when nothing is in flight.
    pub(in crate::queue) fn apply_nr_hctxs(&self, nr_hctxs: u16) {
        match self.whole_domain() {
            Some(domain) => domain.control().set_nr_hctxs(nr_hctxs.into()),
            None => {
                let is_gone = |domain: &&Domain| domain.first_hctx() >= nr_hctxs;
                self.domains.made().filter(is_gone).for_each(|domain| domain.control().install(self, None, 1));
                self.install_for_each(None);
            }
        }
        self.apply_nr_requests(self.settings.nr_requests.load(Ordering::Relaxed));
    }

    /// Changes what a read may take. Called when nothing is in flight.
    ///
    /// # Errors
    /// There is nothing in which requests could wait, or the clock is a coarse one. Nothing has changed then.
    pub(crate) fn ask_wbt_lat_usec(&self, usec: i64) -> Result<(), QueueError> {
        if usec != 0 && (self.settings.is_split() || !self.settings.has_scheduler()) {
            return Err(QueueError::NoWindow { scheduler: self.scheduler() });
        }
        if usec != 0 && self.clock.is_coarse() {
            return Err(QueueError::CoarseClock);
        }
        self.settings.set_wbt_lat_usec(usec);
        self.apply_wbt_lat_usec();
        Ok(())
    }

    /// Makes the window as it was asked for. Called when nothing is in flight.
    fn apply_wbt_lat_usec(&self) {
        self.shut_gates();
        self.install_window(Target::from_usec(self.settings.wbt_lat_usec()));
        self.reset_gates();
    }

    /// What a read may take before requests are held back, as the knob `wbt_lat_usec` shows it: 0 where nothing is held
    /// back whatever was set.
    #[must_use]
    pub fn wbt_lat_usec(&self) -> i64 {
        if self.settings.has_window() { self.settings.wbt_lat_usec() } else { 0 }
    }

    /// Lets requests pass the scheduler by while nothing waits, or stops it. Called when nothing is in flight.
    pub(crate) fn set_bypass(&self, bypass: bool) {
        self.settings.set_bypass(bypass);
        self.reset_gates();
    }

    /// Changes the locking. Called when nothing is in flight.
    ///
    /// # Errors
    /// The locking does not suit the scheduler. Nothing has changed then.
    pub(crate) fn apply_locking(&self, locking: Locking) -> Result<(), QueueError> {
        if self.settings.is_split() {
            check_locking(locking, self.domains.first().control().scheduler())?;
        }
        self.settings.set_locking(locking);
        Ok(())
    }

    /// The locking around the scheduler.
    #[inline]
    #[must_use]
    pub fn locking(&self) -> Locking {
        self.settings.locking()
    }

    /// Whether requests may pass the scheduler by while nothing waits.
    #[must_use]
    pub fn has_bypass(&self) -> bool {
        self.settings.has_bypass()
    }

    /// For dumps.
    pub(crate) fn show_scheduler(&self, out: &mut dyn Write) -> fmt::Result {
        for domain in self.domains() {
            let hold = domain.control();
            let Some(scheduler) = hold.scheduler() else { return writeln!(out, "no scheduler") };
            let (name, len) = (scheduler.name(), scheduler.len());
            write!(out, "scheduler {name} ")?;
            if !domain.is_whole() {
                write!(out, "of hctx {} ", domain.first_hctx())?;
            }
            writeln!(out, "holds {len} queued per hctx {:?}", hold.queued())?;
            scheduler.show(out)?;
            hold.show_window(out)?;
        }
        self.show_pools(out)
    }

    /// The scheduler's name, or `none`.
    #[must_use]
    pub fn scheduler(&self) -> &'static str {
        self.first_domain().control().scheduler().map_or("none", |scheduler| scheduler.name())
    }

    /// A knob of the scheduler.
    ///
    /// # Errors
    /// There is no such knob.
    pub fn scheduler_knob(&self, name: &str) -> Result<i64, QueueError> {
        if let Some(value) = self.with_throttle(|throttle| throttle.knob(name)).flatten() {
            return Ok(value);
        }
        let value = self.first_domain().control().scheduler().and_then(|scheduler| scheduler.knob(name));
        value.ok_or_else(|| self.unknown_scheduler_knob(name))
    }

    /// The names of the scheduler's knobs. There are none without a scheduler.
    pub(crate) fn scheduler_knobs(&self) -> Vec<&'static str> {
        let own = self.first_domain().control().scheduler().map_or(&[][..], |scheduler| scheduler.knobs());
        let shared = self.with_throttle(|throttle| throttle.knobs()).unwrap_or_default();
        shared.iter().chain(own).map(|knob| knob.name).collect()
    }

    fn unknown_scheduler_knob(&self, name: &str) -> QueueError {
        QueueError::UnknownSchedulerKnob { name: name.to_owned(), known: self.scheduler_knobs() }
    }

    /// Sets a knob of the scheduler at once.
    ///
    /// # Errors
    /// There is no such knob, or the value is out of range. Nothing has changed then.
    pub fn set_scheduler_knob(&self, name: &str, value: i64) -> Result<(), QueueError> {
        // No scheduler comes or goes meanwhile. What the first one refuses, each refuses.
        self.change_alone(|| {
            match self.with_throttle(|throttle| throttle.set_knob(name, value)) {
                Some(Ok(())) => return Ok(()),
                None | Some(Err(KnobError::Unknown)) => {}
                Some(Err(error)) => return Err(QueueError::BadValue(error)),
            }
            for domain in self.domains() {
                let mut hold = domain.control();
                let set = hold.scheduler_mut().map_or(Err(KnobError::Unknown), |known| known.set_knob(name, value));
                match set {
                    Ok(()) => (),
                    Err(KnobError::Unknown) => {
                        drop(hold);
                        return Err(self.unknown_scheduler_knob(name));
                    }
                    Err(error) => return Err(QueueError::BadValue(error)),
                }
                // Whether requests may pass by depends on the scheduler's limits.
                if domain.is_whole() {
                    hold.reset_gate(self);
                }
            }
            if self.settings.is_split() {
                self.reset_split_gate();
            }
            Ok(())
        })?;
        // The scheduler may take more now, and may let go what it held back.
        self.live.brought();
        self.call_others(CONTROL);
        Ok(())
    }
}

/// A scheduler for another hardware queue, with the same settings, in which nothing waits.
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
