//! Requests that go through the scheduler together, while the scheduler is asked.

use crate::request::{FlushStep, Request, RqList, Slots};
use blkmq_sched::{MOST_NEWCOMERS, Newcomer};

/// Requests that may be handed through together: of one class, operation and hardware queue.
#[derive(Debug)]
pub(crate) struct Newcomers {
    pub(crate) known: Vec<Newcomer>,
    pub(crate) hctx: u16,
}

impl Newcomers {
    /// Room for all that can be handed through at once, so that nothing is allocated later.
    pub(super) fn new() -> Self {
        Self { known: Vec::with_capacity(MOST_NEWCOMERS), hctx: 0 }
    }

    /// Forgets what was noted before, and notes the requests at the front of a list, as far as they may go together.
    /// Each is prepared first. Moves those that are noted into a list of their own.
    #[inline]
    pub(crate) fn note_front<'q>(
        &mut self,
        list: &mut RqList,
        slots: &'q Slots,
        mut prepare: impl FnMut(&mut Request<'q>),
    ) -> RqList {
        self.known.clear();
        list.take_while(slots, |rq| {
            prepare(rq);
            self.note(rq)
        })
    }

    /// Notes a request, if it may go with those that were noted before.
    #[inline]
    fn note(&mut self, rq: &Request<'_>) -> bool {
        debug_assert!(rq.body().tag.is_none(), "a newcomer has no tag yet: {rq:?}");
        if rq.body().flush != FlushStep::None || rq.flags().at_head || self.known.len() == MOST_NEWCOMERS {
            return false;
        }
        match self.known.first() {
            None => self.hctx = rq.hctx(),
            Some(Newcomer { info: like, .. }) => {
                let is_alike =
                    self.hctx == rq.hctx() && like.op == rq.op() && like.priority.class == rq.priority().class;
                // In a stream, whose requests are as large as they may be, each request touches the one before.
                let touches = self.known.last().is_some_and(|last| last.info.end() == rq.sector());
                if !is_alike || touches {
                    return false;
                }
            }
        }
        self.known.push(Newcomer { rq: rq.id(), info: rq.body().info() });
        true
    }
}
