//! Bursts: many queues that are created shortly after each other in one group.
//!
//! Services that start together, or a parallel build, make a burst. Throughput counts then, and none of the queues of a
//! large burst is raised.

use super::Bfq;
use super::clock::{LONG_AGO, Ticks, of_ms};
use super::queue::ByBurst;
use crate::list::List;
use crate::slab::Index;

/// Queues created no longer than this after each other are of one burst.
pub(super) const INTERVAL: Ticks = of_ms(180);
/// A burst of so many queues is large.
const LARGE: u32 = 8;
/// A queue that was split off so shortly ago is not a new one.
const JUST_SPLIT: Ticks = of_ms(10);

/// The burst that runs.
#[derive(Debug, Clone)]
pub(super) struct Burst {
    /// Its queues, while it is not large.
    queues: List<ByBurst>,
    pub(super) size: u32,
    is_large: bool,
    latest: Ticks,
    group: Option<usize>,
}

impl Burst {
    pub(super) fn new() -> Self {
        Self { queues: List::default(), size: 0, is_large: false, latest: LONG_AGO, group: None }
    }
}

/// What a client remembers of its queue's burst while its queue is merged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Membership {
    pub(super) was_in_burst: bool,
    pub(super) in_large_burst: bool,
}

impl Bfq {
    /// A queue that was just created has its first request.
    pub(super) fn note_burst(&mut self, q: Index, now: Ticks) {
        let queue = self.queues.get(q);
        let is_new = queue.just_created && (self.burst.size > 0 || self.nr_busy() == 0);
        if !is_new || queue.is_in_burst || queue.in_large_burst || queue.split_at + JUST_SPLIT >= now {
            return;
        }
        let group = queue.group;
        if self.burst.latest + INTERVAL < now || self.burst.group != Some(group) {
            self.restart_burst(q, group);
        } else if self.burst.is_large {
            self.queues.get_mut(q).in_large_burst = true;
        } else {
            self.grow_burst(q);
        }
        self.burst.latest = now;
    }

    fn restart_burst(&mut self, q: Index, group: usize) {
        while let Some(member) = self.burst.queues.head() {
            self.leave_burst(member);
        }
        self.burst.is_large = false;
        self.burst.group = Some(group);
        self.burst.size = 0;
        if self.nr_busy() == 0 {
            self.burst.size = 1;
            self.enter_burst(q);
        }
    }

    fn grow_burst(&mut self, q: Index) {
        self.burst.size += 1;
        if self.burst.size < LARGE {
            self.enter_burst(q);
            return;
        }
        self.burst.is_large = true;
        self.queues.get_mut(q).in_large_burst = true;
        while let Some(member) = self.burst.queues.head() {
            self.queues.get_mut(member).in_large_burst = true;
            self.leave_burst(member);
        }
    }

    fn enter_burst(&mut self, q: Index) {
        if !core::mem::replace(&mut self.queues.get_mut(q).is_in_burst, true) {
            self.burst.queues.push_front(&mut self.queues, q);
        }
    }

    pub(super) fn leave_burst(&mut self, q: Index) {
        if core::mem::take(&mut self.queues.get_mut(q).is_in_burst) {
            self.burst.queues.remove(&mut self.queues, q);
        }
    }

    /// The client of this queue leaves: the burst that the queue is in is smaller by one.
    pub(super) fn shrink_burst(&mut self, q: Index) {
        let queue = self.queues.get(q);
        if queue.is_in_burst && queue.owner.is_some() {
            self.burst.size = self.burst.size.saturating_sub(1);
        }
    }

    /// A queue that was split off is in the burst in which it was before the merge.
    pub(super) fn rejoin_burst(&mut self, q: Index, membership: Membership) {
        let in_large = membership.was_in_burst && self.burst.is_large || membership.in_large_burst;
        self.queues.get_mut(q).in_large_burst = in_large;
        if !in_large && membership.was_in_burst {
            self.enter_burst(q);
        }
    }
}
