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
use blkmq_virtual::{Limits, Locking, Status};

use super::super::event::{Asked, Control, Event, Phase, Stamp};
use super::super::settings::{orders_one_hctx, takes_all};
use super::super::text::{FastRequest, Request};
use super::book::Book;
use super::table::{Table, grown, pool};
use super::{Checker, Facts, Violation};

const RULE: &str = "arrivals";

#[derive(Debug, Clone, Copy)]
struct Operation {
    submitter: u16,
    asked: Asked,
    step: u64,
}

/// A request as it came into the scheduler, and the number of requests that had come before it.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    info: Info,
    value: u16,
    number: u64,
}

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
#[derive(Debug)]
struct NoMerges {
    level: MergeLevel,
    coming: Option<MergeLevel>,
    /// Earlier values of the knob, each with the step until which it held.
    before: Vec<(u64, MergeLevel)>,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Arrivals {
    limits: Limits,
    locking: Locking,
    operations: Book<Operation>,
    submitters: Vec<Submitter>,
    /// The tenants by number.
    tenants: BTreeMap<u16, Tenant>,
    /// The tenant that each client belongs to, also after the client is gone. A request with the id of a client that is
    /// gone is taken for that client's.
    owners: BTreeMap<ClientId, u16>,
    nomerges: NoMerges,
    names: Table<u64>,
    arrivals: Table<Arrival>,
    nr_arrivals: u64,
    /// Each hardware queue has a value of the scheduler.
    is_split: bool,
    /// The operation submitted last, and the last one of those that a submitter may have sorted by other hardware
    /// queues.
    latest: u64,
    sorted_until: u64,
    /// First sector and length of a request as the device was offered it.
    offers: Table<(u64, u32)>,
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
        match phase {
            Phase::Begun => self.coming = Some(level(value)),
            Phase::Done => {
                self.before.push((step, self.level));
                (self.level, self.coming) = (level(value), None);
            }
            Phase::Refused => self.coming = None,
        }
    }

    /// Whether all levels since this step satisfy `is_such`.
    fn was_always(&self, step: u64, is_such: impl Fn(MergeLevel) -> bool) -> bool {
        let before = self.before.iter().rev().take_while(|(until, _)| *until >= step).map(|(_, level)| *level);
        before.chain(self.coming).chain([self.level]).all(is_such)
    }
}

