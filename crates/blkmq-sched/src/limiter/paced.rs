//! Pacing: requests go at the rate of the ceiling.
//!
//! The rate creeps up, by 0.15 % in a second. If more than usual is with the device, the rate was over the ceiling: it
//! is lowered by 1 %, and nothing goes for a moment, so that the device is given back what it was asked too much. So
//! the device is over its ceiling for about a millisecond in some seconds. If that happens several times in a row, the
//! ceiling has fallen, and is measured anew.
//!
//! Whether the ceiling has risen is probed: requests go a quarter faster, until the device has more than usual, or for
//! so long that it must have become faster. Then the ceiling is measured too. A probe comes each 10 s at first, and
//! each second while the ceiling is lower than it has been.

use core::mem::take;

use super::progress::{READ, Span};
use super::{Limiter, MS, Phase, SECOND, SHORTEST_REST, Target};
use crate::Time;

/// Rates, in 1024ths of the ceiling.
const AT_CEILING: u32 = 1024;
const PROBE: u32 = 1280;

/// Nothing goes for so many nanoseconds after the rate was too high.
const PAUSE: u64 = 3 * MS / 5;

/// And for so many more at most, if it was too high shortly before.
const MOST_PAUSE: u64 = 20 * MS;

/// After that, what is with the device tells nothing for so many nanoseconds: it may still hold what came too fast.
const BLIND: u64 = 8 * MS;

/// If it was too high so many times, each within this many nanoseconds of the one before, the ceiling is another one.
const MOST_OVERS: u32 = 4;
const IN_A_ROW: u64 = 5 * BLIND;

/// If the ceiling was measured so many times in so many nanoseconds, the device has none that stays.
const MOST_MEASURED: u32 = 4;
const MEASURED_WITHIN: u64 = 10 * SECOND;

/// How many times the ceiling was measured in a row without pacing at it having helped.
const MOST_TRIALS: u32 = 2;

/// So many bad stretches in a row begin another trial.
const MOST_BAD: u32 = 10;

/// By what the rate falls when it was too high, and grows in a nanosecond.
const BACK_OFF: f64 = 1.01;
const CREEP: f64 = 0.0015 / SECOND as f64;

/// By how much dearer requests are taken to be than they were measured.
const SAFETY: f64 = 1.003;

/// Nanoseconds: how long a ceiling is measured, and how long before that the device gets all it takes.
const MEASURE: u64 = 300 * MS;
const SETTLE: u64 = 40 * MS;

/// Nanoseconds: how long it is tried whether pacing helps, after what was with the device is over.
const TRIAL: u64 = 300 * MS;
const TRIAL_SETTLE: u64 = 50 * MS;

/// Nanoseconds: how long a probe lasts at most, and how often one comes, while the ceiling is as high as it has ever
/// been.
const PROBE_FOR: u64 = 60 * MS;
const PROBE_EACH: u64 = 10 * SECOND;

/// A device that saves up what it is not asked lets a probe pass, and is measured for nothing: the ceiling is the same
/// but for such a factor. Then the next probe comes after twice the time, up to this.
const SAME: f64 = 1.2;
const MOST_PROBE_EACH: u64 = 320 * SECOND;

/// The same while the ceiling is lower.
const PROBE_LOW_EACH: u64 = SECOND;

/// A ceiling is lower than it has been if requests cost so many times as much; after so many failed probes the
/// lower ceiling is accepted as normal.
const LOWER: f64 = 1.25;
const MAX_FAILED_PROBES: u32 = 600;

/// The least bound, in nanoseconds of cost. It is to hold only if the ceiling has fallen.
const LEAST_BOUND: u64 = 4 * MS;

/// Of work with the device, in nanoseconds: what is taken as usual at first, and at most.
const USUAL: u64 = 3 * MS / 20;
const MOST_USUAL: u64 = 4 * MS;

/// What is watched while requests are paced.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Watch {
    /// It is still to be seen whether pacing helps.
    on_trial: bool,
    /// Trials in a row that told nothing, and whether one has ended well since the limiter was open.
    trials: u32,
    has_helped: bool,
    /// The work that is with the device usually, and what a request costs on average, in nanoseconds.
    usual: u64,
    each: u64,
    /// How many times in a row the rate was too high, and when it last was.
    overs: u32,
    last_over: Option<Time>,
    blind_until: Time,
    next_probe: Time,
    /// Nanoseconds between two probes, while the ceiling is as high as it has ever been.
    probe_each: u64,
    /// How many times in a short while the ceiling was measured, and when the first was.
    measured: u32,
    measured_since: Time,
    /// By which factor requests cost more than at first, and the least of these factors.
    scale: f64,
    least_scale: f64,
    /// Probes that failed since the ceiling has been lower.
    failed_probes: u32,
    /// How often the rate was too high, and how often the ceiling was measured, since ever.
    pub(super) all_overs: u64,
    pub(super) all_measured: u64,
    pub(super) all_probes: u64,
}

