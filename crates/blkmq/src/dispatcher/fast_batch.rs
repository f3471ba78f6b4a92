//! The requests of a fast-path dispatch, while the scheduler orders them.

use std::ops::Range;

use blkmq_sched::{FastRequest, MAX_FAST_BATCH};

use crate::dispatcher::Dispatcher;
use crate::dispatcher::insert::Plug;
use crate::queue::Domain;
use crate::request::{FlushStep, Request, RqList, Slots};

/// Requests that may take the fast path together: of one class and operation.
#[derive(Debug)]
pub(super) struct FastBatch {
    pub(super) known: Vec<FastRequest>,
    /// The hardware queue of the first one.
    hctx: u16,
    /// The hardware queue of each, if these differ; empty otherwise.
    hctxs: Vec<u16>,
}

impl FastBatch {
    /// Reserves room for the largest batch, so that nothing is allocated later.
    pub(super) fn new() -> Self {
        Self { known: Vec::with_capacity(MAX_FAST_BATCH), hctx: 0, hctxs: Vec::with_capacity(MAX_FAST_BATCH) }
    }

    /// Replaces the batch by the requests at the front of a list that may go together, at most `most` of them. Each is
    /// prepared first. Moves them into a list of their own.
    #[inline]
    pub(super) fn note_front<'q>(
        &mut self,
        list: &mut RqList,
        slots: &'q Slots,
        most: usize,
        mut prepare: impl FnMut(&mut Request<'q>),
    ) -> RqList {
        debug_assert!(most <= MAX_FAST_BATCH, "no more than may go together are noted");
        self.known.clear();
        self.hctxs.clear();
        list.take_while(slots, |rq| {
            if self.known.len() == most {
                return false;
            }
            prepare(rq);
            self.note(rq)
        })
    }

    /// Adds a request, if it may go with those before it.
    #[inline]
    fn note(&mut self, rq: &Request<'_>) -> bool {
        debug_assert!(rq.body().tag.is_none(), "a request of the batch has no tag yet: {rq:?}");
        if rq.body().flush != FlushStep::None || rq.flags().at_head {
            return false;
        }
        match (self.known.first(), self.known.last()) {
            (Some(FastRequest { info: like, .. }), Some(last)) => {
                let is_alike = like.op == rq.op() && like.priority.class == rq.priority().class;
                // In a stream, whose requests are as large as they may be, each request touches the one before.
                if !is_alike || last.info.end() == rq.sector() {
                    return false;
                }
                if rq.hctx() != self.hctx || self.is_mixed() {
                    self.note_hctx(rq.hctx());
                }
            }
            _ => self.hctx = rq.hctx(),
        }
        self.known.push(FastRequest { rq: rq.id(), info: rq.body().info() });
        true
    }

    /// Whether the requests go to several hardware queues.
    #[inline]
    fn is_mixed(&self) -> bool {
        !self.hctxs.is_empty()
    }

    /// Adds the hardware queue of the next request, which differs from the first one or follows one that did.
    #[inline(never)]
    fn note_hctx(&mut self, hctx: u16) {
        debug_assert!(hctx != self.hctx || self.is_mixed(), "all go to hardware queue {hctx} so far");
        if self.hctxs.is_empty() {
            self.hctxs.resize(self.known.len(), self.hctx);
        }
        self.hctxs.push(hctx);
    }

    /// The run of requests of one hardware queue that begins at `begin`, in the order of arrival: the queue, and their
    /// indices.
    #[inline]
    pub(super) fn run(&self, begin: usize) -> Option<(u16, Range<usize>)> {
        debug_assert!(begin <= self.known.len(), "run {begin} begins behind the last request");
        if !self.is_mixed() {
            return (begin < self.known.len()).then_some((self.hctx, begin..self.known.len()));
        }
        let hctx = *self.hctxs.get(begin)?;
        let len = self.hctxs[begin..].iter().take_while(|other| **other == hctx).count();
        Some((hctx, begin..begin + len))
    }

