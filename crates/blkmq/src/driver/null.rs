//! The null device: null_blk's twin. The device completes its requests without a device behind it, at once or later.
//! The block layer itself is measured and tested on it. With `memory_backed=1` it keeps the data.

mod config;
mod injection;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::sync::OnceLock;

use blkmq_sched::{RqId, Time};

use super::store::Store;
use super::{Batch, Done, Driver, DueTimes, Extent, NextEvent, Request, TimeoutAction, Topology, TopologyError};
use crate::request::Status;
use crate::request::limits::{Limits, MAX_HW_QUEUES};
use blkmq_sync::atomic::{AtomicU16, AtomicU64, Ordering};
use blkmq_sync::{Line, Mutex};
pub use config::{Config, IrqMode, PARAMETERS};
use injection::{Injection, Strike};

/// The null device.
pub struct Null {
    config: Config,
    store: Option<Store>,
    injection: Option<Injection>,
    /// The first polled hardware queue. Changes only while the block layer has the queue frozen, whose unfreezing
    /// publishes it.
    first_polled: Line<AtomicU16>,
    queues: Box<[OnceLock<Box<Pending>>]>,
}

/// The requests of a hardware queue that the device works on, in the order in which they finish: all take equally long.
#[derive(Debug)]
struct Pending {
    /// When the first one is finished, for a look without the lock; [`NEVER`] if there is none.
    next_due: Line<AtomicU64>,
    queue: Line<Mutex<VecDeque<Started>>>,
}

/// A time that never comes, in nanoseconds.
const NEVER: u64 = u64::MAX;

#[derive(Debug, Clone, Copy)]
struct Started {
    id: RqId,
    due: Time,
    status: Status,
}

impl Pending {
    fn new() -> Self {
        Self {
            next_due: Line::new("null.next_due", AtomicU64::new(NEVER)),
            queue: Line::new("null.pending", Mutex::new(VecDeque::new())),
        }
    }

    /// Under the lock: notes when the next request is due. A look that misses the change is made again: a thread that
    /// waits for requests keeps polling, or asks [`Null::next_event`], which takes the lock.
    fn note_next_due(&self, queue: &VecDeque<Started>) {
        let due = queue.front().map_or(NEVER, |started| started.due.0);
        self.next_due.store(due, Ordering::Relaxed);
    }
}

impl Null {
    /// A null device.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let store = config.memory_backed.then(|| Store::new((config.cache_size > 0).then_some(config.cache_size)));
        let null = Self {
            store,
            injection: Injection::new(config.timeout, config.requeue, config.seed),
            first_polled: Line::new("null.first_polled", AtomicU16::new(0)),
            queues: (0..MAX_HW_QUEUES).map(|_| OnceLock::new()).collect(),
            config,
        };
        null.prepare(null.topology());
        null
    }

    /// Cuts the power: data that is not durable is lost, and every request fails until the power is back. A request in
    /// progress takes place wholly before or after the loss, block by block. Without `memory_backed` nothing happens.
    pub fn lose_power(&self) {
        if let Some(store) = &self.store {
            store.lose_power();
        }
    }

    /// Switches the power on again.
    pub fn restore_power(&self) {
        if let Some(store) = &self.store {
            store.restore_power();
        }
    }

    /// Makes the state of the hardware queues that need one.
    fn prepare(&self, topology: Topology) {
        let first_polled = topology.default_queues + topology.read_queues;
        self.first_polled.store(first_polled, Ordering::Relaxed);
        let depth = usize::from(topology.depth);
        for hctx in (0..).take(topology.nr_queues()).filter(|&hctx| !self.is_inline(hctx)) {
            let mut queue = self.queues[usize::from(hctx)].get_or_init(|| Box::new(Pending::new())).queue.lock();
            let missing = depth.saturating_sub(queue.len());
            queue.reserve(missing);
        }
    }

    /// Whether requests of this hardware queue finish when they are issued.
    fn is_inline(&self, hctx: u16) -> bool {
        self.config.irqmode == IrqMode::Inline && hctx < self.first_polled.load(Ordering::Relaxed)
    }

    /// The requests that a hardware queue works on; `None` if it does not keep any.
    fn pending(&self, hctx: u16) -> Option<&Pending> {
        if self.is_inline(hctx) { None } else { self.queues[usize::from(hctx)].get().map(|pending| &**pending) }
    }

    /// When a request issued now is finished. A polled request is finished when a thread looks, as in null_blk.
    fn due(&self, hctx: u16, now: Time) -> Time {
        let is_timed = self.config.irqmode == IrqMode::Timer && hctx < self.first_polled.load(Ordering::Relaxed);
        if is_timed { now.after(self.config.completion_nsec) } else { Time(0) }
    }

    /// Whether nothing is stored, and no request ever fails.
    fn takes_everything(&self) -> bool {
        self.store.is_none() && self.injection.is_none() && self.config.badblocks.is_none()
    }

    /// Does what the request asks for.
    fn execute(&self, rq: &mut Request<'_>) -> Status {
        if let Some((first, last)) = self.config.badblocks
            && rq.ranges().any(|(sector, nr)| nr > 0 && sector <= last && sector + u64::from(nr) > first)
        {
            return Status::Medium;
        }
        self.store.as_ref().map_or(Status::Ok, |store| store.execute(rq, self.config.fua))
    }
}

