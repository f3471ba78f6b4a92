//! The flush machine: what a volatile write cache needs before and after a request's data.
//!
//! A flush, or a write that wants one, becomes steps: a flush before the data, the data, and a flush after it. The
//! steps of one operation are its flush sequence. The device decides which steps are needed. A device without a write
//! cache needs no flush. A device that has FUA needs no flush after the data. The FUA flag is passed on to a device
//! that has FUA in any case, because a device without a cache of its own may stand for others that have one.
//!
//! Each hardware queue has one machine. A request that needs a flush waits in the machine as long as a flush is
//! running, or data of flush sequences is on its way. All requests that wait share the next flush. The running flush
//! does not answer for them. It may have begun before a write completed that they are to make durable.
//!
//! The steps never enter the scheduler. A step that was started, a flush or data, waits for its tag on the hardware
//! queue's dispatch list, which comes before the scheduler.

use blkmq_sched::{Op, Time};

use crate::queue::Queue;
use crate::request::bio::Flags;
use crate::request::limits::Limits;
use crate::request::{Body, FLUSH_POOL, FlushStep, Location, Request, RqList, SlotIndex, Slots};
use blkmq_sync::unless_mutated;

/// Nanoseconds: for so long a flush that waits lets the data of flush sequences finish first, because it then covers
/// that data too. After that, the next event of the machine (a request that comes, or a step that completes) starts the
/// flush all the same, unless another flush is running. So data that comes again and again does not starve the requests
/// that wait for the flush. No timer starts the flush. Without a further event the flush waits until all of the data is
/// over.
const FLUSH_PENDING_TIMEOUT_NS: u64 = 5_000_000_000;

/// The first step that an operation needs on a device, and whether its data needs a flush after it. Clears the flags
/// that mean nothing to the device.
pub(crate) fn first_step(limits: &Limits, op: Op, flags: &mut Flags) -> (FlushStep, bool) {
    let preflush = limits.write_cache && (flags.preflush || op == Op::Flush);
    let fua = flags.fua && op != Op::Read;
    let post_flush = limits.write_cache && fua && !limits.fua;
    flags.preflush = false;
    flags.fua = fua && limits.fua;
    let step = match (preflush, post_flush) {
        (true, _) => FlushStep::PreFlush,
        (false, true) => FlushStep::Data,
        (false, false) => FlushStep::None,
    };
    (step, post_flush)
}

/// One hardware queue's flush machine.
#[derive(Debug, Default)]
pub(super) struct FlushQueue {
    /// Requests that need a flush that has not begun.
    waiting: RqList,
    /// When the oldest request in `waiting` came.
    waiting_since: Time,
    /// Requests that the running flush serves.
    running: RqList,
    is_running: bool,
    /// How many requests with data of flush sequences are on their way.
    data_in_flight: usize,
}

/// What the machine wants done after a step. The caller does it under no lock.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Requests for the dispatch list.
    pub(crate) dispatch: RqList,
    /// Requests that are through.
    pub(crate) finished: RqList,
}

impl Steps {
    /// Takes a request with its first step into the flush machine of its hardware queue.
    pub(crate) fn begin(q: &Queue, rq: Request<'_>, now: Time) -> Self {
        let hctx = rq.hctx();
        q.hctxs.get(hctx).flush.lock().insert(&q.slots, hctx, rq, now)
    }

    /// Called when a step of the flush machine has completed; its status is in the request.
    pub(crate) fn complete(q: &Queue, rq: Request<'_>, now: Time) -> Self {
        let hctx = rq.hctx();
        q.hctxs.get(hctx).flush.lock().complete(&q.slots, hctx, rq, now)
    }
}

impl FlushQueue {
    /// Takes in a request with its first step.
    fn insert(&mut self, slots: &Slots, hctx: u16, rq: Request<'_>, now: Time) -> Steps {
        debug_assert!(
            matches!(rq.body().flush, FlushStep::PreFlush | FlushStep::Data) && rq.body().tag.is_none(),
            "a request comes to the flush machine with its first step before it, and without a tag: {rq:?}"
        );
        let mut steps = Steps::default();
        match rq.body().flush {
            FlushStep::Data => self.send_data(rq, &mut steps),
            _ => self.wait(rq, now),
        }
        self.kick(slots, hctx, now, &mut steps);
        steps
    }