impl Watch {
    /// Nothing was seen yet.
    pub(super) fn new() -> Self {
        Self { usual: USUAL, probe_each: PROBE_EACH, scale: 1.0, least_scale: 1.0, ..Self::default() }
    }

    fn is_lower(&self) -> bool {
        self.scale > LOWER * self.least_scale
    }
}

impl Limiter {
    /// Tries whether pacing helps, after an open limiter has measured the ceiling.
    pub(super) fn begin_paced(&mut self, factor: f64, now: Time) {
        self.paced.scale *= factor;
        if self.paced.all_measured == 0 {
            self.paced.least_scale = self.paced.scale;
        }
        self.paced.usual = self.usual_at_most();
        (self.paced.trials, self.paced.has_helped) = (0, false);
        self.note_measured(now);
        self.pace(now);
    }

    /// What a request cost on average, in nanoseconds, as far as it can be usual.
    fn each(&self, span: &Span) -> u64 {
        (self.costs.mean(span) as u64).min(MOST_USUAL)
    }

    fn note_measured(&mut self, now: Time) {
        let watch = &mut self.paced;
        watch.all_measured += 1;
        if now.since(watch.measured_since) > MEASURED_WITHIN {
            (watch.measured, watch.measured_since) = (0, now);
        }
        watch.measured += 1;
        watch.least_scale = watch.least_scale.min(watch.scale);
    }

    /// Paces, as soon as what is with the device is over.
    fn pace(&mut self, now: Time) {
        let [reads, others] = self.span.flows;
        // A rate that is a little too high does harm, and one that is too low grows.
        self.scale(SAFETY);
        let drain = reads.mean().max(others.mean()).unwrap_or(0).min(50 * MS) + PAUSE;
        self.paced.each = self.each(&self.span);
        self.enter(Phase::Paced, drain + TRIAL_SETTLE, now);
        self.pacer.start(AT_CEILING);
        self.pacer.pause(drain, now);
        self.bound = self.paced_bound();
        let watch = &mut self.paced;
        watch.on_trial = true;
        watch.trials += 1;
        watch.overs = 0;
        watch.blind_until = now.after(drain + BLIND);
        self.plan_probe(now);
    }

    fn plan_probe(&mut self, now: Time) {
        let watch = &mut self.paced;
        watch.next_probe = now.after(if watch.is_lower() { PROBE_LOW_EACH } else { watch.probe_each });
    }

    fn paced_bound(&self) -> u64 {
        LEAST_BOUND.max(2 * self.most_usual())
    }

    /// More work than this is with the device only if the rate was too high, in nanoseconds.
    pub(super) fn most_usual(&self) -> u64 {
        3 * self.paced.usual + 2 * self.paced.each + MS / 10
    }

    /// Whether the rate was too high: the device has more than usual.
    fn is_over(&mut self, now: Time) -> bool {
        if now < self.paced.blind_until {
            return false;
        }
        if self.in_flight > self.most_usual() {
            return true;
        }
        let most = self.usual_at_most();
        let watch = &mut self.paced;
        watch.usual = (watch.usual - watch.usual / 64 + self.in_flight / 64).clamp(USUAL / 4, most);
        false
    }

    /// What can be usual at most, in nanoseconds: what goes at the ceiling in three times the time of the fastest
    /// read. Without an end, a line in the device that grows slowly would be taken for usual.
    fn usual_at_most(&self) -> u64 {
        self.least.get().map_or(USUAL, |least| least.saturating_mul(3)).clamp(USUAL, MOST_USUAL)
    }

    /// Lets the device get rid of what it has too much. A moment is enough if it gives what it delays back later. A
    /// device that has it in line still has it the next time, and then is given the time that it needs.
    fn rest_over(&mut self, again: bool, now: Time) {
        let line = if again { self.in_flight.saturating_sub(self.paced.usual).min(MOST_PAUSE) } else { 0 };
        self.pacer.pause(PAUSE + line, now);
        self.paced.blind_until = now.after(BLIND);
    }

