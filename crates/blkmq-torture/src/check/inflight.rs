//! The number of requests that a queue says its device has is the number that the device has. Looked at while the
//! device works; reads are counted separately from the other requests.

use blkmq_sched::{Op, RqId};

use super::super::event::{Action, Control, Event, Stamp};
use super::table::{generation, grown, pool, slot};
use super::tracker::{Stage, Tracker};
use super::{Checker, Facts, Verdict, Violation};

pub(super) const RULE: &str = "inflight";

const MS: u64 = 1_000_000;

/// This module's checker.
#[derive(Debug)]
pub(super) struct Inflight {
    /// Requests that the device was asked about, or whose timeout had passed when the device completed them. A timeout
    /// scan may still hold such a request after it is over.
    overdue: Vec<(RqId, Op)>,
    /// The shortest timeout of the whole run, in ns.
    timeout_ns: u64,
    /// The request in the last event of each CPU, if the event was that the device began the request. The queue may not
    /// have noted that yet.
    starting: Vec<Option<RqId>>,
}

impl Inflight {
    pub(super) fn new(facts: &Facts) -> Self {
        Self { overdue: Vec::new(), timeout_ns: u64::from(facts.io_timeout_ms) * MS, starting: Vec::new() }
    }

    fn overdue(&mut self, rq: RqId, tracker: &Tracker) {
        if let Some(offer) = tracker.offer(rq)
            && self.overdue.iter().all(|(known, _)| *known != rq)
        {
            self.overdue.push((rq, offer.op));
        }
    }

    fn judge(&self, counted: [u32; 2], tracker: &Tracker) -> Verdict {
        let (mut begun, mut least) = ([0; 2], [0; 2]);
        for (rq, offer) in tracker.offers(Stage::Begun) {
            let direction = usize::from(offer.op != Op::Read);
            begun[direction] += 1;
            least[direction] += u32::from(!self.starting.contains(&Some(rq)));
        }
        let mut most = begun;
        let is_begun = |rq| tracker.offer(rq).is_some_and(|offer| offer.stage == Stage::Begun);
        for (_, op) in self.overdue.iter().filter(|(rq, _)| !is_begun(*rq)) {
            most[usize::from(*op != Op::Read)] += 1;
        }
        if (0..2).all(|at| (least[at]..=most[at]).contains(&counted[at])) {
            return Ok(());
        }
        let [reads, others] = counted;
        let what = format!("the queue says that its device has {reads} reads and {others} others: it has {begun:?}");
        Err(Violation::new(RULE, what))
    }
}

impl Checker for Inflight {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        *grown(&mut self.starting, at.cpu, || None) = match *event {
            Event::Acted { rq, action: Action::Started { .. } } => Some(rq),
            _ => None,
        };
        match *event {
            Event::Offered { rq, .. } => {
                let is_same = |old: RqId| (pool(old), slot(old)) == (pool(rq), slot(rq));
                // A flush of the queue itself has the same pool and slot each time.
                self.overdue.retain(|(old, _)| !is_same(*old) || (generation(*old) == generation(rq)));
            }
            Event::Acted { rq, .. }
                if tracker.offer(rq).is_some_and(|offer| at.time.since(offer.now) >= self.timeout_ns) =>
            {
                self.overdue(rq, tracker);
            }
            Event::Overdue { rq, .. } => self.overdue(rq, tracker),
            Event::Changed { control: Control::QueueKnob("io_timeout", ms), .. } => {
                let ms = u64::try_from(ms).unwrap_or(0);
                self.timeout_ns = self.timeout_ns.min(ms * MS);
            }
            Event::Counted(_) => self.overdue.clear(),
            Event::Inflight(counted) => return self.judge(counted, tracker),
            _ => {}
        }
        Ok(())
    }
}
