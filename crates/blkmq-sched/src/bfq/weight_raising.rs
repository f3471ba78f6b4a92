//! Weight raising: for a while a queue counts many times its weight, so that a program that starts, or one that plays,
//! does not wait behind programs that read and write as much as they can.
//!
//! A queue that had nothing to do for long is taken for the queue of an interactive program that starts something. A
//! queue that asks for little, and then for nothing until what it got would have been played, is taken for a player's
//! (soft real time). Only queues of the default weight are raised: another weight says already what the client is to
//! get.

use super::Bfq;
use super::clock::{LONG_AGO, TICKS_PER_SECOND, Ticks, of_ms, of_ns, ticks};
use super::weight::weight;
use crate::slab::Index;
use crate::{DEFAULT_WEIGHT, Time};

/// How many times its weight a queue counts that is interactive, and one that is a player's.
const INTERACTIVE: u32 = 30;
const SOFT_REAL_TIME: u32 = INTERACTIVE * 100;
/// For how long a player's queue is raised; the time begins anew as the player goes on.
const SOFT_TIME: Ticks = of_ms(300);
/// A queue without requests for so long is taken for that of a program that starts.
pub(super) const LONG_IDLE: Ticks = of_ms(2000);
/// An asynchronous queue is raised at most this often.
const ASYNC_PAUSE: Ticks = of_ms(500);
/// A program that starts has read no more than so many sectors.
const MOST_SECTORS: u64 = 120_000;
/// The most that a player takes, in sectors a second.
const PLAYER_RATE: u64 = 7000;
/// A queue that did nothing for so long has left its burst.
const BURST_IS_OVER: Ticks = of_ms(10_000);
/// The only base weight that is raised.
const RAISED_WEIGHT: u32 = weight(DEFAULT_WEIGHT, 4);

/// Whether a queue is raised, and what decides that.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WeightRaising {
    /// How many times its weight the queue counts.
    pub(super) coefficient: u32,
    /// For how long the queue is raised, at most.
    duration: Ticks,
    /// Since when the queue is raised; if it is not, when that ended or a request came last.
    since: Ticks,
    /// Since when the queue was raised as an interactive one, if it is now raised as a player's.
    interactive_since: Ticks,
    /// Sectors that the queue was served while it was raised.
    service: u64,
    /// From then on the queue may be a player's.
    pub(super) next_soft_start: Ticks,
    /// `next_soft_start` is to be found when the queue's requests have completed.
    pub(super) is_start_open: bool,
    /// When the queue began to have requests last, and the sectors that it was served since.
    began: Ticks,
    pub(super) service_since: u64,
    /// When the queue was first served after `began`.
    pub(super) first_service: Ticks,
}

impl WeightRaising {
    /// Those of a new queue.
    pub(super) fn new(now: Ticks) -> Self {
        Self { coefficient: 1, interactive_since: LONG_AGO, next_soft_start: now, ..Self::default() }
    }

    pub(super) const fn is_raised(&self) -> bool {
        self.coefficient > 1
    }

    pub(super) const fn is_soft_real_time(&self) -> bool {
        self.is_raised() && self.duration == SOFT_TIME
    }

    /// Whether the duration is that of a player, raised or not.
    pub(super) const fn has_soft_duration(&self) -> bool {
        self.duration == SOFT_TIME
    }

    fn become_interactive(&mut self, duration: Ticks) {
        (self.coefficient, self.duration) = (INTERACTIVE, duration);
    }

    /// These values, raised as for a program that starts at `now`.
    pub(super) fn as_interactive(&self, duration: Ticks, now: Ticks) -> Self {
        Self { coefficient: INTERACTIVE, duration, since: now, interactive_since: LONG_AGO, ..*self }
    }

    /// Takes over the raising of `from`, which is merged with this queue.
    pub(super) fn inherit(&mut self, from: &Self) {
        self.coefficient = from.coefficient;
        self.duration = from.duration;
        self.since = from.since;
        self.interactive_since = from.interactive_since;
    }

    /// Resumes what was saved; what belongs to the times of service stays.
    pub(super) fn resume(&mut self, saved: &Self, with_coefficient: bool) {
        if with_coefficient {
            self.coefficient = saved.coefficient;
        }
        self.service = saved.service;
        self.interactive_since = saved.interactive_since;
        self.since = saved.since;
        self.duration = saved.duration;
    }

    fn has_run_out(&self, now: Ticks) -> bool {
        self.since + self.duration < now
    }

    /// Counts a service.
    pub(super) fn serve(&mut self, sectors: u64, now: Ticks) {
        if self.service_since == 0 {
            self.first_service = now;
        }
        if self.is_raised() {
            self.service += sectors;
        }
        self.service_since += sectors;
    }
}

