//! If one thread alone drives a queue, each hardware queue gets requests in exactly the order in which they were chosen
//! for it, whatever the number of hardware queues. Requests that the device gave back wait on the dispatch list,
//! in the order in which they were given back. Such a request comes after all requests that were chosen before it was
//! given back, and before all that are chosen later.
//!
//! Several threads may reverse the order of one another's choices, and take requests that another thread put on the
//! dispatch list. So the promise holds from a moment at which the queue had drained until a second thread comes.
//! Submitters that do nothing do not count.

use blkmq_sched::RqId;

use super::super::event::{Action, Control, Event, Phase, Stamp};
use super::table::{Table, grown};
use super::tracker::Tracker;
use super::{Checker, Verdict, Violation};

pub(super) const RULE: &str = "alone";

/// The tenant number of submitters that do nothing. No tenant has it.
const NOBODY: u16 = u16::MAX;

/// This module's checker.
#[derive(Debug, Default)]
pub(super) struct Alone {
    /// A second thread has come since the queue had drained.
    has_company: bool,
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
    /// Whether there are several threads now.
    const fn are_several(&self) -> bool {
        self.submitters.len() > 1 || self.nr_threads > 0
    }

    fn takes_turn(&mut self, rq: RqId) {
        self.now += 1;
        *self.turns.entry(rq) = Some((rq, Some(self.now)));
    }

    fn offered(&mut self, rq: RqId, hctx: u16) -> Verdict {
        let Some(turn) = self.turns.get_mut(rq).and_then(Option::take) else { return Ok(()) };
        let (before, other) = std::mem::replace(grown(&mut self.last, hctx, || (0, rq)), (turn, rq));
        if turn > before || self.has_company {
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
    fn see(&mut self, _at: Stamp, event: &Event<'_>, _: &Tracker) -> Verdict {
        match *event {
            Event::Joined { submitter, tenant, .. } if tenant != NOBODY => self.submitters.push(submitter),
            Event::Left { submitter, .. } => self.submitters.retain(|there| *there != submitter),
            Event::Changed { control: Control::Background(nr), phase: Phase::Begun } if nr > 0 => self.nr_threads = nr,
            Event::Changed { control: Control::Background(nr), phase: Phase::Done } => self.nr_threads = nr,
            Event::Counted(_) => {
                self.has_company = self.are_several();
                return Ok(());
            }
            Event::Chosen { rq, .. } | Event::Acted { rq, action: Action::GivenBack } => self.takes_turn(rq),
            Event::Offered { rq, hctx, .. } => return self.offered(rq, hctx),
            _ => return Ok(()),
        }
        self.has_company |= self.are_several();
        Ok(())
    }
}
