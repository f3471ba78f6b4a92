//! Requests that the driver has had for too long.
//!
//! The busy tags are scanned when a timeout period has passed since the last scan, or earlier, when the earliest
//! deadline that the last scan found has come. The thread that moves `timeout_scan` makes the scan. The scan reserves
//! an overdue request, and asks the driver. If the driver gives the request up, the scan ends it, unless it is
//! borrowed. Otherwise the request goes on: a borrowed request ends only when the driver gives it back. A completion
//! that comes meanwhile is not lost: the completer leaves its status with the scan (see `request::state`).

use blkmq_sched::{RqId, Time};

use crate::dispatcher::Dispatcher;
use crate::driver::TimeoutAction;
use crate::queue::{Count, Queue};
use crate::request::{Location, Status};
use blkmq_sync::atomic::Ordering;
use blkmq_sync::{order, unless_mutated};

impl Dispatcher {
    /// Scans if a scan is due. Requests that expired are among the finished ones afterwards.
    ///
    /// COST: a load of a line that is written once per timeout period.
    pub(super) fn scan_timeouts(&mut self, q: &Queue, now: Time) {
        let due = q.timeout_scan.load(Ordering::Relaxed);
        if now.0 < due {
            return;
        }
        let next = || now.after(q.settings.timeout_ns()).0;
        let planned = next();
        // Acquire pairs with the Release of a thread that has set a shorter timeout, and has found `due` earlier than
        // the scan that it wanted. Behind the exchange this thread sees the shorter timeout: it reads the timeout once
        // more, and plans the next scan by that.
        let acquire = order("timeout.begin", Ordering::Acquire);
        if q.timeout_scan.compare_exchange(due, planned, acquire, Ordering::Relaxed).is_err() {
            return;
        }
        let mut earliest = if unless_mutated("timeout.read_again") { next() } else { planned };
        let mut was_asked = false;
        for (index, hctx) in q.hctxs.iter() {
            hctx.tags.for_each_busy(|tag| {
                if let Some((id, _)) = hctx.started.get(tag) {
                    earliest = earliest.min(self.check_deadline(q, index, id, now, &mut was_asked).0);
                }
            });
        }
        // A request issued from here on has a deadline no earlier than `earliest`, so the next scan does not come too
        // late.
        q.timeout_scan.fetch_min(earliest, Ordering::Relaxed);
        if was_asked || earliest < planned {
            // There are two reasons to wake the sleepers. A device that was asked about a request may now name another
            // time for it, and the sleepers have planned by the time that it named before. And a thread that looked
            // while the scan ran found the next scan planned for a later time than now; the scanning thread may leave,
            // and then no thread would come in time.
            q.wake_sleepers(self.thread);
        }
    }

    /// Handles one request that the driver was given. Returns the time at which the request must be looked at again,
    /// and notes whether the driver was asked.
    fn check_deadline(&mut self, q: &Queue, hctx: u16, id: RqId, now: Time, was_asked: &mut bool) -> Time {
        let never = Time(u64::MAX);
        let Some(deadline) = q.slots.deadline(id) else { return never };
        if now < deadline {
            return deadline;
        }
        // The deadline is read again now that the request is reserved: before, the request may have been given back and
        // issued anew, with a later deadline than the first read found.
        let Some(deadline) = q.slots.begin_timeout(id) else { return never };
        if now < deadline {
            self.end_reservation(q, id, false, deadline);
            return deadline;
        }
        let again = now.after(q.settings.timeout_ns());
        *was_asked = true;
        let expired = q.driver().timeout(hctx, id, now) == TimeoutAction::Done;
        if self.end_reservation(q, id, expired, again) { never } else { again }
    }

    /// Ends the reservation of a request, which is overdue `again` at this time. Returns whether the request is
    /// finished now.
    fn end_reservation(&mut self, q: &Queue, id: RqId, expired: bool, again: Time) -> bool {
        let Some(rq) = q.slots.end_timeout(id, expired, again) else { return false };
        if rq.body().status == Status::Timeout {
            self.thread(q).counters.count(Count::Timeouts, 1);
        }
        self.finished.push_back(rq, Location::Held);
        true
    }
}