impl Driver for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn limits(&self) -> Limits {
        self.config.limits()
    }

    fn topology(&self) -> Topology {
        self.config.topology()
    }

    fn set_topology(&self, topology: Topology) -> Result<(), TopologyError> {
        topology.check()?;
        self.prepare(topology);
        Ok(())
    }

    fn keeps_data(&self) -> bool {
        self.store.is_some()
    }

    fn extent(&self, start: u64, bytes: u64) -> Extent {
        self.store.as_ref().map_or(Extent::data(bytes), |store| store.extent(start, bytes))
    }

    fn takes_time(&self) -> bool {
        self.config.irqmode == IrqMode::Timer
    }

    fn is_concurrent(&self) -> bool {
        self.config.irqmode == IrqMode::Inline && self.store.is_none()
    }

    /// COST: with `irqmode=0` and without data and faults no lock, no shared line written, no clock; a walk over the
    /// requests. Where requests finish later, one lock of the hardware queue per batch. Nothing is allocated but
    /// the pages of a memory-backed device.
    fn queue_rqs(&self, hctx: u16, batch: &mut Batch<'_>, now: Time) {
        let pending = self.pending(hctx);
        if pending.is_none() && self.takes_everything() {
            return batch.finish_all(Status::Ok);
        }
        let due = self.due(hctx, now);
        // Held until the batch is done, so that no thread looks for a request between its start and its place in the
        // queue.
        let mut queue = pending.map(|pending| pending.queue.lock());
        while let Some(mut rq) = batch.next_request() {
            match self.injection.as_ref().and_then(Injection::next) {
                None => {
                    let status = self.execute(&mut rq);
                    match &mut queue {
                        None => batch.finish(rq, status),
                        Some(queue) => queue.push_back(Started { id: batch.start(rq), due, status }),
                    }
                }
                Some(Strike::Refuse) => batch.refuse(rq),
                Some(Strike::Requeue) => batch.requeue(rq),
                // The id is forgotten: only the timeout scan ends this request.
                Some(Strike::Swallow) => _ = batch.start(rq),
            }
        }
        if let (Some(pending), Some(queue)) = (pending, &queue) {
            pending.note_next_due(queue);
        }
    }

    /// COST: one load of a line that only changes with the first request in flight, if nothing is due.
    fn poll(&self, hctx: u16, done: &mut Done<'_>, now: Time) {
        let Some(pending) = self.pending(hctx) else { return };
        let due = pending.next_due.load(Ordering::Relaxed);
        if due == NEVER || due > now.0 {
            return;
        }
        let mut queue = pending.queue.lock();
        while let Some(started) = queue.pop_front_if(|started| started.due <= now) {
            // A stale id is a request that the timeout scan ended in between. No thread waits for it any more.
            let _ = done.complete(started.id, started.status);
        }
        pending.note_next_due(&queue);
    }

    fn next_event(&self, hctx: u16) -> NextEvent {
        let due = self.pending(hctx).and_then(|pending| pending.queue.lock().front().map(|started| started.due));
        NextEvent::from(due)
    }

    fn due_times(&self, hctx: u16, due: &mut DueTimes<'_>) {
        if let Some(pending) = self.pending(hctx) {
            pending.queue.lock().iter().for_each(|started| due.add(started.id, started.due));
        }
    }

    /// Gives every request up: those that the device swallowed and those that would finish later.
    fn timeout(&self, hctx: u16, id: RqId, _now: Time) -> TimeoutAction {
        if let Some(pending) = self.pending(hctx) {
            pending.queue.lock().retain(|started| started.id != id);
        }
        TimeoutAction::Done
    }

    fn show(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        writeln!(out, "null {}", self.config)?;
        if let Some(store) = &self.store {
            store.show(out)?;
        }
        for (hctx, queue) in self.queues.iter().enumerate() {
            let pending = queue.get().map_or(0, |pending| pending.queue.lock().len());
            if pending > 0 {
                writeln!(out, "hctx {hctx}: pending={pending}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Null {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Null").field("config", &self.config).finish_non_exhaustive()
    }
}
