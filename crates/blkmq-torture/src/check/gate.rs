//! A request bypasses the scheduler only while it may, and strict classes stay strict whichever request bypasses.
//!
//! Nothing bypasses the scheduler while bypassing is switched off, or while the scheduler lets no request of that class
//! and client pass. The operation of a request that bypasses was not submitted after the scheduler had held back a
//! request that still waits. If each hardware queue has a value of the scheduler, this holds for each hardware queue. A
//! request that waits because there is no tag is not told. `loom::gate` and the test `gate` of the block layer look at
//! such.
//!
//! Under a scheduler with strict classes no request is chosen while a request of a higher class is not over and has
//! either come into the scheduler, or has bypassed it and was offered to the device. There are two exceptions: a
//! request that goes to the head, and a request that has waited for `prio_aging_expire`.
//!
//! The moment at which a request decides to bypass is not told. That moment comes after the operation of the request
//! was submitted. Other threads see that a request is held back at the latest when the CPU that was told so does
//! something else.

use std::collections::VecDeque;

use blkmq_sched::{Class, Description, InsertAt, Op, RqId, Time};

use super::super::event::{Action, Asked, Control, Event, Phase, Stamp};
use super::super::settings::orders_one_hctx;
use super::super::text::Request;
use super::answers::Answers;
use super::book::Book;
use super::flushing::Flushing;
use super::table::{Table, grown};
use super::{Checker, Facts, Violation};

const RULE: &str = "gate";

/// The value of `prio_aging_expire` until it is set, in ns.
const AGING_NS: u64 = 10_000_000_000;

/// A request that is not over.
#[derive(Debug, Clone, Copy)]
struct Known {
    class: Class,
    /// The value of the scheduler into which the request came, if it came into one.
    value: u16,
    at: InsertAt,
    /// When the request came into the scheduler: the time that the scheduler was told, and the step.
    since: Time,
    step: u64,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    /// Chosen, or with the device.
    Gone,
    /// The request never came into the scheduler.
    Passed,
    Over,
}

#[derive(Debug)]
struct Operation {
    submitter: u16,
    asked: Asked,
    step: u64,
}

/// One value of the scheduler.
#[derive(Debug, Default)]
struct Value {
    /// The hardware queue that it is for, if it is for one and a request has shown which.
    hctx: Option<u16>,
    /// The requests that wait, in the order in which they came, each with the step since which other threads see that
    /// it is held back. Some of the entries do not wait any more.
    waiting: VecDeque<(RqId, Option<u64>)>,
}