impl Arrivals {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            limits: facts.limits,
            locking: facts.locking,
            operations: Book::new(),
            submitters: Vec::new(),
            tenants: BTreeMap::new(),
            owners: BTreeMap::new(),
            nomerges: NoMerges { level: MergeLevel::Full, coming: None, before: Vec::new() },
            names: Table::new(),
            arrivals: Table::new(),
            nr_arrivals: 0,
            is_split: false,
            latest: 0,
            sorted_until: 0,
            offers: Table::new(),
            last: BTreeMap::new(),
        }
    }

    fn submitter(&mut self, submitter: u16) -> &mut Submitter {
        grown(&mut self.submitters, submitter, Submitter::default)
    }

    fn inserted(&mut self, value: u16, rq: RqId, info: Info) -> Result<(), Violation> {
        self.nr_arrivals += 1;
        *self.arrivals.entry(rq) = Some((rq, Arrival { info, value, number: self.nr_arrivals }));
        let Some(&bio) = self.names.get(rq) else { return Ok(()) };
        let Some(&Operation { submitter, asked, step }) = self.operations.get(bio) else { return Ok(()) };
        // Under a locking that takes all, the request may have been left to another CPU, which inserts it later.
        let is_direct = !takes_all(self.locking);
        if is_direct && asked.flags.nowait && step < self.submitter(submitter).passed_on {
            let what = format!("operation {bio} of submitter {submitter} must not wait, and waited for room");
            return Err(Violation::new(RULE, what).bio(bio).request(rq));
        }
        self.judge_order(bio, rq)
    }

    /// Called when the request of an operation is known. Compares it with the last one of the same kind and submitter.
    fn judge_order(&mut self, bio: u64, rq: RqId) -> Result<(), Violation> {
        let Some(&Arrival { info, value, number }) = self.arrivals.get(rq) else { return Ok(()) };
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
    fn over(&mut self, bio: u64, rq: RqId, status: Status) -> Result<(), Violation> {
        let Some(operation) = self.operations.end(bio) else { return Ok(()) };
        let asked = operation.asked;
        let is_alone = asked.flags.nomerge || self.is_fua(&asked);
        let is_never = is_alone || self.nomerges.was_always(operation.step, |level| level == MergeLevel::Never);
        let what = self.judge_info(&operation, rq, is_alone).or_else(|| {
            let is_judged = is_never && status.is_ok() && asked.op != Op::Flush;
            if is_judged { self.judge_alone(&asked, rq) } else { None }
        });
        what.map_or(Ok(()), |what| {
            let what = format!("{}, which operation {bio} became, {what}", Request(rq));
            Err(Violation::new(RULE, what).bio(bio).request(rq))
        })
    }

    /// Whether the device itself makes the operation's data durable.
    const fn is_fua(&self, asked: &Asked) -> bool {
        asked.flags.fua && self.limits.fua && !matches!(asked.op, Op::Read)
    }

    fn judge_info(&mut self, operation: &Operation, rq: RqId, is_alone: bool) -> Option<String> {
        let &Operation { submitter, asked, step } = operation;
        let &Arrival { info, .. } = self.arrivals.get(rq)?;
        if (info.op, info.priority) != (asked.op, asked.priority) {
            return Some(format!("came into the scheduler as {}, and it was {asked}", FastRequest(&info)));
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

    /// Checks that the operation reached the device as a request of its own, whole or cut.
    fn judge_alone(&self, asked: &Asked, rq: RqId) -> Option<String> {
        let &(sector, nr_sectors) = self.offers.get(rq).unwrap_or(&(u64::MAX, 0));
        if sector == asked.sector && u64::from(nr_sectors) <= asked.nr_sectors {
            return None;
        }
        Some(match self.offers.get(rq) {
            Some(_) => format!("had to stay alone as {asked}, and reached the device as {sector}+{nr_sectors}"),
            None if self.offers.is_past(rq) => return None,
            None => format!("had to stay alone as {asked}, and joined another"),
        })
    }
}

impl Checker for Arrivals {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Joined { submitter, tenant, .. } => self.joined(submitter, tenant),
            Event::Leaving { submitter } => self.leaving(submitter),
            Event::PassedOn { submitter } => self.submitter(submitter).passed_on = at.step,
            Event::Submitted { submitter, bio, asked, .. } => {
                self.latest = bio;
                self.operations.begin(bio, Operation { submitter, asked, step: at.step });
            }
            Event::Named { bio, id, .. } => {
                *self.names.entry(id) = Some((id, bio));
                return self.judge_order(bio, id);
            }
            Event::Reaped { bio, id, status, .. } => return self.over(bio, id, status),
            Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => _ = self.operations.end(bio),
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|operation| operation.submitter == submitter);
                theirs.into_iter().for_each(|bio| _ = self.operations.end(bio));
            }
            Event::Inserted { value, rq, info, .. } => return self.inserted(value, rq, info),
            Event::Offered { rq, sector, nr_sectors, .. } => {
                *self.offers.entry(rq) = Some((rq, (sector, nr_sectors)));
            }
            Event::Installed { scheduler } => {
                let was_split = std::mem::replace(&mut self.is_split, scheduler.is_some_and(orders_one_hctx));
                if was_split {
                    self.sorted_until = self.latest;
                }
            }
            Event::Changed { control: Control::Topology(..), phase: Phase::Done } if self.is_split => {
                self.sorted_until = self.latest;
            }
            Event::Changed { control: Control::Locking(locking), phase: Phase::Done } => self.locking = locking,
            Event::Changed { control: Control::QueueKnob("nomerges", value), phase } => {
                self.nomerges.changed(at.step, value, phase);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Class;
    use blkmq_virtual::{Flags, IoPriority};

    use super::super::testing::*;
    use super::*;

    fn told() -> Told<Arrivals> {
        let mut told = Told::new(Arrivals::new(&FACTS));
        told.good(Event::Joined { submitter: 1, nr_slots: 16, tenant: 3 });
        told
    }

    fn with(op: Op, flags: Flags) -> Asked {
        Asked { flags, ..asked(op, 8, 8) }
    }

    /// Tells that an operation comes into the scheduler, and that it is over. The first event that breaks a promise is
    /// the result.
    fn came(told: &mut Told<Arrivals>, asked: Asked, info: Info) -> Result<(), Violation> {
        let rq = id(1, 0, 0);
        told.good(submitted(1, asked)).good(inserted(rq, info, 0)).good(Event::Named { submitter: 1, bio: 1, id: rq });
        told.good(offered(rq, asked.op, info.sector, info.nr_sectors, &[]));
        told.tell(reaped(1, rq, Status::Ok))
    }

    fn good(asked: Asked, info: Info) {
        came(&mut told(), asked, info).expect("it is right");
    }

    fn bad(asked: Asked, info: Info, says: &str) {
        let what = came(&mut told(), asked, info).expect_err("it is wrong").what;
        assert!(what.contains("request 1/0.0, which operation 1 became") && what.contains(says), "{what}");
    }

    #[test]
    fn a_request_is_what_was_asked_for() {
        let (read, write) = (info(Op::Read, 8, 8), info(Op::Write, 8, 8));
        let sync = Flags { sync: true, ..Flags::NONE };
        good(with(Op::Read, Flags::NONE), read);
        // More operations joined it in the plug, also in front of it.
        good(with(Op::Read, Flags::NONE), info(Op::Read, 4, 16));
        good(with(Op::Write, Flags::NONE), write);
        good(with(Op::Write, sync), Info { sync: true, ..write });
        good(with(Op::Write, Flags { fua: true, ..Flags::NONE }), Info { sync: true, ..write });
        bad(with(Op::Read, Flags::NONE), Info { op: Op::Write, ..read }, "came into the scheduler as ");
        bad(with(Op::Read, Flags::NONE), Info { sync: false, ..read }, "sync=false, and it was read 8+8");
        bad(with(Op::Write, sync), write, "sync=false");
        bad(with(Op::Write, Flags::NONE), info(Op::Write, 9, 8), "at 9+8, and it was write 8+8");
        let priority = IoPriority { class: Class::Idle, level: 2 };
        bad(Asked { priority, ..with(Op::Read, Flags::NONE) }, read, "came into the scheduler as ");
        good(Asked { priority, ..with(Op::Read, Flags::NONE) }, Info { priority, ..read });
    }

    #[test]
    fn a_tenant_is_one_client() {
        let mut told = told();
        came(&mut told, with(Op::Read, Flags::NONE), info(Op::Read, 8, 8)).expect("it is the first");
        let again = |told: &mut Told<Arrivals>, bio, submitter, client| {
            let rq = id(1, 0, bio);
            let asked = with(Op::Read, Flags::NONE);
            told.good(Event::Submitted { submitter, bio, asked, pieces: &[4096] });
            told.good(inserted(rq, Info { client: ClientId(client), ..info(Op::Read, 8, 8) }, 0));
            told.tell(reaped(bio, rq, Status::Ok)).map_err(|violation| violation.what)
        };
        assert_eq!(again(&mut told, 2, 1, 0), Ok(()));
        assert!(again(&mut told, 3, 1, 7).unwrap_err().contains("client 7, and tenant 3 is client 0"));
        told.good(Event::Joined { submitter: 2, nr_slots: 16, tenant: 1 });
        assert!(again(&mut told, 4, 2, 0).unwrap_err().contains("those of tenant 3, not 1"));
        assert_eq!(again(&mut told, 5, 2, 1), Ok(()));
        // Another submitter of the tenant is there, so the client stays. Without any submitter, the tenant comes back
        // as another client.
        told.good(Event::Joined { submitter: 3, nr_slots: 16, tenant: 1 }).good(Event::Leaving { submitter: 2 });
        assert!(again(&mut told, 6, 3, 8).unwrap_err().contains("client 8, and tenant 1 is client 1"));
        told.good(Event::Leaving { submitter: 3 }).good(Event::Joined { submitter: 3, nr_slots: 16, tenant: 1 });
        assert_eq!(again(&mut told, 7, 3, 9), Ok(()));
        told.good(Event::Joined { submitter: 4, nr_slots: 16, tenant: 2 });
        assert!(again(&mut told, 8, 4, 1).unwrap_err().contains("those of tenant 1, not 2"));
    }

    #[test]
    fn what_must_stay_alone_does() {
        let nomerge = Flags { nomerge: true, ..Flags::NONE };
        let never = |info: Info| Info { merge: MergeLevel::Never, ..info };
        good(with(Op::Read, nomerge), never(info(Op::Read, 8, 8)));
        bad(with(Op::Read, nomerge), info(Op::Read, 8, 8), "merges Full");
        bad(with(Op::Read, Flags::NONE), never(info(Op::Read, 8, 8)), "merges Never");
        bad(with(Op::Read, nomerge), never(info(Op::Read, 8, 9)), "reached the device as 8+9");
        let mut told = told();
        told.good(submitted(1, with(Op::Read, nomerge))).bad(reaped(1, id(1, 0, 0), Status::Ok), "joined another");
    }

    #[test]
    fn the_knob_counts_that_may_have_been_read() {
        let knob = |value, phase| changed(Control::QueueKnob("nomerges", value), phase);
        let read = |merge| Info { merge, ..info(Op::Read, 8, 8) };
        let asked = with(Op::Read, Flags::NONE);
        for (value, merge) in [(0, MergeLevel::Full), (1, MergeLevel::LastOnly), (2, MergeLevel::Never)] {
            let set = || {
                let mut told = told();
                told.good(knob(value, Phase::Begun)).good(knob(value, Phase::Done));
                told
            };
            came(&mut set(), asked, read(merge)).expect("it is as the knob says");
            let other = if value == 0 { MergeLevel::Never } else { MergeLevel::Full };
            came(&mut set(), asked, read(other)).expect_err("it was so before, and is no more");
            let mut told = told();
            told.good(knob(value, Phase::Begun));
            came(&mut told, asked, read(merge)).expect("it may be so already");
        }
        let mut told = told();
        told.good(knob(2, Phase::Begun)).good(knob(2, Phase::Done));
        came(&mut told, asked, Info { nr_sectors: 16, ..read(MergeLevel::Never) }).expect_err("it merged in the plug");
    }

    #[test]
    fn requests_of_a_kind_come_in_the_order_of_their_operations() {
        let named = |bio| Event::Named { submitter: 1, bio, id: id(1, bio, 0) };
        let comes = |slot, info| inserted(id(1, slot, 0), info, 0);
        let three = || {
            let mut told = told();
            for bio in 1..=3 {
                told.good(submitted(bio, with(Op::Write, Flags::NONE)));
            }
            told.good(named(1)).good(named(2));
            told
        };
        let write = info(Op::Write, 8, 8);
        three().good(comes(1, write)).good(comes(2, write)).good(comes(3, write)).good(named(3));
        three().good(comes(2, write)).bad(comes(1, write), "operation 2 came into the scheduler before 1");
        three()
            .good(comes(3, write))
            .good(comes(2, write))
            .bad(named(3), "operation 3 came into the scheduler before 2");
        // A request of another kind, and a request of another pool.
        three().good(comes(2, Info { sync: true, ..write })).good(comes(1, write));
        let idle = IoPriority { class: Class::Idle, level: 0 };
        three().good(comes(2, Info { priority: idle, ..write })).good(comes(1, write));
    }

    #[test]
    fn what_must_not_wait_comes_when_it_is_passed_on() {
        let flags = Flags { nowait: true, ..Flags::NONE };
        let named = Event::Named { submitter: 1, bio: 1, id: id(1, 0, 0) };
        let read = inserted(id(1, 0, 0), info(Op::Read, 8, 8), 0);
        let (passed, by_another) = (Event::PassedOn { submitter: 1 }, Event::PassedOn { submitter: 0 });
        told().good(passed).good(submitted(1, with(Op::Read, flags))).good(named).good(by_another).good(read);
        let mut told = self::told();
        told.good(submitted(1, with(Op::Read, flags))).good(named).good(passed).bad(read, "must not wait, and waited");
        // Another CPU inserts the request later.
        let mut told = self::told();
        told.good(changed(Control::Locking(Locking::Combining), Phase::Done));
        told.good(submitted(1, with(Op::Read, flags))).good(named).good(passed).good(read);
        let mut told = self::told();
        told.good(submitted(1, with(Op::Read, Flags::NONE))).good(named).good(passed).good(read);
    }
}
