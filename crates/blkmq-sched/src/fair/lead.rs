//! Holding back who is ahead of a client that always has requests under way.
//!
//! The order of start tags divides the device among requests that wait here. What limits clients may be in front of the
//! scheduler, though: a server's processors, a network. Then a client's requests hardly wait here, however many it has
//! outstanding, and start tags alone let the others have what it leaves. So if a client with several requests
//! outstanding gets less than it is due, others are held back, for a trial, while their start tag is more than a *lead*
//! above the *floor*, which is the least finish tag of such clients. This is MQFQ's throttling (M. Hedayati, K. Shen,
//! M. L. Scott, M. Marty, "Multi-Queue Fair Queueing", ATC 2019). It goes on if each client then gets what it is due
//! and all together do not lose. Otherwise a client could not have used more, and the others are let go, for a while.
//!
//! If the floor does not move for some time, its client has nothing under way any more, and no longer holds the others.

use alloc::vec::Vec;

use super::{Fair, unless_mutated};
use crate::limiter::scale::{MS, SECOND};
use crate::limiter::{Span, Trial, Verdict as Outcome};
use crate::slab::Index;
use crate::{Class, Time};

/// Nanoseconds of cost over share: how far the start of a request may be above the floor.
const LEAD: u64 = 1_000_000;

/// A trial holds back and lets go in turns. Windows of a turn that do not count, and those that do.
const SETTLES: u32 = 1;
const COUNTS: u32 = 2;

/// Holding back helps if those below their due get so many times as much, and all together so much of what they got.
const GAINS: f64 = 1.1;
const KEPT: f64 = 0.75;

/// A client must have got less than it was due in so many windows in a row. By then a limiter has found its bound.
const WINDOWS: u32 = 6;

/// Nanoseconds: how long nobody is held back after an unsuccessful trial, at first and at most; and the same until the
/// next trial after one that helped, since clients may have come to ask for less.
const SHORTEST_REST: u64 = 2 * SECOND;
const SHORTEST: u64 = 10 * SECOND;
const LONGEST: u64 = 640 * SECOND;

/// Nanoseconds: the floor is waited for at least so long, or for so many times as long as an operation takes on
/// average, and at most so long: a window may contain a pause.
const LEAST_TIMEOUT: u64 = 2 * MS;
const MOST_TIMEOUT: u64 = 100 * MS;
const TIMEOUT: u64 = 8;

/// Whether clients are held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Off,
    /// In turns with letting go.
    Trial,
    On,
}

/// What is known in a trial.
#[derive(Debug, Clone, Copy, Default)]
struct Comparison {
    /// What those below their due got, and what all got.
    below_due: Trial,
    all: Trial,
    /// How many windows the turn has had, and the sums of both rates in it.
    windows: u32,
    rates: [f64; 2],
}

/// The floor, and who makes it.
#[derive(Debug, Clone)]
pub(super) struct Lead {
    stage: Stage,
    comparison: Comparison,
    /// In how many windows in a row somebody was below its due.
    below_due: u32,
    /// No trial begins before this time. How long the next rest after an unsuccessful trial is, and after one that
    /// helped.
    next_trial: Time,
    rest: u64,
    lasts: u64,
    /// The number of the window, from 2 on, and the flows of clients that are waited for in it.
    round: u64,
    paced: Vec<Index>,
    /// The least finish tag of these, whose it is, and when it changed.
    floor: Option<(u64, Index)>,
    moved: Time,
    timeout: u64,
}

/// What a window says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    /// What all clients got, in nanoseconds of cost for each nanosecond.
    pub(super) rate: f64,
    /// The same of clients with several operations outstanding that got less than they were due when others were last
    /// let go, and whether there are any.
    pub(super) below_due_rate: f64,
    pub(super) is_below_due: bool,
    /// Requests were ordered here.
    pub(super) is_ordered: bool,
    /// How long an operation took on average, one after the other, in nanoseconds.
    pub(super) each: u64,
}