/// How long requests wait before they pass higher classes.
#[derive(Debug)]
struct Aging {
    ns: u64,
    coming: Option<u64>,
    /// The time until which another value was being set. Until then the age of a request is not certain.
    blurred: u64,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Gate {
    has_scheduler: bool,
    has_classes: bool,
    bypass: bool,
    flushing: Flushing,
    operations: Book<Operation>,
    names: Table<u64>,
    requests: Table<Known>,
    /// Requests of each class that are not over.
    nr_open: [u64; 3],
    values: Vec<Value>,
    /// Each hardware queue has a value of the scheduler.
    is_split: bool,
    /// The values that held back what they had, as other threads may not see yet: the CPU that was told so, the value,
    /// and the step.
    unseen: Vec<(u16, u16, u64)>,
    aging: Aging,
    answers: Answers,
}

impl Gate {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            has_scheduler: false,
            has_classes: false,
            bypass: facts.bypass,
            flushing: Flushing::new(facts.limits),
            operations: Book::new(),
            names: Table::new(),
            requests: Table::new(),
            nr_open: [0; 3],
            values: Vec::new(),
            is_split: false,
            unseen: Vec::new(),
            aging: Aging { ns: AGING_NS, coming: None, blurred: 0 },
            answers: Answers::default(),
        }
    }

    fn changed(&mut self, step: u64, control: Control, phase: Phase) {
        match (control, phase) {
            (Control::Bypass(bypass), Phase::Done) => self.bypass = bypass,
            (Control::Knob("prio_aging_expire", ms), phase) => {
                let ns = ms.unsigned_abs() * 1_000_000;
                self.aging.coming = (phase == Phase::Begun).then_some(ns);
                if phase == Phase::Done {
                    self.aging.ns = ns;
                }
            }
            (Control::Knob("read_expire" | "write_expire", _), phase) => {
                self.aging.blurred = if phase == Phase::Begun { u64::MAX } else { step };
            }
            _ => {}
        }
    }

    /// Notes what other threads see by now.
    fn note_seen(&mut self, at: Stamp, event: &Event<'_>) {
        let is_another_step = matches!(
            event,
            Event::Chosen { .. }
                | Event::HeldBack { .. }
                | Event::PassedOn { .. }
                | Event::Submitted { .. }
                | Event::Reaped { .. }
        );
        if !is_another_step {
            return;
        }
        let Self { values, requests, unseen, .. } = self;
        unseen.retain(|(cpu, value, step)| {
            if *cpu == at.cpu {
                let was_there = |rq| requests.get(rq).is_some_and(|known| known.step < *step);
                let waiting = values[usize::from(*value)].waiting.iter_mut().filter(|(rq, _)| was_there(*rq));
                waiting.for_each(|(_, seen)| _ = seen.get_or_insert(at.step));
            }
            *cpu != at.cpu
        });
        if let Event::HeldBack { value, .. } = *event {
            self.value(value);
            self.unseen.push((at.cpu, value, at.step));
        }
    }

    fn value(&mut self, value: u16) -> &mut Value {
        grown(&mut self.values, value, Value::default)
    }

    fn inserted(&mut self, rq: RqId, known: Known) {
        let Known { class, value, .. } = known;
        if self.requests.get(rq).is_none() {
            self.nr_open[class.index()] += 1;
        }
        *self.requests.entry(rq) = Some((rq, known));
        self.value(value).waiting.push_back((rq, None));
    }

    fn absorbed(&mut self, into: RqId, absorbed: RqId) {
        let Some(other) = self.requests.get(absorbed).copied() else { return };
        self.over(absorbed);
        if let Some(known) = self.requests.get_mut(into) {
            (known.since, known.step) = (known.since.min(other.since), known.step.min(other.step));
        }
    }

    fn over(&mut self, rq: RqId) {
        if let Some(known) = self.requests.get_mut(rq)
            && known.place != Place::Over
        {
            known.place = Place::Over;
            self.nr_open[known.class.index()] -= 1;
        }
    }

    fn chosen(&mut self, rq: RqId, now: Time) -> Result<(), Violation> {
        let Some(known) = self.requests.get_mut(rq) else { return Ok(()) };
        known.place = Place::Gone;
        let Known { class, at, since, step, .. } = *known;
        if !self.has_classes || at == InsertAt::Head || self.nr_open[..class.index()].iter().all(|open| *open == 0) {
            return Ok(());
        }
        let Aging { ns, coming, blurred } = self.aging;
        if now.since(since) >= coming.map_or(ns, |coming| ns.min(coming)) || step <= blurred {
            return Ok(());
        }
        let is_higher = |known: &Known| known.place != Place::Over && known.class.index() < class.index();
        let Some((higher, known)) = self.requests.iter().find(|(_, known)| is_higher(known)) else { return Ok(()) };
        let how = if known.place == Place::Passed { "passed the scheduler" } else { "came into the scheduler" };
        let what = format!(
            "{} of class {class:?} was chosen while {} of class {:?}, which {how}, is not over",
            Request(rq),
            Request(higher),
            known.class
        );
        Err(Violation::new(RULE, what).request(rq).request(higher))
    }

    /// The step at which the operation of a request was submitted, or an earlier step, and the operation's class.
    /// `None` if they are not known.
    fn origin(&self, rq: RqId, op: Op, sector: u64, data: &[u64]) -> Option<(u64, Class)> {
        let of = |operation: &Operation| (operation.step, operation.asked.priority.class);
        if let Some(bio) = data.first().or_else(|| self.names.get(rq)) {
            return self.operations.get(*bio).map(of);
        }
        // Any one of the operations that reach this sector.
        let reaches = |Operation { asked, .. }: &&Operation| {
            asked.op == op && (asked.sector..asked.sector.saturating_add(asked.nr_sectors)).contains(&sector)
        };
        let mut found = self.operations.iter().map(|(_, operation)| operation).filter(reaches).map(of);
        let first = found.next()?;
        found.all(|(_, class)| class == first.1).then_some(first)
    }

    fn passed(&mut self, rq: RqId, hctx: u16, op: Op, sector: u64, data: &[u64]) -> Result<(), Violation> {
        if !self.bypass {
            let what = format!("{} passed the scheduler, and none may", Request(rq));
            return Err(Violation::new(RULE, what).request(rq));
        }
        let Some((step, class)) = self.origin(rq, op, sector, data) else { return Ok(()) };
        if !self.answers.have_let_pass(rq, class, step) {
            let what = format!(
                "{} of class {class:?} passed the scheduler, which let none of its class and client pass since it was \
                 submitted",
                Request(rq)
            );
            return Err(Violation::new(RULE, what).request(rq));
        }
        let known = Known { class, value: 0, at: InsertAt::Sorted, since: Time(0), step, place: Place::Passed };
        *self.requests.entry(rq) = Some((rq, known));
        self.nr_open[class.index()] += 1;
        let waits = |rq| self.requests.get(rq).is_some_and(|known| known.place == Place::Waiting);
        let is_split = self.is_split;
        let Some(value) = self.values.iter_mut().find(|value| !is_split || value.hctx == Some(hctx)) else {
            return Ok(());
        };
        while value.waiting.front().is_some_and(|(rq, _)| !waits(*rq)) {
            value.waiting.pop_front();
        }
        match value.waiting.front() {
            Some(&(first, Some(seen))) if seen < step => {
                let what = format!(
                    "{} passed the scheduler, and {} was held back there before the other was submitted",
                    Request(rq),
                    Request(first)
                );
                Err(Violation::new(RULE, what).request(rq).request(first))
            }
            _ => Ok(()),
        }
    }
}

