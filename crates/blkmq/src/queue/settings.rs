//! Knobs that the path of a request reads.

use std::fmt;

use blkmq_sched::{Knob, MergeLevel, Unit};

use crate::queue::error::QueueError;
use crate::queue::locking::Locking;
use blkmq_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The smallest and the largest number of requests per hardware queue.
pub(crate) const NR_REQUESTS: Knob = Knob {
    name: "nr_requests",
    unit: Unit::Count,
    default: None,
    min: 1,
    max: 65536,
    about: "Requests each hardware queue may have, queued and with the driver; by default as many as it can, 65536, with a \
            scheduler, and the depth, which it cannot exceed, without. What was set stays when the scheduler changes.",
};

/// How long the driver may keep a request.
pub(crate) const IO_TIMEOUT: Knob = Knob {
    name: "io_timeout",
    unit: Unit::Milliseconds,
    default: Some(30_000),
    min: 1,
    max: u32::MAX as i64,
    about: "How long the driver may keep a request before it is asked about it.",
};

/// Knobs that the path of a request reads. The knobs lie on a line that is written only when one of them is set.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    pub(super) has_scheduler: AtomicBool,
    /// Each hardware queue has a domain of its own.
    is_split: AtomicBool,
    /// The scheduler takes a token for each request that it chooses.
    has_tokens: AtomicBool,
    /// The scheduler is told what bypasses it and what completes.
    wants_reports: AtomicBool,
    /// None of the three.
    is_plain: AtomicBool,
    pub(super) has_limiter: AtomicBool,
    /// The knob `wbt_lat_usec` as it was set, whatever the scheduler is: an `i64`.
    wbt_lat_usec: AtomicU64,
    pub(super) locking: AtomicU32,
    pub(super) bypass: AtomicBool,
    /// An experiment: every submitter stages its requests, as if another thread were at the scheduler.
    stages_all: AtomicBool,
    pub(super) nr_requests: AtomicU32,
    /// `nr_requests` as the operator or the builder asked for it; 0 if neither did.
    pub(super) asked_nr_requests: AtomicU32,
    nomerges: AtomicU32,
    io_timeout_ms: AtomicU32,
    pub(super) iostats: AtomicU32,
}

impl Settings {
    pub(super) fn new(
        io_timeout_ms: u32,
        locking: Locking,
        bypass: bool,
        nr_requests: Option<u32>,
        stages_all: bool,
    ) -> Self {
        Self {
            is_plain: AtomicBool::new(true),
            locking: AtomicU32::new(locking.index()),
            bypass: AtomicBool::new(bypass),
            stages_all: AtomicBool::new(stages_all),
            asked_nr_requests: AtomicU32::new(nr_requests.unwrap_or(0)),
            io_timeout_ms: AtomicU32::new(io_timeout_ms),
            iostats: AtomicU32::new(1),
            ..Self::default()
        }
    }

    pub(crate) fn has_scheduler(&self) -> bool {
        self.has_scheduler.load(Ordering::Relaxed)
    }

    /// Whether each hardware queue has a domain of its own.
    #[inline]
    pub(super) fn is_split(&self) -> bool {
        // Acquire pairs with the Release of `set_ordering`.
        self.is_split.load(Ordering::Acquire)
    }

