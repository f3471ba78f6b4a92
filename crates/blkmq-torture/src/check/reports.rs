//! A scheduler that wants reports is told what happened to each request, once, and in time.
//!
//! A request that it chose has a ticket, which others may have too. When the request is over, one report gives the
//! ticket back, and says what the request was. A request that bypassed the scheduler is reported when it passes,
//! and again when it completes. No scheduler is told of requests that it does not know.
//!
//! A thread is told to choose after the reports were delivered. So when a CPU chooses, the scheduler knows of each
//! request that was offered to the device past it, and of each chosen request whose operation was reaped, before that
//! CPU last did something else. When a client leaves, nothing of it is left to be told.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use blkmq_sched::{Class, ClientId, Event as Happened, Info, Op, Report, RqId, Ticket};

use super::super::event::{Action, Event, Stamp};
use super::super::settings::wants_reports;
use super::super::text::Request;
use super::table::{Table, grown};
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "reports";

/// Where a request is, as far as reports go.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// In the scheduler, with so many sectors.
    Waiting(Info, u64),
    Chosen(Ticket),
    /// Past the scheduler, with so many sectors.
    Passed(u64),
    Over,
}

/// A request that was chosen, and of which no report is known to be.
#[derive(Debug, Clone, Copy)]
struct Chosen {
    rq: RqId,
    is_over: bool,
    /// The step at which its operation was reaped.
    reaped: Option<u64>,
}

/// The requests with one ticket that look alike. A report is that of any one of them that is over.
#[derive(Debug)]
struct Alike {
    info: Info,
    sectors: u64,
    requests: Vec<Chosen>,
    /// So many reports came, and are not said to be those of certain requests yet.
    nr_reports: usize,
}

impl Alike {
    /// Whether a request of `client` and so on belongs here.
    fn fits(&self, client: ClientId, op: Op, sync: bool, class: Class, sectors: u64) -> bool {
        let info = &self.info;
        (info.client, info.op, info.sync, info.priority.class, self.sectors) == (client, op, sync, class, sectors)
    }

    fn nr_over(&self) -> usize {
        self.requests.iter().filter(|chosen| chosen.is_over).count()
    }

    /// Says of which requests the reports are, as far as that is certain or does not matter. Those that were reaped
    /// come first: they had to be reported by now.
    fn settle(&mut self) {
        if self.nr_reports == self.nr_over() {
            self.nr_reports = 0;
            self.requests.retain(|chosen| !chosen.is_over);
        }
        while self.nr_reports > 0 {
            let reaped = self.requests.iter().enumerate().filter_map(|(at, chosen)| Some((chosen.reaped?, at)));
            let Some((_, at)) = reaped.min() else { return };
            self.requests.remove(at);
            self.nr_reports -= 1;
        }
    }
}

/// The requests of a client that were told of in sums.
#[derive(Debug, Clone, Copy, Default)]
struct Ledger {
    /// Chosen, and not reported.
    nr_chosen: u64,
    /// Passed, and passed and over, as the scheduler was told.
    passed: Sum,
    over: Sum,
}

/// Requests, and their sectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    requests: u64,
    sectors: u64,
}

impl Sum {
    const fn add(&mut self, requests: u64, sectors: u64) {
        self.requests += requests;
        self.sectors += sectors;
    }

    const fn is_within(self, other: Self) -> bool {
        self.requests <= other.requests && self.sectors <= other.sectors
    }
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Reports {
    is_watched: bool,
    places: Table<Place>,
    /// By ticket.
    chosen: BTreeMap<NonZeroU32, Vec<Alike>>,
    clients: BTreeMap<ClientId, Ledger>,
    /// What bypassed, as the device saw it, and as the scheduler was told.
    offered: Sum,
    passed: Sum,
    /// The requests that bypassed and are over, as the device saw it, and as the scheduler was told.
    ended: Sum,
    over: Sum,
    /// After each of these steps, this many requests had been offered past the scheduler.
    offers: Vec<(u64, u64)>,
    /// The step at which each CPU last did something that is not at the scheduler.
    elsewhere: Vec<u64>,
}

impl Reports {
    fn elsewhere(&mut self, cpu: u16) -> &mut u64 {
        grown(&mut self.elsewhere, cpu, || 0)
    }

    fn ledger(&mut self, client: ClientId) -> &mut Ledger {
        self.clients.entry(client).or_default()
    }