impl Bfq {
    /// Asks virtual time for what the queue's coefficient is now, and counts raised queues that wait.
    pub(super) fn note_coefficient(&mut self, q: Index, before: u32) {
        let queue = self.queues.get(q);
        let (coefficient, entity) = (queue.raising.coefficient, queue.entity);
        self.forest.raise(entity, coefficient);
        if queue.is_busy {
            match (before > 1, coefficient > 1) {
                (false, true) => self.raised_busy += 1,
                (true, false) => self.raised_busy -= 1,
                _ => {}
            }
        }
    }

    pub(super) fn end_raising(&mut self, q: Index, now: Ticks) {
        let raising = &mut self.queues.get_mut(q).raising;
        let before = core::mem::replace(&mut raising.coefficient, 1);
        (raising.duration, raising.since) = (0, now);
        self.note_coefficient(q, before);
    }

    /// The queue is a player's no longer. If it was raised as an interactive one before, and that time has not run out,
    /// it is raised so again.
    pub(super) fn end_soft_real_time(&mut self, q: Index, now: Ticks) {
        let duration = self.rate.starting_time();
        let raising = &mut self.queues.get_mut(q).raising;
        if raising.interactive_since + duration < now {
            self.end_raising(q, now);
            return;
        }
        let before = raising.coefficient;
        raising.become_interactive(duration);
        raising.since = raising.interactive_since;
        self.note_coefficient(q, before);
    }

    /// The queue begins to have requests: is it to be raised? Returns whether it counts as interactive.
    pub(super) fn raise_on_arrival(
        &mut self,
        q: Index,
        is_merged_for_good: bool,
        budget: &mut u64,
        now: Ticks,
    ) -> bool {
        let queue = self.queues.get(q);
        let long_idle = queue.dispatched == 0 && queue.timeout + LONG_IDLE < now;
        let in_burst = queue.in_large_burst;
        let has_default_weight = queue.weight == RAISED_WEIGHT;
        let is_soft = !queue.seeks.is_totally_seeky()
            && !in_burst
            && queue.raising.next_soft_start < now
            && queue.dispatched == 0
            && has_default_weight;
        let is_interactive = !in_burst && long_idle && has_default_weight;
        let is_own = queue.owner.is_some() || is_merged_for_good;
        let low_latency = self.tunables.low_latency;
        let deserves =
            low_latency && (queue.raising.is_raised() || queue.is_sync && is_own && (is_interactive || is_soft));
        if !queue.just_created && long_idle && queue.timeout + BURST_IS_OVER < now {
            self.leave_burst(q);
            self.queues.get_mut(q).in_large_burst = false;
        }
        self.queues.get_mut(q).just_created = false;
        if low_latency && self.queues.get(q).split_at + LONG_IDLE < now {
            self.raise(q, deserves, [is_interactive, in_burst, is_soft], budget, now);
        }
        let raising = &mut self.queues.get_mut(q).raising;
        raising.began = now;
        raising.service_since = 0;
        raising.is_start_open = false;
        is_interactive
    }

    fn raise(&mut self, q: Index, deserves: bool, signs: [bool; 3], budget: &mut u64, now: Ticks) {
        let [is_interactive, in_burst, is_soft] = signs;
        let raising = &self.queues.get(q).raising;
        let before = raising.coefficient;
        if before == 1 && !deserves {
            self.note_coefficient(q, before);
            return;
        }
        let (duration, small) = (self.rate.starting_time(), 2 * self.least_budget());
        let raising = &mut self.queues.get_mut(q).raising;
        if before == 1 {
            if is_interactive {
                raising.service = 0;
                raising.become_interactive(duration);
            } else {
                raising.interactive_since = LONG_AGO;
                (raising.coefficient, raising.duration) = (SOFT_REAL_TIME, SOFT_TIME);
            }
            *budget = small.min(*budget);
        } else if before > 1 {
            if is_interactive {
                raising.become_interactive(duration);
            } else if in_burst {
                raising.coefficient = 1;
            } else if is_soft {
                if !raising.has_soft_duration() {
                    raising.interactive_since = raising.since;
                    (raising.coefficient, raising.duration) = (SOFT_REAL_TIME, SOFT_TIME);
                }
                raising.since = now;
            }
        }
        self.note_coefficient(q, before);
    }

    /// A request came for a queue whose coefficient was `before`.
    pub(super) fn note_raised_arrival(&mut self, q: Index, before: u32, is_interactive: bool, now: Ticks) {
        if !self.tunables.low_latency {
            return;
        }
        let raising = &mut self.queues.get_mut(q).raising;
        if before == 1 || raising.coefficient == 1 || is_interactive {
            raising.since = now;
        }
    }

