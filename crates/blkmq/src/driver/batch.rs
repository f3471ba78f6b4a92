//! Requests on their way to a driver, and on their way back.

use blkmq_sched::{RqId, Time};

use super::started::{Started, StartedTable};
use crate::request::{BorrowedRequest, Location, Request, RqList, Slots, Status};

/// Requests on their way to a driver, and what it does with them. A driver takes one after the other, and says of each
/// what becomes of it:
///
/// ```
/// # use blkmq::{Op, Status, driver::Batch};
/// fn queue_rqs(batch: &mut Batch<'_>) {
///     while let Some(rq) = batch.next_request() {
///         let status = if rq.op() == Op::Read { Status::Ok } else { Status::Unsupported };
///         batch.finish(rq, status);
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Batch<'q> {
    slots: &'q Slots,
    table: &'q StartedTable,
    pending: &'q mut RqList,
    finished: &'q mut RqList,
    requeued: &'q mut RqList,
    /// The threads that the thread that issues will tell of what was started.
    started: &'q mut Started,
    offer: Offer,
    /// The driver refused a request, and wants to be asked again later.
    is_refused: bool,
}

/// Which thread offers a batch to a driver, when, and when what the driver starts of it is overdue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offer {
    thread: u16,
    now: Time,
    deadline: Time,
}

impl Offer {
    pub(crate) const fn new(thread: u16, now: Time, deadline: Time) -> Self {
        Self { thread, now, deadline }
    }
}

impl<'q> Batch<'q> {
    /// Offers what is pending. What the driver makes of it goes onto the other lists, and into `table` and `started`.
    #[inline]
    pub(crate) const fn new(
        slots: &'q Slots,
        table: &'q StartedTable,
        pending: &'q mut RqList,
        finished: &'q mut RqList,
        requeued: &'q mut RqList,
        started: &'q mut Started,
        offer: Offer,
    ) -> Self {
        Self { slots, table, pending, finished, requeued, started, offer, is_refused: false }
    }

    /// Whether the driver refused a request, and wants to be asked again later.
    #[inline]
    pub(crate) const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// Takes the next request, in order; none after a request was refused.
    #[inline]
    pub fn next_request(&mut self) -> Option<Request<'q>> {
        if self.is_refused { None } else { self.pending.pop_front(self.slots) }
    }

    /// An address has a meaning only in its own queue.
    #[inline]
    fn check(&self, rq: &Request<'_>) {
        assert!(rq.is_of(self.slots), "a driver hands back requests to the queue they came from");
    }

    /// Requests still to come. After [`refuse`](Self::refuse) none comes in this call; these are then the refused
    /// request and those behind it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// True if [`len`](Self::len) is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The request is finished already.
    #[inline]
    pub fn finish(&mut self, mut rq: Request<'q>, status: Status) {
        self.check(&rq);
        rq.body_mut().status = status;
        rq.body_mut().issued = self.offer.now;
        self.finished.push_back(rq, Location::Held);
    }

    /// All requests that are still to come are finished already.
    #[inline]
    pub fn finish_all(&mut self, status: Status) {
        if !self.is_refused {
            let all = self.pending.take_while(self.slots, |rq| {
                let body = rq.body_mut();
                body.status = status;
                body.issued = self.offer.now;
                true
            });
            self.finished.append(all);
        }
    }

    /// The device works on the request from now on. Note the id before any thread can complete the request: the driver
    /// hands the id to [`Done::complete`] later, and must not touch the request's data after that.
    #[must_use = "the id is the only way to complete the request"]
    pub fn start(&mut self, mut rq: Request<'q>) -> RqId {
        self.note(&mut rq);
        rq.issue(self.offer.deadline, false)
    }

    /// Like [`start`](Self::start), for a device that reads and writes the request's data by itself. While the borrowed
    /// request exists, the memory stays where it is, and no other code uses it, whatever a driver in front of this one
    /// does. A thread of the driver's own may read and write the data by [`BorrowedRequest::segments`].
    pub fn borrow(&mut self, mut rq: Request<'q>) -> BorrowedRequest {
        self.note(&mut rq);
        rq.borrow(self.offer.deadline)
    }

    /// Notes that the request is issued now.
    #[inline]
    fn note(&mut self, rq: &mut Request<'q>) {
        self.check(rq);
        self.started.note(rq.index().pool(), self.offer.thread);
        rq.body_mut().issued = self.offer.now;
        let tag = rq.body().tag.expect("what is issued has a tag");
        self.table.set(tag, rq.id(), rq.op().is_read());
    }

    /// The device cannot take the request at present. The request comes first when the driver is asked again. The batch
    /// ends.
    pub fn refuse(&mut self, rq: Request<'q>) {
        self.check(&rq);
        self.pending.push_front(rq, Location::IssueList);
        self.is_refused = true;
    }

    /// The device gives the request back for another try. The request loses its tag and waits in front of the
    /// scheduler.
    pub fn requeue(&mut self, rq: Request<'q>) {
        self.check(&rq);
        self.requeued.push_back(rq, Location::Held);
    }
}

/// The id names no request that the driver has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("request {:#x} is not with the driver", .0.0)]
pub struct StaleRequest(pub RqId);

/// Where a driver puts what has finished.
#[derive(Debug)]
pub struct Done<'q> {
    slots: &'q Slots,
    finished: &'q mut RqList,
    is_early: bool,
}

impl<'q> Done<'q> {
    #[inline]
    pub(crate) const fn new(slots: &'q Slots, finished: &'q mut RqList) -> Self {
        Self { slots, finished, is_early: false }
    }

    /// Whether the device's next event is earlier than the one that sleepers know of.
    #[inline]
    pub(crate) const fn is_early(&self) -> bool {
        self.is_early
    }

    /// A request that was started has finished.
    ///
    /// # Errors
    /// The driver has no such request: it was completed before, given up to a timeout, or borrowed.
    pub fn complete(&mut self, id: RqId, status: Status) -> Result<(), StaleRequest> {
        if let Some(rq) = self.slots.complete(id, status, false).map_err(|()| StaleRequest(id))? {
            self.finished.push_back(rq, Location::Held);
        }
        Ok(())
    }

    /// A request that was borrowed has finished, and the device no longer uses its data.
    ///
    /// # Panics
    /// The request is of another queue.
    pub fn give_back(&mut self, borrowed: BorrowedRequest, status: Status) {
        assert!(borrowed.is_of(self.slots), "a driver hands back requests to the queue they came from");
        let rq = self
            .slots
            .complete(borrowed.id(), status, true)
            .expect("a request is borrowed once, and only the borrower completes it");
        if let Some(rq) = rq {
            self.finished.push_back(rq, Location::Held);
        }
    }

    /// [`Driver::next_event`](super::Driver::next_event) of this hardware queue is earlier now, although no request has
    /// been started. Sleepers are woken, so that they plan for it. The thread that polls may have no other reason to
    /// come again.
    pub fn plan_anew(&mut self) {
        self.is_early = true;
    }

    /// Requests completed so far in this call.
    #[must_use]
    pub fn len(&self) -> usize {
        self.finished.len()
    }

    /// True if no request was completed so far in this call.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.finished.is_empty()
    }
}
