//! Reports, for a scheduler that wants them: of requests that bypass it, and of completions.
//!
//! Each thread writes reports to a ring of its own ([`ring`](blkmq_sync::ring)). The thread in the scheduler takes the
//! reports of all threads and passes them on: when it enters, before each dispatch, and before it refuses a request. A
//! thread reports a completion before it delivers the operation to its submitter, and before the fence of
//! [`fence_before_notify`](blkmq_sync::liveness::Liveness::fence_before_notify). So a thread that enters the scheduler
//! after either finds the completion. A thread whose ring is full takes the scheduler's lock and passes on all reports
//! itself.
//!
//! Only a scheduler that orders all hardware queues, and takes no depth tokens, gets reports.

use std::num::NonZeroU32;

use blkmq_sched::{Class, ClientId, Event, Feedback, IoPriority, Op, Report, Ticket, Time};

use super::hold::Hold;
use crate::queue::Queue;
use crate::queue::threads::ring;
use crate::request::Request;
use blkmq_sync::ring::{Record, Ring, Trial};

/// All operations, each at the place of its number.
const OPS: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

const SYNC: u64 = 1 << 2;
const OP_SHIFT: u32 = 3;
const CLASS_SHIFT: u32 = 6;
const LEVEL_SHIFT: u32 = 8;
const REQUESTS_SHIFT: u32 = 16;
const PASSED: u64 = 1 << 32;

fn pack(report: &Report) -> Record {
    let (passed, ticket) = match report.event {
        Event::Passed => (PASSED, 0),
        Event::Completed(ticket) => (0, ticket.map_or(0, |ticket| ticket.0.get())),
    };
    let kind = (report.op as u64) << OP_SHIFT
        | (report.priority.class.index() as u64) << CLASS_SHIFT
        | u64::from(report.priority.level) << LEVEL_SHIFT
        | if report.sync { SYNC } else { 0 };
    [
        report.at.0,
        u64::from(report.sectors) | u64::from(report.in_device) << 32,
        u64::from(report.client.0) | u64::from(ticket) << 32,
        kind | u64::from(report.requests) << REQUESTS_SHIFT | passed,
    ]
}

fn unpack([at, amounts, names, kind]: Record) -> Report {
    let event = match NonZeroU32::new((names >> 32) as u32) {
        None if kind & PASSED != 0 => Event::Passed,
        ticket => Event::Completed(ticket.map(Ticket)),
    };
    Report {
        event,
        client: ClientId(names as u32),
        op: OPS[(kind >> OP_SHIFT) as usize % 8],
        sync: kind & SYNC != 0,
        priority: IoPriority {
            class: Class::ALL[(kind >> CLASS_SHIFT) as usize % 4],
            level: (kind >> LEVEL_SHIFT) as u8,
        },
        requests: (kind >> REQUESTS_SHIFT) as u16,
        sectors: amounts as u32,
        in_device: (amounts >> 32) as u32,
        at: Time(at),
    }
}

/// The report of one request.
fn of_request(rq: &Request<'_>, event: Event, at: Time) -> Report {
    let body = rq.body();
    let in_device = match event {
        Event::Passed => 0,
        Event::Completed(_) => at.since(body.issued).min(u32::MAX.into()) as u32,
    };
    Report {
        event,
        client: body.client(),
        op: rq.op(),
        sync: body.is_sync(),
        priority: rq.priority(),
        requests: 1,
        sectors: rq.nr_sectors(),
        at,
        in_device,
    }
}

/// Whether one record can report both. A request with a ticket has a record of its own.
fn are_alike(one: &Report, other: &Report) -> bool {
    let kind = |report: &Report| (report.event, report.client, report.op, report.sync, report.priority);
    kind(one) == kind(other) && matches!(one.event, Event::Passed | Event::Completed(None))
}

/// Adds a report to a like one, if the sums fit.
fn add(run: &mut Report, more: &Report) -> bool {
    let sums = run.requests.checked_add(more.requests).zip(run.sectors.checked_add(more.sectors));
    if let Some((requests, sectors)) = sums {
        (run.requests, run.sectors) = (requests, sectors);
        run.in_device = run.in_device.max(more.in_device);
    }
    sums.is_some()
}

/// The reports of a completer.
pub(crate) struct ReportBatch<'q> {
    ring: Option<&'q Ring>,
    thread: u16,
    now: Time,
    /// Requests that bypassed and are alike.
    run: Option<Report>,
    /// Reports were written that the thread in the scheduler does not know of.
    has_unannounced: bool,
}

impl<'q> ReportBatch<'q> {
    /// `thread` is the completer.
    pub(crate) fn new(q: &'q Queue, thread: u16, now: Time) -> Self {
        Self { ring: ring_of(q, thread), thread, now, run: None, has_unannounced: false }
    }

    /// A request is over.
    #[inline]
    pub(crate) fn add(&mut self, q: &Queue, rq: &mut Request<'_>) {
        if !rq.body().ordered {
            return;
        }
        let ticket = rq.body_mut().ticket.take();
        let report = of_request(rq, Event::Completed(ticket), self.now);
        if let Some(run) = &mut self.run {
            if are_alike(run, &report) && add(run, &report) {
                return;
            }
            self.end_run(q);
        }
        if ticket.is_some() {
            self.note(q, &report);
        } else {
            self.run = Some(report);
        }
    }

