//! Dispatching: from the dispatch lists, then from the scheduler or, without one, from the software queues.

use blkmq_sched::Time;

use crate::dispatcher::Dispatcher;
use crate::dispatcher::outcome::Dispatched;
use crate::queue::{Count, Queue};
use blkmq_sync::liveness::WaiterPresent;

impl Dispatcher {
    /// Dispatches up to `bound` requests: they become ready.
    ///
    /// COST: not inlined. Most plugs are dispatched as they are inserted, and do not pay for this function's registers.
    #[inline(never)]
    pub(super) fn dispatch(&mut self, q: &Queue, now: Time, bound: usize) -> Dispatched {
        debug_assert!(self.is_inside(q), "a thread dispatches inside the queue");
        if q.settings.has_scheduler() {
            return q.locking().dispatch(self, q, now, bound);
        }
        Dispatched::all(self.dispatch_for_itself(q, bound, |dispatcher, bound| {
            // Read again: another thread may have found no tag while this thread held one that it put back unused.
            if q.live.word.load().is_waiting() { dispatcher.dispatch_software(q, bound) } else { 0 }
        }))
    }

    /// Without a scheduler: takes one request per software queue in turn, as far as there are tags.
    fn dispatch_software(&mut self, q: &Queue, bound: usize) -> usize {
        let layout = q.hctxs.layout();
        let mut chosen = 0;
        for (index, hctx) in q.hctxs.iter() {
            while chosen < bound && hctx.has_marked_ctx() {
                let Some(tag) = self.tag_or_wait(q, hctx, WaiterPresent::NO) else { break };
                match hctx.take_from_ctx(q, index, layout) {
                    Some(rq) => {
                        self.make_ready(q, rq, tag);
                        chosen += 1;
                    }
                    // Another thread was faster, so this one reads the map again.
                    None => chosen += self.put_back(q, hctx, &[tag]),
                }
            }
        }
        self.thread(q).counters.count(Count::DispatchBatches, chosen as u64);
        chosen
    }
}
