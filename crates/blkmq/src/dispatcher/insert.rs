//! Inserting: the requests of a plug [bypass](super::pass) the scheduler, or enter it and merge with requests that wait
//! there. Without a scheduler they wait in a software queue.

use blkmq_sched::Time;

use crate::dispatcher::Dispatcher;
use crate::dispatcher::outcome::Dispatched;
use crate::queue::{Domain, Mapping, Queue, StartBatch};
use crate::request::{FlushStep, Location, Request, RqList, Slots, Status};
use blkmq_sync::word::Snapshot;
use blkmq_sync::{Stage, stage};

/// A plug on its way into the scheduler, or its part for one hardware queue.
pub(super) struct Plug<'q> {
    pub(super) starting: &'q StartBatch<'q>,
    pub(super) mapping: &'q Mapping,
    pub(super) requests: RqList,
    /// Requests of the flush machine that were among them.
    pub(super) flushes: RqList,
    /// Requests may be started.
    pub(super) may_dispatch: bool,
}

impl Dispatcher {
    /// Takes the requests of a plug into the queue, and dispatches. Requests that may not enter a frozen queue stay in
    /// the plug. The caller is inside, and has read the queue's word there as `seen`.
    pub(crate) fn take_plug(&mut self, q: &Queue, plug: &mut RqList, now: Time, seen: Snapshot) {
        debug_assert!(
            !plug.is_empty() && self.is_inside(q),
            "a thread inside the queue takes a plug that holds something"
        );
        if seen.is_frozen() {
            return self.refuse_frozen(q, plug, now);
        }
        let own = plug.len();
        stage(Stage::Submit, own);
        let dispatched = self.insert(q, plug, now, seen);
        if seen.is_quiesced() {
            // The thread that ends the quiescence wakes other threads. If the quiescence has ended already, other
            // threads may have published requests to this thread meanwhile.
            q.defer(self.thread);
            self.saw_quiesced = true;
            if !self.finished.is_empty() {
                // Refused requests may belong to another thread, and this thread may leave before the queue runs again.
                self.complete(q, now);
                self.wake_delivered(q);
            }
        } else {
            self.run(q, own, now, dispatched);
        }
    }

    /// Ends the operations of the plug that must not wait for a frozen queue.
    fn refuse_frozen(&mut self, q: &Queue, plug: &mut RqList, now: Time) {
        refuse_nowait(&q.slots, plug, Location::Plugged, |mut rq| {
            rq.body_mut().completed = now;
            let nr_parts = u64::from(rq.body().nr_parts);
            self.thread(q).account_frozen(nr_parts);
            rq.into_parts(|part| self.completed.push_back(part, Location::Completed));
        });
    }

    /// Inserts the requests of a plug. Requests for which there is no room go to the backlog, and those that need
    /// flushes to the flush machine. Operations that must not wait, but would have to, finish with [`Status::Again`].
    /// `seen` is the queue's word as the caller read it inside. If the word says quiesced, the caller does not run, so
    /// nothing may be started here. Returns how far the insertion dispatched, or `None` if this thread still has to
    /// dispatch.
    fn insert(&mut self, q: &Queue, plug: &mut RqList, now: Time, seen: Snapshot) -> Option<Dispatched> {
        debug_assert!(
            !plug.is_empty() && self.is_done(),
            "a thread inserts something, and has nothing else in its hands"
        );
        debug_assert!(self.is_inside(q) && !seen.is_frozen(), "a thread inserts inside a queue that is not frozen");
        let mapping = q.hctxs.layout().mapping(self.thread);
        let starting = StartBatch::new(q, self.thread(q), now);
        let mut entered = 0;
        let mut dispatched = Some(Dispatched::all(0));
        loop {
            if !seen.is_quiesced() {
                entered += self.pass(&starting, &mapping, plug);
            }
            if plug.is_empty() {
                // All requests have bypassed the scheduler, and those that wait are another thread's; or `dispatched`
                // says that this thread put requests into its software queue.
                break;
            }
            if q.settings.has_scheduler() {
                let (requests, may_dispatch) = (std::mem::take(plug), !seen.is_quiesced());
                let flushes = RqList::default();
                let mut plug = Plug { starting: &starting, mapping: &mapping, requests, flushes, may_dispatch };
                let inserted = q.locking().insert(self, &mut plug);
                debug_assert!(plug.requests.is_empty(), "a plug is taken whole");
                self.insert_flushes(q, plug.flushes, now);
                self.thread(q).counters.entered(inserted.entered);
                entered += inserted.entered;
                // A request on the dispatch list waits for its tag.
                dispatched = inserted.dispatched.filter(|_| !self.must_dispatch);
                break;
            }
            dispatched = None;
            entered += self.insert_unordered(&starting, &mapping, plug);
            if plug.is_empty() {
                break;
            }
        }
        debug_assert!(!seen.is_quiesced() || self.ready.is_empty(), "nothing is started in a quiesced queue");
        starting.finish(entered);
        dispatched
    }

