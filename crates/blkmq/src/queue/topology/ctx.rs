//! Software queues: where a submitter's requests wait for a tag when there is no scheduler.

use super::hctx::HwCtx;
use super::layout::{HctxType, Layout};
use crate::queue::Queue;
use crate::request::{Location, Request, RqList, Slots};
use blkmq_sync::{Line, Mutex};

/// A submitter's software queue, one list per type of hardware queue.
///
/// Its submitter appends, and any thread that finds a tag takes from the front. So the list has a lock, on a line of
/// its own, that is taken only while requests wait.
#[derive(Debug)]
pub(crate) struct SwCtx(Line<Mutex<[RqList; HctxType::COUNT]>>);

impl SwCtx {
    pub(in crate::queue) fn new() -> Self {
        Self(Line::new("ctx.lists", Mutex::new([RqList::default(), RqList::default(), RqList::default()])))
    }

    /// Puts requests for one hardware queue, at least one, into this software queue, which is that of `thread`. The
    /// mark is set under the lock, so that it is set exactly when the queue is not empty.
    ///
    /// COST: not inlined, since most requests find a tag and wait nowhere.
    #[inline(never)]
    pub(crate) fn put(&self, q: &Queue, thread: u16, index: u16, list: &mut RqList) {
        debug_assert!(thread > 0, "the queue itself, number 0, has no software queue");
        debug_assert!(!list.is_empty(), "a software queue is marked only if it holds something");
        let kind = q.hctxs.layout().kind_of(index);
        let mut lists = self.0.lock();
        let all = list.take_while(&q.slots, |rq| {
            rq.rest_at(Location::SoftwareQueue);
            true
        });
        lists[kind as usize].append(all);
        q.hctxs.get(index).mark_ctx(thread);
    }

    /// Takes the oldest request. `unmark` runs under the lock when the list is empty afterwards.
    fn take<'q>(&self, slots: &'q Slots, kind: HctxType, unmark: impl FnOnce()) -> Option<Request<'q>> {
        let mut lists = self.0.lock();
        let list = &mut lists[kind as usize];
        let rq = list.pop_front(slots);
        if list.is_empty() {
            unmark();
        }
        rq
    }

    pub(in crate::queue) fn lens(&self) -> [usize; HctxType::COUNT] {
        let lists = self.0.lock();
        [lists[0].len(), lists[1].len(), lists[2].len()]
    }
}

impl HwCtx {
    /// Takes the oldest request for this hardware queue, which has the number `index` in `layout`, out of the software
    /// queue whose turn it is. `None`: other threads were faster.
    pub(crate) fn take_from_ctx<'q>(&self, q: &'q Queue, index: u16, layout: Layout) -> Option<Request<'q>> {
        let thread = self.next_ctx()?;
        q.threads.get(thread).ctx.take(&q.slots, layout.kind_of(index), || self.unmark_ctx(thread))
    }
}