    fn grow(&mut self, rq: RqId, more: u64) {
        if let Some(Place::Waiting(_, sectors)) = self.places.get_mut(rq) {
            *sectors += more;
        }
    }

    fn ticketed(&mut self, rq: RqId, ticket: Option<Ticket>) -> Verdict {
        let Some(&Place::Waiting(info, sectors)) = self.places.get(rq) else { return Ok(()) };
        let Some(ticket) = ticket else {
            return Err(Violation::new(RULE, format!("{} was chosen without a ticket", Request(rq))).request(rq));
        };
        *self.places.entry(rq) = Some((rq, Place::Chosen(ticket)));
        self.ledger(info.client).nr_chosen += 1;
        let kinds = self.chosen.entry(ticket.0).or_default();
        let fits = |kind: &Alike| kind.fits(info.client, info.op, info.sync, info.priority.class, sectors);
        let at = kinds.iter().position(fits).unwrap_or_else(|| {
            kinds.push(Alike { info, sectors, requests: Vec::new(), nr_reports: 0 });
            kinds.len() - 1
        });
        kinds[at].requests.push(Chosen { rq, is_over: false, reaped: None });
        Ok(())
    }

    /// Checks that the scheduler knows by now what happened before this CPU came to it.
    fn judge_time(&mut self, cpu: u16) -> Verdict {
        let came = *self.elsewhere(cpu);
        let before = self.offers.partition_point(|(step, _)| *step < came);
        let offered = before.checked_sub(1).map_or(0, |last| self.offers[last].1);
        if self.passed.requests < offered {
            let told = self.passed.requests;
            let what = format!("the scheduler chose, and was told of {told} of the {offered} requests that passed it");
            return Err(Violation::new(RULE, what));
        }
        self.offers.drain(..before.saturating_sub(1));
        let is_late = |chosen: &&Chosen| chosen.reaped.is_some_and(|step| step < came);
        let mut unsettled = self.chosen.values().flatten().flat_map(|kind| &kind.requests);
        match unsettled.find(is_late) {
            None => Ok(()),
            Some(Chosen { rq, .. }) => {
                let what = format!("the scheduler chose, and was not told that {} is over", Request(*rq));
                Err(Violation::new(RULE, what).request(*rq))
            }
        }
    }

    fn reported(&mut self, report: &Report) -> Verdict {
        let (requests, sectors) = (u64::from(report.requests), u64::from(report.sectors));
        let bad = |what: &str| Err(Violation::new(RULE, format!("the scheduler was told {what}: {report:?}")));
        match report.event {
            Happened::Completed(Some(ticket)) => return self.gave_back(ticket, report),
            Happened::Passed => {
                self.passed.add(requests, sectors);
                self.ledger(report.client).passed.add(requests, sectors);
            }
            Happened::Completed(None) => {
                self.over.add(requests, sectors);
                // Another thread may tell later that they passed.
                self.ledger(report.client).over.add(requests, sectors);
                if !self.over.is_within(self.ended) {
                    return bad("that requests are over that the device still has");
                }
            }
        }
        if requests == 0 { bad("of no request") } else { Ok(()) }
    }

    fn gave_back(&mut self, ticket: Ticket, report: &Report) -> Verdict {
        let bad = |what: String| Err(Violation::new(RULE, what));
        let &Report { client, op, sync, priority, requests, sectors, .. } = report;
        let kinds = self.chosen.entry(ticket.0).or_default();
        kinds.retain(|kind| !kind.requests.is_empty());
        let fits = |kind: &&mut Alike| requests == 1 && kind.fits(client, op, sync, priority.class, sectors.into());
        let Some(kind) = kinds.iter_mut().find(fits) else {
            return bad(match kinds.first() {
                None => format!("the scheduler got a ticket that no request has: {report:?}"),
                Some(Alike { info, sectors, .. }) => {
                    format!("the ticket is that of {info:?} of {sectors} sectors, or of others, and not of {report:?}")
                }
            });
        };
        if kind.nr_reports == kind.nr_over() {
            let rq = kind.requests.iter().find(|chosen| !chosen.is_over).map(|chosen| Request(chosen.rq));
            let rq = rq.expect("a kind without requests was dropped");
            return bad(format!("the scheduler was told that {rq} is over, which the device still has"));
        }
        kind.nr_reports += 1;
        kind.settle();
        self.ledger(client).nr_chosen -= 1;
        Ok(())
    }

