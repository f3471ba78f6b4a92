//! The scheduler of a queue: put in place, with room for the requests that the queue may have, shown, and its knobs.

use std::fmt::{self, Write};

use blkmq_sched::{KnobError, Scheduler};

use super::RequestQueue;
use super::error::QueueError;
use super::hold::Hold;
use super::locking::Locking;
use super::settings::{NR_REQUESTS, check_within_depth};
use crate::request::limits::MAX_MEMBERS;
use blkmq_sync::atomic::Ordering;

impl RequestQueue {
    /// Puts a scheduler in place. Called when nothing is in flight, or nothing has begun.
    pub(crate) fn install(&self, scheduler: Option<Box<dyn Scheduler>>) {
        let mut hold = self.domain.control();
        let nr_requests = self.wanted_nr_requests(scheduler.is_some());
        hold.install(self, scheduler);
        if let Some(scheduler) = hold.scheduler_mut() {
            scheduler.set_merge_limits(self.limits.merge_limits());
        }
        self.settings.set_has_scheduler(hold.scheduler().is_some());
        self.apply_nr_requests(&mut hold, nr_requests);
        self.domain.note_waiting(&hold);
        self.domain.set_planned(u64::MAX);
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
    fn apply_nr_requests(&self, hold: &mut Hold, nr_requests: u32) {
        debug_assert!(NR_REQUESTS.check(nr_requests.into()).is_ok(), "nr_requests: {nr_requests} was checked");
        debug_assert!(!hold.has_waiting(), "nr_requests changes while nothing waits");
        let depth = u32::from(self.hctxs.depth());
        // There are as many tags as there may be requests, because a thread that passes the scheduler by looks at
        // nothing else.
        let tags = depth.min(nr_requests);
        for (_, hctx) in self.hctxs.iter() {
            if hctx.tags.depth() != tags {
                hctx.tags.resize(tags);
            }
        }
        if let Some(scheduler) = hold.scheduler_mut() {
            // There are no more requests than slots. Memory that is not used yet is not touched.
            let nr_slots = (MAX_MEMBERS - 1) * usize::from(self.nr_slots);
            scheduler.reserve(nr_slots.min(nr_requests as usize * usize::from(self.hctxs.layout().len())));
            scheduler.set_nr_requests(nr_requests);
        }
        self.settings.nr_requests.store(nr_requests, Ordering::Relaxed);
        hold.reset_gate(self);
    }

    /// Changes `nr_requests`. Called when nothing is in flight.
    pub(crate) fn ask_nr_requests(&self, nr_requests: u32) -> Result<(), QueueError> {
        let mut hold = self.domain.control();
        if hold.scheduler().is_none() {
            check_within_depth(nr_requests, self.hctxs.depth())?;
        }
        self.settings.asked_nr_requests.store(nr_requests, Ordering::Relaxed);
        self.apply_nr_requests(&mut hold, nr_requests);
        Ok(())
    }

    /// The number of hardware queues has changed. Called when nothing is in flight.
    pub(super) fn apply_nr_hctxs(&self, nr_hctxs: usize) {
        let mut hold = self.domain.control();
        hold.set_nr_hctxs(nr_hctxs);
        self.apply_nr_requests(&mut hold, self.settings.nr_requests.load(Ordering::Relaxed));
    }

    /// Lets requests pass the scheduler by while nothing waits, or stops it. Called when nothing is in flight.
    pub(crate) fn set_bypass(&self, bypass: bool) {
        self.settings.set_bypass(bypass);
        self.domain.control().reset_gate(self);
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
    pub(super) fn show_scheduler(&self, out: &mut dyn Write) -> fmt::Result {
        let hold = self.domain.control();
        let Some(scheduler) = hold.scheduler() else { return writeln!(out, "no scheduler") };
        let (name, len) = (scheduler.name(), scheduler.len());
        writeln!(out, "scheduler {name} holds {len} queued per hctx {:?}", hold.queued())?;
        scheduler.show(out)
    }

    /// The scheduler's name, or `none`.
    #[must_use]
    pub fn scheduler(&self) -> &'static str {
        self.domain.control().scheduler().map_or("none", |scheduler| scheduler.name())
    }

    /// A knob of the scheduler.
    ///
    /// # Errors
    /// There is no such knob.
    pub fn scheduler_knob(&self, name: &str) -> Result<i64, QueueError> {
        let hold = self.domain.control();
        let value = hold.scheduler().and_then(|scheduler| scheduler.knob(name));
        value.ok_or_else(|| unknown_knob(name, hold.scheduler()))
    }

    /// The names of the scheduler's knobs. There are none without a scheduler.
    pub(crate) fn scheduler_knobs(&self) -> Vec<&'static str> {
        knob_names(self.domain.control().scheduler())
    }

    /// Sets a knob of the scheduler at once.
    ///
    /// # Errors
    /// There is no such knob, or the value is out of range. Nothing has changed then.
    pub fn set_scheduler_knob(&self, name: &str, value: i64) -> Result<(), QueueError> {
        let mut hold = self.domain.control();
        let Some(scheduler) = hold.scheduler_mut() else { return Err(unknown_knob(name, None)) };
        match scheduler.set_knob(name, value) {
            Ok(()) => (),
            Err(KnobError::Unknown) => return Err(unknown_knob(name, hold.scheduler())),
            Err(error) => return Err(QueueError::BadValue(error)),
        }
        // Whether requests may pass by depends on the scheduler's limits.
        hold.reset_gate(self);
        drop(hold);
        // The scheduler may take more now, and may let go what it held back.
        self.brought();
        self.call_others();
        Ok(())
    }
}

fn knob_names(scheduler: Option<&dyn Scheduler>) -> Vec<&'static str> {
    scheduler.map_or(&[][..], |scheduler| scheduler.knobs()).iter().map(|knob| knob.name).collect()
}

fn unknown_knob(name: &str, scheduler: Option<&dyn Scheduler>) -> QueueError {
    QueueError::UnknownSchedulerKnob { name: name.to_owned(), known: knob_names(scheduler) }
}
