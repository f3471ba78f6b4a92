//! Tags: how a request gets one, or waits on the dispatch list until one comes back.
//!
//! A request waits if there is no tag for it, or if the scheduler holds it back until others complete. The thread that
//! frees the tag or completes the others dispatches it: see [`liveness`](blkmq_sync::liveness).
//!
//! Only a thread that checked every list and found nothing clears WAITING, by a compare-exchange from the word as it
//! was before the check. A request that began to wait meanwhile has changed the word, so the exchange fails. It also
//! fails if the gate was shut or opened meanwhile. WAITING then stays set although perhaps nothing waits, and the next
//! thread that dispatches clears it.

use super::Dispatcher;
use crate::queue::{HwCtx, Queue};
use crate::request::Request;
use blkmq_sync::liveness::WaiterPresent;
use blkmq_sync::tags::Tag;

impl Dispatcher {
    /// Dispatches under a locking where each thread dispatches for itself: first from the dispatch lists, then by
    /// `choose`, up to `bound` requests. Clears WAITING if nothing waits any more. Returns how many requests became
    /// ready.
    pub(super) fn dispatch_for_itself(
        &mut self,
        q: &Queue,
        bound: usize,
        mut choose: impl FnMut(&mut Self, usize) -> usize,
    ) -> usize {
        debug_assert!(bound > 0, "a thread that dispatches chooses at least one request");
        let seen = q.live.word.load();
        let mut chosen = 0;
        loop {
            if std::mem::take(&mut self.must_dispatch) || seen.is_waiting() {
                chosen += self.dispatch_listed(q, q.hctxs.iter(), WaiterPresent::NO);
            }
            chosen += choose(self, bound.saturating_sub(chosen));
            if !self.must_dispatch {
                break;
            }
        }
        // The thread in the scheduler was kicked, or this thread has checked everything itself.
        self.has_pending_event = false;
        if seen.is_waiting() && self.nothing_waits(q) {
            let _ = q.live.word.clear_waiting(seen);
        }
        chosen
    }

    /// Whether no request waits for a tag or in the scheduler. A single scheduler is checked under its lock. With
    /// several domains, their published counts suffice: a thread publishes the count before it sets WAITING
    /// (`Section::show`).
    fn nothing_waits(&self, q: &Queue) -> bool {
        let no_list_waits = || q.hctxs.iter().all(|(_, hctx)| hctx.nr_dispatch() == 0 && !hctx.has_marked_ctx());
        match q.whole_domain() {
            Some(domain) => !domain.has_waiting() && no_list_waits() && domain.is_idle(&self.thread(q).counters),
            None => no_list_waits() && q.domains().all(|domain| !domain.has_work()),
        }
    }

    /// Dispatches from the dispatch lists of these hardware queues, as far as there are tags. Returns how many requests
    /// became ready.
    pub(super) fn dispatch_listed<'q>(
        &mut self,
        q: &'q Queue,
        hctxs: impl Iterator<Item = (u16, &'q HwCtx)>,
        waiter_present: WaiterPresent,
    ) -> usize {
        let mut chosen = 0;
        for (_, hctx) in hctxs {
            while hctx.nr_dispatch() > 0 {
                let Some(tag) = self.tag_or_wait(q, hctx, waiter_present) else { break };
                match hctx.take_from_dispatch_list(&q.slots) {
                    Some(rq) => {
                        self.make_ready(q, rq, tag);
                        chosen += 1;
                    }
                    None => {
                        chosen += self.put_back(q, hctx, &[tag]);
                        self.has_pending_event = true;
                    }
                }
            }
        }
        chosen
    }

    /// Makes a dispatched request ready, or adds it to the dispatch list if there is no tag. Returns how many requests
    /// became ready, and whether to dispatch more.
    pub(super) fn give_tag(&mut self, q: &Queue, rq: Request<'_>, waiter_present: WaiterPresent) -> (usize, bool) {
        debug_assert!(rq.body().tag.is_none(), "a request gets one tag: {rq:?}");
        let hctx = q.hctxs.get(rq.body().hctx);
        let has_aside = hctx.nr_dispatch() > 0;
        if !has_aside && let Some(tag) = hctx.tags.get(&mut self.hint) {
            self.make_ready(q, rq, tag);
            return (1, true);
        }
        hctx.add_to_dispatch_list(rq);
        // The request is on the dispatch list, where it waits for a tag like any other.
        (q.live.prepare_to_wait(|| self.dispatch_listed(q, q.hctxs.iter(), waiter_present)), !has_aside)
    }

