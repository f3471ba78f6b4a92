//! If one thread alone drives a queue, each hardware queue gets requests in exactly the order in which they were chosen
//! for it, whatever the number of hardware queues. Requests that the device gave back wait in front of the scheduler,
//! in the order in which they were given back. Such a request comes after all requests that were chosen before it was
//! given back, and before all that are chosen later.
//!
//! Several threads may reverse the order of one another's choices, and take requests that another thread has parked.
//! So the promise holds from a moment at which the queue had drained until a second thread comes. Submitters that do
//! nothing do not count.

use blkmq_sched::RqId;

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::table::{Table, grown};
use super::{Checker, Violation};

const RULE: &str = "alone";

/// The tenant number of submitters that do nothing. No tenant has it.
const NOBODY: u16 = u16::MAX;

/// This module's checker.
#[derive(Debug)]
pub(super) struct Alone {
    is_alone: bool,
    /// Submitters that are there and do something, and background threads.
    submitters: Vec<u16>,
    nr_threads: u16,
    /// The number of choices and returns so far.
    now: u64,
    /// The number of the choice or return that a request came from, until the request is offered.
    turns: Table<Option<u64>>,
    /// The last request that each hardware queue got, with its number.
    last: Vec<(u64, RqId)>,
}

impl Alone {
    pub(super) const fn new() -> Self {
        Self { is_alone: true, submitters: Vec::new(), nr_threads: 0, now: 0, turns: Table::new(), last: Vec::new() }
    }

    /// Whether there is only one thread now.
    const fn is_one(&self) -> bool {
        self.submitters.len() <= 1 && self.nr_threads == 0
    }

    fn takes_turn(&mut self, rq: RqId) {
        self.now += 1;
        *self.turns.entry(rq) = Some((rq, Some(self.now)));
    }

    fn offered(&mut self, rq: RqId, hctx: u16) -> Result<(), Violation> {
        let Some(turn) = self.turns.get_mut(rq).and_then(Option::take) else { return Ok(()) };
        let (before, other) = std::mem::replace(grown(&mut self.last, hctx, || (0, rq)), (turn, rq));
        if turn > before || !self.is_alone {
            return Ok(());
        }
        let what = format!(
            "hardware queue {hctx} got requests in another order than that in which one thread alone chose them, or was \
             given them back"
        );
        Err(Violation::new(RULE, what).request(rq).request(other))
    }
}

impl Checker for Alone {
    fn see(&mut self, _at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        match *event {
            Event::Joined { submitter, tenant, .. } if tenant != NOBODY => self.submitters.push(submitter),
            Event::Left { submitter, .. } => self.submitters.retain(|there| *there != submitter),
            Event::Changed { control: Control::Background(nr), phase: Phase::Begun } if nr > 0 => self.nr_threads = nr,
            Event::Changed { control: Control::Background(nr), phase: Phase::Done } => self.nr_threads = nr,
            Event::Counted(_) => {
                self.is_alone = self.is_one();
                return Ok(());
            }
            Event::Chosen { rq, .. } | Event::Acted { rq, action: Action::GivenBack } => self.takes_turn(rq),
            Event::Offered { rq, hctx, .. } => return self.offered(rq, hctx),
            _ => return Ok(()),
        }
        self.is_alone &= self.is_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use blkmq_sched::Op;

    use super::super::testing::*;
    use super::*;

    const fn rq(slot: u64) -> RqId {
        id(1, slot, 0)
    }

    fn joined(submitter: u16) -> Event<'static> {
        Event::Joined { submitter, nr_slots: 8, tenant: 0 }
    }

    /// A submitter is there, and requests 1 to 4 were chosen.
    fn told() -> Told<Alone> {
        let mut told = Told::new(Alone::new());
        told.good(joined(1)).good(Event::Joined { submitter: 9, nr_slots: 8, tenant: NOBODY });
        (1..5).for_each(|slot| _ = told.good(chosen(rq(slot), 0)));
        told
    }

    fn offer(slot: u64) -> Event<'static> {
        offered(rq(slot), Op::Read, 0, 8, &[])
    }

    fn offer_on(slot: u64, on: u16) -> Event<'static> {
        let Event::Offered { rq, tag, op, flags, sector, nr_sectors, ranges, segments, data, now, .. } = offer(slot)
        else {
            unreachable!("that is what it makes")
        };
        Event::Offered { rq, hctx: on, tag, op, flags, sector, nr_sectors, ranges, segments, data, now }
    }

    #[test]
    fn each_hardware_queue_gets_what_was_chosen_for_it_in_order() {
        told().good(offer(1)).good(offer(2)).good(offer(3));
        told().good(offer_on(2, 1)).good(offer(1)).good(offer_on(4, 1)).good(offer(3));
        told().good(offer_on(2, 1)).good(offer(3)).bad(offer(1), "in another order than");
        // A request that was refused keeps its place, whatever the place is.
        told().good(offer(1)).good(acted(rq(1), Action::Refused)).good(offer(1)).good(offer(2));
    }

    #[test]
    fn what_was_given_back_comes_in_the_order_of_the_giving_back() {
        let given_back = || {
            let mut told = told();
            told.good(offer(1)).good(offer(2)).good(acted(rq(2), Action::GivenBack));
            told.good(acted(rq(1), Action::GivenBack)).good(chosen(rq(5), 0));
            told
        };
        given_back().good(offer(3)).good(offer(4)).good(offer(2)).good(offer(1)).good(offer(5));
        given_back().good(offer(1)).bad(offer(2), "in another order than");
        given_back().good(offer(5)).bad(offer(1), "in another order than");
        given_back().good(offer(2)).bad(offer(3), "in another order than");
    }

    #[test]
    fn with_a_second_thread_anything_goes_until_the_queue_has_drained() {
        let left = |submitter| Event::Left { submitter, hands_back: true };
        let threads = |nr, phase| changed(Control::Background(nr), phase);
        let mut told = told();
        told.good(joined(2)).good(left(2)).good(offer(2)).good(offer(1)).good(Event::Counted(&counts(0)));
        told.good(offer(4)).bad(offer(3), "in another order than");
        let mut told = self::told();
        told.good(threads(2, Phase::Begun)).good(threads(2, Phase::Done)).good(offer(2)).good(offer(1));
        told.good(Event::Counted(&counts(0))).good(threads(0, Phase::Begun)).good(offer(4)).good(offer(3));
        told.good(threads(0, Phase::Done)).good(Event::Counted(&counts(0))).good(chosen(rq(6), 0));
        told.good(chosen(rq(7), 0)).good(offer(7)).bad(offer(6), "in another order than");
    }
}
