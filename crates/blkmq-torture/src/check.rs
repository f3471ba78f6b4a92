//! What must be true of a world. Each file checks one kind of promise.

mod active;
mod alone;
mod arrivals;
mod book;
mod busy;
mod conservation;
mod counters;
mod data;
mod deadlines;
mod depth_tokens;
mod dumps;
mod fairness;
mod flush;
mod freeze;
mod gate;
mod groups;
mod idling;
mod inflight;
mod lag;
mod limiter;
mod limits;
mod lost;
mod memory;
mod moves;
mod order;
pub(super) mod parts;
mod race;
mod ranges;
mod reports;
mod room;
mod slots;
mod stall;
mod table;
mod tags;
#[cfg(test)]
mod tests;
mod throttle;
mod timeouts;
mod times;
mod tokens;
mod tracker;
mod turns;
mod usage;
mod wake;

use blkmq_virtual::driver::Topology;
use blkmq_virtual::{Limits, Locking};

use self::tracker::Tracker;
use super::event::{Event, Stamp};

/// What the checkers know of a world before it begins.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// What the device accepts.
    pub(crate) limits: Limits,
    /// Its hardware queues at the start.
    pub(crate) topology: Topology,
    /// The knob `io_timeout` at the start, in ms.
    pub(crate) io_timeout_ms: u32,
    /// The locking around the scheduler at the start.
    pub(crate) locking: Locking,
    /// Whether requests may bypass the scheduler, at the start.
    pub(crate) bypass: bool,
    /// The knob `nr_requests` as the plan sets it. `None`: the plan does not set it.
    pub(crate) nr_requests: Option<u32>,
    /// Whether the device takes calls for one hardware queue from several CPUs at once.
    pub(crate) is_concurrent: bool,
    /// The longest time that a client or the controller sleeps by its own decision while operations are outstanding, in
    /// ns.
    pub(crate) nap_ns: u64,
}

/// One checker for each rule, with the rule's name.
fn all(facts: &Facts) -> Vec<(&'static str, Box<dyn Checker>)> {
    vec![
        (lost::RULE, Box::new(lost::Lost::default())),
        (data::RULE, Box::new(data::Data::new(facts))),
        (tags::RULE, Box::new(tags::Tags::default())),
        (slots::RULE, Box::new(slots::Slots::default())),
        (limits::RULE, Box::new(limits::MergeLimits::default())),
        (order::RULE, Box::new(order::Order::new(facts))),
        (alone::RULE, Box::new(alone::Alone::default())),
        (deadlines::RULE, Box::new(deadlines::Deadlines::default())),
        (flush::RULE, Box::new(flush::Flush::new(facts))),
        (freeze::RULE, Box::new(freeze::Freeze::default())),
        (gate::RULE, Box::new(gate::Gate::default())),
        (counters::RULE, Box::new(counters::Counters::new(facts))),
        (stall::RULE, Box::new(stall::Stall::new(facts))),
        (arrivals::RULE, Box::new(arrivals::Arrivals::default())),
        (room::RULE, Box::new(room::Room::new())),
        (busy::RULE, Box::new(busy::Busy::default())),
        (groups::RULE, Box::new(groups::Groups::default())),
        (inflight::RULE, Box::new(inflight::Inflight::new(facts))),
        (ranges::RULE, Box::new(ranges::Ranges::default())),
        (dumps::RULE, Box::new(dumps::Dumps)),
        (wake::RULE, Box::new(wake::Wake::new(facts))),
        (reports::RULE, Box::new(reports::Reports::default())),
        (idling::RULE, Box::new(idling::Idling::default())),
        (lag::RULE, Box::new(lag::Lag::new())),
        (fairness::RULE, Box::new(fairness::Fairness::default())),
        (conservation::RULE, Box::new(conservation::Conservation::default())),
        (usage::RULE, Box::new(usage::Usage::default())),
        (tokens::RULE, Box::new(tokens::Tokens::default())),
        (turns::RULE, Box::new(turns::Turns::default())),
        (throttle::RULE, Box::new(throttle::Throttle::default())),
        (limiter::RULE, Box::new(limiter::Limiter::default())),
        (timeouts::RULE, Box::new(timeouts::Timeouts::new(facts))),
        (times::RULE, Box::new(times::CompletionTimes::default())),
        (memory::RULE, Box::new(memory::Memory::new(facts))),
    ]
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The checker's name.
    pub(crate) rule: &'static str,
    /// What happened and what should have happened, in one sentence.
    pub(crate) what: String,
    /// The operations concerned, by number.
    pub(crate) bios: Vec<u64>,
    /// The requests concerned.
    pub(crate) requests: Vec<blkmq_sched::RqId>,
}

/// What a checker says of an event.
type Verdict = Result<(), Violation>;

/// Watches the events of one world for one kind of promise.
trait Checker: Send {
    /// Looks at an event.
    ///
    /// # Errors
    /// The promise that it breaks.
    fn see(&mut self, at: Stamp, event: &Event<'_>, tracker: &Tracker) -> Verdict;

    /// Called when every CPU has come to its end.
    ///
    /// # Errors
    /// The promise that was not kept.
    fn end(&mut self, tracker: &Tracker) -> Verdict {
        let _ = tracker;
        Ok(())
    }
}

/// The checkers of one world, and what they all ask about.
pub(crate) struct Checkers {
    tracker: Tracker,
    checkers: Vec<(&'static str, Box<dyn Checker>)>,
}

impl Checkers {
    /// The checkers of all rules.
    pub(crate) fn new(facts: &Facts) -> Self {
        Self { tracker: Tracker::new(facts), checkers: all(facts) }
    }

    /// Shows an event to the checkers.
    ///
    /// # Errors
    /// The first promise that it breaks.
    pub(crate) fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation> {
        self.tracker.begin(at, event);
        let broken = self.checkers.iter_mut().try_for_each(|(_, checker)| checker.see(at, event, &self.tracker));
        self.tracker.end(event);
        broken
    }

    /// Called when every CPU has come to its end.
    ///
    /// # Errors
    /// The first promise that was not kept.
    pub(crate) fn end(&mut self) -> Result<(), Violation> {
        self.checkers.iter_mut().try_for_each(|(_, checker)| checker.end(&self.tracker))
    }
}

impl Violation {
    /// A broken promise that concerns no operation in particular.
    pub(crate) fn new(rule: &'static str, what: String) -> Self {
        Self { rule, what, bios: Vec::new(), requests: Vec::new() }
    }

    /// Adds an operation that the violation concerns.
    pub(crate) fn bio(mut self, bio: u64) -> Self {
        self.bios.push(bio);
        self
    }

    /// Adds a request that the violation concerns.
    pub(crate) fn request(mut self, rq: blkmq_sched::RqId) -> Self {
        self.requests.push(rq);
        self
    }
}
