//! Requeueing: a request that the driver gave back waits, without a tag, on the dispatch list.

use crate::dispatcher::Dispatcher;
use crate::queue::{Count, Queue};
use blkmq_sync::unless_mutated;

impl Dispatcher {
    /// Adds the requests that the driver gave back to the dispatch lists, without tags. They are tried again when
    /// another request completes, or at the next poll.
    #[inline]
    pub(super) fn requeue_returned(&mut self, q: &Queue) {
        if !self.requeued.is_empty() {
            self.park_some(q);
        }
    }

    #[cold]
    fn park_some(&mut self, q: &Queue) {
        debug_assert!(self.is_inside(q), "tags go back inside the queue, where a freeze waits for them");
        self.thread(q).counters.count(Count::Requeued, self.requeued.len() as u64);
        let mut is_new = false;
        while let Some(mut rq) = self.requeued.pop_front(&q.slots) {
            let hctx = q.hctxs.get(rq.body().hctx);
            let tag = rq.body_mut().tag.take();
            debug_assert!(tag.is_some(), "the driver gives back what it was offered with a tag: {rq:?}");
            hctx.add_to_dispatch_list(rq);
            // After the requests are on the list: a thread that sees no mark and goes to sleep either sees the request,
            // or is woken for the new mark.
            is_new |= hctx.note_gave_back();
            if unless_mutated("requeue.waiting") {
                q.live.word.set_waiting();
            }
            if let Some(tag) = tag {
                hctx.tags.put(tag, &mut self.hint);
            }
        }
        q.live.fence_before_notify();
        self.has_pending_event = true;
        if is_new {
            q.wake_sleepers(self.thread);
        }
    }
}