    fn end_run(&mut self, q: &Queue) {
        if let Some(run) = self.run.take() {
            self.note(q, &run);
        }
    }

    fn note(&mut self, q: &Queue, report: &Report) {
        let Some(ring) = self.ring else { return };
        if ring.is_full() {
            q.pending_events.add(self.thread);
            deliver_all(q, self.now);
        }
        ring.note(pack(report));
        self.has_unannounced = true;
    }

    /// Publishes the reports.
    #[inline]
    pub(crate) fn put(&mut self, q: &Queue) {
        self.end_run(q);
        if std::mem::take(&mut self.has_unannounced) {
            q.pending_events.add(self.thread);
        }
    }
}

/// The report of a thread whose requests bypass the scheduler.
pub(crate) struct BypassReport<'q> {
    ring: &'q Ring,
    thread: u16,
    report: Report,
    trial: Option<Trial>,
}

impl<'q> BypassReport<'q> {
    /// `first` is the first of the requests, which are alike.
    pub(crate) fn new(q: &'q Queue, thread: u16, first: &Request<'_>, now: Time) -> Option<Self> {
        let ring = ring_of(q, thread)?;
        if ring.is_full() {
            deliver_all(q, now);
        }
        let report = Report { requests: 0, sectors: 0, ..of_request(first, Event::Passed, now) };
        Some(Self { ring, thread, report, trial: None })
    }

    /// One of the requests.
    pub(crate) fn add(&mut self, rq: &Request<'_>) {
        self.report.requests += 1;
        self.report.sectors = self.report.sectors.saturating_add(rq.nr_sectors());
    }

    /// Reports the requests tentatively. Called before the deciding check of the gate.
    pub(crate) fn note(&mut self, q: &Queue) {
        self.trial = Some(self.ring.try_note(pack(&self.report)));
        q.pending_events.add(self.thread);
    }

    /// Confirms or withdraws the report. `passes`: the gate was still open. Returns whether the requests bypass.
    pub(crate) fn end(self, passes: bool) -> bool {
        let Some(trial) = self.trial else { return passes };
        if passes {
            return self.ring.confirm(trial);
        }
        self.ring.withdraw(trial);
        false
    }
}

impl Hold {
    /// Passes the reports of all threads to the scheduler, if it wants them.
    #[inline]
    pub(super) fn take_reports(&mut self, q: &Queue, now: Time) {
        if self.wants_reports {
            let pending = q.pending_events.take();
            if pending != 0 {
                self.take_from(q, pending, now);
            }
        }
    }

    #[inline(never)]
    fn take_from(&mut self, q: &Queue, pending: u64, now: Time) {
        let Some(scheduler) = &mut self.scheduler else { return };
        let reports = &mut self.reports;
        q.threads.each_named(pending, |index, thread| {
            if let Some(ring) = thread.reports() {
                ring.take(|record| reports.push(unpack(record)));
            }
            debug_assert!(reports.len() <= ring(), "thread {index} has noted more than its ring holds");
            if !reports.is_empty() {
                scheduler.observe(Feedback::Events(reports, now));
                reports.clear();
            }
        });
    }
}

/// The ring of a thread, if the scheduler wants reports.
#[inline]
fn ring_of(q: &Queue, thread: u16) -> Option<&Ring> {
    if q.settings.wants_reports() { q.threads.get(thread).reports() } else { None }
}

/// Passes the reports of all threads to the scheduler. The caller is not in the scheduler.
#[cold]
fn deliver_all(q: &Queue, now: Time) {
    if let Some(domain) = q.whole_domain() {
        domain.deliver_reports(q, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a field is lost, cut short, or mixed up with another one.
    #[test]
    fn a_report_comes_out_as_it_went_in() {
        let least = Report {
            event: Event::Passed,
            client: ClientId(0),
            op: Op::Read,
            sync: false,
            priority: IoPriority { class: Class::RealTime, level: 0 },
            requests: 0,
            sectors: 0,
            at: Time(0),
            in_device: 0,
        };
        let mut all = vec![
            least,
            Report { event: Event::Completed(None), ..least },
            Report { event: Event::Completed(Some(Ticket(NonZeroU32::MAX))), ..least },
            Report { event: Event::Completed(Some(Ticket(NonZeroU32::MIN))), ..least },
            Report { client: ClientId(u32::MAX), ..least },
            Report { sync: true, ..least },
            Report { requests: u16::MAX, ..least },
            Report { sectors: u32::MAX, ..least },
            Report { in_device: u32::MAX, ..least },
            Report { at: Time(u64::MAX), ..least },
            Report { priority: IoPriority { class: Class::Idle, level: 7 }, ..least },
        ];
        all.extend(OPS.map(|op| Report { op, ..least }));
        all.extend(Class::ALL.map(|class| Report { priority: IoPriority { class, level: 3 }, ..least }));
        for report in all {
            let record = pack(&report);
            assert_eq!(unpack(record), report);
            assert_eq!(record[3] & 0b11, 0, "these bits are the ring's");
        }
    }
}
