//! A device is not asked too early. The device is asked only about a request that it was given, and only when the
//! timeout has passed since then, or since it was last asked about the request.

use blkmq_sched::{RqId, Time};

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::super::text::{Millis, Request};
use super::table::Table;
use super::tracker::Tracker;
use super::{Checker, Facts, Verdict, Violation};

pub(super) const RULE: &str = "timeouts";

const MS: u64 = 1_000_000;

/// This module's checker.
#[derive(Debug)]
pub(super) struct Timeouts {
    /// The value of the knob, in ns, and the value that is being set.
    timeout: u64,
    coming: Option<u64>,
    /// Earlier values of the knob, each with the time until which it held.
    before: Vec<(Time, u64)>,
    /// When each request was given to the device, and the time before which the queue must not ask about it.
    requests: Table<(Time, Time)>,
}

impl Timeouts {
    pub(super) fn new(facts: &Facts) -> Self {
        let timeout = u64::from(facts.io_timeout_ms) * MS;
        Self { timeout, coming: None, before: Vec::new(), requests: Table::new() }
    }

    /// The shortest timeout that a thread may have read since this time.
    fn shortest_since(&self, time: Time) -> u64 {
        let before = self.before.iter().rev().take_while(|(until, _)| *until >= time).map(|(_, timeout)| *timeout);
        before.chain(self.coming).fold(self.timeout, u64::min)
    }

    fn changed(&mut self, at: Time, value: i64, phase: Phase) {
        let timeout = value.unsigned_abs().saturating_mul(MS);
        match phase {
            Phase::Begun => self.coming = Some(timeout),
            Phase::Done => {
                self.before.push((at, self.timeout));
                (self.timeout, self.coming) = (timeout, None);
            }
            Phase::Refused => self.coming = None,
        }
    }

    fn begin(&mut self, rq: RqId) {
        if let Some(&(given, _)) = self.requests.get(rq) {
            let deadline = given.after(self.shortest_since(given));
            *self.requests.entry(rq) = Some((rq, (given, deadline)));
        }
    }

    fn overdue(&mut self, rq: RqId, now: Time) -> Verdict {
        let Some(&(given, deadline)) = self.requests.get(rq).filter(|(_, deadline)| deadline.0 < u64::MAX) else {
            let what = format!("the device was asked about {}, which it was not given", Request(rq));
            return Err(Violation::new(RULE, what).request(rq));
        };
        if now < deadline {
            let what = format!(
                "the device was asked about {} at {} ms, and it was given at {} ms with a timeout until {} ms",
                Request(rq),
                Millis(now.0),
                Millis(given.0),
                Millis(deadline.0)
            );
            return Err(Violation::new(RULE, what).request(rq));
        }
        let again = now.after(self.shortest_since(now));
        *self.requests.entry(rq) = Some((rq, (now, again)));
        Ok(())
    }
}

impl Checker for Timeouts {
    fn see(&mut self, at: Stamp, event: &Event<'_>, _: &Tracker) -> Verdict {
        match *event {
            Event::Offered { rq, now, .. } => *self.requests.entry(rq) = Some((rq, (now, Time(u64::MAX)))),
            Event::Acted { rq, action: Action::Started { .. } } => self.begin(rq),
            Event::Overdue { rq, now } => return self.overdue(rq, now),
            Event::Changed { control: Control::QueueKnob("io_timeout", value), phase } => {
                self.changed(at.time, value, phase);
            }
            _ => {}
        }
        Ok(())
    }
}
