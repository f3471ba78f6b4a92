//! Fast-path dispatch. Requests that come together while nothing waits, and leave together, need no tree, no list of
//! arrivals and no hash. Sorting them gives the order that insertion and dispatch would give.

use super::MqDeadline;
use crate::direction::Direction;
use crate::mergeable::sort_apart;
use crate::scheduler::MAX_FAST_BATCH;
use crate::{FastRequest, Info, Op, Time};

impl MqDeadline {
    /// Orders a batch, if nothing waits, and no other class is queued.
    #[inline]
    pub(super) fn order_fast(&mut self, batch: &[FastRequest], now: Time, order: &mut [u8]) -> bool {
        let number = batch.len();
        debug_assert_eq!(order.len(), number, "the order has a place for each request");
        let Some(FastRequest { info: like, .. }) = batch.first() else { return self.requests.len() == 0 };
        let (class, direction) = (like.priority.class, Direction::of(like.op));
        let is_alike = |info: &Info| (info.priority.class, info.op) == (class, like.op);
        debug_assert!(
            batch.iter().all(|request| is_alike(&request.info)),
            "the requests are of one class and one operation"
        );
        let is_simple = self.requests.len() == 0
            && number <= MAX_FAST_BATCH
            // Discards merge without touching each other.
            && matches!(like.op, Op::Read | Op::Write)
            && *self.classes & !(1 << class.index()) == 0
            // No request has expired as soon as it is there.
            && now.after(self.tunables.expire(direction)) > now;
        let mut sorted = [0; MAX_FAST_BATCH];
        if !is_simple || !sort_apart(batch, &mut sorted[..number]) {
            return false;
        }
        let counts = &mut *self.levels[class.index()].counts;
        counts.inserted += number as u64;
        counts.dispatched += number as u64;
        *self.asked = now;
        self.note_queued(class);

        let sorted = &sorted[..number];
        let info = |place: u8| &batch[usize::from(place)].info;
        let pos = *self.levels[class.index()].queue(direction).latest_pos;
        let (mut from, mut end, mut begins) = (0, number, false);
        while from < end && info(sorted[from]).sector < pos {
            from += 1;
        }
        let mut places = order.iter_mut();
        loop {
            for (chosen, place) in sorted[from..end].iter().zip(&mut places) {
                *place = *chosen;
            }
            self.count_choices(direction, begins, (end - from) as i64);
            if from < end {
                *self.levels[class.index()].queue_mut(direction).latest_pos = info(sorted[end - 1]).sector;
            }
            if from == 0 {
                break;
            }
            // Behind the last request by sector a new dispatch batch begins, with the oldest request and those that
            // follow it by sector.
            (end, begins) = (from, true);
            from = (0..end).min_by_key(|at| sorted[*at]).unwrap_or(0);
        }
        debug_assert!(places.next().is_none(), "each request has a place in the order");
        true
    }

    /// `number` more requests go, in the running batch if there is one of this direction, unless another batch
    /// `begins`.
    #[inline]
    fn count_choices(&mut self, direction: Direction, mut begins: bool, mut left: i64) {
        debug_assert!(left >= 0, "no fewer than no requests go");
        let fifo_batch = self.tunables.fifo_batch;
        while left > 0 {
            if begins || self.pace.direction != direction || self.pace.batching >= fifo_batch {
                let is_read = direction == Direction::Read;
                if let Some(pace) = self.new_batch(self.pace.starved, is_read, !is_read) {
                    *self.pace = pace;
                }
                begins = false;
            }
            // A batch has one request at least.
            let number = left.min((fifo_batch - self.pace.batching).max(1));
            self.pace.batching += number;
            left -= number;
        }
    }
}