    /// Groups `order`, which has the indices of all requests in the order of dispatch, by hardware queue, so that each
    /// hardware queue is visited once. Within a hardware queue the order stays as it is.
    ///
    /// COST: a sort of small numbers, unless all go to one hardware queue.
    #[inline]
    pub(super) fn gather(&self, order: &mut [u8]) {
        debug_assert_eq!(order.len(), self.known.len(), "each request has a place in the order");
        if self.is_mixed() {
            self.gather_some(order);
        }
    }

    #[inline(never)]
    fn gather_some(&self, order: &mut [u8]) {
        debug_assert!(
            order.iter().all(|place| usize::from(*place) < order.len()),
            "{order:?} names places of requests"
        );
        let mut keys = [0_u32; MAX_FAST_BATCH];
        let keys = &mut keys[..order.len()];
        for ((rank, place), key) in (0..).zip(&*order).zip(keys.iter_mut()) {
            *key = u32::from(self.hctxs[usize::from(*place)]) << 16 | rank << 8 | u32::from(*place);
        }
        keys.sort_unstable();
        for (place, key) in order.iter_mut().zip(keys) {
            *place = *key as u8;
        }
    }
}

impl Dispatcher {
    /// Makes a plug's requests the batch, if all of them may go together. Called before the hold, to keep the hold
    /// short.
    #[inline]
    pub(super) fn note_fast_batch(&mut self, domain: &Domain, plug: &mut Plug<'_>) -> bool {
        let Plug { starting, mapping, requests, .. } = plug;
        debug_assert!(!requests.is_empty(), "there are requests to note");
        if requests.len() > MAX_FAST_BATCH || domain.has_waiting() {
            return false;
        }
        let slots = &starting.q.slots;
        let noted = self.fast_batch.note_front(requests, slots, MAX_FAST_BATCH, |rq| _ = mapping.assign(rq));
        let rest = std::mem::replace(requests, noted);
        let all_may_go = rest.is_empty();
        debug_assert_eq!(requests.len(), self.fast_batch.known.len(), "each request that may go was noted");
        requests.append(rest);
        all_may_go
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Body;
    use blkmq_sched::{RqId, Time};

    fn fast_batch(hctxs: &[u16]) -> FastBatch {
        let info = Body::flush(0, Time(0)).info();
        let mut fast_batch = FastBatch::new();
        fast_batch.hctx = hctxs[0];
        for (id, hctx) in (0..).zip(hctxs) {
            if *hctx != fast_batch.hctx || fast_batch.is_mixed() {
                fast_batch.note_hctx(*hctx);
            }
            fast_batch.known.push(FastRequest { rq: RqId(id), info });
        }
        fast_batch
    }

    /// Red if requests of one hardware queue change places among each other, or do not come together.
    #[test]
    fn those_of_one_hardware_queue_come_together_in_their_order() {
        for (hctxs, order, gathered) in [
            ([7, 7, 7, 7, 7], [4, 2, 0, 1, 3], [4, 2, 0, 1, 3]),
            ([9, 2, 9, 2, 5], [4, 2, 0, 1, 3], [1, 3, 4, 2, 0]),
            ([1023, 0, 1023, 0, 1023], [0, 1, 2, 3, 4], [1, 3, 0, 2, 4]),
        ] {
            let mut found = order;
            fast_batch(&hctxs).gather(&mut found);
            assert_eq!(found, gathered, "{hctxs:?} {order:?}");
        }
    }

    #[test]
    fn a_run_ends_where_another_hardware_queue_begins() {
        let mixed = fast_batch(&[3, 3, 1, 3]);
        let runs = [0, 2, 3, 4].map(|begin| mixed.run(begin));
        assert_eq!(runs, [Some((3, 0..2)), Some((1, 2..3)), Some((3, 3..4)), None]);
        assert_eq!(fast_batch(&[4; 64]).run(0), Some((4, 0..64)));
    }
}
