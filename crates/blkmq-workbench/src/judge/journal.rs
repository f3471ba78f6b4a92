//! The order in which requests came and went: a device that notes it, and how far it is from an ideal order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blkmq::driver::{Batch, Done, Driver, NextEvent, Topology};
use blkmq::{Limits, RqId, Status, Time};

use super::promises::Order;

/// Something that happened to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) is_read: bool,
    pub(super) sector: u64,
    /// The client that submitted it, by its place in the load; `None` if the device got it.
    pub(super) submitter: Option<usize>,
}

/// What happened, in the order in which it happened. All of it happens in one thread.
#[derive(Debug, Default)]
pub(super) struct Journal(Mutex<Vec<Event>>);

impl Journal {
    pub(super) fn arrived(&self, is_read: bool, sector: u64, submitter: usize) {
        self.push(Event { is_read, sector, submitter: Some(submitter) });
    }

    fn issued(&self, is_read: bool, sector: u64) {
        self.push(Event { is_read, sector, submitter: None });
    }

    fn push(&self, event: Event) {
        held(&self.0).push(event);
    }

    /// Takes what was noted so far.
    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut held(&self.0))
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device that notes in which order it gets requests. It does them one after the other, each in the same time, and
/// takes as many at once as the device whose place it takes.
#[derive(Debug)]
pub(super) struct Recorder {
    limits: Limits,
    depth: u16,
    journal: Arc<Journal>,
    pending: Mutex<VecDeque<(Time, RqId)>>,
}

/// Nanoseconds that a request takes.
const SERVICE_NS: u64 = 10_000;

impl Recorder {
    pub(super) fn new(limits: Limits, depth: u16, journal: Arc<Journal>) -> Self {
        Self { limits, depth, journal, pending: Mutex::default() }
    }
}

impl Driver for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn topology(&self) -> Topology {
        Topology::new(1, self.depth)
    }

    fn keeps_data(&self) -> bool {
        false
    }

    fn queue_rqs(&self, _hctx: u16, batch: &mut Batch<'_>, now: Time) {
        let mut pending = held(&self.pending);
        while let Some(rq) = batch.next_request() {
            self.journal.issued(rq.op().is_read(), rq.sector());
            let last = pending.back().map_or(now, |(due, _)| *due);
            let due = last.max(now).after(SERVICE_NS);
            pending.push_back((due, batch.start(rq)));
        }
    }

    fn poll(&self, _hctx: u16, done: &mut Done<'_>, now: Time) {
        let mut pending = held(&self.pending);
        while pending.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, id)) = pending.pop_front()
        {
            // A request that the timeout scan ended is no longer waited for.
            let _ = done.complete(id, Status::Ok);
        }
    }

    fn next_event(&self, _hctx: u16) -> NextEvent {
        NextEvent::from(held(&self.pending).front().map(|(due, _)| *due))
    }
}

/// How far an order is from the ideal one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Disorder {
    /// How many requests of the same direction should have gone before the one that went, on average and at most.
    pub(super) mean_rank: f64,
    pub(super) largest_rank: u64,
    /// The share of the requests before which another should have gone.
    pub(super) inverted: f64,
}

/// The requests of one direction that wait, in the order in which they came.
#[derive(Debug, Default)]
struct Waiting {
    /// First sector, and the submitter.
    requests: VecDeque<(u64, usize)>,
    /// Where the last one that went began.
    position: u64,
}

impl Waiting {
    /// Takes a request that went, and says how many should have gone before it. `None` if it is not known.
    fn take(&mut self, sector: u64, order: Order) -> Option<u64> {
        let at = self.requests.iter().position(|(other, _)| *other == sector)?;
        let (_, submitter) = self.requests[at];
        let position = std::mem::replace(&mut self.position, sector);
        let ahead = self.requests.iter().filter(|(other, _)| *other >= position);
        let rank = match order {
            Order::Arrival => at,
            Order::Submitter => self.requests.iter().take(at).filter(|(_, other)| *other == submitter).count(),
            Order::Sector if sector >= position => ahead.filter(|(other, _)| *other < sector).count(),
            // The sweep begins anew. It should not, as long as anything waits ahead.
            Order::Sector => ahead.count(),
        };
        self.requests.remove(at);
        Some(rank as u64)
    }
}

