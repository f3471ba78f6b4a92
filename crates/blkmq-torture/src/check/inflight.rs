//! The number of requests that a queue says its device has is the number that the device has. Looked at while the
//! device works; reads are counted separately from the other requests.

use blkmq_sched::{Op, RqId, Time};

use super::super::event::{Action, Control, Event, Stamp};
use super::offers::Offers;
use super::table::{Table, generation, grown, pool, slot};
use super::{Checker, Facts, Violation};

const RULE: &str = "inflight";

const MS: u64 = 1_000_000;

/// This module's checker.
#[derive(Debug)]
pub(super) struct Inflight {
    offers: Offers,
    /// Requests that the device was asked about, or whose timeout had passed when the device completed them. A timeout
    /// scan may still hold such a request after it is over.
    overdue: Vec<(RqId, Op)>,
    /// When each request was offered.
    since: Table<Time>,
    /// The shortest timeout of the whole run, in ns.
    timeout_ns: u64,
    /// The request in the last event of each CPU, if the event was that the device began the request. The queue may not
    /// have noted that yet.
    starting: Vec<Option<RqId>>,
}

impl Inflight {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            offers: Offers::new(),
            overdue: Vec::new(),
            since: Table::new(),
            timeout_ns: u64::from(facts.io_timeout_ms) * MS,
            starting: Vec::new(),
        }
    }

    fn told(&mut self, cpu: u16, event: &Event<'_>) {
        *grown(&mut self.starting, cpu, || None) = match *event {
            Event::Acted { rq, action: Action::Started { .. } } => Some(rq),
            _ => None,
        };
    }

    fn overdue(&mut self, rq: RqId) {
        if let Some(offer) = self.offers.get(rq)
            && self.overdue.iter().all(|(known, _)| *known != rq)
        {
            self.overdue.push((rq, offer.op));
        }
    }

    fn judge(&self, counted: [u32; 2]) -> Result<(), Violation> {
        let (mut begun, mut least) = ([0; 2], [0; 2]);
        for (rq, offer) in self.offers.begun() {
            let direction = usize::from(offer.op != Op::Read);
            begun[direction] += 1;
            least[direction] += u32::from(!self.starting.contains(&Some(rq)));
        }
        let mut most = begun;
        let is_begun = |rq| self.offers.begun().any(|(begun, _)| begun == rq);
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
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        self.told(at.cpu, event);
        match *event {
            Event::Offered { rq, now, .. } => {
                *self.since.entry(rq) = Some((rq, now));
                let is_same = |old: RqId| (pool(old), slot(old)) == (pool(rq), slot(rq));
                // A flush of the queue itself has the same pool and slot each time.
                self.overdue.retain(|(old, _)| !is_same(*old) || (generation(*old) == generation(rq)));
                _ = self.offers.see(event);
            }
            Event::Acted { rq, .. } => {
                if self.since.get(rq).is_some_and(|since| at.time.since(*since) >= self.timeout_ns) {
                    self.overdue(rq);
                }
                _ = self.offers.see(event);
            }
            Event::Overdue { rq, .. } => self.overdue(rq),
            Event::Changed { control: Control::QueueKnob("io_timeout", ms), .. } => {
                let ms = u64::try_from(ms).unwrap_or(0);
                self.timeout_ns = self.timeout_ns.min(ms * MS);
            }
            Event::Counted(_) => self.overdue.clear(),
            Event::Inflight(counted) => return self.judge(counted),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_virtual::Status;

    use super::super::super::event::Phase;
    use super::super::testing::*;
    use super::*;

    #[test]
    fn the_device_has_what_it_began_and_did_not_end() {
        let mut told = Told::new(Inflight::new(&FACTS));
        let (read, write) = (id(1, 0, 0), id(1, 1, 0));
        told.good(Event::Inflight([0, 0])).good(offered(read, Op::Read, 0, 8, &[])).good(Event::Inflight([0, 0]));
        told.good(started(read)).good(Event::Inflight([1, 0])).bad(Event::Inflight([0, 1]), "0 reads and 1 others");
        told.bad(Event::Inflight([0, 0]), "it has [1, 0]").good(offered(write, Op::Write, 0, 1, &[2]));
        told.good(acted(write, Action::Refused)).good(Event::Inflight([1, 0])).good(offered(
            write,
            Op::Write,
            0,
            1,
            &[2],
        ));
        told.good(started(write)).good(Event::Inflight([1, 1])).good(completed(read, Status::Ok));
        told.bad(Event::Inflight([1, 1]), "it has [0, 1]").good(Event::Inflight([0, 1]));
        let last = id(1, 2, 0);
        told.good(offered(last, Op::Read, 0, 8, &[])).good(started(last));
        // The queue has not noted it yet.
        told.cpu = 1;
        told.good(Event::Inflight([0, 1])).good(Event::Inflight([1, 1]));
        told.cpu = 0;
        told.good(Event::HeldBack { value: 0, waiting: 0, now: Time(0), wakeup: None });
        told.cpu = 1;
        told.bad(Event::Inflight([0, 1]), "it has [1, 1]");
    }

    #[test]
    fn a_timeout_scan_may_hold_what_is_over() {
        let mut told = Told::new(Inflight::new(&FACTS));
        let read = id(1, 0, 0);
        told.good(offered(read, Op::Read, 0, 8, &[]))
            .good(started(read))
            .good(Event::Overdue { rq: read, now: Time(1) });
        told.bad(Event::Inflight([0, 0]), "it has [1, 0]").good(acted(read, Action::GaveUp));
        told.good(Event::Inflight([1, 0])).good(Event::Inflight([0, 0])).bad(Event::Inflight([2, 0]), "2 reads");
        told.good(offered(id(1, 0, 1), Op::Read, 0, 8, &[])).bad(Event::Inflight([1, 0]), "it has [0, 0]");
    }

    #[test]
    fn a_timeout_scan_may_hold_what_it_was_about_to_ask_about() {
        let timeout = u64::from(FACTS.io_timeout_ms) * MS;
        let shorter = changed(Control::QueueKnob("io_timeout", 1), Phase::Begun);
        let longer = changed(Control::QueueKnob("io_timeout", 1000), Phase::Begun);
        for (knob, ns, may_hold) in [(longer, timeout - 1, false), (longer, timeout, true), (shorter, MS, true)] {
            let mut told = Told::new(Inflight::new(&FACTS));
            let read = id(1, 0, 0);
            told.good(knob).good(offered(read, Op::Read, 0, 8, &[])).good(started(read));
            told.now = ns;
            told.good(completed(read, Status::Ok)).good(Event::Inflight([0, 0]));
            assert_eq!(told.tell(Event::Inflight([1, 0])).is_ok(), may_hold);
        }
    }
}
