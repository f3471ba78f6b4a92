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

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::super::settings::orders_one_hctx;
use super::super::text::Request;
use super::table::{Table, is_flush};
use super::{Checker, Facts, Violation};

const RULE: &str = "limiter";

/// Reads and others.
const NAMES: [&str; 2] = ["reads", "others"];

/// Requests and their sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Sum {
    requests: u64,
    sectors: u64,
}

impl Sum {
    const fn add(&mut self, sectors: u32) {
        self.requests += 1;
        self.sectors += sectors as u64;
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

/// What is known of a request.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// What it costs, while it counts as with the device.
    cost: u64,
    /// It came into the scheduler.
    is_ordered: bool,
    /// Its direction and length, as the device was told.
    of: Option<(usize, u32)>,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Limiter {
    has_scheduler: bool,
    is_wanted: bool,
    known: Table<Known>,
    /// The cost of what is with the device, and how many requests that is.
    in_flight: u64,
    nr_in_flight: u64,
    /// Writes may be steps of the flush machine.
    has_flushes: bool,
    /// What has completed without an error, by direction: what counts, and what may count. And how much of what counts
    /// must have been told.
    done: [Sum; 2],
    most: [Sum; 2],
    settled: [Sum; 2],
}

impl Limiter {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            has_scheduler: false,
            is_wanted: false,
            known: Table::new(),
            in_flight: 0,
            nr_in_flight: 0,
            has_flushes: facts.limits.write_cache,
            done: Default::default(),
            most: Default::default(),
            settled: Default::default(),
        }
    }

    fn known(&mut self, rq: RqId) -> &mut Known {
        let entry = self.known.entry(rq);
        if entry.is_none_or(|(id, _)| id != rq) {
            *entry = Some((rq, Known::default()));
        }
        &mut entry.as_mut().expect("it was just made").1
    }

    fn sent(&mut self, rq: RqId, cost: u32, bound: Option<u64>) -> Result<(), Violation> {
        let (before, nr) = (self.in_flight, self.nr_in_flight);
        self.known(rq).cost = cost.into();
        self.in_flight += u64::from(cost);
        self.nr_in_flight += 1;
        let bad = |what: String| Err(Violation::new(RULE, format!("{} went {what}", Request(rq))).request(rq));
        match bound {
            _ if cost == 0 => bad("at no cost".to_owned()),
            Some(0) => bad("within a bound of zero".to_owned()),
            Some(bound) if nr > 0 && before > bound => {
                bad(format!("beside {nr} requests of {before} ns, and at most {bound} ns may be with the device"))
            }
            _ => Ok(()),
        }
    }

    fn over(&mut self, rq: RqId, is_ok: bool) {
        let counts = self.has_scheduler && self.is_wanted;
        let known = self.known(rq);
        let (cost, is_ordered, of) = (std::mem::take(&mut known.cost), known.is_ordered, known.of);
        self.in_flight -= cost;
        self.nr_in_flight -= u64::from(cost > 0);
        if let Some((direction, sectors)) = of.filter(|_| counts && is_ok && !is_flush(rq)) {
            let is_certain = is_ordered || direction == 0 || !self.has_flushes;
            self.most[direction].add(sectors);
            if is_certain {
                self.done[direction].add(sectors);
            }
        }
    }

    fn learned(&self, progress: &Progress) -> Result<(), Violation> {
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
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Installed { scheduler } => {
                self.has_scheduler = scheduler.is_some_and(|name| !orders_one_hctx(name));
            }
            Event::Changed { control: Control::WbtLatUsec(usec), phase: Phase::Done } => self.is_wanted = usec != 0,
            Event::Inserted { rq, .. } => self.known(rq).is_ordered = true,
            Event::Sent { rq, cost, bound, .. } => return self.sent(rq, cost, bound),
            Event::Offered { rq, op, nr_sectors, .. } => {
                self.known(rq).of = Some((usize::from(op != Op::Read), nr_sectors));
            }
            Event::Acted { rq, action: Action::FinishedAtOnce(status) | Action::Completed(status) } => {
                self.over(rq, status.is_ok());
            }
            Event::Acted { rq, action: Action::GaveUp } => self.over(rq, false),
            Event::Idle { .. } | Event::Counted(_) => self.settled = self.done,
            Event::Learned { progress, .. } => return self.learned(progress),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::limiter::Phase as Doing;
    use blkmq_virtual::Status;

    use super::super::super::event::DeviceState;
    use super::super::testing::*;
    use super::*;

    const RQ: RqId = id(1, 0, 0);
    const OTHER: RqId = id(1, 1, 0);

    /// A queue with a limiter.
    fn told() -> Told<Limiter> {
        let mut told = Told::new(Limiter::new(&FACTS));
        told.good(Event::Installed { scheduler: Some("bfq") });
        told.good(changed(Control::WbtLatUsec(-1), Phase::Done));
        told
    }

    fn sent(rq: RqId, cost: u32, bound: Option<u64>) -> Event<'static> {
        Event::Sent { rq, cost, bound, phase: Doing::Narrowing }
    }

    /// The device gets a read that was ordered, of 8 sectors.
    fn goes(told: &mut Told<Limiter>, rq: RqId) {
        told.good(inserted(rq, info(Op::Read, 0, 8), 0));
        told.good(offered(rq, Op::Read, 0, 8, &[]));
    }

    fn progress(requests: u64, in_flight: u64) -> Progress {
        let reads = Flow { requests, sectors: 8 * requests, ..Flow::default() };
        Progress { reads, in_flight, ..Progress::default() }
    }

    #[test]
    fn what_goes_beside_others_is_within_the_bound() {
        told().good(sent(RQ, 50, Some(10))).bad(sent(OTHER, 1, Some(49)), "beside 1 requests of 50 ns");
        told().good(sent(RQ, 50, None)).good(sent(OTHER, 100, Some(50))).good(sent(id(1, 2, 0), 1, None));
        told().bad(sent(RQ, 1, Some(0)), "a bound of zero").bad(sent(RQ, 0, None), "at no cost");
        let mut over = told();
        over.good(sent(RQ, 50, Some(10))).good(acted(RQ, Action::GaveUp)).good(sent(OTHER, 1, Some(1)));
    }

    #[test]
    fn it_is_told_what_completed_without_an_error() {
        let learned = |told: &mut Told<Limiter>, requests, in_flight| {
            told.tell(Event::Learned { progress: &progress(requests, in_flight), phase: Doing::Open })
        };
        let mut told = told();
        for (rq, status) in [(RQ, Status::Ok), (OTHER, Status::IoError)] {
            goes(&mut told, rq);
            told.good(completed(rq, status));
        }
        assert!(learned(&mut told, 0, 0).is_ok() && learned(&mut told, 1, 5).is_ok());
        assert!(learned(&mut told, 2, 0).is_err(), "one of them failed");
        told.good(Event::Idle { until: None, device: DeviceState::default() });
        assert!(learned(&mut told, 1, 0).is_ok());
        assert!(learned(&mut told, 0, 0).is_err(), "all that is over was told");
        told.good(sent(id(1, 2, 0), 50, None));
        assert!(learned(&mut told, 1, 49).is_err() && learned(&mut told, 1, 50).is_ok());
    }
}
