//! A flow: the requests of one client in one class, and its tags.

use super::unless_mutated;
use crate::data::Tracked;
use crate::direction::Direction;
use crate::list::{Links, List, chains};
use crate::slab::{Index, Slab};
use crate::tree::{Branches, Keyed, Tree};
use crate::waiting::{ByAge, Waiting};
use crate::{Class, Info, Time};

/// A run on a rotating disk ends after so many sectors: a run of 512 KiB takes as long as some seek.
const RUN: u32 = 1024;

/// One waiting request, at home in its flow. Its deadline is when it came.
pub(super) type Request = Waiting<Index>;

// COST: two lines of 64 bytes at most, wherever in the slab it lies.
const _: () = assert!(size_of::<Request>() <= 88);

/// The waiting requests of a flow in one direction.
#[derive(Debug, Clone, Default)]
pub(super) struct Queue {
    /// By first sector.
    pub(super) sorted: Tree,
    /// In order of arrival.
    pub(super) fifo: List<ByAge>,
    /// The cost of what went, in nanoseconds.
    served: Tracked<u64>,
}

/// What one client has in one class.
#[derive(Debug, Clone)]
pub(super) struct Flow {
    /// The place of the client.
    pub(super) client: u16,
    pub(super) class: Class,
    /// By [`Direction`].
    pub(super) queues: [Queue; 2],
    pub(super) nr_waiting: u32,
    /// Where the next request starts, while one waits.
    pub(super) start: u64,
    /// Where the last one ended.
    pub(super) finish: u64,
    /// The client has asked for nothing yet in this class.
    pub(super) is_new: bool,
    /// The client's weight counts in the sum of its group.
    pub(super) is_active: bool,
    /// The round in which others last waited for it: see [`lead`](super::lead).
    pub(super) paced_in: u64,
    /// When its last request was dispatched, but for those that took the fast path.
    pub(super) dispatched: Time,
    /// When the last waiting request went, or later: when it was last decided that the flow stays active.
    pub(super) idle_since: Time,
    branches: Branches,
    idle: Links,
}

chains! {
    /// The chain of the active flows of a class without waiting requests.
    pub(super) ByIdleness: Flow => idle;
}

impl Keyed for Flow {
    fn key(&self) -> u64 {
        self.start
    }
    fn branches(&self) -> &Branches {
        &self.branches
    }
    fn branches_mut(&mut self) -> &mut Branches {
        &mut self.branches
    }
}

impl Flow {
    pub(super) fn new(client: u16, class: Class) -> Self {
        Self {
            client,
            class,
            queues: Default::default(),
            nr_waiting: 0,
            start: 0,
            finish: 0,
            is_new: false,
            is_active: false,
            paced_in: 0,
            dispatched: Time::default(),
            idle_since: Time::default(),
            branches: Branches::default(),
            idle: Links::default(),
        }
    }

    /// Whether nothing waits.
    pub(super) const fn is_idle(&self) -> bool {
        self.nr_waiting == 0
    }

    /// Where the next request starts if it waits, and otherwise where the last one ended.
    pub(super) fn tag(&self) -> u64 {
        if self.is_idle() { self.finish } else { self.start }
    }

    /// When the request came that has waited for the longest.
    pub(super) fn oldest(&self, requests: &Slab<Request>) -> Option<Time> {
        let heads = self.queues.iter().filter_map(|queue| queue.fifo.head());
        heads.map(|head| requests.get(head).deadline).min()
    }

    /// The next request: of the direction that got less, the one that came first.
    pub(super) fn next(&self, requests: &Slab<Request>) -> Option<Index> {
        debug_assert!(self.nr_waiting > 0 && requests.len() > 0, "a flow is asked while it has requests");
        let [reads, others] = &self.queues;
        let [read, other] = [reads.fifo.head(), others.fifo.head()];
        if *reads.served <= *others.served { read.or(other) } else { other.or(read) }
    }

    /// The first request in this direction at `sector` or behind it.
    pub(super) fn from(&self, requests: &Slab<Request>, direction: Direction, sector: u64) -> Option<Index> {
        self.queues[direction as usize].sorted.first_from(requests, sector)
    }

    /// A request in this direction went. A direction that had nothing meanwhile is owed nothing, and still owes what it
    /// had more than this one.
    pub(super) fn note_served(&mut self, direction: Direction, cost: u64) {
        let [this, other] = [direction as usize, 1 - direction as usize];
        *self.queues[this].served += cost;
        if self.queues[other].fifo.is_empty() && unless_mutated("fair.direction") {
            *self.queues[other].served = (*self.queues[other].served).max(*self.queues[this].served);
        }
    }
}

/// A run by sector within one flow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) flow: Index,
    pub(super) direction: Direction,
    /// The sector behind the last request.
    pub(super) end: u64,
    /// How many sectors may still follow.
    pub(super) left: u32,
}

impl Run {
    /// The run with a request of this flow that goes: the present one goes on, or a new one begins.
    pub(super) fn after(run: Option<Self>, flow: Index, info: &Info) -> Option<Self> {
        let direction = Direction::of(info.op);
        let goes_on =
            run.filter(|run| run.left > 0 && (run.flow, run.direction) == (flow, direction) && run.end <= info.sector);
        let left = goes_on.map_or(RUN, |run| run.left).saturating_sub(info.nr_sectors);
        Some(Self { flow, direction, end: info.end(), left })
    }
}
