//! Idling: whether the device waits for the next request of the queue in service, and for how long.

use super::clock::NS_PER_MS;
use super::{Bfq, Reason};
use crate::slab::Index;
use crate::{Class, Time};

/// A seeky queue is waited for no longer than this, if no share depends on it.
pub(super) const SHORT: u64 = 2 * NS_PER_MS;
/// A raised queue is waited for at least this long.
const LONG: u64 = 20 * NS_PER_MS;
/// A raised queue has to wait if the device has so many requests of other queues.
const MANY: u32 = 4;

impl Bfq {
    /// Whether it is better to wait for a request of `q` than to serve another queue.
    pub(super) fn better_to_idle(&self, q: Index) -> bool {
        let queue = self.queues.get(q);
        if queue.clients == 0 {
            return false;
        }
        if self.tunables.strict_guarantees {
            return true;
        }
        let is_excused = self.tunables.slice_idle == 0 || self.slice().is_some();
        if is_excused || !queue.is_sync || self.class(q) == Class::Idle {
            return false;
        }
        // COST: the usual reason comes first, and both are looked at only without it.
        self.nr_busy() == 1 || self.idling_helps_throughput(q) || self.idling_keeps_shares(q)
    }

    /// Whether the device does more if it waits for `q`: because the next request is near, and comes soon.
    pub(super) fn idling_helps_throughput(&self, q: Index) -> bool {
        let queue = self.queues.get(q);
        let is_steady = !queue.seeks.is_seeky() && queue.think_time.is_io_bound && queue.think_time.thinks_shortly;
        let helps = match (self.rotational, self.takes_several()) {
            (true, false) => true,
            (true, true) | (false, false) => is_steady,
            (false, true) => false,
        };
        // Raised queues get a request in more easily while no other queue is waited for.
        queue.clients > 0 && helps && self.raised_busy == 0
    }

    /// Whether the queue would get less than its share, or wait longer than it should, if it were not waited for.
    pub(super) fn idling_keeps_shares(&self, q: Index) -> bool {
        let queue = self.queues.get(q);
        let nr_busy = self.nr_busy();
        let is_hindered = self.raised_busy < nr_busy || *self.in_driver >= queue.dispatched + MANY;
        queue.clients > 0 && (nr_busy == 1 || queue.raising.is_raised() && is_hindered || self.is_asymmetric(q))
    }

    /// Whether the queue in service has nothing, and is to be waited for.
    pub(super) fn must_idle(&self, q: Index) -> bool {
        self.queues.get(q).is_empty() && self.better_to_idle(q)
    }

    /// The device begins to wait for the queue in service.
    pub(super) fn start_idling(&mut self, q: Index, now: Time) {
        debug_assert_eq!(self.service.queue, Some(q), "only the queue in service is waited for");
        let queue = self.queues.get(q);
        let mut length = self.tunables.slice_idle;
        if queue.seeks.is_seeky() && !queue.raising.is_raised() && !self.is_asymmetric(q) {
            length = length.min(SHORT);
        } else if queue.raising.is_raised() {
            length = length.max(LONG);
        }
        self.service.idle_since = now;
        self.service.timer = Some(now.after(length));
    }

    /// Does what the idle timer has to do by `now`.
    #[inline]
    pub(super) fn run_timer(&mut self, now: Time) {
        if let Some(due) = self.service.timer
            && due <= now
        {
            self.end_idling(due);
        }
    }

    /// The device has waited long enough for the queue in service.
    #[inline(never)]
    fn end_idling(&mut self, due: Time) {
        self.service.timer = None;
        let Some(q) = self.service.queue else { return };
        if self.is_out_of_time(q, due) {
            self.expire(q, true, Reason::BudgetTimeout, due);
        } else if self.queues.get(q).is_empty() {
            self.expire(q, true, Reason::TooIdle, due);
        }
    }
}