    /// Takes a tag. If there is none, sets WAITING, so that the thread that frees a tag dispatches.
    pub(super) fn tag_or_wait(&mut self, q: &Queue, hctx: &HwCtx, waiter_present: WaiterPresent) -> Option<Tag> {
        let mut tag = [Tag(0)];
        (self.tags_or_wait(q, hctx, &mut tag, waiter_present) == 1).then_some(tag[0])
    }

    /// Takes tags into the front of `out`, and returns how many. If there are none, sets WAITING, so that the thread
    /// that frees a tag dispatches.
    pub(super) fn tags_or_wait(
        &mut self,
        q: &Queue,
        hctx: &HwCtx,
        out: &mut [Tag],
        waiter_present: WaiterPresent,
    ) -> usize {
        debug_assert!(!out.is_empty(), "there is a request for a tag");
        let got = hctx.tags.get_batch(&mut self.hint, out);
        if got > 0 {
            return got;
        }
        q.live.prepare_to_wait_unless(waiter_present, || hctx.tags.get_batch(&mut self.hint, out))
    }

    /// Puts back unused tags as a completer does, because another thread may have found none meanwhile. The caller
    /// re-checks what it dispatched from. Returns how many requests of the dispatch list got a tag.
    pub(super) fn put_back(&mut self, q: &Queue, hctx: &HwCtx, tags: &[Tag]) -> usize {
        debug_assert!(!tags.is_empty(), "tags were taken for nothing");
        let mut given = 0;
        // Requests on the dispatch list come first, so they get tags here. Otherwise several threads that alternate
        // between the list and the scheduler might each find the last tag held, unused, by another one.
        while given < tags.len()
            && hctx.nr_dispatch() > 0
            && let Some(rq) = hctx.take_from_dispatch_list(&q.slots)
        {
            self.make_ready(q, rq, tags[given]);
            given += 1;
        }
        hctx.tags.put_batch(&tags[given..], &mut self.hint);
        q.live.fence_before_notify();
        self.must_dispatch |= hctx.nr_dispatch() > 0;
        given
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::dispatcher::Dispatcher;
    use crate::driver::spec::open;
    use crate::{Bio, Client, RequestQueue};

    /// Red if a tag that is put back goes past the requests of the dispatch list: two threads that look by turns at the
    /// list and at the scheduler could then each find that the other one holds the last tag for nothing.
    #[test]
    fn a_tag_that_is_put_back_goes_to_the_dispatch_list_first() {
        let device = open("null,irqmode=0,memory_backed=1,cache_size=1,size=1M,hw_queue_depth=1,poll_queues=0");
        let device = device.expect("the spec is good");
        let q = RequestQueue::builder(device).scheduler("mq-deadline").build().expect("the device is good");
        let mut submitter = q.submitter(&Client::new("test")).expect("there is a place");
        let quiesce = q.quiesce();
        submitter.submit(Bio::flush()).expect("there is room");
        submitter.flush_plug();
        drop(quiesce);
        let q = &q.0;
        let (number, _) = q.threads.join(q, None).expect("there is a place");
        let (mut dispatcher, hctx) = (Dispatcher::new(Arc::clone(q), number), q.hctxs.get(0));
        assert_eq!(hctx.nr_dispatch(), 1, "the flush waits for a tag");
        q.threads.get(number).activity.enter();
        let tag = hctx.tags.get(&mut dispatcher.hint).expect("the tag is free");
        assert_eq!((dispatcher.put_back(q, hctx, &[tag]), hctx.nr_dispatch()), (1, 0));
        dispatcher.run(q, 0, q.clock().now(), None);
        q.threads.get(number).activity.leave();
        q.threads.leave(q, number, None);
        assert!(submitter.wait(1, None).is_ready());
    }
}