/// How far the order in which requests went is from the ideal one.
pub(super) fn disorder(events: &[Event], order: Order) -> Disorder {
    let mut waiting = [Waiting::default(), Waiting::default()];
    let (mut sum, mut count, mut inverted, mut largest) = (0_u64, 0_u64, 0_u64, 0);
    for event in events {
        let waiting = &mut waiting[usize::from(event.is_read)];
        if let Some(submitter) = event.submitter {
            waiting.requests.push_back((event.sector, submitter));
            continue;
        }
        let Some(rank) = waiting.take(event.sector, order) else { continue };
        sum += rank;
        count += 1;
        inverted += u64::from(rank > 0);
        largest = largest.max(rank);
    }
    let count = count.max(1) as f64;
    Disorder { mean_rank: sum as f64 / count, largest_rank: largest, inverted: inverted as f64 / count }
}

/// How many reads went, at most, one behind the other while a write waited.
pub(super) fn longest_passing(events: &[Event]) -> u64 {
    let (mut waiting_writes, mut passing, mut longest) = (0_u64, 0, 0);
    for event in events {
        match (event.submitter.is_none(), event.is_read) {
            (false, true) => {}
            (false, false) => waiting_writes += 1,
            (true, false) => (waiting_writes, passing) = (waiting_writes.saturating_sub(1), 0),
            (true, true) if waiting_writes > 0 => passing += 1,
            (true, true) => passing = 0,
        }
        longest = longest.max(passing);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests arrive, of two submitters in turn, and go.
    fn events(arrived: &[u64], issued: &[u64]) -> Vec<Event> {
        let came = arrived.iter().zip([0, 1].into_iter().cycle());
        let came = came.map(|(sector, submitter)| Event { is_read: true, sector: *sector, submitter: Some(submitter) });
        came.chain(issued.iter().map(|sector| Event { is_read: true, sector: *sector, submitter: None })).collect()
    }

    /// Red if a request that others should have preceded has rank 0, or one that went when it should has another.
    #[test]
    fn a_rank_counts_those_that_should_have_gone_before() {
        let arrived = [10, 40, 20, 30];
        let of = |issued: &[u64], order| disorder(&events(&arrived, issued), order);
        assert_eq!(of(&[10, 40, 20, 30], Order::Arrival), Disorder::default());
        assert_eq!(of(&[10, 20, 30, 40], Order::Sector), Disorder::default());
        let inverted = of(&[40, 30, 20, 10], Order::Sector);
        // 40 goes before three; then each of the others begins a new sweep with nothing ahead.
        assert_eq!((inverted.mean_rank, inverted.largest_rank, inverted.inverted), (0.75, 3, 0.25));
        let last_first = of(&[30, 20, 40, 10], Order::Arrival);
        assert_eq!((last_first.mean_rank, last_first.largest_rank, last_first.inverted), (1.5, 3, 0.75));
        // 10 and 20 are of one submitter, 40 and 30 of the other one.
        assert_eq!(of(&[40, 30, 10, 20], Order::Submitter), Disorder::default());
        assert_eq!(of(&[30, 40, 20, 10], Order::Submitter).mean_rank, 0.5);
        // Behind 30 a sweep goes on to 40. Back to 20 means to leave 40 out.
        assert_eq!(of(&[10, 30, 20, 40], Order::Sector).largest_rank, 1);
    }

    /// Red if reads count that passed no write, or that a write went between.
    #[test]
    fn reads_pass_a_write_only_while_it_waits() {
        let event = |is_read, submitter| Event { is_read, sector: 0, submitter };
        let (read, write, wait) = (event(true, None), event(false, None), event(false, Some(0)));
        assert_eq!(longest_passing(&[read, read, wait, read, read, write, read]), 2);
        assert_eq!(longest_passing(&[wait, wait, read, write, read, read, read, write]), 3);
    }
}
