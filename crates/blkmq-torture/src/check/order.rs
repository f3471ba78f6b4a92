//! The device gets what the scheduler chose, once, and in the order of the choices.
//!
//! A request comes into the scheduler once, is chosen once, and is offered only after that. A request that the device
//! gives back waits on the dispatch list, or at the scheduler's head. A request that goes to the head is chosen next;
//! of several, the latest first. If each hardware queue has a value of the scheduler, this holds for each value. With
//! one hardware queue, the requests that a CPU chose reach the hardware queue in the order in which that CPU chose
//! them. With several hardware queues, a request whose hardware queue has no tag goes to the dispatch list, and another
//! CPU may take it (see `alone` for the case without another CPU). A request that the device refused comes first when
//! the device is asked again.
//!
//! Under the lockings batch and combining, a holder sends what it chose on its way before it releases the scheduler. So
//! under these lockings, with one hardware queue, the order is exact whichever CPU chose.
//!
//! While requests may bypass the scheduler, a request that never came into the scheduler may be offered. The checker
//! `gate` knows which requests may.
//!
//! Without a scheduler no order is promised: another CPU may take a request from a software queue, and other requests
//! may pass it then.

use std::collections::VecDeque;

use blkmq_sched::{InsertAt, RqId};

use super::super::event::{Action, Event, Stamp};
use super::super::settings::dispatches_in_batches;
use super::table::{Table, grown};
use super::tracker::Tracker;
use super::{Checker, Facts, Verdict, Violation};

pub(super) const RULE: &str = "order";

/// The most requests that a CPU sends to the device in one run.
const RUN_BOUND: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the scheduler.
    Waiting,
    /// The request was chosen, and is in the list of chosen requests with this index.
    Chosen(usize),
    /// The request joined another request.
    Joined,
    /// The request was offered to the device, and the device has it.
    Device,
    /// The request is on its way to the device once more.
    Refused,
    GivenBack,
    Over,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    place: Place,
    /// Where in the scheduler the request was inserted, if it was.
    at: Option<InsertAt>,
    /// The hardware queue that the request was offered on.
    hctx: u16,
}

/// A request that the device gave back, and how many requests that were chosen since then have passed it.
#[derive(Debug)]
struct Passed {
    rq: RqId,
    hctx: u16,
    times: u32,
}

/// One value of the scheduler.
#[derive(Debug, Default)]
struct Value {
    nr_waiting: usize,
    heads: Vec<RqId>,
}

/// This module's checker.
#[derive(Debug)]
pub(super) struct Order {
    is_concurrent: bool,
    requests: Table<Request>,
    /// Whether the operation with this id goes to the head.
    at_head: Table<bool>,
    values: Vec<Value>,
    /// The requests that each CPU chose and that were not offered yet. Where the order is exact, the first list has the
    /// requests of all CPUs.
    chosen: Vec<VecDeque<RqId>>,
    /// The request that each hardware queue was refused last.
    refused: Vec<Option<RqId>>,
    given_back: Vec<Passed>,
}

impl Order {
    pub(super) fn new(facts: &Facts) -> Self {
        Self {
            is_concurrent: facts.is_concurrent,
            requests: Table::new(),
            at_head: Table::new(),
            values: Vec::new(),
            chosen: Vec::new(),
            refused: Vec::new(),
            given_back: Vec::new(),
        }
    }

    fn place(&self, rq: RqId) -> Option<Place> {
        self.requests.get(rq).map(|request| request.place)
    }

    fn move_to(&mut self, rq: RqId, place: Place) {
        if let Some(request) = self.requests.get_mut(rq) {
            request.place = place;
        }
    }

    fn value(&mut self, value: u16) -> &mut Value {
        grown(&mut self.values, value, Value::default)
    }

    /// The value of the scheduler that a request came into.
    fn value_of(&mut self, rq: RqId, tracker: &Tracker) -> &mut Value {
        self.value(tracker.arrival(rq).map_or(0, |arrival| arrival.value))
    }

