//! Injection: what other queues may have done while the queue in service is waited for.
//!
//! A device that waits for one client's next request does nothing. So requests of other clients are served meanwhile,
//! as many as do not make the client's own requests take much longer. How long the client's requests take is measured:
//! first without other requests (the base), then with some, and the limit follows.

use super::Bfq;
use super::clock::{Ticks, of_ms, ticks};
use super::request::is_sync;
use super::think_time::LARGE;
use crate::Time;
use crate::slab::Index;

/// A limit that is so old begins anew.
const STALE: Ticks = of_ms(1000);
/// No sample begins sooner than this after the limit was lowered.
const PAUSE: Ticks = of_ms(10);

/// How much may be injected while a queue is waited for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Injection {
    /// Nanoseconds that a request of the queue takes without injection; 0 while that is not known.
    pub(super) base: u64,
    /// The most requests that the device may have, an injected one included.
    pub(super) limit: u32,
    /// When the limit was lowered or began anew.
    pub(super) lowered_at: Ticks,
}

/// The present sample: how long one request of the queue in service takes in all.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    since: Time,
    /// The next request of the queue in service that goes out is the one to measure.
    awaits_dispatch: bool,
    /// The mark of that request, while it is with the device.
    mark: Option<u32>,
    /// Something was injected meanwhile.
    injected: bool,
    latest_mark: u32,
}

impl Sample {
    /// Marks of a ticket: 1 to this number.
    pub(super) const MARKS: u32 = 1 << 12;

    /// Ends the sample: its queue leaves service.
    pub(super) const fn stop(&mut self) {
        (self.injected, self.awaits_dispatch, self.mark) = (false, false, None);
    }

    /// A request of the queue in service goes out. Returns its mark if it is the one to measure, 0 otherwise.
    pub(super) const fn mark_dispatched(&mut self) -> u32 {
        if !self.awaits_dispatch {
            return 0;
        }
        self.awaits_dispatch = false;
        self.latest_mark = self.latest_mark % (Self::MARKS - 1) + 1;
        self.mark = Some(self.latest_mark);
        self.latest_mark
    }
}

impl Bfq {
    /// A client that had no request sends one to its queue `q`. If the limit is old, it begins anew; and a sample
    /// begins if this request can be one.
    pub(super) fn begin_sample(&mut self, q: Index, now: Time) {
        let tick = ticks(now);
        if self.queues.get(q).injection.lowered_at + STALE <= tick {
            self.reset_injection(q, now);
        }
        let injection = self.queues.get(q).injection;
        let can_tell = *self.in_driver == 0 || injection.base > 0 && self.sample.injected;
        if self.service.queue == Some(q) && can_tell && injection.lowered_at + PAUSE <= tick {
            self.sample.since = now;
            self.sample.awaits_dispatch = true;
            if *self.in_driver == 0 {
                self.sample.injected = false;
            }
        }
    }

    pub(super) fn reset_injection(&mut self, q: Index, now: Time) {
        self.sample.mark = None;
        let queue = self.queues.get_mut(q);
        let limit = u32::from(!queue.think_time.thinks_shortly);
        queue.injection = Injection { base: 0, limit, lowered_at: ticks(now) };
    }

    /// The request with this mark completed; it still counts as one with the device.
    pub(super) fn end_sample(&mut self, q: Index, mark: u32, now: Time) {
        if self.sample.mark != Some(mark) {
            return;
        }
        let (took, is_alone, injected) = (now.since(self.sample.since), *self.in_driver == 1, self.sample.injected);
        let most = self.most_in_driver;
        let injection = &mut self.queues.get_mut(q).injection;
        let old = injection.limit;
        if injection.base > 0 && injected {
            let threshold = injection.base * 3 / 2;
            if took >= threshold && old > 0 {
                injection.limit -= 1;
                injection.lowered_at = ticks(now);
            } else if took < threshold && old <= most {
                injection.limit += 1;
            }
        }
        if injection.base == 0 && is_alone || took < injection.base {
            if injection.base == 0 {
                injection.limit = old.max(1);
            }
            injection.base = took;
        } else if !injected && is_alone {
            injection.base = took;
        }
        self.sample.mark = None;
        self.sample.injected = false;
    }

    /// The queue in service has no request, and is waited for. Returns the queue of which a request goes out instead.
    pub(super) fn choose_injected(&mut self, q: Index) -> Option<Index> {
        if let helpful @ Some(_) = self.helpful(q) {
            return helpful;
        }
        let queue = self.queues.get(q);
        let admits = !queue.raising.is_raised() || self.raised_busy > 1 || !queue.think_time.thinks_shortly;
        if !admits || self.idling_helps_throughput(q) {
            return None;
        }
        let chosen = self.any_injected(q)?;
        self.sample.injected = true;
        Some(chosen)
    }

    /// A queue whose service does the waiting one no harm: that of its client's asynchronous requests, its waker, or
    /// the queue that it has woken last.
    fn helpful(&self, q: Index) -> Option<Index> {
        let queue = self.queues.get(q);
        let own = queue.owner.filter(|place| {
            let asynchronous = self.clients.get(*place).latest_async.and_then(|name| self.named(name));
            asynchronous.is_some_and(|a| {
                let next = self.queues.get(a).next;
                next.is_some_and(|next| self.requests.get(next).home.client == *place)
            })
        });
        let own = own.and_then(|place| self.named(self.clients.get(place).latest_async?));
        [own, queue.waking.waker, queue.waking.woken.head()].into_iter().flatten().find(|other| {
            let other = *other;
            self.queues.get(other).is_busy && self.can_serve(other)
        })
    }

    /// Whether the queue has a request, and budget for it.
    fn can_serve(&self, q: Index) -> bool {
        let queue = self.queues.get(q);
        queue.next.is_some_and(|next| self.charge_of(q, next) <= self.budget_left(q))
    }

    /// Any queue that waits, within the limit.
    ///
    /// COST: the list of the queues that wait; nearly always the first one is chosen.
    fn any_injected(&self, q: Index) -> Option<Index> {
        let waiting = self.queues.get(q);
        if *self.in_driver >= waiting.injection.limit {
            return None;
        }
        let takes_any = !waiting.raising.is_raised() || !waiting.think_time.thinks_shortly;
        let found = self.active.iter(&self.queues).find(|(other, queue)| {
            let Some(next) = queue.next else { return false };
            // A device that does not turn takes much longer for a large request, and may prefer it.
            let is_large = !self.rotational && self.requests.get(next).info.nr_sectors >= LARGE;
            (takes_any || queue.raising.is_raised())
                && self.charge_of(*other, next) <= self.budget_left(*other)
                && !(is_large && *self.in_driver >= 1)
        });
        found.map(|(other, _)| other)
    }

    /// The scheduler that is followed served a request of `other` while `q` is in service: that counts as an injection.
    pub(super) fn note_injected(&mut self, q: Index, other: Index) {
        if self.helpful(q) != Some(other) {
            self.sample.injected = true;
        }
    }

    /// What a request costs its queue, in sectors. Asynchronous requests cost more while that does no share harm.
    pub(super) fn charge_of(&self, q: Index, request: Index) -> u64 {
        const ASYNC: u64 = 3;
        let info = &self.requests.get(request).info;
        let sectors = u64::from(info.nr_sectors);
        let queue = self.queues.get(q);
        debug_assert_eq!(queue.is_sync, is_sync(info), "a queue has requests of its kind");
        let counts_plainly = queue.is_sync || queue.raising.is_raised() || self.is_asymmetric(q);
        if counts_plainly { sectors } else { sectors * ASYNC }
    }
}