    pub(super) fn look_paced(&mut self, fresh: &Span, now: Time) {
        let stretch = self.end_stretch(fresh);
        if let Some(stretch) = &stretch {
            self.paced.each = self.each(stretch);
            if stretch.was_limited() {
                // While the device does all it can, what completes in a nanosecond costs one.
                self.pacer.note_part(self.costs.rate(stretch));
            }
            self.note_reads(now);
        }
        if self.is_over(now) {
            let is_in_a_row = self.paced.last_over.is_some_and(|last| now.since(last) < IN_A_ROW);
            self.rest_over(is_in_a_row, now);
            self.scale(BACK_OFF);
            let watch = &mut self.paced;
            watch.overs = if is_in_a_row { watch.overs + 1 } else { 1 };
            watch.last_over = Some(now);
            watch.all_overs += 1;
            if watch.overs >= MOST_OVERS {
                self.measure(now);
                return;
            }
        } else if fresh.held_back > 0 && now >= self.settled {
            self.scale(1.0 - CREEP * fresh.ns.min(SECOND) as f64);
        }
        if self.paced.on_trial {
            if self.span.is_enough(TRIAL) {
                self.judge_paced(now);
            }
        } else if fresh.held_back > 0 && now >= self.paced.next_probe {
            self.probe(now);
        } else if stretch.is_some_and(|stretch| stretch.was_limited() && self.costs.is_other_mix(&stretch)) {
            // What these requests cost was never measured, and may be less.
            self.paced.next_probe = self.paced.next_probe.min(now.after(PROBE_LOW_EACH / 2));
        }
    }

    /// If reads are slow although requests are paced, a line in the device may be too short to be seen: then the rate
    /// was too high. If they stay slow, it is to be seen anew whether pacing helps.
    fn note_reads(&mut self, now: Time) {
        self.bad = if self.is_quick().unwrap_or(true) { 0 } else { self.bad + 1 };
        if self.bad > 0 && self.bad.is_multiple_of(2) && now >= self.paced.blind_until {
            self.rest_over(true, now);
            self.scale(BACK_OFF);
            self.paced.all_overs += 1;
        }
        if self.bad >= MOST_BAD && !self.paced.on_trial {
            self.bad = 0;
            self.paced.on_trial = true;
            self.span = Span::default();
        }
    }

    /// Whether reads are nearly as fast as the fastest one, as they are where a rate is all that the device lacks.
    fn is_quick(&self) -> Option<bool> {
        Some(self.read_mean? <= Target::Auto.ns(self.least.get())?)
    }

    fn scale(&mut self, factor: f64) {
        self.costs.scale(factor);
        self.paced.scale *= factor;
    }

    /// Pacing stays if reads are nearly as fast as the fastest one.
    fn judge_paced(&mut self, now: Time) {
        let read = take(&mut self.span).flows[READ].mean();
        self.read_mean = read.or(self.read_mean);
        if read.is_some() && self.is_quick() == Some(false) {
            self.end_paced(now);
        } else {
            self.rest = SHORTEST_REST;
            let watch = &mut self.paced;
            (watch.on_trial, watch.trials, watch.has_helped) = (false, 0, read.is_some());
            // A device that was slow for a while is faster by now, and must not be kept slow.
            watch.next_probe = now;
        }
    }

    /// Pacing does not help. If it did, what came before is no longer true, and everything begins anew, but no more
    /// often than each rest: a device that is never the same for long does not pay for one search after another.
    fn end_paced(&mut self, now: Time) {
        if self.paced.has_helped {
            self.open(now);
            self.rests_until = self.began.after(SHORTEST_REST);
        } else {
            self.begin_narrowing(now);
        }
    }

    fn probe(&mut self, now: Time) {
        self.paced.all_probes += 1;
        self.enter(Phase::Probing, 0, now);
        self.pacer.start(PROBE);
    }

    fn end_probe(&mut self, now: Time) {
        self.enter(Phase::Paced, 0, now);
        self.pacer.start(AT_CEILING);
        self.plan_probe(now);
    }

    pub(super) fn look_probing(&mut self, now: Time) {
        if self.is_over(now) {
            self.rest_over(false, now);
            self.costs.accept_mix(&self.span);
            let watch = &mut self.paced;
            watch.failed_probes = if watch.is_lower() { watch.failed_probes + 1 } else { 0 };
            if watch.failed_probes > MAX_FAILED_PROBES {
                watch.least_scale = watch.scale;
            }
            self.end_probe(now);
        } else if self.span.ns >= PROBE_FOR {
            if self.span.was_limited() {
                self.measure(now);
            } else {
                self.end_probe(now);
            }
        }
    }

    fn measure(&mut self, now: Time) {
        self.pacer.stop();
        self.bound = self.paced_bound();
        self.enter(Phase::Measuring, SETTLE, now);
    }

    pub(super) fn look_measuring(&mut self, now: Time) {
        if !self.span.is_enough(MEASURE) {
            return;
        }
        if self.span.was_full() {
            let factor = self.costs.learn(&self.span);
            let watch = &mut self.paced;
            watch.scale *= factor;
            let is_same = (1.0 / SAME..SAME).contains(&factor);
            watch.probe_each = if is_same { (2 * watch.probe_each).min(MOST_PROBE_EACH) } else { PROBE_EACH };
            self.note_measured(now);
        }
        if self.paced.measured > MOST_MEASURED || self.paced.trials >= MOST_TRIALS {
            self.end_paced(now);
        } else {
            self.pace(now);
        }
    }
}
