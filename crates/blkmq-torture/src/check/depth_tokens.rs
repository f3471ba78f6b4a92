//! Which requests have depth tokens, and how many tokens there may be.

use blkmq_sched::{RqId, SchedDomain, Throttle};

use super::super::event::{Action, Control, Event, Phase};
use super::table::Table;

/// Kinds of requests, each with a pool.
pub(super) const NR_KINDS: usize = SchedDomain::ALL.len();

/// The pools of tokens, as far as the events tell.
#[derive(Debug)]
pub(super) struct DepthTokens {
    /// Whether the scheduler takes tokens.
    is_watched: bool,
    /// Whether a scheduler that takes tokens is the next one in place.
    is_coming: bool,
    /// The requests with tokens: of which kind, and how often that pool had become shallower before.
    holders: Table<(SchedDomain, u32)>,
    /// How many requests have a token. It may be fewer than there are tokens out: a thread takes a token some steps
    /// before it tells what for, and the device is done with a request some steps before its token is back.
    nr_out: [u32; NR_KINDS],
    /// How many of them have had their tokens since before the pool became shallower the last time. They do not count
    /// against the new depth: a pool consists of words, each with a part of the depth. A word from which more tokens
    /// are out than its new part waits for these, and the others give out theirs.
    nr_old: [u32; NR_KINDS],
    nr_lowered: [u32; NR_KINDS],
    /// As the control of the depths decided last.
    depths: [u32; NR_KINDS],
    /// The largest depths since every CPU slept. The event of a token that was taken before a pool became shallower may
    /// follow that.
    limits: [u32; NR_KINDS],
}

impl DepthTokens {
    pub(super) fn new() -> Self {
        let most = SchedDomain::ALL.map(Throttle::most_tokens);
        Self {
            is_watched: false,
            is_coming: false,
            holders: Table::new(),
            nr_out: [0; NR_KINDS],
            nr_old: [0; NR_KINDS],
            nr_lowered: [0; NR_KINDS],
            depths: most,
            limits: most,
        }
    }

    /// Whether the scheduler in place takes tokens.
    pub(super) const fn is_watched(&self) -> bool {
        self.is_watched
    }

    pub(super) const fn depth(&self, of: SchedDomain) -> u32 {
        self.depths[of.index()]
    }

    pub(super) const fn limit(&self, of: SchedDomain) -> u32 {
        self.limits[of.index()]
    }

    pub(super) const fn nr_out(&self, of: SchedDomain) -> u32 {
        self.nr_out[of.index()]
    }

    /// How many requests have a token that counts against the depth.
    pub(super) const fn nr_counted(&self, of: SchedDomain) -> u32 {
        self.nr_out[of.index()] - self.nr_old[of.index()]
    }

    /// The kind of a request that has a token.
    pub(super) fn held_by(&self, rq: RqId) -> Option<SchedDomain> {
        self.holders.get(rq).map(|(of, _)| *of)
    }

    fn take(&mut self, rq: RqId, of: SchedDomain) {
        if self.held_by(rq).is_none() {
            *self.holders.entry(rq) = Some((rq, (of, self.nr_lowered[of.index()])));
            self.nr_out[of.index()] += 1;
        }
    }

    fn put(&mut self, rq: RqId) {
        if let Some(&(of, nr_lowered)) = self.holders.get(rq) {
            *self.holders.entry(rq) = None;
            self.nr_out[of.index()] -= 1;
            self.nr_old[of.index()] -= u32::from(nr_lowered < self.nr_lowered[of.index()]);
        }
    }

    fn throttled(&mut self) {
        (self.is_watched, self.is_coming) = (false, true);
        self.depths = SchedDomain::ALL.map(Throttle::most_tokens);
        self.limits = self.depths;
    }

    /// No CPU is in the middle of anything: what is taken from here on is taken from pools of the last depths.
    fn settle(&mut self) {
        for at in 0..NR_KINDS {
            if self.depths[at] < self.limits[at] {
                self.nr_lowered[at] += 1;
                self.nr_old[at] = self.nr_out[at];
            }
        }
        self.limits = self.depths;
    }

    /// Follows an event. `kind`: the kind of the request that takes a token by it, if the scheduler takes tokens.
    pub(super) fn see(&mut self, event: &Event<'_>, kind: Option<SchedDomain>, is_quiesced: bool) {
        match *event {
            Event::Throttled => self.throttled(),
            Event::Changed { control: Control::Scheduler(_), phase: Phase::Refused } => self.is_coming = false,
            Event::Installed { .. } => {
                (self.is_watched, self.limits) = (std::mem::take(&mut self.is_coming), self.depths);
            }
            Event::Adjusted { depths, .. } => {
                for ((depth, limit), new) in self.depths.iter_mut().zip(&mut self.limits).zip(depths) {
                    *depth = new.unwrap_or(*depth);
                    *limit = (*limit).max(*depth);
                }
            }
            // While the queue is quiesced, requests wait with their tokens.
            Event::Idle { .. } if !is_quiesced => self.settle(),
            Event::Chosen { rq, .. } | Event::Offered { rq, .. } if self.is_watched => {
                if let Some(of) = kind {
                    self.take(rq, of);
                }
            }
            Event::Acted { rq, action: Action::FinishedAtOnce(_) | Action::Completed(_) | Action::GaveUp } => {
                self.put(rq);
            }
            _ => {}
        }
    }
}
