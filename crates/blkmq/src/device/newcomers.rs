//! Requests that go through the scheduler together, while the scheduler is asked.

use std::ops::Range;

use blkmq_sched::{MOST_NEWCOMERS, Newcomer};

use crate::request::{FlushStep, Request, RqList, Slots};

/// Requests that may be handed through together: of one class and operation.
#[derive(Debug)]
pub(crate) struct Newcomers {
    pub(crate) known: Vec<Newcomer>,
    /// The hardware queue of each, and whether these differ.
    hctxs: Vec<u16>,
    is_mixed: bool,
}

impl Newcomers {
    /// Room for all that can be handed through at once, so that nothing is allocated later.
    pub(super) fn new() -> Self {
        Self { known: Vec::with_capacity(MOST_NEWCOMERS), hctxs: Vec::with_capacity(MOST_NEWCOMERS), is_mixed: false }
    }

    /// Forgets what was noted before, and notes the requests at the front of a list, `most` of them at most, as far as
    /// they may go together. Each is prepared first. Moves those that are noted into a list of their own.
    #[inline]
    pub(crate) fn note_front<'q>(
        &mut self,
        list: &mut RqList,
        slots: &'q Slots,
        most: usize,
        mut prepare: impl FnMut(&mut Request<'q>),
    ) -> RqList {
        debug_assert!(most <= MOST_NEWCOMERS, "no more than may go together are noted");
        self.known.clear();
        self.hctxs.clear();
        self.is_mixed = false;
        list.take_while(slots, |rq| {
            if self.known.len() == most {
                return false;
            }
            prepare(rq);
            self.note(rq)
        })
    }

    /// Notes a request, if it may go with those that were noted before.
    #[inline]
    fn note(&mut self, rq: &Request<'_>) -> bool {
        debug_assert!(rq.body().tag.is_none(), "a newcomer has no tag yet: {rq:?}");
        if rq.body().flush != FlushStep::None || rq.flags().at_head {
            return false;
        }
        if let (Some(Newcomer { info: like, .. }), Some(last)) = (self.known.first(), self.known.last()) {
            let is_alike = like.op == rq.op() && like.priority.class == rq.priority().class;
            // In a stream, whose requests are as large as they may be, each request touches the one before.
            if !is_alike || last.info.end() == rq.sector() {
                return false;
            }
            self.is_mixed |= self.hctxs[0] != rq.hctx();
        }
        self.known.push(Newcomer { rq: rq.id(), info: rq.body().info() });
        self.hctxs.push(rq.hctx());
        true
    }

    /// The run of newcomers of one hardware queue that begins at `begin`, as they came: the queue, and their places.
    #[inline]
    pub(crate) fn run(&self, begin: usize) -> Option<(u16, Range<usize>)> {
        let hctx = *self.hctxs.get(begin)?;
        let others = &self.hctxs[begin..];
        let len = if self.is_mixed { others.iter().take_while(|other| **other == hctx).count() } else { others.len() };
        Some((hctx, begin..begin + len))
    }

    /// Brings those of one hardware queue together in `order`, which names the places of all in the order in which they
    /// go. Otherwise the order stays as it is. So each hardware queue is turned to once.
    ///
    /// COST: a sort of small numbers, unless all go to one hardware queue.
    #[inline]
    pub(crate) fn gather(&self, order: &mut [u8]) {
        debug_assert_eq!(order.len(), self.known.len(), "each newcomer has a place in the order");
        if self.is_mixed {
            self.gather_some(order);
        }
    }

    #[inline(never)]
    fn gather_some(&self, order: &mut [u8]) {
        let mut keys = [0_u32; MOST_NEWCOMERS];
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Body;
    use blkmq_sched::{RqId, Time};

    fn newcomers(hctxs: &[u16]) -> Newcomers {
        let info = Body::flush(0, Time(0)).info();
        let known = (0..hctxs.len() as u64).map(|id| Newcomer { rq: RqId(id), info }).collect();
        let is_mixed = hctxs.iter().any(|hctx| *hctx != hctxs[0]);
        Newcomers { known, hctxs: hctxs.to_vec(), is_mixed }
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
            newcomers(&hctxs).gather(&mut found);
            assert_eq!(found, gathered, "{hctxs:?} {order:?}");
        }
    }

    #[test]
    fn a_run_ends_where_another_hardware_queue_begins() {
        let mixed = newcomers(&[3, 3, 1, 3]);
        let runs = [0, 2, 3, 4].map(|begin| mixed.run(begin));
        assert_eq!(runs, [Some((3, 0..2)), Some((1, 2..3)), Some((3, 3..4)), None]);
        assert_eq!(newcomers(&[4; 64]).run(0), Some((4, 0..64)));
    }
}
