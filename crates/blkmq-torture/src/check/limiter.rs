//! A limiter keeps its bound, and learns what has completed.
//!
//! What is with the device is added up here from what requests cost when they were chosen, and from what the device
//! does with them. The limiter counts a request for longer, until a completer has told of it. So what it lets go must
//! be within the bound by this sum too, unless the device has nothing. The bound is never zero.
//!
//! What the limiter learns is held against what the device has completed without an error while there was a limiter:
//! all that was over when every CPU slept or the queue had drained, and some of what was over later. Steps of the flush
//! machine do not count. A write may be one if it did not come into the scheduler.

use blkmq_sched::limiter::{Flow, Progress};
use blkmq_sched::{Op, RqId};

use super::super::event::{Control, Event, Phase, Stamp};
use super::super::settings::wants_usage;
use super::super::text::Request;
use super::table::{Table, is_flush};
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "limiter";

/// Reads and others.
const NAMES: [&str; 2] = ["reads", "others"];

/// The sectors for which a limiter charges an operation that moves no data.
const SMALL: u64 = 8;

/// Requests and the sectors for which they are charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sum {
    requests: u64,
    sectors: u64,
}

impl Sum {
    const fn add(&mut self, op: Op, sectors: u64) {
        self.requests += 1;
        self.sectors += if op.moves_data() { sectors } else { SMALL };
    }

    /// Whether both numbers are at most as large.
    const fn is_within(self, most: Self) -> bool {
        self.requests <= most.requests && self.sectors <= most.sectors
    }
}

impl From<Flow> for Sum {
    fn from(Flow { requests, sectors, .. }: Flow) -> Self {
        Self { requests, sectors }
    }
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    /// `wbt_lat_usec` is not 0.
    is_wanted: bool,
    /// What each request costs that counts as with the device, and the sum.
    costs: Table<u64>,
    in_flight: u64,
    nr_in_flight: u64,
    /// What has completed without an error, by direction: what counts, and what may count. And how much of what counts
    /// must have been told.
    done: [Sum; 2],
    most: [Sum; 2],
    settled: [Sum; 2],
}

impl Limiter {
    fn sent(&mut self, rq: RqId, cost: u32, bound: Option<u64>) -> Verdict {
        let (before, nr) = (self.in_flight, self.nr_in_flight);
        *self.costs.entry(rq) = Some((rq, cost.into()));
        self.in_flight += u64::from(cost);
        self.nr_in_flight += 1;
        let fail = |what: String| Err(Violation::new(RULE, format!("{} went {what}", Request(rq))).request(rq));
        match bound {
            _ if cost == 0 => fail("at no cost".to_owned()),
            Some(0) => fail("within a bound of zero".to_owned()),
            Some(bound) if nr > 0 && before > bound => {
                fail(format!("beside {nr} requests of {before} ns, and at most {bound} ns may be with the device"))
            }
            _ => Ok(()),
        }
    }

    fn ended(&mut self, tracker: &Tracker) {
        let Some((rq, offer, status)) = tracker.ended() else { return };
        let cost = self.costs.get_mut(rq).map_or(0, std::mem::take);
        self.in_flight -= cost;
        self.nr_in_flight -= u64::from(cost > 0);
        let is_wanted = |name| self.is_wanted || wants_usage(name);
        let has_limiter = tracker.scheduler.is_some_and(is_wanted) && !tracker.is_split();
        if has_limiter && status.is_ok() && !is_flush(rq) {
            let direction = usize::from(offer.op != Op::Read);
            self.most[direction].add(offer.op, offer.nr_sectors());
            // A write that did not come into the scheduler may be a step of the flush machine.
            if tracker.info(rq).is_some() || direction == 0 || !tracker.limits.write_cache {
                self.done[direction].add(offer.op, offer.nr_sectors());
            }
        }
    }

    fn learned(&self, progress: &Progress) -> Verdict {
        let told = [progress.reads, progress.others].map(Sum::from);
        for (at, told) in told.into_iter().enumerate() {
            let (least, most) = (self.settled[at], self.most[at]);
            if !least.is_within(told) || !told.is_within(most) {
                let what =
                    format!("it was told of {told:?} of {}, and right would be {least:?} to {most:?}", NAMES[at]);
                return Err(Violation::new(RULE, what));
            }
        }
        if progress.in_flight < self.in_flight {
            let what = format!(
                "it was told of {} ns with the device, which has {} ns of {} requests",
                progress.in_flight, self.in_flight, self.nr_in_flight
            );
            return Err(Violation::new(RULE, what));
        }
        Ok(())
    }
}

impl Checker for Limiter {
    fn see(&mut self, _at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Changed { control: Control::WbtLatUsec(usec), phase: Phase::Done } => self.is_wanted = usec != 0,
            Event::Sent { rq, cost, bound, .. } => return self.sent(rq, cost, bound),
            Event::Acted { .. } => self.ended(tracker),
            Event::Idle { .. } | Event::Counted(_) => self.settled = self.done,
            Event::Learned { progress, .. } => return self.learned(progress),
            _ => {}
        }
        Ok(())
    }
}
