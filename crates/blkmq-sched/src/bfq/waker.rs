//! Wakers: queues whose completions make another queue's client go on.
//!
//! A client that thinks for long, and again and again asks just after a request of the same other queue has completed,
//! waits for that queue. So while the device waits for the client's own queue, the other queue is served.

use super::Bfq;
use super::clock::NS_PER_MS;
use crate::Time;
use crate::slab::Index;

/// A request this soon after a completion may have been woken by it.
const SOON: u64 = 4 * NS_PER_MS;
/// A queue is a waker if it may have woken the client so many times in a row.
const ENOUGH: u32 = 3;
/// These times have to lie within so many times `slice_idle`.
const WINDOW: u64 = 128;

impl Bfq {
    /// A request arrives at `q`, whose client had no other: which queue has woken the client?
    pub(super) fn look_for_waker(&mut self, q: Index, now: Time) {
        let Some(last) = *self.last_completed else { return };
        let window = WINDOW * self.tunables.slice_idle;
        let is_soon = now.since(self.rate.last_completion) < SOON;
        let Some(waker) = self.named(last) else { return };
        let queue = self.queues.get_mut(q);
        if waker == q || queue.think_time.thinks_shortly || !is_soon {
            return;
        }
        let waking = &mut queue.waking;
        if waking.tentative == Some(last) && now <= waking.since.after(window) {
            waking.detections += 1;
        } else {
            (waking.tentative, waking.detections, waking.since) = (Some(last), 1, now);
        }
        if waking.detections == ENOUGH {
            waking.tentative = None;
            self.set_waker(q, Some(waker));
        }
    }

    /// Gives a queue a waker, or takes the one that it has.
    pub(super) fn set_waker(&mut self, q: Index, waker: Option<Index>) {
        debug_assert!(waker != Some(q), "no queue wakes itself");
        if let Some(old) = self.queues.get_mut(q).waking.waker.take() {
            let mut woken = core::mem::take(&mut self.queues.get_mut(old).waking.woken);
            woken.remove(&mut self.queues, q);
            self.queues.get_mut(old).waking.woken = woken;
        }
        if let Some(waker) = waker {
            let mut woken = core::mem::take(&mut self.queues.get_mut(waker).waking.woken);
            woken.push_front(&mut self.queues, q);
            self.queues.get_mut(waker).waking.woken = woken;
            let waking = &mut self.queues.get_mut(q).waking;
            (waking.waker, waking.tentative) = (Some(waker), None);
        }
    }

    /// The queue begins to have requests: it comes first among the queues that its waker wakes.
    pub(super) fn come_first_of_woken(&mut self, q: Index) {
        let waking = &self.queues.get(q).waking;
        if let waker @ Some(_) = waking.waker {
            let tentative = waking.tentative;
            self.set_waker(q, waker);
            self.queues.get_mut(q).waking.tentative = tentative;
        }
    }

    /// A queue ends: it has no waker any more, and is the waker of no queue.
    pub(super) fn forget_waker(&mut self, q: Index) {
        self.set_waker(q, None);
        while let Some(woken) = self.queues.get(q).waking.woken.head() {
            self.set_waker(woken, None);
        }
    }
}
