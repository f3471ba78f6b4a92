//! The device gets what the scheduler chose, once, and in the order of the choices.
//!
//! A request comes into the scheduler once, is chosen once, and is offered only after that. A request that the device
//! gives back waits in front of the scheduler, or at the scheduler's head. A request that goes to the head is chosen
//! next; of several, the latest first. If each hardware queue has a value of the scheduler, this holds for each value.
//! With one hardware queue, the requests that a CPU chose reach the hardware queue in the order in which that CPU chose
//! them. With several hardware queues, a request whose hardware queue lacks a tag is parked, and another CPU may take
//! it (see `alone` for the case without another CPU). A request that the device refused comes first when the device is
//! asked again.
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
use blkmq_virtual::Locking;

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::super::settings::chooses_in_batches;
use super::flushing::Flushing;
use super::table::{Table, grown};
use super::{Checker, Facts, Violation};

const RULE: &str = "order";

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
    /// The value of the scheduler that the request came into, if it came into one.
    value: u16,
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
    nr_hctxs: usize,
    has_scheduler: bool,
    locking: Locking,
    bypass: bool,
    flushing: Flushing,
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
            nr_hctxs: facts.topology.nr_queues(),
            has_scheduler: false,
            locking: facts.locking,
            bypass: facts.bypass,
            flushing: Flushing::new(facts.limits),
            requests: Table::new(),
            at_head: Table::new(),
            values: Vec::new(),
            chosen: Vec::new(),
            refused: Vec::new(),
            given_back: Vec::new(),
        }
    }

    /// Whether requests reach the device in exactly the order in which they were chosen, whichever CPU chose them.
    fn is_exact(&self) -> bool {
        self.nr_hctxs == 1 && chooses_in_batches(self.locking)
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

    fn inserted(&mut self, value: u16, rq: RqId, at: InsertAt) -> Result<(), Violation> {
        let bad = |what: String| Err(Violation::new(RULE, what).request(rq));
        let wanted = match self.place(rq) {
            None => Some(at),
            // The request may go to the head although its operation did not ask for that.
            Some(Place::GivenBack) if at == InsertAt::Head => None,
            Some(Place::GivenBack) => return bad("what the device gave back lost its place at the head".into()),
            Some(place) => return bad(format!("the scheduler got a request that came by before: {place:?}")),
        };
        if !self.has_scheduler {
            return bad("a request came into a scheduler that is not in place".into());
        }
        self.given_back.retain(|passed| passed.rq != rq);
        *self.requests.entry(rq) = Some((rq, Request { place: Place::Waiting, at: wanted, value, hctx: 0 }));
        let of_value = self.value(value);
        of_value.nr_waiting += 1;
        if at == InsertAt::Head {
            of_value.heads.push(rq);
        }
        self.judge_head(rq)
    }

    /// Called when an operation has got this id.
    fn named(&mut self, bio: u64, id: RqId) -> Result<(), Violation> {
        let Some(asked) = self.flushing.asked(bio) else { return Ok(()) };
        *self.at_head.entry(id) = Some((id, asked.flags.at_head));
        self.judge_head(id).map_err(|violation| violation.bio(bio))
    }

    /// Checks that an operation goes to the head if it asked for it, and only then.
    fn judge_head(&self, rq: RqId) -> Result<(), Violation> {
        let (Some(&wanted), Some(request)) = (self.at_head.get(rq), self.requests.get(rq)) else { return Ok(()) };
        if request.at.is_none_or(|at| (at == InsertAt::Head) == wanted) {
            return Ok(());
        }
        let what =
            format!("an operation with at_head={wanted} was inserted at {:?}", request.at.unwrap_or(InsertAt::Sorted));
        Err(Violation::new(RULE, what).request(rq))
    }

    /// A request that waits takes another one in.
    fn joined(&mut self, into: RqId, absorbed: Option<RqId>) -> Result<(), Violation> {
        for rq in absorbed.into_iter().chain([into]) {
            let place = self.place(rq);
            if place != Some(Place::Waiting) {
                let what = format!("a request merged that does not wait in the scheduler: {place:?}");
                return Err(Violation::new(RULE, what).request(rq));
            }
        }
        if let Some(absorbed) = absorbed {
            self.move_to(absorbed, Place::Joined);
            let value = self.requests.get(absorbed).map_or(0, |request| request.value);
            self.value(value).nr_waiting -= 1;
        }
        Ok(())
    }

    fn chosen(&mut self, cpu: u16, rq: RqId) -> Result<(), Violation> {
        let place = self.place(rq);
        if place != Some(Place::Waiting) {
            let what = format!("the scheduler chose a request that does not wait there: {place:?}");
            return Err(Violation::new(RULE, what).request(rq));
        }
        let value = self.requests.get(rq).map_or(0, |request| request.value);
        if let Some(head) = self.value(value).heads.pop()
            && head != rq
        {
            let what = "the scheduler chose a request while another is at the head".to_owned();
            return Err(Violation::new(RULE, what).request(head).request(rq));
        }
        self.value(value).nr_waiting -= 1;
        // Each CPU that has chosen has a list, also if only the first list is used.
        grown(&mut self.chosen, cpu, VecDeque::new);
        let list = if self.is_exact() { 0 } else { usize::from(cpu) };
        self.move_to(rq, Place::Chosen(list));
        self.chosen[list].push_back(rq);
        Ok(())
    }

    fn offered(&mut self, rq: RqId, hctx: u16, sector: u64, data: &[u64]) -> Result<(), Violation> {
        let bad = |what: String| Err(Violation::new(RULE, what).request(rq));
        // A device that takes several calls at once may be offered other requests meanwhile.
        let refused = grown(&mut self.refused, hctx, || None).take();
        if let Some(first) = refused.filter(|first| *first != rq && !self.is_concurrent) {
            let what = "a request passed another that the device had refused".to_owned();
            return Err(Violation::new(RULE, what).request(first).request(rq));
        }
        match self.place(rq) {
            Some(Place::Chosen(list)) => self.first_offered(rq, hctx, list)?,
            Some(Place::Refused) => {}
            Some(Place::GivenBack) => self.given_back.retain(|passed| passed.rq != rq),
            None if !self.has_scheduler || self.bypass || self.flushing.takes(rq, sector, data) => {
                *self.requests.entry(rq) = Some((rq, Request { place: Place::Device, at: None, value: 0, hctx }));
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
    fn first_offered(&mut self, rq: RqId, hctx: u16, list: usize) -> Result<(), Violation> {
        let Some(at) = self.chosen[list].iter().position(|chosen| *chosen == rq) else { return Ok(()) };
        if at > 0 && self.nr_hctxs == 1 {
            let before = self.chosen[list][0];
            let what = if self.is_exact() {
                format!(
                    "a request reached the device before one that was chosen earlier, under locking {}",
                    self.locking
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

    fn drained(&self) -> Result<(), Violation> {
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

impl Checker for Order {
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        self.flushing.see(event);
        match *event {
            Event::Named { bio, id, .. } => return self.named(bio, id),
            Event::Installed { scheduler } => self.has_scheduler = scheduler.is_some(),
            Event::Changed { control: Control::Locking(locking), phase: Phase::Done } => self.locking = locking,
            Event::Changed { control: Control::Bypass(bypass), phase: Phase::Done } => self.bypass = bypass,
            Event::Changed { control: Control::Topology(default, read, poll), phase: Phase::Done } => {
                self.nr_hctxs = usize::from(default) + usize::from(read) + usize::from(poll);
            }
            Event::Inserted { value, rq, at, .. } => return self.inserted(value, rq, at),
            Event::Merged { into, .. } => return self.joined(into, None),
            Event::Absorbed { into, absorbed } => return self.joined(into, Some(absorbed)),
            Event::Chosen { rq, .. } => return self.chosen(at.cpu, rq),
            Event::HeldBack { value, waiting, .. } if waiting != self.value(value).nr_waiting => {
                let nr_waiting = self.value(value).nr_waiting;
                let what = format!("{waiting} requests wait in the scheduler by its own count, not {nr_waiting}");
                return Err(Violation::new(RULE, what));
            }
            Event::Offered { rq, hctx, sector, data, .. } => return self.offered(rq, hctx, sector, data),
            Event::Acted { rq, action } => self.acted(rq, action),
            Event::Counted(_) => return self.drained(),
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, _at: Stamp) -> Result<(), Violation> {
        self.drained()
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::{MergeHow, Op, Time};
    use blkmq_virtual::driver::Topology;
    use blkmq_virtual::{Flags, Status};

    use super::super::super::event::Asked;
    use super::super::testing::*;
    use super::*;

    const ONE: Topology = Topology::new(1, 4);

    fn told_with(facts: &Facts) -> Told<Order> {
        let mut told = Told::new(Order::new(facts));
        told.good(Event::Installed { scheduler: Some("mq-deadline") });
        told
    }

    fn told() -> Told<Order> {
        told_with(&Facts { topology: ONE, ..FACTS })
    }

    const fn rq(slot: u64) -> RqId {
        id(1, slot, 0)
    }

    fn insert(slot: u64) -> Event<'static> {
        inserted(rq(slot), info(Op::Read, 8 * slot, 8), 0)
    }

    fn at_head(slot: u64) -> Event<'static> {
        Event::Inserted { value: 0, rq: rq(slot), info: info(Op::Read, 8 * slot, 8), at: InsertAt::Head, now: Time(0) }
    }

    fn choose(slot: u64) -> Event<'static> {
        chosen(rq(slot), 0)
    }

    fn offer(slot: u64) -> Event<'static> {
        offered(rq(slot), Op::Read, 8 * slot, 8, &[])
    }

    #[test]
    fn a_request_goes_through_the_scheduler_once() {
        let mut told = told();
        told.bad(offer(0), "never came into the scheduler").good(insert(1)).bad(offer(1), "elsewhere: Waiting");
        told.bad(insert(1), "came by before").good(choose(1)).bad(choose(1), "does not wait there").good(offer(1));
        told.bad(offer(1), "elsewhere: Device")
            .good(acted(rq(1), Action::GivenBack))
            .bad(insert(1), "its place at the head");
        told.bad(choose(1), "GivenBack").good(offer(1)).good(completed(rq(1), Status::Ok)).bad(offer(1), "Over");
        told.bad(choose(2), "does not wait there: None").good(insert(3));
        told.bad(Event::HeldBack { value: 0, waiting: 2, now: Time(0), wakeup: None }, "by its own count, not 1");
        told.good(Event::HeldBack { value: 0, waiting: 1, now: Time(0), wakeup: None })
            .bad(Event::Counted(&counts(0)), "1 requests wait");
        assert!(told.end().is_err());
    }

    #[test]
    fn what_joins_another_is_not_chosen() {
        let mut told = told();
        let merged = |slot| Event::Merged { into: rq(slot), info: info(Op::Read, 0, 8), how: MergeHow::Back };
        told.good(insert(1)).good(insert(2)).good(merged(1)).bad(merged(3), "does not wait in the scheduler");
        let absorbed = Event::Absorbed { into: rq(1), absorbed: rq(2) };
        told.good(absorbed).bad(absorbed, "Joined").bad(choose(2), "Joined").bad(offer(2), "Joined");
        told.good(choose(1)).good(offer(1)).good(Event::Counted(&counts(0)));
        assert_eq!(told.end(), Ok(()));
    }

    #[test]
    fn what_goes_to_the_head_comes_next_and_the_latest_first() {
        let mut told = told();
        told.good(insert(1)).good(at_head(2)).good(at_head(3)).good(choose(3)).good(insert(4)).good(choose(2));
        told.good(choose(4)).good(at_head(5)).bad(choose(1), "while another is at the head");
    }

    #[test]
    fn what_was_given_back_may_go_to_the_head_and_nowhere_else() {
        let given_back = || {
            let mut told = told();
            told.good(submitted(1, asked(Op::Read, 8, 8))).good(Event::Named { submitter: 1, bio: 1, id: rq(1) });
            told.good(insert(1)).good(choose(1)).good(offer(1)).good(acted(rq(1), Action::GivenBack)).good(insert(2));
            told
        };
        given_back().bad(insert(1), "lost its place at the head");
        given_back().good(at_head(1)).good(choose(1)).good(offer(1)).good(choose(2)).good(offer(2));
        given_back().good(at_head(1)).bad(at_head(1), "Waiting");
        given_back().good(at_head(1)).bad(choose(2), "another is at the head");
    }

    #[test]
    fn an_operation_goes_to_the_head_if_it_asked_for_it() {
        let flags = Flags { at_head: true, ..Flags::NONE };
        let wanted = |slot| submitted(slot, Asked { flags, ..asked(Op::Read, 8 * slot, 8) });
        let plain = |slot| submitted(slot, asked(Op::Read, 8 * slot, 8));
        let named = |slot| Event::Named { submitter: 1, bio: slot, id: rq(slot) };
        told().good(wanted(1)).good(named(1)).good(at_head(1));
        told().good(wanted(1)).good(at_head(1)).good(named(1));
        told().good(wanted(1)).good(named(1)).bad(insert(1), "at_head=true was inserted at Sorted");
        told().good(plain(1)).good(insert(1)).good(choose(1)).good(named(1));
        told().good(plain(1)).good(at_head(1)).bad(named(1), "at_head=false was inserted at Head");
    }

    #[test]
    fn one_hardware_queue_gets_what_each_cpu_chose_in_its_order() {
        let all_chosen = |facts: &Facts| {
            let mut told = told_with(facts);
            for slot in 1..5 {
                told.cpu = 1 + (slot as u16) % 2;
                told.good(insert(slot)).good(choose(slot));
            }
            told
        };
        let facts = Facts { topology: ONE, ..FACTS };
        // CPU 2 chose 1 and 3, CPU 1 chose 2 and 4.
        all_chosen(&facts).good(offer(2)).good(offer(1)).good(offer(3)).good(offer(4));
        all_chosen(&facts).good(offer(2)).bad(offer(3), "before one that CPU 2 had chosen earlier");
        all_chosen(&FACTS).good(offer(4)).good(offer(3)).good(offer(1));
        let mut told = all_chosen(&FACTS);
        told.good(changed(Control::Topology(1, 0, 0), Phase::Done)).bad(offer(4), "earlier");
    }

    #[test]
    fn under_batch_and_combining_one_hardware_queue_gets_all_in_the_order_of_the_choices() {
        for locking in [Locking::Batch, Locking::Combining] {
            let all_chosen = |topology| {
                let mut told = told_with(&Facts { topology, locking, ..FACTS });
                for slot in 1..5 {
                    told.cpu = 1 + (slot as u16) % 2;
                    told.good(insert(slot)).good(choose(slot));
                }
                told
            };
            all_chosen(ONE).good(offer(1)).good(offer(2)).good(offer(3)).good(offer(4));
            all_chosen(ONE).bad(offer(2), "before one that was chosen earlier, under locking");
            // A request that was given back may go on whenever it may be chosen.
            let mut told = all_chosen(ONE);
            told.good(offer(1)).good(acted(rq(1), Action::GivenBack)).good(offer(2)).good(offer(1)).good(offer(3));
            all_chosen(FACTS.topology).good(offer(2)).good(offer(1));
        }
        let mut told = told();
        told.good(insert(1)).good(choose(1)).good(offer(1)).good(completed(rq(1), Status::Ok));
        told.good(changed(Control::Locking(Locking::Batch), Phase::Done)).good(insert(2)).good(choose(2));
        told.cpu = 1;
        told.good(insert(3)).good(choose(3)).bad(offer(3), "chosen earlier, under locking batch");
    }

    #[test]
    fn a_request_may_pass_the_scheduler_while_that_is_switched_on() {
        let bypass = |bypass| changed(Control::Bypass(bypass), Phase::Done);
        let mut told = told();
        told.bad(offer(0), "never came into the scheduler").good(bypass(true)).good(offer(1));
        told.good(completed(rq(1), Status::Ok)).bad(insert(1), "came by before");
        told.good(insert(2)).bad(offer(2), "elsewhere: Waiting").good(bypass(false));
        told.bad(offer(3), "never came into the scheduler");
        told_with(&Facts { bypass: true, ..FACTS }).good(offer(1));
    }

    #[test]
    fn what_was_refused_comes_first() {
        let refused = |facts: &Facts| {
            let mut told = told_with(facts);
            told.good(insert(1)).good(choose(1)).good(insert(2)).good(choose(2)).good(offer(1));
            told.good(acted(rq(1), Action::Refused));
            told
        };
        refused(&FACTS).good(offer(1)).good(started(rq(1))).good(offer(2));
        refused(&FACTS).bad(offer(2), "passed another that the device had refused");
        refused(&Facts { is_concurrent: true, ..FACTS }).good(offer(2)).good(offer(1));
    }

    #[test]
    fn flush_steps_pass_the_scheduler() {
        let flags = Flags { preflush: true, ..Flags::NONE };
        let (flush, data) = (offered(id(0, 0, 0), Op::Flush, 0, 0, &[]), offered(rq(1), Op::Write, 0, 1, &[1]));
        told().good(flush).good(submitted(1, Asked { flags, ..asked(Op::Write, 0, 1) })).good(data);
        told().good(submitted(1, asked(Op::Write, 0, 1))).bad(data, "never came into the scheduler");
        let discard = offered(rq(2), Op::Discard, 8, 1, &[]);
        told().good(submitted(1, Asked { flags, ..asked(Op::Discard, 8, 1) })).good(discard);
        told().good(submitted(1, asked(Op::Discard, 8, 1))).bad(discard, "never came into the scheduler");
        let mut told = told();
        told.good(Event::Installed { scheduler: None }).good(offer(1)).bad(insert(2), "not in place");
    }

    #[test]
    fn few_pass_what_was_given_back() {
        let mut told = told();
        told.good(insert(0)).good(choose(0)).good(offer(0)).good(acted(rq(0), Action::GivenBack));
        for slot in 1..=8 * u64::from(RUN_BOUND) {
            told.good(insert(slot)).good(choose(slot)).good(offer(slot));
        }
        told.good(insert(2000)).good(choose(2000)).bad(offer(2000), "512 requests passed");
    }
}