    /// Without a scheduler: puts the first request that did not bypass, and those behind it that go to the same
    /// hardware queue, into this submitter's software queue, or the first one into the flush machine. Returns their
    /// number of operations, which are counted.
    #[inline(never)]
    fn insert_unordered(&mut self, starting: &StartBatch<'_>, mapping: &Mapping, plug: &mut RqList) -> u64 {
        debug_assert!(!plug.is_empty(), "there are requests that did not pass");
        let q = starting.q;
        debug_assert!(!q.settings.has_scheduler(), "with a scheduler no request waits in a software queue");
        let (mut index, mut operations) = (None, 0);
        let mut run = plug.take_while(&q.slots, |rq| {
            let (hctx, body) = (mapping.assign(rq), rq.body());
            let belongs = body.flush == FlushStep::None && *index.get_or_insert(hctx) == hctx;
            operations += if belongs { u64::from(body.nr_parts) } else { 0 };
            belongs
        });
        let counters = &self.thread(q).counters;
        if let Some(index) = index.filter(|_| !run.is_empty()) {
            counters.entered(operations);
            self.queue_up(starting, index, &mut run);
        } else if let Some(mut rq) = plug.pop_front(&q.slots) {
            operations = u64::from(rq.body().nr_parts);
            counters.entered(operations);
            starting.add(&mut rq);
            self.insert_flush(q, rq, starting.now);
        }
        operations
    }

    /// Begins a plug's requests, so that they can be published. Returns how many operations they are, and the requests
    /// to publish.
    pub(super) fn begin(&mut self, domain: &Domain, plug: &mut Plug<'_>) -> (u64, RqList) {
        let Plug { starting, mapping, requests, flushes, .. } = plug;
        debug_assert!(!requests.is_empty(), "there are requests to begin");
        let q = starting.q;
        let (mut entered, mut list) = (0, RqList::default());
        let staged = domain.observed_now();
        while let Some(mut rq) = requests.pop_front(&q.slots) {
            mapping.assign(&mut rq);
            entered += u64::from(rq.body().nr_parts);
            starting.add(&mut rq);
            if rq.body().flush == FlushStep::None {
                if let Some(staged) = staged {
                    // The field that later holds the time of issuing.
                    rq.body_mut().issued = staged;
                }
                list.push_back(rq, Location::Staged);
            } else {
                flushes.push_back(rq, Location::Held);
            }
        }
        stage(Stage::Leave, list.len() + flushes.len());
        debug_assert!(entered >= list.len() as u64, "a request is one operation at least");
        (entered, list)
    }

    /// Puts requests for one hardware queue into this submitter's software queue.
    fn queue_up(&mut self, starting: &StartBatch<'_>, index: u16, run: &mut RqList) {
        let q = starting.q;
        debug_assert_eq!(
            run.with_first(&q.slots, Request::hctx),
            Some(index),
            "requests wait, and go to the hardware queue"
        );
        refuse_nowait(&q.slots, run, Location::Held, |rq| {
            starting.refuse(&rq);
            self.finished.push_back(rq, Location::Held);
        });
        if run.is_empty() {
            // A mark for an empty software queue could stay longer than the layout of the hardware queues under which
            // it was made.
            return;
        }
        let mut rest = run.take_while(&q.slots, |rq| {
            starting.add(rq);
            true
        });
        starting.thread.ctx.put(q, self.thread, index, &mut rest);
        // The run that follows tries for tags again, with WAITING set.
        q.live.word.set_waiting();
    }
}

/// Passes the operations of a list that must not wait to `ended`, with their status. The others stay at `location`, in
/// order.
fn refuse_nowait<'q>(slots: &'q Slots, list: &mut RqList, location: Location, mut ended: impl FnMut(Request<'q>)) {
    for _ in 0..list.len() {
        let Some(mut rq) = list.pop_front(slots) else { return };
        if rq.flags().nowait {
            rq.body_mut().status = Status::Again;
            ended(rq);
        } else {
            list.push_back(rq, location);
        }
    }
}