impl Lead {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Off,
            comparison: Comparison::default(),
            below_due: 0,
            next_trial: Time(0),
            rest: SHORTEST_REST,
            lasts: SHORTEST,
            round: 2,
            paced: Vec::new(),
            floor: None,
            moved: Time(0),
            timeout: LEAST_TIMEOUT,
        }
    }

    /// Makes room for so many clients. May allocate.
    pub(super) fn reserve(&mut self, clients: usize) {
        self.paced.reserve(clients.saturating_sub(self.paced.len()));
    }

    /// Whether others are held back now.
    pub(super) fn holds(&self) -> bool {
        match self.stage {
            Stage::Off => false,
            Stage::Trial => self.comparison.all.is_tried,
            Stage::On => true,
        }
    }

    /// Whether requests must not bypass.
    pub(super) fn is_on(&self) -> bool {
        self.stage != Stage::Off
    }

    /// Whether others wait for a flow that was last waited for in this round.
    pub(super) fn is_paced(&self, paced_in: u64) -> bool {
        paced_in == self.round
    }

    /// Whether a trial was unsuccessful lately.
    pub(super) fn is_resting(&self, now: Time) -> bool {
        !self.is_on() && now < self.next_trial
    }

    /// Goes by what a window says.
    pub(super) fn judge(&mut self, verdict: &Verdict, now: Time) {
        self.timeout = verdict.each.saturating_mul(TIMEOUT).clamp(LEAST_TIMEOUT, MOST_TIMEOUT);
        self.below_due = if verdict.is_below_due { self.below_due.saturating_add(1) } else { 0 };
        match self.stage {
            Stage::Off if self.below_due >= WINDOWS && verdict.is_ordered && now >= self.next_trial => self.begin(),
            Stage::Off => {}
            Stage::On if !verdict.is_ordered => {
                // What helped is no reason to rest.
                self.end();
                self.next_trial = now;
            }
            Stage::On if now >= self.next_trial => self.begin(),
            Stage::On => {}
            Stage::Trial => self.compare(verdict, now),
        }
    }

    /// A window of a trial is over.
    fn compare(&mut self, verdict: &Verdict, now: Time) {
        let Comparison { below_due, all, windows, rates } = &mut self.comparison;
        *windows += 1;
        if *windows <= SETTLES {
            return;
        }
        rates[0] += verdict.below_due_rate;
        rates[1] += verdict.rate;
        if *windows < SETTLES + COUNTS {
            return;
        }
        *windows = 0;
        let [of_below_due, of_all] = core::mem::take(rates);
        below_due.add(&Span::default(), of_below_due);
        all.add(&Span::default(), of_all);
        match (below_due.clear_verdict(GAINS), all.verdict(KEPT)) {
            (Outcome::Missed, _) | (_, Outcome::Missed) => {
                self.end();
                self.next_trial = now.after(self.rest);
                (self.rest, self.lasts) = ((2 * self.rest).min(LONGEST), SHORTEST);
            }
            (Outcome::Reached, Outcome::Reached) => {
                self.stage = Stage::On;
                self.next_trial = now.after(self.lasts);
                (self.rest, self.lasts) = (SHORTEST_REST, (2 * self.lasts).min(LONGEST));
            }
            (Outcome::GoesOn, _) | (_, Outcome::GoesOn) => {}
        }
    }

    fn begin(&mut self) {
        (self.stage, self.comparison) = (Stage::Trial, Comparison::default());
    }

    fn end(&mut self) {
        (self.stage, self.below_due) = (Stage::Off, 0);
    }

    /// A flow is there no longer.
    pub(super) fn forget(&mut self, flow: Index) {
        self.paced.retain(|paced| *paced != flow);
        if self.floor.is_some_and(|(_, of)| of == flow) {
            self.floor = None;
        }
    }
}

impl Fair {
    /// The clients that are waited for in the next window are those of `paced`.
    pub(super) fn pace(&mut self, now: Time) {
        self.lead.paced.clear();
        self.lead.floor = None;
        self.lead.round += 1;
        if !self.lead.holds() {
            return;
        }
        for client in self.clients.iter().filter(|client| client.is_paced()) {
            let flow = client.flows[Class::BestEffort.index()];
            self.lead.paced.push(flow);
            let virtual_time = *self.planes[Class::BestEffort.index()].virtual_time;
            let paced = self.flows.get_mut(flow);
            if paced.nr_waiting == 0 && paced.paced_in + 1 < self.lead.round {
                paced.finish = paced.finish.max(virtual_time);
            }
            (paced.paced_in, paced.is_new) = (self.lead.round, false);
        }
        self.lead.moved = now;
        self.find_floor(now);
    }

    /// A client has left: if it made the floor, another one does.
    pub(super) fn keep_floor(&mut self) {
        if self.lead.floor.is_none() && !self.lead.paced.is_empty() {
            self.find_floor(self.lead.moved);
        }
    }

    /// COST: a look at each flow that is waited for.
    fn find_floor(&mut self, now: Time) {
        let flows = &self.flows;
        let before = self.lead.floor;
        let tag = |flow: &Index| flows.get(*flow).tag();
        self.lead.floor = self.lead.paced.iter().map(|flow| (tag(flow), *flow)).min_by_key(|least| least.0);
        if before != self.lead.floor {
            self.lead.moved = now;
        }
    }

    /// The tag of a flow has changed.
    pub(super) fn note_tag(&mut self, flow: Index, now: Time) {
        if self.lead.floor.is_some_and(|(_, of)| of == flow) {
            self.find_floor(now);
        }
    }

    /// Whether a request that starts there has to wait for the floor. If the floor has not moved for long, it is
    /// another one from now on.
    pub(super) fn must_wait(&mut self, start: u64, now: Time) -> bool {
        while let Some((floor, of)) = self.lead.floor {
            if start <= floor.saturating_add(LEAD) {
                return false;
            }
            debug_assert_eq!(self.flows.get(of).nr_waiting, 0, "what waits does not start above its own tag");
            if now < self.lead.moved.after(self.lead.timeout) {
                return true;
            }
            self.retire_floors(of, now);
        }
        false
    }

    /// The client that makes the floor is not waited for any longer, and neither are those that have had nothing to
    /// dispatch for as long.
    fn retire_floors(&mut self, of: Index, now: Time) {
        let Self { flows, lead, .. } = self;
        let timeout = lead.timeout;
        lead.paced.retain(|at| {
            let flow = flows.get_mut(*at);
            let is_over = *at == of || flow.is_idle() && flow.dispatched.after(timeout) <= now;
            flow.paced_in = if is_over { 0 } else { flow.paced_in };
            !is_over
        });
        lead.floor = None;
        self.find_floor(now);
    }

    /// When a request that waits for the floor goes at the latest.
    pub(super) fn floor_ends(&self) -> Option<Time> {
        let (floor, _) = self.lead.floor.filter(|_| unless_mutated("fair.floor"))?;
        let plane = &self.planes[Class::BestEffort.index()];
        let first = plane.waiting.first(&self.flows)?;
        let waits = self.flows.get(first).start > floor.saturating_add(LEAD);
        waits.then(|| self.lead.moved.after(self.lead.timeout))
    }
}