impl Checker for Gate {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        self.flushing.see(event);
        self.note_seen(at, event);
        self.answers.see(at.step, event);
        match *event {
            Event::Submitted { submitter, bio, asked, .. } => {
                self.operations.begin(bio, Operation { submitter, asked, step: at.step });
            }
            Event::Named { bio, id, .. } => *self.names.entry(id) = Some((id, bio)),
            Event::Reaped { bio, .. } | Event::HandedBack { bio, .. } | Event::Rejected { bio, .. } => {
                self.operations.end(bio);
            }
            Event::Left { submitter, .. } => {
                let theirs = self.operations.those(|operation| operation.submitter == submitter);
                theirs.into_iter().for_each(|bio| _ = self.operations.end(bio));
            }
            Event::Installed { scheduler } => {
                self.has_scheduler = scheduler.is_some();
                self.has_classes = scheduler.and_then(Description::named).is_some_and(|known| known.has_strict_classes);
                self.is_split = scheduler.is_some_and(orders_one_hctx);
                (self.values, self.unseen) = (Vec::new(), Vec::new());
                self.aging = Aging { ns: AGING_NS, coming: None, blurred: at.step };
            }
            Event::Inserted { value, rq, info, at: how, now } => {
                let (class, step) = (info.priority.class, at.step);
                let known = Known { class, value, at: how, since: now, step, place: Place::Waiting };
                self.inserted(rq, known);
            }
            Event::Absorbed { into, absorbed } => self.absorbed(into, absorbed),
            Event::Chosen { rq, now } => return self.chosen(rq, now),
            Event::Offered { rq, hctx, op, sector, data, .. }
                if self.has_scheduler && self.requests.get(rq).is_none() && !self.flushing.takes(rq, sector, data) =>
            {
                return self.passed(rq, hctx, op, sector, data);
            }
            Event::Offered { rq, hctx, .. } if self.is_split => {
                let known = self.requests.get(rq).filter(|known| known.place == Place::Gone);
                if let Some(value) = known.map(|known| known.value) {
                    self.value(value).hctx = Some(hctx);
                }
            }
            Event::Acted { rq, action: Action::FinishedAtOnce(_) | Action::Completed(_) | Action::GaveUp } => {
                self.over(rq);
            }
            Event::Changed { control, phase } => self.changed(at.step, control, phase),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::{ClientId, Info, IoPriority, MergeHow, Passing};
    use blkmq_virtual::Status;

    use super::super::testing::*;
    use super::*;

    fn told() -> Told<Gate> {
        let mut told = Told::new(Gate::new(&Facts { bypass: true, ..FACTS }));
        told.good(Event::Installed { scheduler: Some("mq-deadline") });
        Class::ALL.into_iter().for_each(|class| answer(&mut told, class, ClientId(0), Passing::All));
        told
    }

    fn answer(told: &mut Told<Gate>, class: Class, client: ClientId, passing: Passing) {
        told.good(Event::Gated { class, client, passing });
    }

    const fn rq(slot: u64) -> RqId {
        id(1, slot, 0)
    }

    fn of(class: Class) -> IoPriority {
        IoPriority { class, level: 0 }
    }

    /// An operation of a slot is submitted and has its name.
    fn submit(told: &mut Told<Gate>, slot: u64, class: Class) {
        told.good(submitted(slot, Asked { priority: of(class), ..asked(Op::Read, 8 * slot, 8) }));
        told.good(Event::Named { submitter: 1, bio: slot, id: rq(slot) });
    }

    fn insert(slot: u64, class: Class) -> Event<'static> {
        inserted(rq(slot), Info { priority: of(class), ..info(Op::Read, 8 * slot, 8) }, 0)
    }

