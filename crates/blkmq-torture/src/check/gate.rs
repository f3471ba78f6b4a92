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

use std::collections::{BTreeMap, VecDeque};

use blkmq_sched::{Class, ClientId, Description, InsertAt, Op, Passing, RqId, Time};

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::super::text::Request;
use super::table::{Table, grown, pool};
use super::tracker::{Operation, Tracker};
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "gate";

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
    /// The step until which another value was being set. Until then the age of a request is not certain.
    blurred: u64,
}

impl Default for Aging {
    fn default() -> Self {
        Self { ns: AGING_NS, coming: None, blurred: 0 }
    }
}

/// How many of the latest answers about a class are kept.
const MOST: usize = 4096;

/// The scheduler's answers to the question whether requests may bypass it.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// By class, each with its step: the client that was asked about, and the answer.
    of_class: [VecDeque<(u64, ClientId, Passing)>; 3],
    /// The client of each pool of slots, as far as a request has shown it since a submitter last joined.
    clients: BTreeMap<u16, ClientId>,
}

impl Answers {
    /// Follows an event.
    pub(super) fn see(&mut self, step: u64, event: &Event<'_>) {
        match *event {
            Event::Gated { class, client, passing } => {
                let answers = &mut self.of_class[class.index()];
                if answers.len() == MOST {
                    answers.pop_front();
                }
                answers.push_back((step, client, passing));
            }
            // The pool may be that of a submitter that left.
            Event::Joined { .. } => self.clients.clear(),
            Event::Inserted { rq, info, .. } => _ = self.clients.insert(pool(rq), info.client),
            _ => {}
        }
    }

    /// Whether the scheduler let a request of this class pass at some time since this step.
    pub(super) fn have_let_pass(&self, rq: RqId, class: Class, step: u64) -> bool {
        let client = self.clients.get(&pool(rq));
        let allows = |(_, asked, passing): &(u64, ClientId, Passing)| match passing {
            Passing::Nobody => false,
            Passing::Client => client.is_none_or(|client| client == asked),
            Passing::All => true,
        };
        let answers = &self.of_class[class.index()];
        // The last answer before that step held then.
        let first = answers.partition_point(|(answered, ..)| *answered <= step);
        let is_forgotten = first == 0 && answers.len() == MOST;
        is_forgotten || answers.range(first.saturating_sub(1)..).any(allows)
    }
}

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Gate {
    has_classes: bool,
    /// The operation that each request began as.
    names: Table<u64>,
    requests: Table<Known>,
    /// Requests of each class that are not over.
    nr_open: [u64; 3],
    values: Vec<Value>,
    /// The values that held back what they had, as other threads may not see yet: the CPU that was told so, the value,
    /// and the step.
    unseen: Vec<(u16, u16, u64)>,
    aging: Aging,
    answers: Answers,
}

impl Gate {
    fn changed(&mut self, step: u64, control: Control, phase: Phase) {
        match (control, phase) {
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

    fn chosen(&mut self, rq: RqId, now: Time) -> Verdict {
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
    fn origin(&self, rq: RqId, op: Op, sector: u64, data: &[u64], tracker: &Tracker) -> Option<(u64, Class)> {
        let of = |operation: &Operation| (operation.at.step, operation.asked.priority.class);
        if let Some(bio) = data.first().or_else(|| self.names.get(rq)) {
            return tracker.operation(*bio).map(of);
        }
        // Any one of the operations that reach this sector.
        let reaches = |operation: &&Operation| {
            operation.asked.op == op && (operation.asked.sector..operation.end()).contains(&sector)
        };
        let mut found = tracker.operations().map(|(_, operation)| operation).filter(reaches).map(of);
        let first = found.next()?;
        found.all(|(_, class)| class == first.1).then_some(first)
    }

    fn passed(&mut self, rq: RqId, hctx: u16, origin: Option<(u64, Class)>, tracker: &Tracker) -> Verdict {
        if !tracker.bypass {
            let what = format!("{} passed the scheduler, and none may", Request(rq));
            return Err(Violation::new(RULE, what).request(rq));
        }
        let Some((step, class)) = origin else { return Ok(()) };
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
        let is_split = tracker.is_split();
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
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        self.note_seen(at, event);
        self.answers.see(at.step, event);
        match *event {
            Event::Named { bio, id, .. } => *self.names.entry(id) = Some((id, bio)),
            Event::Installed { scheduler } => {
                self.has_classes = scheduler.and_then(Description::named).is_some_and(|known| known.has_strict_classes);
                (self.values, self.unseen) = (Vec::new(), Vec::new());
                self.aging = Aging { blurred: at.step, ..Aging::default() };
            }
            Event::Inserted { value, rq, info, at: how, now } => {
                let (class, step) = (info.priority.class, at.step);
                let known = Known { class, value, at: how, since: now, step, place: Place::Waiting };
                self.inserted(rq, known);
            }
            Event::Absorbed { into, absorbed } => self.absorbed(into, absorbed),
            Event::Chosen { rq, now } => return self.chosen(rq, now),
            Event::Offered { rq, hctx, op, sector, data, .. } if tracker.is_bypass => {
                let origin = self.origin(rq, op, sector, data, tracker);
                return self.passed(rq, hctx, origin, tracker);
            }
            Event::Offered { rq, hctx, .. } if tracker.is_split() => {
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
