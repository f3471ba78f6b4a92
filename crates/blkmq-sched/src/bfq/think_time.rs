//! How a queue's client asks: how far apart, how soon after a completion, and how steadily.

use super::Bfq;
use super::clock::{NS_PER_MS, Ticks, of_ms, ticks};
use crate::slab::Index;
use crate::{Class, Info, Time};

/// A request farther than so many sectors from the one before is far.
const FAR: u64 = 800;
/// On a device that does not turn, a request of at least so many sectors is never far.
pub(super) const LARGE: u32 = 64;
/// A queue is seeky with more than so many far requests among its last 32.
const MOST_FAR: u32 = 19;
/// From so many samples on, counted in fixed point, the mean think time decides.
const ENOUGH_SAMPLES: u64 = 80;
/// How far back steadiness is judged, in nanoseconds.
const STEADY_WINDOW: u64 = 200 * NS_PER_MS;

/// What is remembered of a queue's client, also while its queue is merged with another one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ThinkTime {
    /// When a request of the queue completed last; before the first one did, a nanosecond after the queue began.
    pub(super) last_end: Time,
    has_ended: bool,
    /// How many think times there were. Each counts 256 when it comes, and an eighth less with each that follows.
    samples: u64,
    total: u64,
    mean: u64,
    /// The next request comes soon after a completion.
    pub(super) thinks_shortly: bool,
    /// The queue has something to do nearly all the time.
    pub(super) is_io_bound: bool,
    watched_since: Time,
    /// Nanoseconds without anything to do since then, wrapping.
    idle: u64,
}

impl ThinkTime {
    pub(super) fn new(now: Time, thinks_shortly: bool) -> Self {
        Self { last_end: now.after(1), thinks_shortly, is_io_bound: true, watched_since: now, ..Self::default() }
    }

    /// A request of the queue completed.
    pub(super) const fn note_end(&mut self, now: Time) {
        (self.last_end, self.has_ended) = (now, true);
    }

    /// For how long the client has thought at `now`, wrapping. The time of the completion may be later than `now`: then
    /// the client has not thought at all. As in Linux the first request of a queue comes a nanosecond too early: it
    /// counts as a very long thought, and as a nanosecond less than nothing where times are summed.
    const fn think_time(&self, now: Time) -> u64 {
        if self.has_ended { now.since(self.last_end) } else { now.0.wrapping_sub(self.last_end.0) }
    }
}

/// Whether a request at `info` is far from `last`, where the one before ended.
pub(super) fn is_far(last: u64, info: &Info, rotational: bool) -> bool {
    let distance = if last == 0 { 0 } else { last.abs_diff(info.sector) };
    distance > FAR && (rotational || info.nr_sectors < LARGE)
}

/// A history of far and near requests, the latest in the lowest bit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seeks(u32);

impl Seeks {
    /// The first request is far from what was before.
    pub(super) const FIRST: Self = Self(1);

    const fn note(&mut self, is_far: bool) {
        self.0 = self.0 << 1 | is_far as u32;
    }

    pub(super) const fn is_seeky(self) -> bool {
        self.0.count_ones() > MOST_FAR
    }

    pub(super) const fn is_totally_seeky(self) -> bool {
        self.0 == u32::MAX
    }
}

impl Bfq {
    /// A request arrives at `q`: how long has its client thought?
    pub(super) fn note_think_time(&mut self, q: Index, now: Time) {
        let slice_idle = self.tunables.slice_idle;
        let queue = self.queues.get_mut(q);
        if queue.dispatched > 0 || queue.is_busy {
            return;
        }
        let think_time = &mut queue.think_time;
        let elapsed = think_time.think_time(now).min(2 * slice_idle);
        think_time.samples = (7 * think_time.samples + 256) / 8;
        think_time.total = (7 * think_time.total + 256 * elapsed) / 8;
        think_time.mean = (think_time.total + 128) / think_time.samples;
    }

    /// Decides anew whether the think time of `q` is short.
    pub(super) fn judge_think_time(&mut self, q: Index, now: Time) {
        let slice_idle = self.tunables.slice_idle;
        let class = self.class(q);
        let queue = self.queues.get_mut(q);
        if !queue.is_sync || class == Class::Idle || slice_idle == 0 {
            return;
        }
        let tick = ticks(now);
        // What was learnt before a split says little.
        if queue.split_at + super::weight_raising::LONG_IDLE >= tick {
            return;
        }
        let think_time = &mut queue.think_time;
        let is_long = think_time.samples > ENOUGH_SAMPLES && think_time.mean > slice_idle / 2;
        let changes = think_time.thinks_shortly == is_long;
        think_time.thinks_shortly = !is_long;
        const SETTLING: Ticks = of_ms(100);
        if changes && queue.injection.base == 0 && (is_long || queue.injection.lowered_at + SETTLING <= tick) {
            self.reset_injection(q, now);
        }
    }

    /// Notes how far a request that arrives at `q` is from the one before.
    pub(super) fn note_seek(&mut self, q: Index, info: &Info, now: Time) {
        let queue = self.queues.get_mut(q);
        queue.seeks.note(is_far(queue.last_position, info, self.rotational));
        if queue.seeks.is_totally_seeky() && queue.raising.is_soft_real_time() {
            self.end_soft_real_time(q, ticks(now));
        }
    }

    /// A request arrives at `q`: was the queue busy nearly all of the last time?
    pub(super) fn note_steadiness(&mut self, q: Index, now: Time) {
        let queue = self.queues.get_mut(q);
        let is_without = queue.nr_waiting == 1 && queue.dispatched == 0;
        let think_time = &mut queue.think_time;
        if is_without {
            think_time.idle = think_time.idle.wrapping_add(think_time.think_time(now));
        }
        if queue.just_created {
            return;
        }
        let watched = now.since(think_time.watched_since);
        think_time.is_io_bound = think_time.idle.wrapping_mul(5) <= watched;
        if watched > STEADY_WINDOW {
            think_time.watched_since = now.before(watched / 2);
            think_time.idle /= 2;
        }
    }
}