    fn offer(slot: u64) -> Event<'static> {
        offered(rq(slot), Op::Read, 8 * slot, 8, &[])
    }

    #[test]
    fn nothing_passes_while_that_is_switched_off() {
        let bypass = |phase| changed(Control::Bypass(false), phase);
        let mut told = told();
        submit(&mut told, 1, Class::BestEffort);
        told.good(bypass(Phase::Begun)).good(bypass(Phase::Done)).bad(offer(1), "passed the scheduler, and none may");
        told.good(Event::Installed { scheduler: None }).good(offer(1));
        let mut told = self::told();
        submit(&mut told, 1, Class::BestEffort);
        told.good(offer(1)).good(acted(rq(1), Action::GivenBack));
        // The request has bypassed the scheduler already.
        told.good(bypass(Phase::Begun)).good(bypass(Phase::Done)).good(offer(1));
    }

    #[test]
    fn nothing_passes_that_the_scheduler_does_not_let_pass() {
        let mut told = told();
        answer(&mut told, Class::BestEffort, ClientId(0), Passing::Nobody);
        submit(&mut told, 1, Class::BestEffort);
        told.bad(offer(1), "request 1/1.0 of class BestEffort passed the scheduler, which let none of its class and");
    }

    /// Request 1 waits in the scheduler, and CPU 1 is next.
    fn waits() -> Told<Gate> {
        let mut told = told();
        submit(&mut told, 1, Class::BestEffort);
        told.good(insert(1, Class::BestEffort));
        told
    }

    /// The same, and the scheduler has held it back.
    fn is_held_back() -> Told<Gate> {
        let mut told = waits();
        told.good(HELD_BACK).good(HELD_BACK);
        told.cpu = 1;
        told
    }

    const HELD_BACK: Event<'static> = Event::HeldBack { value: 0, waiting: 1, now: Time(0), wakeup: None };

    #[test]
    fn nothing_passes_what_was_held_back_when_it_was_submitted() {
        let mut told = is_held_back();
        submit(&mut told, 2, Class::BestEffort);
        told.bad(offer(2), "request 1/1.0 was held back there before the other was submitted");
        // A thread is about to look for what the request needs.
        let mut told = waits();
        submit(&mut told, 2, Class::BestEffort);
        told.good(offer(2));
        // Other threads may not see yet that it is held back.
        let mut told = waits();
        told.good(HELD_BACK);
        told.cpu = 1;
        submit(&mut told, 2, Class::BestEffort);
        told.good(offer(2));
        // The operation was submitted before, or the other request waits no more.
        let mut told = self::told();
        submit(&mut told, 2, Class::BestEffort);
        told.good(insert(1, Class::BestEffort)).good(HELD_BACK).good(HELD_BACK).good(offer(2));
        let mut told = is_held_back();
        submit(&mut told, 2, Class::BestEffort);
        told.good(chosen(rq(1), 0)).good(offer(2));
    }

    #[test]
    fn of_a_request_without_a_name_the_operations_that_reach_there_say_when_it_was_submitted() {
        let mut told = is_held_back();
        told.good(submitted(2, asked(Op::Write, 16, 8)));
        told.bad(offered(rq(2), Op::Write, 16, 8, &[2; 8]), "request 1/1.0 was held back there");
        told.good(submitted(3, asked(Op::Read, 24, 8))).bad(offer(3), "request 1/1.0 was held back there");
        // The request may belong to either operation.
        let priority = of(Class::Idle);
        told.good(submitted(4, asked(Op::Read, 32, 8)));
        told.good(submitted(5, Asked { priority, ..asked(Op::Read, 32, 8) })).good(offer(4));
    }

    /// One real-time request has bypassed the scheduler, and one best-effort request waits.
    fn two_classes() -> Told<Gate> {
        let mut told = told();
        submit(&mut told, 1, Class::RealTime);
        told.good(offer(1)).good(started(rq(1))).good(insert(2, Class::BestEffort));
        told
    }

    #[test]
    fn classes_stay_strict() {
        let says =
            "request 1/2.0 of class BestEffort was chosen while request 1/1.0 of class RealTime, which passed the";
        two_classes().bad(chosen(rq(2), 0), says);
        two_classes().good(acted(rq(1), Action::GivenBack)).bad(chosen(rq(2), 0), says);
        two_classes().good(completed(rq(1), Status::Ok)).good(chosen(rq(2), 0));
        two_classes().good(acted(rq(1), Action::GaveUp)).good(chosen(rq(2), 0));
        two_classes().good(insert(3, Class::RealTime)).good(chosen(rq(3), 0));
        let mut told = two_classes();
        told.good(completed(rq(1), Status::Ok)).good(insert(3, Class::RealTime)).good(chosen(rq(3), 0));
        told.bad(chosen(rq(2), 0), "request 1/3.0 of class RealTime, which came into the");
        // The request of a higher class has joined another request, so it is no longer there.
        let mut told = two_classes();
        told.good(completed(rq(1), Status::Ok)).good(insert(3, Class::RealTime)).good(insert(4, Class::RealTime));
        told.good(Event::Merged { into: rq(3), info: info(Op::Read, 0, 8), how: MergeHow::Back });
        told.good(Event::Absorbed { into: rq(3), absorbed: rq(4) }).good(chosen(rq(3), 0));
        told.good(completed(rq(3), Status::Ok)).good(chosen(rq(2), 0));
    }

    #[test]
    fn what_is_old_or_goes_to_the_head_passes_higher_classes() {
        two_classes().good(chosen(rq(2), AGING_NS));
        two_classes().bad(chosen(rq(2), AGING_NS - 1), "BestEffort was chosen while");
        let knob = |name, ms, phase| changed(Control::Knob(name, ms), phase);
        let mut told = two_classes();
        told.good(knob("prio_aging_expire", 1, Phase::Begun)).good(chosen(rq(2), 1_000_000));
        let mut told = two_classes();
        told.good(knob("prio_aging_expire", 1, Phase::Begun)).good(knob("prio_aging_expire", 1, Phase::Refused));
        told.bad(chosen(rq(2), 1_000_000), "BestEffort was chosen while");
        let mut told = two_classes();
        told.good(knob("prio_aging_expire", 1, Phase::Begun)).good(knob("prio_aging_expire", 1, Phase::Done));
        told.good(chosen(rq(2), 1_000_000));
        // By how much this change ages the request is not certain.
        two_classes().good(knob("read_expire", 1, Phase::Begun)).good(chosen(rq(2), 0));
        let mut told = two_classes();
        told.good(knob("read_expire", 1, Phase::Begun)).good(insert(3, Class::BestEffort));
        told.good(knob("read_expire", 1, Phase::Done)).good(insert(4, Class::BestEffort)).good(chosen(rq(3), 0));
        told.bad(chosen(rq(4), 0), "BestEffort was chosen while");
        let info = Info { priority: of(Class::Idle), ..info(Op::Read, 0, 8) };
        let at_head = Event::Inserted { value: 0, rq: rq(3), info, at: InsertAt::Head, now: Time(0) };
        two_classes().good(at_head).good(chosen(rq(3), 0));
    }
}