    /// An asynchronous request comes for a queue that waits already.
    pub(super) fn raise_async(&mut self, q: Index, now: Ticks) {
        let queue = self.queues.get(q);
        let raising = &queue.raising;
        // COST: the duration is a division, which few requests need.
        if self.tunables.low_latency && !queue.is_sync && !raising.is_raised() && raising.since + ASYNC_PAUSE < now {
            let duration = self.rate.starting_time();
            self.queues.get_mut(q).raising.become_interactive(duration);
            self.note_coefficient(q, 1);
        }
    }

    /// A request of the queue in service goes out: has the raising run out? The weight then changes at once.
    pub(super) fn update_raising(&mut self, q: Index, now: Ticks) {
        let queue = self.queues.get(q);
        let raising = queue.raising;
        if raising.is_raised() {
            if queue.in_large_burst {
                self.end_raising(q, now);
            } else if raising.has_run_out(now) {
                if raising.has_soft_duration() {
                    self.end_soft_real_time(q, now);
                } else {
                    self.end_raising(q, now);
                }
            }
            let raising = &self.queues.get(q).raising;
            if raising.is_raised() && !raising.has_soft_duration() && raising.service > MOST_SECTORS {
                self.end_raising(q, now);
            }
        }
        let queue = self.queues.get(q);
        let counts_raised = self.forest.state(queue.entity).weight > u64::from(queue.weight_in_force);
        if counts_raised != queue.raising.is_raised() {
            self.apply_weight(q);
        }
    }

    /// The queue leaves service. If no requests wait in it, the earliest time at which it may be a player's is found:
    /// now, or when its requests that the device has are completed.
    pub(super) fn note_expired_raising(&mut self, q: Index, now: Ticks) {
        if !self.tunables.low_latency {
            return;
        }
        let queue = self.queues.get_mut(q);
        if !queue.raising.is_raised() {
            queue.raising.since = now;
        }
        if queue.is_empty() {
            if queue.dispatched == 0 {
                self.find_soft_start(q, now);
            } else {
                queue.raising.is_start_open = true;
            }
        }
    }

    /// All requests of a queue may have completed.
    pub(super) fn note_completed_raising(&mut self, q: Index, now: Ticks) {
        let queue = self.queues.get(q);
        let is_open = queue.raising.is_start_open && queue.dispatched == 0 && queue.is_empty();
        if is_open && queue.raising.coefficient != INTERACTIVE {
            self.find_soft_start(q, now);
        }
    }

    fn find_soft_start(&mut self, q: Index, now: Ticks) {
        let wait = of_ns(self.tunables.slice_idle) + 4;
        let raising = &mut self.queues.get_mut(q).raising;
        let used_up = TICKS_PER_SECOND.unsigned_abs() * raising.service_since / PLAYER_RATE;
        raising.next_soft_start = raising.next_soft_start.max(raising.began + used_up.cast_signed()).max(now + wait);
    }

    /// A queue comes into service: the time of a player's queue does not run while it gets no service.
    pub(super) fn note_served_raising(&mut self, q: Index, now: Ticks) {
        let queue = self.queues.get_mut(q);
        let (raising, timeout) = (&mut queue.raising, queue.timeout);
        if raising.is_soft_real_time() && raising.since < now && timeout < now {
            raising.since = if timeout > raising.since { raising.since + now - timeout } else { now };
        }
    }

    /// Low latency was switched off.
    pub(super) fn end_all_raising(&mut self, now: Time) {
        let mut at = self.all.head();
        while let Some(q) = at {
            at = self.all.after(&self.queues, q);
            if self.queues.get(q).raising.is_raised() {
                self.end_raising(q, ticks(now));
            }
        }
    }

    /// After a split: resumes the raising that was saved before the merge, unless it has run out.
    pub(super) fn resume_raising(&mut self, q: Index, saved: &WeightRaising, now: Ticks) {
        let (low_latency, duration) = (self.tunables.low_latency, self.rate.starting_time());
        let queue = self.queues.get_mut(q);
        let (in_burst, raising) = (queue.in_large_burst, &mut queue.raising);
        let before = raising.coefficient;
        raising.resume(saved, low_latency);
        if raising.is_raised() && (in_burst || raising.has_run_out(now)) {
            if raising.has_soft_duration() && !in_burst && raising.interactive_since + duration >= now {
                raising.become_interactive(duration);
                raising.since = raising.interactive_since;
            } else {
                raising.coefficient = 1;
            }
        }
        self.note_coefficient(q, before);
    }
}
