//! Software queues: where a submitter's requests wait for a tag when there is no scheduler.

use super::layout::{HctxType, Layout};
use crate::queue::RequestQueue;
use crate::request::{Place, Request, RqList, Slots};
use blkmq_sync::{Line, Mutex};

/// A submitter's software queue, one list per type of hardware queue.
///
/// Its submitter appends, and any thread that finds a tag takes from the front. So the list has a lock, on a line of
/// its own, that is taken only while requests wait.
#[derive(Debug)]
pub(in crate::queue) struct SwCtx(Line<Mutex<[RqList; HctxType::COUNT]>>);

impl SwCtx {
    pub(in crate::queue) fn new() -> Self {
        Self(Line::new("ctx.lists", Mutex::new([RqList::default(), RqList::default(), RqList::default()])))
    }

    /// Appends what is in `list`. `mark` runs under the lock, so that the mark is set exactly when the queue is not
    /// empty.
    fn append(&self, slots: &Slots, kind: HctxType, list: &mut RqList, mark: impl FnOnce()) {
        debug_assert!(!list.is_empty(), "a software queue is marked only if it holds something");
        let mut lists = self.0.lock();
        let all = list.take_while(slots, |rq| {
            rq.rest_at(Place::SoftwareQueue);
            true
        });
        lists[kind as usize].append(all);
        mark();
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

impl RequestQueue {
    /// Puts requests for one hardware queue, at least one, into a member's software queue.
    ///
    /// COST: not inlined, since most requests find a tag and wait nowhere.
    #[inline(never)]
    pub(crate) fn put_in_ctx(&self, member: u16, index: u16, list: &mut RqList) {
        let (hctx, kind) = (self.hctxs.get(index), self.hctxs.layout().kind_of(index));
        self.members.get(member).ctx.append(&self.slots, kind, list, || hctx.mark_ctx(member));
    }

    /// Takes the oldest request for a hardware queue out of the software queue whose turn it is. `None`: other threads
    /// were faster.
    pub(crate) fn take_from_ctx(&self, index: u16, layout: Layout) -> Option<Request<'_>> {
        let hctx = self.hctxs.get(index);
        let member = hctx.next_ctx()?;
        self.members.get(member).ctx.take(&self.slots, layout.kind_of(index), || hctx.unmark_ctx(member))
    }
}