    fn inserted(&mut self, rq: RqId, at: InsertAt, tracker: &Tracker) -> Verdict {
        let bad = |what: String| Err(Violation::new(RULE, what).request(rq));
        let wanted = match self.place(rq) {
            None => Some(at),
            // The request may go to the head although its operation did not ask for that.
            Some(Place::GivenBack) if at == InsertAt::Head => None,
            Some(Place::GivenBack) => return bad("what the device gave back lost its place at the head".into()),
            Some(place) => return bad(format!("the scheduler got a request that came by before: {place:?}")),
        };
        if tracker.scheduler.is_none() {
            return bad("a request came into a scheduler that is not in place".into());
        }
        self.given_back.retain(|passed| passed.rq != rq);
        *self.requests.entry(rq) = Some((rq, Request { place: Place::Waiting, at: wanted, hctx: 0 }));
        let of_value = self.value_of(rq, tracker);
        of_value.nr_waiting += 1;
        if at == InsertAt::Head {
            of_value.heads.push(rq);
        }
        self.judge_head(rq)
    }

    /// Called when an operation has got this id.
    fn named(&mut self, bio: u64, id: RqId, tracker: &Tracker) -> Verdict {
        let Some(operation) = tracker.operation(bio) else { return Ok(()) };
        *self.at_head.entry(id) = Some((id, operation.asked.flags.at_head));
        self.judge_head(id).map_err(|violation| violation.bio(bio))
    }

    /// Checks that an operation goes to the head if it asked for it, and only then.
    fn judge_head(&self, rq: RqId) -> Verdict {
        let (Some(&wanted), Some(request)) = (self.at_head.get(rq), self.requests.get(rq)) else { return Ok(()) };
        if request.at.is_none_or(|at| (at == InsertAt::Head) == wanted) {
            return Ok(());
        }
        let what =
            format!("an operation with at_head={wanted} was inserted at {:?}", request.at.unwrap_or(InsertAt::Sorted));
        Err(Violation::new(RULE, what).request(rq))
    }

    /// A request that waits takes another one in.
    fn joined(&mut self, into: RqId, absorbed: Option<RqId>, tracker: &Tracker) -> Verdict {
        for rq in absorbed.into_iter().chain([into]) {
            let place = self.place(rq);
            if place != Some(Place::Waiting) {
                let what = format!("a request merged that does not wait in the scheduler: {place:?}");
                return Err(Violation::new(RULE, what).request(rq));
            }
        }
        if let Some(absorbed) = absorbed {
            self.move_to(absorbed, Place::Joined);
            self.value_of(absorbed, tracker).nr_waiting -= 1;
        }
        Ok(())
    }

    fn chosen(&mut self, cpu: u16, rq: RqId, tracker: &Tracker) -> Verdict {
        let place = self.place(rq);
        if place != Some(Place::Waiting) {
            let what = format!("the scheduler chose a request that does not wait there: {place:?}");
            return Err(Violation::new(RULE, what).request(rq));
        }
        let value = self.value_of(rq, tracker);
        if let Some(head) = value.heads.pop()
            && head != rq
        {
            let what = "the scheduler chose a request while another is at the head".to_owned();
            return Err(Violation::new(RULE, what).request(head).request(rq));
        }
        value.nr_waiting -= 1;
        // Each CPU that has chosen has a list, also if only the first list is used.
        grown(&mut self.chosen, cpu, VecDeque::new);
        let list = if is_exact(tracker) { 0 } else { usize::from(cpu) };
        self.move_to(rq, Place::Chosen(list));
        self.chosen[list].push_back(rq);
        Ok(())
    }

    fn offered(&mut self, rq: RqId, hctx: u16, tracker: &Tracker) -> Verdict {
        let bad = |what: String| Err(Violation::new(RULE, what).request(rq));
        // A device that takes several calls at once may be offered other requests meanwhile.
        let refused = grown(&mut self.refused, hctx, || None).take();
        if let Some(first) = refused.filter(|first| *first != rq && !self.is_concurrent) {
            let what = "a request passed another that the device had refused".to_owned();
            return Err(Violation::new(RULE, what).request(first).request(rq));
        }
        match self.place(rq) {
            Some(Place::Chosen(list)) => self.first_offered(rq, hctx, list, tracker)?,
            Some(Place::Refused) => {}
            Some(Place::GivenBack) => self.given_back.retain(|passed| passed.rq != rq),
            None if tracker.scheduler.is_none() || tracker.bypass || tracker.is_flush_step => {
                *self.requests.entry(rq) = Some((rq, Request { place: Place::Device, at: None, hctx }));
            }
            None => return bad("the device was offered a request that never came into the scheduler".into()),
            Some(place @ (Place::Waiting | Place::Joined | Place::Device | Place::Over)) => {
                return bad(format!("the device was offered a request that is elsewhere: {place:?}"));
            }
        }
        if let Some(request) = self.requests.get_mut(rq) {
            (request.place, request.hctx) = (Place::Device, hctx);
        }
        Ok(())
    }

