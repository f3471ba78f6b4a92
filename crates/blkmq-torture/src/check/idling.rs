//! bfq leaves the device without work, while requests wait, only as long as it may.
//!
//! It holds requests back while it waits for the next request of the client that it serves. With `slice_idle=0` it does
//! not wait, unless `strict_guarantees=1` lets only one request at a time into the device. While the device has nothing
//! to do, it says when it will wait no longer: after `slice_idle` at the latest, or after 20 ms where that is longer
//! and weights may be raised. Then it chooses.
//!
//! With `strict_guarantees=1` the device has one request at a time, but for requests that go to the head.

use std::collections::BTreeMap;

use blkmq_sched::{ClientId, Event as Happened, InsertAt, Report, RqId, Time};

use super::super::event::{Control, Event, Phase, Stamp};
use super::super::text::Request;
use super::table::Table;
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "idling";

const MS: u64 = 1_000_000;

/// How long bfq waits for a client whose weight is raised, if `slice_idle` is shorter, in ns.
const RAISED_NS: u64 = 20 * MS;

/// What decides how long the scheduler waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Knobs {
    slice_idle_ns: u64,
    is_strict: bool,
    raises: bool,
}

impl Default for Knobs {
    fn default() -> Self {
        Self { slice_idle_ns: 8 * MS, is_strict: false, raises: true }
    }
}

impl Knobs {
    fn with(mut self, name: &str, value: i64) -> Self {
        let value = value.unsigned_abs();
        match name {
            "slice_idle" => self.slice_idle_ns = value.saturating_mul(MS),
            "slice_idle_us" => self.slice_idle_ns = value.saturating_mul(1000),
            "strict_guarantees" => {
                self.is_strict = value > 0;
                // Guarantees need that the scheduler waits.
                self.slice_idle_ns = if self.is_strict { self.slice_idle_ns.max(8 * MS) } else { self.slice_idle_ns };
            }
            "low_latency" => self.raises = value > 0,
            _ => {}
        }
        self
    }

    /// The longest time for which the scheduler waits. Zero: it does not.
    const fn longest_ns(self) -> u64 {
        let is_short = self.slice_idle_ns < RAISED_NS;
        let waits = self.slice_idle_ns > 0 || self.is_strict;
        if self.raises && is_short && waits { RAISED_NS } else { self.slice_idle_ns }
    }
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Idling {
    is_watched: bool,
    knobs: Knobs,
    /// Values before and during changes, which may still hold: a change goes on, or a wait does that began before it
    /// and ends at this time at the latest.
    before: Vec<(Knobs, Option<Time>)>,
    /// Requests that the device has, as far as the scheduler knows.
    nr_chosen: i64,
    /// Of those that passed, by client and synchronicity; less than none if it is told later that they passed.
    nr_passed: BTreeMap<(ClientId, bool), i64>,
    /// Since when the scheduler has held back everything, while the device had nothing, as far as the scheduler knows.
    since: Option<Time>,
    /// The latest time of a report. The thread that holds the scheduler may have read the clock before that.
    reported: Time,
    heads: Table<()>,
}

impl Idling {
    fn changed(&mut self, name: &str, value: i64, phase: Phase, now: Time) {
        match phase {
            Phase::Begun => {
                self.before.extend([self.knobs, self.knobs.with(name, value)].map(|knobs| (knobs, None)));
                return;
            }
            Phase::Done => self.knobs = self.knobs.with(name, value),
            Phase::Refused => {}
        }
        for (knobs, until) in &mut self.before {
            until.get_or_insert(now.after(knobs.longest_ns()));
        }
    }

    /// The values that may hold at this time.
    fn known(&self, now: Time) -> impl Iterator<Item = Knobs> {
        let before = self.before.iter().filter(move |(_, until)| until.is_none_or(|until| now <= until));
        before.map(|(knobs, _)| *knobs).chain([self.knobs])
    }

    fn held_back(&mut self, waiting: usize, now: Time, wakeup: Option<Time>) -> Verdict {
        let bad =
            |what: String| Err(Violation::new(RULE, format!("{waiting} requests wait, and bfq chose none {what}")));
        if waiting == 0 {
            self.since = None;
            return Ok(());
        }
        if self.known(now).all(|knobs| knobs.slice_idle_ns == 0 && !knobs.is_strict) {
            return bad(format!("at {} ns, though it waits for no client: {:?}", now.0, self.knobs));
        }
        if self.nr_out() > 0 {
            self.since = None;
            return Ok(());
        }
        let longest_ns = self.known(now).map(Knobs::longest_ns).max().unwrap_or(0);
        let since = *self.since.get_or_insert(now.max(self.reported));
        match wakeup {
            None => bad("although the device has nothing to do, and says no time".to_owned()),
            Some(wakeup) if wakeup > since.after(longest_ns) => bad(format!(
                "although the device has nothing to do since {} ns, until {} ns, which is longer than {longest_ns} ns",
                since.0, wakeup.0
            )),
            // The time has come, and the scheduler was asked at that time or later.
            Some(wakeup) if wakeup < now => bad(format!("at {} ns, though it would at {} ns", now.0, wakeup.0)),
            Some(_) => Ok(()),
        }
    }

    fn chosen(&mut self, rq: RqId, now: Time) -> Verdict {
        let (is_strict, nr_out) = (self.known(now).all(|knobs| knobs.is_strict), self.nr_out());
        self.before.retain(|(_, until)| until.is_none_or(|until| now <= until));
        self.since = None;
        self.nr_chosen += 1;
        if is_strict && nr_out > 0 && self.heads.get(rq).is_none() {
            let what =
                format!("{} was chosen while the device has {nr_out} requests, under strict_guarantees", Request(rq));
            return Err(Violation::new(RULE, what).request(rq));
        }
        Ok(())
    }

    /// How many requests the device has, as far as the scheduler knows.
    fn nr_out(&self) -> i64 {
        self.nr_chosen + self.nr_passed.values().map(|nr_passed| (*nr_passed).max(0)).sum::<i64>()
    }

    fn reported(&mut self, report: &Report) {
        self.reported = self.reported.max(report.at);
        let requests = i64::from(report.requests);
        let nr_passed = self.nr_passed.entry((report.client, report.sync || report.op.is_read())).or_default();
        match report.event {
            Happened::Passed => *nr_passed += requests,
            Happened::Completed(None) => *nr_passed -= requests,
            Happened::Completed(Some(_)) => self.nr_chosen -= 1,
        }
    }
}

impl Checker for Idling {
    fn see(&mut self, at: Stamp, event: &Event<'_>, _: &Tracker) -> Verdict {
        match *event {
            Event::Installed { scheduler } => *self = Self { is_watched: scheduler == Some("bfq"), ..Self::default() },
            _ if !self.is_watched => {}
            Event::Inserted { rq, at: InsertAt::Head, .. } => *self.heads.entry(rq) = Some((rq, ())),
            Event::Changed { control: Control::Knob(name, value), phase } => self.changed(name, value, phase, at.time),
            Event::HeldBack { waiting, now, wakeup, .. } => return self.held_back(waiting, now, wakeup),
            Event::Chosen { rq, now } => return self.chosen(rq, now),
            Event::Reported { reports, .. } => {
                reports.iter().for_each(|report| self.reported(report));
            }
            _ => {}
        }
        Ok(())
    }
}
