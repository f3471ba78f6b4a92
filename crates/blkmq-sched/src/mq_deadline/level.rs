//! A priority level: the requests that wait in it, in two directions, and counts of those that went through it.

use crate::data::Tracked;
use crate::direction::Direction;
use crate::list::List;
use crate::slab::{Index, Slab};
use crate::tree::Tree;
use crate::waiting::{ByAge, Waiting};
use crate::{Class, Info};

/// One waiting request. Of one at the head the deadline is when it came.
pub(super) type Request = Waiting;

// COST: two lines of 64 bytes at most, wherever in the slab it lies.
const _: () = assert!(size_of::<Request>() <= 80);

impl Request {
    pub(super) const fn class(&self) -> Class {
        self.info.priority.class
    }

    pub(super) const fn direction(&self) -> Direction {
        Direction::of(self.info.op)
    }

    /// Whether the request waits where a request such as `info` waits. For assertions.
    pub(super) fn is_of_queue(&self, info: &Info) -> bool {
        self.class() == info.priority.class && self.direction() == Direction::of(info.op)
    }
}

/// The requests of one class in one direction that wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By first sector.
    pub(super) sorted: Tree,
    /// In order of arrival.
    pub(super) fifo: List<ByAge>,
    /// Where the last dispatched request began.
    pub(super) latest_pos: Tracked<u64>,
}

impl Queue {
    /// The first waiting request that begins where the last one did, or behind that.
    pub(super) fn next_in_order(&self, requests: &Slab<Request>) -> Option<Index> {
        self.sorted.first_from(requests, *self.latest_pos)
    }
}

/// Counts of a level's requests.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Requests that came in.
    pub(super) inserted: u64,
    /// Of the inserted requests, those that another request absorbed.
    pub(super) merged: u64,
    /// Of the inserted requests, those that were handed out.
    pub(super) dispatched: u64,
    /// Requests that never came in, but went straight to the driver, as far as is known.
    pub(super) bypassed: u64,
    /// Of the dispatched and the bypassed requests, those that are completed, as far as is known.
    pub(super) completed: u64,
}

/// One priority level.
#[derive(Debug, Default)]
pub(super) struct Level {
    queues: [Queue; 2],
    pub(super) counts: Tracked<Counts>,
}

impl Level {
    pub(super) const fn queue(&self, direction: Direction) -> &Queue {
        &self.queues[direction as usize]
    }

    pub(super) const fn queue_mut(&mut self, direction: Direction) -> &mut Queue {
        &mut self.queues[direction as usize]
    }

    pub(super) const fn queues(&self) -> &[Queue; 2] {
        &self.queues
    }

    /// True if a sorted request waits.
    pub(super) fn waits(&self) -> bool {
        self.queues.iter().any(|queue| !queue.fifo.is_empty())
    }

    /// Requests that wait or are with the driver. An absorbed request counts as completed at that moment.
    pub(super) fn queued(&self) -> u64 {
        let Counts { inserted, merged, bypassed, completed, .. } = *self.counts;
        (inserted + bypassed).saturating_sub(merged).saturating_sub(completed)
    }

    /// Requests that are with the driver.
    pub(super) fn owned_by_driver(&self) -> u64 {
        (self.counts.dispatched + self.counts.bypassed).saturating_sub(self.counts.completed)
    }
}
