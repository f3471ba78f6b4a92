//! Measurements for a limiter: the requests that each thread has completed, and their cost. Each thread writes sums of
//! its own, a batch at a time.

use blkmq_sched::limiter::{Flow, Progress};
use blkmq_sched::{Op, Time};

use crate::queue::accounting::add;
use crate::request::Request;
use blkmq_sync::atomic::{AtomicU64, Ordering};
use blkmq_sync::{Line, unless_mutated};

/// A [`Flow`] that other threads read.
#[derive(Debug, Default)]
struct FlowCells {
    requests: AtomicU64,
    sectors: AtomicU64,
    in_device: AtomicU64,
}

impl FlowCells {
    /// COST: three loads and stores of a line of this thread.
    fn add(&self, flow: &Flow) {
        let cells = [&self.requests, &self.sectors, &self.in_device];
        for (cell, more) in cells.into_iter().zip([flow.requests, flow.sectors, flow.in_device]) {
            add(cell, more);
        }
    }

    fn get(&self) -> Flow {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Flow { requests: get(&self.requests), sectors: get(&self.sectors), in_device: get(&self.in_device) }
    }
}

#[derive(Debug)]
struct Cells {
    reads: FlowCells,
    others: FlowCells,
    /// The total latency of the reads, from submission on, in nanoseconds.
    reads_under_way: AtomicU64,
    /// The cost of completed requests, in nanoseconds; the sum wraps.
    over: AtomicU64,
    /// The fastest read since the last fold, in nanoseconds; the largest value if there was none.
    least_read: AtomicU64,
}

/// The requests that one thread has completed. Only that thread writes the sums. A fold takes the fastest read out; if
/// it races with the thread, a read may be reported twice, or not at all.
#[derive(Debug)]
pub(crate) struct Flows(Line<Cells>);

impl Flows {
    pub(in crate::queue) fn new() -> Self {
        let cells = Cells {
            reads: FlowCells::default(),
            others: FlowCells::default(),
            reads_under_way: AtomicU64::new(0),
            over: AtomicU64::new(0),
            least_read: AtomicU64::new(u64::MAX),
        };
        Self(Line::new("submitter.flows", cells))
    }

    /// The cost of completed requests.
    pub(in crate::queue) fn over(&self) -> u64 {
        self.0.over.load(Ordering::Relaxed)
    }

    /// Adds what the thread has completed, and takes its fastest read.
    pub(in crate::queue) fn add_to(&self, progress: &mut Progress) {
        let cells = &self.0;
        progress.reads += cells.reads.get();
        progress.others += cells.others.get();
        let under_way = cells.reads_under_way.load(Ordering::Relaxed);
        progress.reads_under_way = progress.reads_under_way.saturating_add(under_way);
        if cells.least_read.load(Ordering::Relaxed) < u64::MAX {
            let least = cells.least_read.swap(u64::MAX, Ordering::Relaxed);
            let least = progress.least_read.map_or(least, |known| known.min(least));
            progress.least_read = Some(least).filter(|least| *least < u64::MAX);
        }
    }
}

/// The measurements of one batch.
#[derive(Debug)]
pub(crate) struct FlowBatch<'q> {
    flows: &'q Flows,
    now: Time,
    reads: Flow,
    others: Flow,
    reads_under_way: u64,
    over: u64,
    least_read: u64,
}

impl<'q> FlowBatch<'q> {
    pub(crate) fn new(flows: &'q Flows, now: Time) -> Self {
        let (reads, others) = (Flow::default(), Flow::default());
        Self { flows, now, reads, others, reads_under_way: 0, over: 0, least_read: u64::MAX }
    }

    /// A request has completed. A failed one is no measurement of the device, but its cost counts as completed.
    ///
    /// COST: some additions on the stack, and a load of the request's line.
    #[inline]
    pub(crate) fn add(&mut self, rq: &mut Request<'_>) {
        let (op, sectors, body) = (rq.op(), rq.nr_sectors(), rq.body_mut());
        let cost = u64::from(std::mem::take(&mut body.cost));
        let is_given_back = body.status.is_ok() || unless_mutated("limiter.given_back");
        if is_given_back && unless_mutated("limiter.subtract") {
            self.over += cost;
        }
        if !body.ordered || !body.status.is_ok() && unless_mutated("limiter.failed") {
            return;
        }
        let in_device = self.now.since(body.issued);
        if op == Op::Read {
            self.reads.add(op, sectors, in_device);
            self.reads_under_way = self.reads_under_way.saturating_add(self.now.since(body.submitted));
            self.least_read = self.least_read.min(in_device);
        } else {
            self.others.add(op, sectors, in_device);
        }
    }

    /// Publishes the sums. Called before the completer's fence.
    pub(crate) fn publish(&mut self) {
        let cells = &self.flows.0;
        if self.reads.requests > 0 {
            cells.reads.add(&self.reads);
            add(&cells.reads_under_way, self.reads_under_way);
            if self.least_read < cells.least_read.load(Ordering::Relaxed) {
                cells.least_read.store(self.least_read, Ordering::Relaxed);
            }
        }
        if self.others.requests > 0 {
            cells.others.add(&self.others);
        }
        if self.over > 0 {
            add(&cells.over, self.over);
        }
    }
}