    /// Called when a step of the machine has completed; its status is in the request.
    fn complete(&mut self, slots: &Slots, hctx: u16, rq: Request<'_>, now: Time) -> Steps {
        debug_assert!(
            matches!(rq.body().flush, FlushStep::Flush | FlushStep::Data) && rq.body().tag.is_none(),
            "a step that has completed is a flush or data, and its tag is back: {rq:?}"
        );
        let mut steps = Steps::default();
        match rq.body().flush {
            FlushStep::Flush => self.flush_done(slots, rq, &mut steps),
            _ => self.data_done(rq, now, &mut steps),
        }
        self.kick(slots, hctx, now, &mut steps);
        steps
    }

    /// For dumps: how many requests wait for a flush, how many the running flush serves, whether one is running, and
    /// how many requests with data are on their way.
    pub(super) fn state(&self) -> (usize, usize, bool, usize) {
        (self.waiting.len(), self.running.len(), self.is_running, self.data_in_flight)
    }

    fn wait(&mut self, rq: Request<'_>, now: Time) {
        if self.waiting.is_empty() {
            self.waiting_since = now;
        }
        self.waiting.push_back(rq, Location::Flush);
    }

    fn send_data(&mut self, mut rq: Request<'_>, steps: &mut Steps) {
        rq.body_mut().flush = FlushStep::Data;
        self.data_in_flight += 1;
        steps.dispatch.push_back(rq, Location::Held);
    }

    fn flush_done(&mut self, slots: &Slots, flush: Request<'_>, steps: &mut Steps) {
        debug_assert!(self.is_running && !self.running.is_empty(), "a flush that is over was begun for some request");
        let Body { status, issued, completed, .. } = *flush.body();
        flush.free();
        self.is_running = false;
        while let Some(mut rq) = self.running.pop_front(slots) {
            let has_data = rq.body().flush == FlushStep::PreFlush && rq.op() != Op::Flush;
            let body = rq.body_mut();
            // The thread that issued and completed the flush may have read the clock before the data was issued.
            (body.status, body.completed) = (status, completed.max(body.issued));
            if status.is_ok() && has_data && unless_mutated("flush.data_first") {
                self.send_data(rq, steps);
            } else {
                // The driver had nothing of this request but the flush, unless the flush came after its data.
                if body.flush == FlushStep::PreFlush {
                    body.issued = issued;
                }
                steps.finished.push_back(rq, Location::Held);
            }
        }
    }

    fn data_done(&mut self, mut rq: Request<'_>, now: Time, steps: &mut Steps) {
        debug_assert!(self.data_in_flight > 0, "data that is back was sent");
        self.data_in_flight -= 1;
        if rq.body().post_flush && rq.body().status.is_ok() {
            rq.body_mut().flush = FlushStep::PostFlush;
            self.wait(rq, now);
        } else {
            steps.finished.push_back(rq, Location::Held);
        }
    }

    /// Starts the next flush if one is wanted, none is running, and no data is on its way or the wait is overdue.
    /// Called at each event of the machine, and at no other time.
    fn kick(&mut self, slots: &Slots, hctx: u16, now: Time, steps: &mut Steps) {
        let overdue = now.since(self.waiting_since) >= FLUSH_PENDING_TIMEOUT_NS;
        if self.is_running || self.waiting.is_empty() || (self.data_in_flight > 0 && !overdue) {
            return;
        }
        debug_assert!(self.running.is_empty(), "the requests of the flush before are through");
        self.is_running = true;
        self.running = std::mem::take(&mut self.waiting);
        let mut flush = slots.take_own(SlotIndex::new(FLUSH_POOL, hctx));
        *flush.body_mut() = Body::flush(hctx, now);
        steps.dispatch.push_front(flush, Location::Held);
    }
}
