//! What comes into the scheduler is what was submitted. A request has the client and the priority of its operation, it
//! is awaited or not as the operation was, and it merges or stays alone as the operation asked and the queue allows.
//! The requests of one submitter and one kind (class of priority, awaited or not) come in the order in which they were
//! submitted, into each value of the scheduler. If each hardware queue has a value, a submitter sorts what has to wait
//! by hardware queue. So the order of what was submitted before a change of the hardware queues or of the scheduler is
//! not kept behind it. A request that must not wait comes when its submitter passes its plug on, or never.
//!
//! A request has the id of the operation that began it. A checker knows the id when the submitter learns it: for an
//! operation that was submitted alone this is at once, for all others when they are over.

use std::collections::BTreeMap;

use blkmq_sched::{ClientId, Info, MergeLevel, Op, RqId};
use blkmq_virtual::{Limits, Status};

use super::super::event::{Asked, Control, Event, Phase, Stamp};
use super::super::settings::takes_all;
use super::super::text::{FastRequest, Request};
use super::table::{Table, grown, pool};
use super::tracker::{Arrival, Operation, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "arrivals";

/// What a submitter is known to have done.
#[derive(Debug, Clone, Copy, Default)]
struct Submitter {
    tenant: u16,
    /// The step at which the submitter last passed its plug on.
    passed_on: u64,
}

/// The submitters that are one client to the queue: how many there are, and which client they are, if that is known.
#[derive(Debug, Clone, Copy, Default)]
struct Tenant {
    nr_submitters: u32,
    client: Option<ClientId>,
}

/// The knob `nomerges`.
#[derive(Debug, Default)]
struct NoMerges {
    value: i64,
    coming: Option<i64>,
    /// Earlier values of the knob, each with the step until which it held.
    before: Vec<(u64, i64)>,
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    submitters: Vec<Submitter>,
    /// The tenants by number.
    tenants: BTreeMap<u16, Tenant>,
    /// The tenant that each client belongs to, also after the client is gone. A request with the id of a client that is
    /// gone is taken for that client's.
    owners: BTreeMap<ClientId, u16>,
    nomerges: NoMerges,
    names: Table<u64>,
    /// How many requests had come before each request.
    numbers: Table<u64>,
    nr_arrivals: u64,
    /// Each hardware queue has a value of the scheduler.
    is_split: bool,
    /// The operation submitted last, and the last one of those that a submitter may have sorted by other hardware
    /// queues.
    latest: u64,
    sorted_until: u64,
    /// By pool, value of the scheduler and kind: the operation with a name that came last, and its number.
    last: BTreeMap<(u16, u16), [(u64, u64); 6]>,
}

const fn level(nomerges: i64) -> MergeLevel {
    match nomerges {
        0 => MergeLevel::Full,
        1 => MergeLevel::LastOnly,
        _ => MergeLevel::Never,
    }
}

impl NoMerges {
    fn changed(&mut self, step: u64, value: i64, phase: Phase) {
        self.coming = (phase == Phase::Begun).then_some(value);
        if phase == Phase::Done {
            self.before.push((step, self.value));
            self.value = value;
        }
    }

    /// Whether all levels since this step satisfy `is_such`.
    fn was_always(&self, step: u64, is_such: impl Fn(MergeLevel) -> bool) -> bool {
        let before = self.before.iter().rev().take_while(|(until, _)| *until >= step).map(|(_, value)| *value);
        before.chain(self.coming).chain([self.value]).map(level).all(is_such)
    }
}

impl Arrivals {
    fn submitter(&mut self, submitter: u16) -> &mut Submitter {
        grown(&mut self.submitters, submitter, Submitter::default)
    }

    fn inserted(&mut self, rq: RqId, tracker: &Tracker) -> Verdict {
        self.nr_arrivals += 1;
        *self.numbers.entry(rq) = Some((rq, self.nr_arrivals));
        let Some(&bio) = self.names.get(rq) else { return Ok(()) };
        let Some(&Operation { submitter, ref asked, at, .. }) = tracker.operation(bio) else { return Ok(()) };
        // Under a locking that takes all, the request may have been left to another CPU, which inserts it later.
        let is_direct = !takes_all(tracker.locking);
        if is_direct && asked.flags.nowait && at.step < self.submitter(submitter).passed_on {
            let what = format!("operation {bio} of submitter {submitter} must not wait, and waited for room");
            return Err(Violation::new(RULE, what).bio(bio).request(rq));
        }
        self.judge_order(bio, rq, tracker)
    }

    /// Called when the request of an operation is known. Compares it with the last one of the same kind and submitter.
    fn judge_order(&mut self, bio: u64, rq: RqId, tracker: &Tracker) -> Verdict {
        let Some(&number) = self.numbers.get(rq) else { return Ok(()) };
        let Some(&Arrival { info: Some(info), value }) = tracker.arrival(rq) else { return Ok(()) };
        let last = self.last.entry((pool(rq), value)).or_default();
        let last = &mut last[2 * info.priority.class.index() + usize::from(info.sync)];
        let (earlier, later) = if last.1 < number { (*last, (bio, number)) } else { ((bio, number), *last) };
        *last = later;
        let (before, bio) = (earlier.0, later.0);
        if before <= bio || bio <= self.sorted_until {
            return Ok(());
        }
        let what = format!("operation {before} came into the scheduler before {bio}, which was submitted earlier");
        Err(Violation::new(RULE, what).bio(before).bio(bio).request(rq))
    }

    /// Called when an operation is over, so that its request is certainly known.
    fn over(&mut self, bio: u64, rq: RqId, status: Status, tracker: &Tracker) -> Verdict {
        let Some(operation) = tracker.operation(bio) else { return Ok(()) };
        let asked = operation.asked;
        let is_alone = asked.flags.nomerge || is_fua(&asked, &tracker.limits);
        let is_never = is_alone || self.nomerges.was_always(operation.at.step, |level| level == MergeLevel::Never);
        let what = tracker.info(rq).and_then(|info| self.judge_info(operation, info, is_alone)).or_else(|| {
            let is_judged = is_never && status.is_ok() && asked.op != Op::Flush;
            if is_judged { judge_alone(&asked, rq, tracker) } else { None }
        });
        what.map_or(Ok(()), |what| {
            let what = format!("{}, which operation {bio} became, {what}", Request(rq));
            Err(Violation::new(RULE, what).bio(bio).request(rq))
        })
    }

    fn judge_info(&mut self, operation: &Operation, info: &Info, is_alone: bool) -> Option<String> {
        let &Operation { submitter, asked, at: Stamp { step, .. }, .. } = operation;
        if (info.op, info.priority) != (asked.op, asked.priority) {
            return Some(format!("came into the scheduler as {}, and it was {asked}", FastRequest(info)));
        }
        let Asked { op, sector, flags, .. } = asked;
        let is_sync = op == Op::Read || flags.sync || flags.fua || flags.preflush;
        if info.sync != is_sync {
            return Some(format!("came into the scheduler with sync={}, and it was {asked}", info.sync));
        }
        // A request with several ranges may begin with any of them.
        let is_within = info.sector <= sector && sector < info.sector + u64::from(info.nr_sectors);
        if op != Op::Discard && !is_within {
            return Some(format!("came into the scheduler at {}+{}, and it was {asked}", info.sector, info.nr_sectors));
        }
        let wrong_alone = is_alone && info.merge != MergeLevel::Never;
        if wrong_alone || !is_alone && self.nomerges.was_always(step, |level| level != info.merge) {
            return Some(format!("came into the scheduler as one that merges {:?}, and it was {asked}", info.merge));
        }
        self.judge_client(submitter, info.client)
    }

    fn joined(&mut self, submitter: u16, tenant: u16) {
        self.submitter(submitter).tenant = tenant;
        self.tenants.entry(tenant).or_default().nr_submitters += 1;
    }

    /// Called when a submitter begins to leave and may be gone at any time. With the last submitter of a tenant its
    /// client goes.
    fn leaving(&mut self, submitter: u16) {
        let tenant = self.submitter(submitter).tenant;
        if let Some(tenant) = self.tenants.get_mut(&tenant) {
            tenant.nr_submitters = tenant.nr_submitters.saturating_sub(1);
            if tenant.nr_submitters == 0 {
                tenant.client = None;
            }
        }
    }

    /// A tenant is one client while submitters serve it. No two tenants have the same client, not even one after the
    /// other.
    fn judge_client(&mut self, submitter: u16, client: ClientId) -> Option<String> {
        let tenant = self.submitter(submitter).tenant;
        let owner = *self.owners.entry(client).or_insert(tenant);
        if owner != tenant {
            return Some(format!("came as of client {}, and so did those of tenant {owner}, not {tenant}", client.0));
        }
        let known = *self.tenants.entry(tenant).or_default().client.get_or_insert(client);
        (known != client).then(|| format!("came as of client {}, and tenant {tenant} is client {}", client.0, known.0))
    }
}

/// Whether the device itself makes the operation's data durable.
const fn is_fua(asked: &Asked, limits: &Limits) -> bool {
    asked.flags.fua && limits.fua && !matches!(asked.op, Op::Read)
}

/// Checks that the operation reached the device as a request of its own, whole or split.
fn judge_alone(asked: &Asked, rq: RqId, tracker: &Tracker) -> Option<String> {
    let Some(offer) = tracker.offer(rq) else {
        let is_past = tracker.is_offer_past(rq);
        return (!is_past).then(|| format!("had to stay alone as {asked}, and joined another"));
    };
    let (sector, nr_sectors) = (offer.ranges.first().map_or(u64::MAX, |range| range.0), offer.nr_sectors());
    let is_own = sector == asked.sector && nr_sectors <= asked.nr_sectors;
    (!is_own).then(|| format!("had to stay alone as {asked}, and reached the device as {sector}+{nr_sectors}"))
}

impl Checker for Arrivals {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Joined { submitter, tenant, .. } => self.joined(submitter, tenant),
            Event::Leaving { submitter } => self.leaving(submitter),
            Event::PassedOn { submitter } => self.submitter(submitter).passed_on = at.step,
            Event::Submitted { bio, .. } => self.latest = bio,
            Event::Named { bio, id, .. } => {
                *self.names.entry(id) = Some((id, bio));
                return self.judge_order(bio, id, tracker);
            }
            Event::Reaped { bio, id, status, .. } => return self.over(bio, id, status, tracker),
            Event::Inserted { rq, .. } => return self.inserted(rq, tracker),
            Event::Installed { .. } => {
                let was_split = std::mem::replace(&mut self.is_split, tracker.is_split());
                self.sorted_until = if was_split { self.latest } else { self.sorted_until };
            }
            Event::Changed { control: Control::Topology(..), phase: Phase::Done } if self.is_split => {
                self.sorted_until = self.latest;
            }
            Event::Changed { control: Control::QueueKnob("nomerges", value), phase } => {
                self.nomerges.changed(at.step, value, phase);
            }
            _ => {}
        }
        Ok(())
    }
}