    /// What is known of the requests that look like this one, which was chosen and of which no report is known to be;
    /// and its place among them.
    fn find(&mut self, rq: RqId) -> Option<(&mut Alike, usize)> {
        let Some(Place::Chosen(ticket)) = self.places.get(rq) else { return None };
        self.chosen.get_mut(&ticket.0)?.iter_mut().find_map(|kind| {
            let at = kind.requests.iter().position(|chosen| chosen.rq == rq)?;
            Some((kind, at))
        })
    }

    fn passed(&mut self, step: u64, rq: RqId, sectors: u64) {
        *self.places.entry(rq) = Some((rq, Place::Passed(sectors)));
        self.offered.add(1, sectors);
        self.offers.push((step, self.offered.requests));
    }

    fn over(&mut self, rq: RqId) {
        if let Some(&Place::Passed(sectors)) = self.places.get(rq) {
            self.ended.add(1, sectors);
            *self.places.entry(rq) = Some((rq, Place::Over));
        }
        if let Some((kind, at)) = self.find(rq) {
            kind.requests[at].is_over = true;
        }
    }

    fn left(&mut self, client: ClientId) -> Verdict {
        let Some(Ledger { nr_chosen, passed, over }) = self.clients.remove(&client) else { return Ok(()) };
        let bad = |what: String| Err(Violation::new(RULE, format!("client {} left, and {what}", client.0)));
        if nr_chosen > 0 {
            return bad(format!("{nr_chosen} of its requests were not reported"));
        }
        if passed != over {
            return bad(format!("of its requests {passed:?} passed, and {over:?} are over, as the scheduler was told"));
        }
        Ok(())
    }
}

impl Checker for Reports {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Installed { scheduler } => {
                let (is_watched, elsewhere) =
                    (scheduler.is_some_and(wants_reports), std::mem::take(&mut self.elsewhere));
                *self = Self { is_watched, elsewhere, ..Self::default() };
            }
            _ if !self.is_watched => {}
            Event::Inserted { rq, info, .. } => {
                *self.places.entry(rq) = Some((rq, Place::Waiting(info, info.nr_sectors.into())));
            }
            Event::Merged { into, info, .. } => self.grow(into, info.nr_sectors.into()),
            Event::Absorbed { into, absorbed } => {
                if let Some(&Place::Waiting(_, sectors)) = self.places.get(absorbed) {
                    self.grow(into, sectors);
                }
            }
            Event::Chosen { .. } => return self.judge_time(at.cpu),
            Event::Ticketed { rq, ticket } => return self.ticketed(rq, ticket),
            Event::Reported { reports, now } => {
                if let Some(report) = reports.iter().find(|report| report.at > now.max(at.time)) {
                    return Err(Violation::new(RULE, format!("the scheduler was told of what is to come: {report:?}")));
                }
                return reports.iter().try_for_each(|report| self.reported(report));
            }
            Event::ClientLeft { client } => return self.left(client),
            // At the scheduler too.
            Event::HeldBack { .. }
            | Event::Gated { .. }
            | Event::Expired { .. }
            | Event::Folded { .. }
            | Event::ClientJoined { .. }
            | Event::GroupJoined { .. }
            | Event::GroupLeft { .. } => {}
            _ => {
                self.happened(at, event, tracker.is_bypass);
                *self.elsewhere(at.cpu) = at.step;
            }
        }
        Ok(())
    }

    fn end(&mut self, _: &Tracker) -> Verdict {
        let Self { offered, passed, ended, over, .. } = *self;
        if self.is_watched && (offered != passed || ended != over) {
            let what = format!(
                "{offered:?} passed the scheduler and {ended:?} of them are over, and it was told of {passed:?} and \
                 {over:?}"
            );
            return Err(Violation::new(RULE, what));
        }
        Ok(())
    }
}

impl Reports {
    /// What happened elsewhere than at the scheduler.
    fn happened(&mut self, at: Stamp, event: &Event<'_>, is_bypass: bool) {
        match *event {
            Event::Offered { rq, nr_sectors, .. } if is_bypass => self.passed(at.step, rq, nr_sectors.into()),
            Event::Acted { rq, action: Action::FinishedAtOnce(_) | Action::Completed(_) | Action::GaveUp } => {
                self.over(rq);
            }
            Event::Reaped { id, .. } => {
                if let Some((kind, place)) = self.find(id).filter(|(kind, place)| kind.requests[*place].is_over) {
                    kind.requests[place].reaped.get_or_insert(at.step);
                    kind.settle();
                }
            }
            _ => {}
        }
    }
}
