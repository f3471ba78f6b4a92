//! Delivering: completed operations go to the completion rings of their submitters, and sleeping submitters are woken.
//!
//! A thread that dispatches for others completes requests of many submitters, in the scheduler's order. It gathers them
//! by submitter first, so that each completion ring is written once for a batch, and a submitter that waits for several
//! operations is woken once. Waking a thread costs a system call, so it comes last: after the tags are back, and after
//! the requests that get these tags are issued ([`Dispatcher::run`]). Two kinds of submitters are notified earlier:
//! those with a [`Notify`](crate::Notify), and those of a batch of more than 32 submitters.
//!
//! Threads are woken in the order in which their first operations completed. Each wake-up takes so long that a thread
//! which is always woken first, by its number for example, is served several times as often as the last one.
//!
//! # Liveness
//! [`Outbox::send`] makes the operations visible, and [`Outbox::wake`] wakes, behind a fence. A thread calls both
//! before it returns. If a driver panics in between, `PanicGuard` in `issue` wakes all sleeping threads instead.

use crate::queue::{EndBatch, Queue, ThreadState, WakeCause};
use crate::request::RqList;
use crate::request::limits::MAX_THREADS;
use blkmq_sync::unless_mutated;
use blkmq_sync::wake::wake_each;

/// The most submitters whose operations are gathered. A batch of more is delivered in parts.
const NR_LISTS: usize = 32;

/// Completed operations of other submitters, by submitter, and the submitters to wake.
///
/// # Invariants
/// The first `len` of `threads` are different, and only the first `len` of `lists` have operations. All of `unwoken`
/// are different.
#[derive(Debug)]
pub(super) struct Outbox {
    threads: [u16; NR_LISTS],
    lists: [RqList; NR_LISTS],
    len: usize,
    /// Submitters whose operations were delivered and that were not woken since, in the order of delivery.
    unwoken: Vec<u16>,
}

impl Outbox {
    pub(super) fn new() -> Self {
        let lists = std::array::from_fn(|_| RqList::default());
        Self { threads: [0; NR_LISTS], lists, len: 0, unwoken: Vec::with_capacity(MAX_THREADS) }
    }

    /// Whether nothing is gathered, and no submitter is to be woken.
    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0 && self.unwoken.is_empty()
    }

    fn place_of(&self, thread: u16) -> Option<usize> {
        self.threads[..self.len].iter().position(|other| *other == thread)
    }

    /// Whether there is room for operations of this submitter. If not, the caller [sends](Self::send) first.
    pub(super) fn has_room_for(&self, thread: u16) -> bool {
        self.len < NR_LISTS || self.place_of(thread).is_some()
    }

    /// Adds completed operations of a submitter behind its earlier ones.
    pub(super) fn add(&mut self, thread: u16, list: RqList) {
        debug_assert!(!list.is_empty(), "a submitter gets operations");
        debug_assert!(self.has_room_for(thread), "the lists of {NR_LISTS} submitters are not sent");
        let place = self.place_of(thread).unwrap_or_else(|| {
            self.threads[self.len] = thread;
            self.len += 1;
            self.len - 1
        });
        self.lists[place].append(list);
    }

    /// Delivers the gathered operations. `by` is the calling thread. Counts first, so that a submitter that has its
    /// completions finds them in the statistics.
    ///
    /// COST: not inlined beyond the counts, since a thread mostly completes its own operations.
    #[inline]
    pub(super) fn send(&mut self, q: &Queue, ending: &mut EndBatch<'_>, by: u16) {
        ending.publish();
        if self.len > 0 {
            self.send_lists(q, by);
        }
    }

    #[inline(never)]
    fn send_lists(&mut self, q: &Queue, by: u16) {
        debug_assert!(self.place_of(by).is_none(), "a thread keeps the operations of its own submitter");
        for place in 0..std::mem::take(&mut self.len) {
            let (list, thread) = (std::mem::take(&mut self.lists[place]), q.threads.get(self.threads[place]));
            if thread.wake.has_notify() {
                send_telling(q, list, thread, by);
            } else {
                list.deliver(&q.slots, &thread.completions);
                self.note_unwoken(self.threads[place]);
            }
        }
    }

    /// COST: a search of the threads that are noted, 32 to a line.
    fn note_unwoken(&mut self, thread: u16) {
        if !self.unwoken.contains(&thread) {
            debug_assert!(self.unwoken.len() < MAX_THREADS, "a queue has at most {MAX_THREADS} threads");
            self.unwoken.push(thread);
        }
    }

    /// Wakes the submitters whose operations were delivered. `by` is the calling thread.
    ///
    /// COST: as of [`send`](Self::send); then a fence, and two loads for each submitter, of lines that change when its
    /// thread goes to sleep.
    #[inline]
    pub(super) fn wake(&mut self, q: &Queue, by: u16) {
        debug_assert_eq!(self.len, 0, "operations are delivered before their threads are woken");
        if !self.unwoken.is_empty() {
            self.wake_delivered(q, by);
        }
    }

    #[inline(never)]
    fn wake_delivered(&mut self, q: &Queue, by: u16) {
        let delivered = self.unwoken.drain(..).filter(|_| unless_mutated("deliver.wake"));
        let woken = wake_each(delivered.map(|thread| &q.threads.get(thread).wake));
        q.threads.note_woken(by, WakeCause::Completed, woken);
    }
}

/// The most operations named in one notification: their slots take 64 bytes of the stack, a cache line.
const MAX_NOTIFIED: usize = 32;

/// Delivers operations to a submitter whose [`Notify`](crate::Notify) is told which they are: a part of a split one
/// stands for the whole. Their slots are noted before delivery, because they belong to the submitter afterwards.
#[cold]
fn send_telling(q: &Queue, mut list: RqList, thread: &ThreadState, by: u16) {
    while !list.is_empty() {
        let (mut slots, mut nr) = ([0; MAX_NOTIFIED], 0);
        let some = list.take_while(&q.slots, |rq| {
            let Some(slot) = slots.get_mut(nr) else { return false };
            let body = rq.body();
            *slot = if body.is_split { body.part.parent.slot() } else { rq.index().slot() };
            nr += 1;
            true
        });
        some.deliver(&q.slots, &thread.completions);
        let woken = thread.wake.wake_for(&slots[..nr]);
        q.threads.note_woken(by, WakeCause::Completed, woken.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a thread is woken by its number instead of in the order of completions, or twice; or if only so many can
    /// be noted that others would have to be woken before their tags are back and the next requests are issued.
    #[test]
    fn threads_are_noted_in_the_order_of_completions_however_many_they_are() {
        let mut outbox = Outbox::new();
        let order: Vec<u16> = (0..MAX_THREADS as u16).rev().collect();
        order.iter().chain(&[7, 1000]).for_each(|thread| outbox.note_unwoken(*thread));
        assert_eq!(outbox.unwoken, order);
        assert!(!outbox.is_empty());
    }
}
