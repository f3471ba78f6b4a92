//! What must be true of a world. Each file checks one kind of promise.

mod alone;
mod answers;
mod arrivals;
mod book;
mod busy;
mod counters;
mod data;
mod deadlines;
mod dumps;
mod flush;
mod flushing;
mod freeze;
mod gate;
mod groups;
mod idling;
mod inflight;
mod lag;
mod lent;
mod limiter;
mod limits;
mod lost;
mod memory;
mod moves;
mod offers;
mod order;
mod owners;
pub(super) mod parts;
mod ranges;
mod reports;
mod room;
mod runs;
mod slots;
mod stall;
mod table;
mod tags;
#[cfg(test)]
mod testing;
mod throttle;
mod timeouts;
mod times;
mod tokens;
mod turns;
mod wake;

use blkmq_virtual::driver::Topology;
use blkmq_virtual::{Limits, Locking};

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
    /// Whether requests may pass the scheduler by, at the start.
    pub(crate) bypass: bool,
    /// The knob `nr_requests` as the plan sets it. `None`: the plan does not set it.
    pub(crate) nr_requests: Option<u32>,
    /// Whether the device takes calls for one hardware queue from several CPUs at once.
    pub(crate) is_concurrent: bool,
    /// The longest time that a client or the controller sleeps by its own decision while operations are outstanding, in
    /// ns.
    pub(crate) nap_ns: u64,
}

impl Facts {
    /// The value of `nr_requests`, with or without a scheduler.
    fn nr_requests(&self, has_scheduler: bool) -> u64 {
        let asked = self.nr_requests.map(u64::from);
        if has_scheduler {
            return asked.unwrap_or(65536);
        }
        let depth = u64::from(self.topology.depth);
        asked.map_or(depth, |asked| asked.min(depth))
    }
}

/// One checker for each kind of promise.
pub(crate) fn all(facts: &Facts) -> Vec<Box<dyn Checker>> {
    vec![
        Box::new(lost::Lost::new(facts)),
        Box::new(data::Data::new(facts)),
        Box::new(tags::Tags::new(facts)),
        Box::new(slots::Slots::new(facts)),
        Box::new(limits::MergeLimits::new(facts)),
        Box::new(order::Order::new(facts)),
        Box::new(alone::Alone::new()),
        Box::new(deadlines::Deadlines::new(facts)),
        Box::new(flush::Flush::new(facts)),
        Box::new(freeze::Freeze::new()),
        Box::new(gate::Gate::new(facts)),
        Box::new(counters::Counters::new(facts)),
        Box::new(stall::Stall::new(facts)),
        Box::new(arrivals::Arrivals::new(facts)),
        Box::new(room::Room::new(facts)),
        Box::new(busy::Busy::new()),
        Box::new(groups::Groups::new(facts)),
        Box::new(inflight::Inflight::new(facts)),
        Box::new(ranges::Ranges::new(facts)),
        Box::new(dumps::Dumps),
        Box::new(wake::Wake::new(facts)),
        Box::new(reports::Reports::new(facts)),
        Box::new(idling::Idling::new()),
        Box::new(lag::Lag::new()),
        Box::new(tokens::Tokens::new(facts)),
        Box::new(turns::Turns::new()),
        Box::new(throttle::Throttle::new(facts)),
        Box::new(limiter::Limiter::new(facts)),
        Box::new(timeouts::Timeouts::new(facts)),
        Box::new(times::CompletionTimes::new()),
        Box::new(memory::Memory::new(facts)),
    ]
}

/// Those of bfq, for worlds that have nothing else.
#[cfg(test)]
pub(crate) fn of_bfq() -> Vec<Box<dyn Checker>> {
    let facts = &testing::FACTS;
    vec![Box::new(reports::Reports::new(facts)), Box::new(idling::Idling::new()), Box::new(lag::Lag::new())]
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

/// Watches the events of one world for one kind of promise.
pub(crate) trait Checker: Send {
    /// Looks at an event.
    ///
    /// # Errors
    /// The promise that it breaks.
    fn see(&mut self, at: Stamp, event: &Event<'_>) -> Result<(), Violation>;

    /// Called when every CPU has come to its end.
    ///
    /// # Errors
    /// The promise that was not kept.
    fn end(&mut self, at: Stamp) -> Result<(), Violation> {
        let _ = at;
        Ok(())
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
