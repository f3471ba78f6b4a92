//! The null device: null_blk's twin. The device completes its requests without a device behind it, at once or later.
//! The block layer itself is measured and tested on it. With `memory_backed=1` it keeps the data.

mod config;
mod injection;
#[cfg(test)]
mod tests;

use blkmq_sched::Time;

use super::model::{Model, Profile, limits};
use super::parameter::SpecError;
use super::pending::Timed;
use super::store::Store;
use super::{Batch, Request, Topology, TopologyError};
use crate::request::Status;
use crate::request::limits::{Limits, SECTOR_SIZE};
use blkmq_sync::Line;
use blkmq_sync::atomic::{AtomicU16, Ordering};
pub use config::{Config, IrqMode, PARAMETERS};
use injection::{Injection, Strike};

/// The null device.
pub type Null = Model<Config>;

/// What the hardware queues of a null device share.
#[derive(Debug)]
pub struct Shared {
    injection: Option<Injection>,
    /// The first polled hardware queue. Changes only while the block layer has the queue frozen, whose unfreezing
    /// publishes it.
    first_polled: Line<AtomicU16>,
}

impl Shared {
    fn is_polled(&self, hctx: u16) -> bool {
        hctx >= self.first_polled.load(Ordering::Relaxed)
    }
}

/// Does what a request asks for.
fn execute(null: &Null, rq: &mut Request<'_>) -> Status {
    if let Some((first, last)) = null.config.badblocks
        && rq.ranges().any(|(sector, nr)| nr > 0 && sector <= last && sector + u64::from(nr) > first)
    {
        return Status::Medium;
    }
    null.execute(rq, null.config.fua)
}

impl Profile for Config {
    const NAME: &'static str = "null";
    const LINES: [&'static str; 2] = ["null.next_event", "null.pending"];
    type Shared = Shared;
    type Commands = Timed;

    fn check(&self) -> Result<(), SpecError> {
        let block = self.bs / SECTOR_SIZE as u32;
        if self.max_sectors != 0 && self.max_sectors < block {
            return Err(SpecError::new(format!(
                "max_sectors={} is less than a block of {block} sectors",
                self.max_sectors
            )));
        }
        if self.discard && !self.memory_backed {
            return Err(SpecError::new("discard=1 needs memory_backed=1"));
        }
        if self.cache_size > 0 && !self.memory_backed {
            return Err(SpecError::new("cache_size needs memory_backed=1"));
        }
        Ok(())
    }

    fn machine(&self) -> Shared {
        Shared {
            injection: Injection::new(self.timeout, self.requeue, self.seed),
            first_polled: Line::new("null.first_polled", AtomicU16::new(self.submit_queues + self.read_queues)),
        }
    }

    fn store(&self) -> Option<Store> {
        self.memory_backed.then(|| Store::new((self.cache_size > 0).then_some(self.cache_size)))
    }

    fn limits(&self) -> Limits {
        let most = limits(self.bs, self.size);
        let if_on = |on: bool, limit: u32| if on { limit } else { 0 };
        Limits {
            max_sectors: if self.max_sectors == 0 { most.max_sectors } else { self.max_sectors },
            max_discard_sectors: if_on(self.discard, most.max_discard_sectors),
            max_write_zeroes_sectors: if_on(self.memory_backed, most.max_write_zeroes_sectors),
            write_cache: self.cache_size > 0,
            fua: self.fua && self.cache_size > 0,
            rotational: self.rotational,
            ..most
        }
    }

    fn topology(&self) -> Topology {
        Topology {
            default_queues: self.submit_queues,
            read_queues: self.read_queues,
            poll_queues: self.poll_queues,
            depth: self.hw_queue_depth,
        }
    }

    fn takes_time(&self) -> bool {
        self.irqmode == IrqMode::Timer
    }

    fn is_concurrent(&self) -> bool {
        self.irqmode == IrqMode::Inline && !self.memory_backed
    }

    fn set_topology(null: &Null, topology: Topology) -> Result<(), TopologyError> {
        topology.check()?;
        null.machine.first_polled.store(topology.default_queues + topology.read_queues, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn is_inline(null: &Null, hctx: u16) -> bool {
        null.config.irqmode == IrqMode::Inline && !null.machine.is_polled(hctx)
    }

    /// COST: with `irqmode=0` and without data and faults no lock, no shared line written, no clock; a walk over the
    /// requests. Where requests finish later, one lock of the hardware queue per batch. Nothing is allocated but
    /// the pages of a memory-backed device.
    fn queue_rqs(null: &Null, hctx: u16, mut pending: Option<&mut Timed>, batch: &mut Batch<'_>, now: Time) {
        let Model { config, store, machine, .. } = null;
        if pending.is_none() && store.is_none() && machine.injection.is_none() && config.badblocks.is_none() {
            return batch.finish_all(Status::Ok);
        }
        // A polled request is finished when a thread looks, as in null_blk.
        let is_timed = config.irqmode == IrqMode::Timer && !machine.is_polled(hctx);
        let due = if is_timed { now.after(config.completion_nsec) } else { Time(0) };
        while let Some(mut rq) = batch.next_request() {
            match machine.injection.as_ref().and_then(Injection::next) {
                None => {
                    let status = execute(null, &mut rq);
                    match &mut pending {
                        None => batch.finish(rq, status),
                        Some(pending) => pending.push(batch.start(rq), due, status),
                    }
                }
                Some(Strike::Refuse) => batch.refuse(rq),
                Some(Strike::Requeue) => batch.requeue(rq),
                // The id is forgotten: only the timeout scan ends this request.
                Some(Strike::Swallow) => _ = batch.start(rq),
            }
        }
    }
}