    /// Whether the queue has one domain, and its scheduler, if any, takes no tokens and wants no reports.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain.load(Ordering::Relaxed)
    }

    /// Called by the control path while nothing is in flight.
    pub(super) fn set_ordering(&self, is_split: bool, has_tokens: bool, wants_reports: bool) {
        debug_assert!(!wants_reports || !is_split && !has_tokens, "only one scheduler without tokens is told");
        // Release publishes the domains of the hardware queues, which were made before.
        self.is_split.store(is_split, Ordering::Release);
        self.has_tokens.store(has_tokens, Ordering::Relaxed);
        self.wants_reports.store(wants_reports, Ordering::Relaxed);
        self.is_plain.store(!is_split && !has_tokens && !wants_reports, Ordering::Relaxed);
    }

    /// Whether the scheduler is told what bypasses it and what completes.
    #[inline]
    pub(crate) fn wants_reports(&self) -> bool {
        self.wants_reports.load(Ordering::Relaxed)
    }

    /// Whether the scheduler takes a token for each request that it chooses.
    #[inline]
    pub(super) fn has_tokens(&self) -> bool {
        self.has_tokens.load(Ordering::Relaxed)
    }

    /// Whether completers tell a limiter what the device has done.
    #[inline]
    pub(crate) fn has_limiter(&self) -> bool {
        self.has_limiter.load(Ordering::Relaxed)
    }

    /// The knob `wbt_lat_usec` as it is shown: 0 where nothing is held back whatever was set.
    pub(crate) fn shown_wbt_lat_usec(&self) -> i64 {
        if self.has_limiter() { self.wbt_lat_usec() } else { 0 }
    }

    /// What was set, whatever the scheduler is.
    pub(super) fn wbt_lat_usec(&self) -> i64 {
        self.wbt_lat_usec.load(Ordering::Relaxed).cast_signed()
    }

    pub(super) fn set_wbt_lat_usec(&self, usec: i64) {
        self.wbt_lat_usec.store(usec.cast_unsigned(), Ordering::Relaxed);
    }

    pub(super) fn locking(&self) -> Locking {
        Locking::of_index(self.locking.load(Ordering::Relaxed))
    }

    /// Whether requests may bypass the scheduler while nothing waits.
    pub(super) fn has_bypass(&self) -> bool {
        self.bypass.load(Ordering::Relaxed)
    }

    pub(crate) fn stages_all(&self) -> bool {
        self.stages_all.load(Ordering::Relaxed)
    }

    pub(super) fn has_iostats(&self) -> bool {
        self.iostats.load(Ordering::Relaxed) != 0
    }

    /// How many requests each hardware queue of this depth may have. If no number was asked for, a scheduler gets the
    /// most: what waits in a scheduler holds no tag, so the scheduler may choose from everything that there is.
    pub(super) fn wanted_nr_requests(&self, has_scheduler: bool, depth: u32) -> u32 {
        match (self.asked_nr_requests.load(Ordering::Relaxed), has_scheduler) {
            (0, true) => NR_REQUESTS.max as u32,
            (0, false) => depth,
            (asked, true) => asked,
            (asked, false) => asked.min(depth),
        }
    }

    fn cell(&self, knob: &str) -> Option<&AtomicU32> {
        Some(match knob {
            "nr_requests" => &self.nr_requests,
            "nomerges" => &self.nomerges,
            "iostats" => &self.iostats,
            "io_timeout" => &self.io_timeout_ms,
            _ => return None,
        })
    }

    /// The value of a knob that is a number, by its name.
    pub(crate) fn number(&self, knob: &str) -> Option<u32> {
        self.cell(knob).map(|cell| cell.load(Ordering::Relaxed))
    }

    /// Sets a knob that is a number and that nothing else depends on.
    pub(crate) fn set_number(&self, knob: &str, value: u32) {
        debug_assert!(matches!(knob, "nomerges" | "io_timeout" | "iostats"), "{knob} is set by itself");
        if let Some(cell) = self.cell(knob) {
            cell.store(value, Ordering::Relaxed);
        }
    }

    pub(crate) fn merge_level(&self) -> MergeLevel {
        match self.nomerges.load(Ordering::Relaxed) {
            0 => MergeLevel::Full,
            1 => MergeLevel::LastOnly,
            _ => MergeLevel::Never,
        }
    }

    pub(crate) fn set_merge_level(&self, level: MergeLevel) {
        let nomerges = match level {
            MergeLevel::Full => 0,
            MergeLevel::LastOnly => 1,
            MergeLevel::Never => 2,
        };
        self.nomerges.store(nomerges, Ordering::Relaxed);
    }

    pub(crate) fn timeout_ns(&self) -> u64 {
        u64::from(self.io_timeout_ms.load(Ordering::Relaxed)) * 1_000_000
    }
}

/// As dumps show them.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |cell: &AtomicU32| cell.load(Ordering::Relaxed);
        let (nr_requests, nomerges) = (number(&self.nr_requests), number(&self.nomerges));
        let (io_timeout, bypass) = (number(&self.io_timeout_ms), u32::from(self.has_bypass()));
        write!(f, "nr_requests {nr_requests} nomerges {nomerges} io_timeout {io_timeout} ms ")?;
        write!(f, "locking {} bypass {bypass}", self.locking())
    }
}

/// Whether a knob may have this value.
pub(crate) fn check_value(knob: &Knob, value: u32) -> Result<(), QueueError> {
    let checked = knob.check(i64::from(value));
    checked.map(|_| ()).map_err(QueueError::BadValue)
}

/// Whether a hardware queue of this depth may have this number of requests while there is no scheduler.
pub(super) fn check_within_depth(nr_requests: u32, depth: u16) -> Result<(), QueueError> {
    if nr_requests > u32::from(depth) {
        return Err(QueueError::AboveDepth { nr_requests, depth });
    }
    Ok(())
}