    /// Called when a request that was chosen reaches the device for the first time.
    fn first_offered(&mut self, rq: RqId, hctx: u16, list: usize, tracker: &Tracker) -> Verdict {
        let Some(at) = self.chosen[list].iter().position(|chosen| *chosen == rq) else { return Ok(()) };
        if at > 0 && tracker.topology.nr_queues() == 1 {
            let before = self.chosen[list][0];
            let what = if is_exact(tracker) {
                format!(
                    "a request reached the device before one that was chosen earlier, under locking {}",
                    tracker.locking
                )
            } else {
                format!("a request reached the device before one that CPU {list} had chosen earlier")
            };
            return Err(Violation::new(RULE, what).request(before).request(rq));
        }
        self.chosen[list].remove(at);
        // Each CPU may have had a run in progress when the request was given back, and another one while there were no
        // tags.
        let most = 4 * RUN_BOUND * (1 + self.chosen.len() as u32);
        for passed in self.given_back.iter_mut().filter(|passed| passed.hctx == hctx) {
            passed.times += 1;
            if passed.times > most {
                let what = format!("{most} requests passed one that the device had given back");
                return Err(Violation::new(RULE, what).request(passed.rq));
            }
        }
        Ok(())
    }

    fn acted(&mut self, rq: RqId, action: Action) {
        let place = match action {
            Action::Refused => Place::Refused,
            Action::GivenBack => Place::GivenBack,
            Action::FinishedAtOnce(_) | Action::Completed(_) | Action::GaveUp => Place::Over,
            Action::Started { .. } | Action::Stale | Action::WantsTime { .. } => return,
        };
        let Some(request) = self.requests.get_mut(rq) else { return };
        request.place = place;
        let hctx = request.hctx;
        match place {
            Place::GivenBack => self.given_back.push(Passed { rq, hctx, times: 0 }),
            Place::Refused => self.refused[usize::from(hctx)] = Some(rq),
            _ => {}
        }
    }

    fn drained(&self) -> Verdict {
        let nr_chosen: usize = self.chosen.iter().map(VecDeque::len).sum();
        let nr_waiting: usize = self.values.iter().map(|value| value.nr_waiting).sum();
        if nr_waiting + nr_chosen + self.given_back.len() == 0 {
            return Ok(());
        }
        let what = format!(
            "the queue has drained, and {nr_waiting} requests wait in the scheduler, {nr_chosen} were chosen, {} given back",
            self.given_back.len()
        );
        Err(Violation::new(RULE, what))
    }
}

/// Whether requests reach the device in exactly the order in which they were chosen, whichever CPU chose them.
fn is_exact(tracker: &Tracker) -> bool {
    tracker.topology.nr_queues() == 1 && dispatches_in_batches(tracker.locking)
}

impl Checker for Order {
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict {
        match *event {
            Event::Named { bio, id, .. } => self.named(bio, id, tracker),
            Event::Inserted { rq, at, .. } => self.inserted(rq, at, tracker),
            Event::Merged { into, .. } => self.joined(into, None, tracker),
            Event::Absorbed { into, absorbed } => self.joined(into, Some(absorbed), tracker),
            Event::Chosen { rq, .. } => self.chosen(at.cpu, rq, tracker),
            Event::HeldBack { value, waiting, .. } if waiting != self.value(value).nr_waiting => {
                let nr_waiting = self.value(value).nr_waiting;
                let what = format!("{waiting} requests wait in the scheduler by its own count, not {nr_waiting}");
                Err(Violation::new(RULE, what))
            }
            Event::Offered { rq, hctx, .. } => self.offered(rq, hctx, tracker),
            Event::Acted { rq, action } => {
                self.acted(rq, action);
                Ok(())
            }
            Event::Counted(_) => self.drained(),
            _ => Ok(()),
        }
    }

    fn end(&mut self, _: &Tracker) -> Verdict {
        self.drained()
    }
}
